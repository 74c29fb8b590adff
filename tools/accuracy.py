"""Compares predicted steps with measured ones: `make accuracy`.

    python -m tools.accuracy            # every measured edit whose base trace exists
    python -m tools.accuracy --write    # and renews tables/prediction-intervals.yaml from them
    THREE_WALLS_TRACES=/traces python -m tools.accuracy

Prints the verdict on the traces whose wall is known; for every base trace the replay error and the predicted unprofiled
step; for every edit of ``benchmarks/measured_pairs.yaml`` the predicted gain with its range, and the measured one; then
a table of scores. No edit is left out for what it measured. The range of an edit is the one that the edits of all
*other* bases give, so that it was learnt without the run that it is tested on. Exits with 1 if a verdict is wrong, a
gate is not met, or the shipped intervals are not those of the pairs.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import sqrt
from pathlib import Path
from statistics import correlation, fmean, median, stdev

import click
import yaml

from three_walls.advice.answer_what_if import ReplayedRun, find_changes
from three_walls.advice.counterfactuals import heal
from three_walls.advice.verdict_rows import Verdict
from three_walls.advice.what_if import Question
from three_walls.advice.widening import find_limits
from three_walls.lib.fact import FactSheet
from three_walls.lib.plain_data import ConfigData
from three_walls.lib.resources import TABLES_DIR
from three_walls.log.read_log import read_logs
from three_walls.megatron.settings.option_words import read_user_settings
from three_walls.pipeline import analyze, replay_run
from three_walls.tables.prediction_intervals import (
    Inside,
    Levels,
    MeasuredGain,
    PredictionIntervals,
    Regime,
    find_quantile,
    prediction_intervals,
)
from three_walls.trace.run_request import RunRequest

ROOT = Path(__file__).resolve().parent.parent
PAIRS = ROOT / "benchmarks" / "measured_pairs.yaml"
README = ROOT / "README.md"
INTERVALS = TABLES_DIR / "prediction-intervals.yaml"

LEAST_INSIDE_FRACTION = 0.8
MOST_MEDIAN_WIDTH_FRACTION = 0.13
LEAST_RANK_CORRELATION = 0.85
SAME_QUANTILE_RATIO = 0.02
"""The shipped quantile may differ by this from the one that the pairs give: replays change in small ways."""
NEAR_STEP_FRACTION = 0.05
WARM_UP_ITERATIONS, LEAST_LOGGED_STEPS = 2, 5
STILL_FRACTION = 0.03
"""The most noise that an edit may have whose base is said to hold still."""
HELPS_FRACTION = 0.03
"""An edit that is predicted to shorten the step by more than this must not lengthen it."""


@dataclass(frozen=True, slots=True)
class MeasuredEdit:
    """An edit of measured_pairs.yaml."""

    name: str
    base: str
    settings: tuple[str, ...]
    heals: bool
    base_ms: float
    edited_ms: float
    noise_ms: float
    same_run: bool
    is_set_aside: bool
    base_runs_ms: tuple[float, ...] = ()
    """Every run of the base in the session of the edit; empty where they are not known."""
    gpus: int | None = None
    """Those of the runs, where they are not as many as the base trace's."""
    runs: int = 1
    """Of the edit, each between two of the base."""

    @property
    def spread_ms(self) -> float:
        """What the mean of as many runs differs from the mean of the base's runs by; 0 for fewer than two of these."""
        count = len(self.base_runs_ms)
        return stdev(self.base_runs_ms) * sqrt(1 / self.runs + 1 / count) if count > 1 else 0.0

    @property
    def kind(self) -> str:
        """What is changed, whatever the run: ``twice the micro-batch``."""
        return self.name.partition(",")[0]


@dataclass(frozen=True, slots=True)
class Comparison:
    """An edit's gain as a fraction of the unprofiled step, predicted and measured."""

    edit: MeasuredEdit
    gain: MeasuredGain
    noise: float
    """What two runs of the base differ by."""
    printed: Levels
    """The replayed gain with the range that is printed."""
    effects: tuple[str, ...] = ()
    gpus: int | None = None
    """How many the edit was measured on; None where neither the pair nor the trace says so."""

    @property
    def measured(self) -> float:
        return self.gain.measured

    @property
    def likely(self) -> float:
        return self.printed.likely

    @property
    def width(self) -> float:
        return self.printed.high - self.printed.low

    def is_inside(self, noise: float = 0.0) -> bool:
        """Whether the printed range, wider by ``noise`` at both ends, holds the measured gain."""
        return self.printed.low - noise <= self.measured <= self.printed.high + noise


def read_edits() -> tuple[MeasuredEdit, ...]:
    """The measured edits."""
    pairs = yaml.safe_load(PAIRS.read_text())
    base_runs_ms = {group["name"]: tuple(group.get("base_runs_ms", ())) for group in pairs["groups"]}
    return tuple(
        MeasuredEdit(
            name=row["name"],
            base=row["base"],
            settings=tuple(row.get("set", ())),
            heals=row.get("heals", False),
            base_ms=row["base_ms"],
            edited_ms=row["edited_ms"],
            noise_ms=row["noise_ms"],
            same_run=row["same_run"],
            is_set_aside=row.get("set_aside", False),
            base_runs_ms=base_runs_ms[row["group"]] if "group" in row else (),
            runs=row.get("runs", 1),
            gpus=row.get("gpus"),
        )
        for row in pairs["edits"]
    )


def read_groups() -> dict[str, list[dict[str, object]]]:
    """The runs of every group of measured pairs."""
    return {group["name"]: group["runs"] for group in yaml.safe_load(PAIRS.read_text())["groups"]}


def find_base(name: str) -> Path | None:
    """The trace called ``name``: a file or folder."""
    folders = [
        ROOT / "benchmarks" / "traces",
        ROOT / "sample_traces",
        *map(Path, filter(None, os.environ.get("THREE_WALLS_TRACES", "").split(":"))),
    ]
    for folder in reversed(folders):  # traces with all their ranks and logs before samples
        for path in (folder / name, *(folder / f"{name}.sqlite{suffix}" for suffix in ("", ".xz", ".zst"))):
            if path.exists():
                return path
    return None


def list_logged() -> list[str]:
    """The traces of the repository with a log, which shows their unprofiled step."""
    logs = (log for folder in ("benchmarks/traces", "sample_traces") for log in (ROOT / folder).glob("*/*.log"))
    return sorted(name for name in {log.parent.name for log in logs} if not name.endswith("-runs"))


def read_walls() -> tuple[tuple[str, str], ...]:
    """Base traces whose wall is known, with that wall (or "rank N", a straggler)."""
    return tuple((row["base"], row["wall"]) for row in yaml.safe_load(PAIRS.read_text())["walls"])


def name_wall(verdict: Verdict) -> str:
    """The verdict as ``walls`` of measured_pairs.yaml name it."""
    if verdict.culprit is not None:
        return f"rank {verdict.culprit.rank}"
    return ".".join(filter(None, (verdict.wall, verdict.sub_wall))) or "none"


def find_settings(path: Path) -> tuple[tuple[Path, ...], Path | None]:
    """The logs and the config beside the traces at ``path``."""
    logs: tuple[Path, ...] = ()
    config = None
    if path.is_dir():
        logs = tuple(sorted(path.glob("*.log")))
        config = next(iter(path.glob("run_config.yaml")), None)
    else:
        beside = path.with_name(path.name.split(".")[0] + ".train.log.xz")
        logs = (beside,) if beside.exists() else ()
    return logs, config


@cache
def load_base(path: Path) -> ReplayedRun:
    """The run at ``path``, with the logs and the config beside its traces."""
    logs, config = find_settings(path)
    return replay_run(RunRequest((path,), logs, config))


def compare(edit: MeasuredEdit, run: ReplayedRun) -> Comparison | str:
    """Predicted against measured, with the shipped intervals; or why nothing is predicted."""
    predictor = run.predictor
    if predictor.missing_reason:
        return predictor.missing_reason
    stated = read_user_settings(edit.settings)
    settings: dict[str, ConfigData] = {f"config.{key}": found.value for key, found in stated.values.items()}
    settings |= {f"env.{name}": found.value for name, found in stated.environment.items()}
    changes = find_changes(Question(settings=settings), run)
    if changes.unknown:
        return "; ".join(changes.unknown)
    transformations = changes.transformations
    if edit.heals:
        transformations = (*transformations, heal((round(run.facts.number("culprit_rank") or 0),)))
    now, step = predictor.step_ns.likely_ns, predictor.predict(transformations)
    replayed = Levels(*((now - ns) / now for ns in (step.high_ns, step.likely_ns, step.low_ns)))
    measured = (edit.base_ms - edit.edited_ms) / edit.base_ms
    limits, after = (find_limits(predictor, run.facts, changed) for changed in ((), transformations))
    gain = MeasuredGain(replayed, measured, limits, after, changes.effects)
    noise_ms = max(edit.noise_ms, edit.spread_ms, _measure_mismatch_ms(edit, run))
    return Comparison(
        edit,
        gain,
        noise=noise_ms / edit.base_ms,
        printed=prediction_intervals().widen(replayed, limits, after, changes.effects),
        effects=changes.effects,
        gpus=edit.gpus or _count_gpus(run.facts),
    )


def _count_gpus(facts: FactSheet) -> int | None:
    ranks = facts.number("world_size")
    return None if ranks is None else int(ranks)


def _measure_mismatch_ms(edit: MeasuredEdit, run: ReplayedRun) -> float:
    """Half of what the base of the edit and the traced run differ by: often other machines, whose hosts differ."""
    logged_ns = run.facts.number("unprofiled_step_ns")
    return 0.0 if edit.same_run or logged_ns is None else abs(logged_ns / 1e6 - edit.base_ms) / 2


def correlate_ranks(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rank correlation, equals at one rank; None for fewer than three pairs, or all alike on a side."""
    sides = list(zip(*pairs, strict=True))
    if len(pairs) < 3 or any(len(set(side)) == 1 for side in sides):
        return None
    ranks = [[sum(other < value for other in side) + side.count(value) / 2 for value in side] for side in sides]
    return correlation(*ranks)


def count_best_first(compared: Sequence[Comparison]) -> tuple[int, int]:
    """For how many bases the edit with the best prediction measured best, within its noise, and how many there are.

    Only bases with two or more edits count.
    """
    by_base: dict[str, list[Comparison]] = {}
    for each in compared:
        by_base.setdefault(each.edit.base, []).append(each)
    several = [edits for edits in by_base.values() if len(edits) > 1]
    right = 0
    for edits in several:
        first = max(edits, key=lambda each: each.likely)
        right += first.measured + first.noise >= max(each.measured for each in edits)
    return right, len(several)


@dataclass(frozen=True, slots=True)
class Base:
    """What a base trace shows without its edits."""

    name: str
    description: str
    off: float | None = None
    """By how much the predicted unprofiled step is off, as a share of the log's; None where one is not known."""
    step_score: float = 0.0
    """That, as a multiple of the range that is not widened by ``step_ratio``, on the side of the log."""
    logged_off: tuple[float, ...] = ()
    """By how much each step of its log before the capture is off the median of the others."""


def check_base(name: str) -> Base:
    """The base trace called ``name``."""
    path = find_base(name)
    if path is None:
        return Base(name, "no such trace here")
    facts = load_base(path).facts
    ends = [facts.number(f"predicted_unprofiled_step{end}_ns") for end in ("_low", "", "_high")]
    error, logged = facts.number("replay_error_fraction"), facts.number("unprofiled_step_ns")
    low, predicted, high = ends
    if error is None or predicted is None or low is None or high is None:
        return Base(name, str(facts.get("replay_error_fraction").missing_reason))
    described = f"replay error {error:.2%}; unprofiled step {predicted / 1e6:.0f} ms"
    if not logged:
        return Base(name, f"{described}, no log")
    off = predicted / logged - 1
    half_ns = (high - predicted if logged > predicted else predicted - low) / prediction_intervals().step_ratio
    described += f", log {logged / 1e6:.0f} ms ({off:+.1%})"
    return Base(name, described, off, abs(predicted - logged) / half_ns, compare_logged_steps(path, facts))


def compare_logged_steps(path: Path, facts: FactSheet) -> tuple[float, ...]:
    """By how much each step of the log beside ``path`` is off the median of the others; those before the capture count,
    without the first two."""
    last = facts.number("config.profile_step_start") or 0
    iterations = read_logs(sorted(path.glob("*.log"))).iterations if path.is_dir() else ()
    steps_ns = [each.elapsed_ns for each in iterations if WARM_UP_ITERATIONS < each.iteration <= last]
    if len(steps_ns) < LEAST_LOGGED_STEPS:
        return ()
    others = (median(steps_ns[:place] + steps_ns[place + 1 :]) for place in range(len(steps_ns)))
    return tuple(step_ns / other - 1 for step_ns, other in zip(steps_ns, others, strict=True))


def describe_steps(bases: Sequence[Base]) -> str:
    """How near the predicted unprofiled steps are to the logs, and in how many ranges that other bases give."""
    known = [base for base in bases if base.off is not None]
    near = sum(abs(base.off or 0) <= NEAR_STEP_FRACTION for base in known)
    inside = sum(base.step_score <= learn_step_ratio([other for other in known if other is not base]) for base in known)
    told = (
        f"unprofiled step without a log: within {NEAR_STEP_FRACTION:.0%} of the log on {near} of {len(known)} traces; "
        f"the log inside the range on {inside}"
    )
    logs = [base.logged_off for base in bases if base.logged_off]
    if not logs:
        return told
    alike = fmean(fmean(abs(off) <= NEAR_STEP_FRACTION for off in steps) for steps in logs)
    return (
        f"{told}\nsteps of one log within {NEAR_STEP_FRACTION:.0%} of its others: {alike:.0%} ({len(logs)} logs), "
        "so a captured step cannot show more"
    )


def learn_step_ratio(bases: Iterable[Base]) -> float:
    scores = [base.step_score for base in bases if base.off is not None]
    return find_quantile(scores, prediction_intervals().step_coverage_fraction) if scores else 1.0


def leave_bases_out(compared: Sequence[Comparison]) -> list[Comparison]:
    """``compared`` with the ranges that the edits of all other bases give."""
    shipped = prediction_intervals()
    found = []
    for each in compared:
        others = [other for other in compared if other.edit.base != each.edit.base]
        if others:
            quantile = shipped.learn(other.gain for other in others)
            intervals = replace(shipped, quantile=quantile, edits=count_edits(others))
            printed = intervals.widen(each.gain.replayed, each.gain.limits, each.gain.after, each.effects)
            found.append(replace(each, printed=printed))
    return found


@dataclass(frozen=True, slots=True)
class Score:
    """How well predictions of some edits did."""

    count: int
    inside: int
    """Measured gains inside their ranges as they stand."""
    inside_with_noise: int
    median_width: float
    rank_correlation: float | None
    mean_error: float
    """Of the likely gain, as a share of the step."""
    harmful: int
    """Predicted to help by more than HELPS_FRACTION, and slower than the base."""

    @staticmethod
    def of(compared: Sequence[Comparison]) -> Score:
        return Score(
            count=len(compared),
            inside=sum(each.is_inside() for each in compared),
            inside_with_noise=sum(each.is_inside(each.noise) for each in compared),
            median_width=median(each.width for each in compared),
            rank_correlation=correlate_ranks([(each.likely, each.measured) for each in compared]),
            mean_error=fmean(abs(each.measured - each.likely) for each in compared),
            harmful=sum(each.likely > HELPS_FRACTION and each.measured < 0 for each in compared),
        )

    def describe(self) -> tuple[str, ...]:
        return (
            f"{self.inside} of {self.count} ({self.inside / self.count:.0%})",
            f"{self.inside_with_noise} of {self.count}",
            f"{self.median_width:.1%}",
            "unknown" if self.rank_correlation is None else f"{self.rank_correlation:.2f}",
            f"{100 * self.mean_error:.1f} points",
            str(self.harmful),
        )

    @property
    def is_enough(self) -> bool:
        """Whether the gates are met."""
        return (
            self.inside >= LEAST_INSIDE_FRACTION * self.count
            and self.median_width <= MOST_MEDIAN_WIDTH_FRACTION
            and (self.rank_correlation or 0) >= LEAST_RANK_CORRELATION
        )


def take_bases_as_edits(compared: Iterable[Comparison]) -> list[Comparison]:
    """Every run of a base between two of its session, as an edit that changes nothing: what measuring alone is off."""
    sessions = {(each.edit.base, each.edit.base_runs_ms): each for each in compared}
    found = []
    for (_, runs_ms), each in sessions.items():
        limits = each.gain.limits
        printed = prediction_intervals().widen(Levels(0.0, 0.0, 0.0), limits, limits, each.effects)
        for before_ms, run_ms, after_ms in zip(runs_ms, runs_ms[1:], runs_ms[2:], strict=False):
            gain = replace(each.gain, replayed=Levels(0.0, 0.0, 0.0), measured=1 - 2 * run_ms / (before_ms + after_ms))
            found.append(replace(each, gain=gain, printed=printed))
    return found


def describe_repeats(compared: Iterable[Comparison]) -> str:
    """How near one more run of a base, another process each, is to the mean of its others."""
    sessions = {(each.edit.base, each.edit.base_runs_ms): each for each in compared}
    is_near: dict[Regime, list[bool]] = {regime: [] for regime in Regime}
    for (_, runs_ms), each in sessions.items():
        for place, run_ms in enumerate(runs_ms):
            if others := (*runs_ms[:place], *runs_ms[place + 1 :]):
                is_near[each.gain.limits.regime].append(abs(run_ms / fmean(others) - 1) <= NEAR_STEP_FRACTION)
    counts = ", ".join(f"{regime.value} {sum(near)} of {len(near)}" for regime, near in is_near.items() if near)
    every = [near for some in is_near.values() for near in some]
    return (
        f"a base run again: within {NEAR_STEP_FRACTION:.0%} of the mean of its other runs in {sum(every)} of "
        f"{len(every)} runs ({counts})"
    )


def _of_regime(compared: Iterable[Comparison], regime: Regime) -> list[Comparison]:
    return [each for each in compared if each.gain.limits.regime is regime]


def list_groups(compared: Sequence[Comparison]) -> Iterator[tuple[str, list[Comparison]]]:
    """Groups of edits that are scored, each with a title."""
    yield "all", list(compared)
    yield "predicted before they were measured", [each for each in compared if each.edit.is_set_aside]
    yield "bases that held still (3% of noise at most)", [each for each in compared if each.noise <= STILL_FRACTION]
    for regime in Regime:
        yield f"{regime.value} runs", _of_regime(compared, regime)
    for gpus in sorted({each.gpus for each in compared if each.gpus}):
        yield f"{gpus} GPU{'s' if gpus > 1 else ''}", [each for each in compared if each.gpus == gpus]
    for effect in sorted({effect for each in compared for effect in each.effects}):
        if len(group := [each for each in compared if each.effects == (effect,)]) > 2:
            yield effect, group


def describe_baselines(compared: Sequence[Comparison]) -> Iterator[str]:
    """The mean error and the rank correlation of what anybody could say without a trace."""
    medians = []
    for each in compared:
        of_kind = (other for other in compared if other.edit.kind == each.edit.kind)
        others = [other.measured for other in of_kind if other.edit.base != each.edit.base]
        medians.append(median(others) if others else 0.0)
    for title, guesses in (
        ("the median of what the edit measured on other bases", medians),
        ("no edit changes anything", [0.0] * len(compared)),
    ):
        error = fmean(abs(each.measured - guess) for each, guess in zip(compared, guesses, strict=True))
        pairs = [(guess, each.measured) for each, guess in zip(compared, guesses, strict=True)]
        correlated = correlate_ranks(pairs)
        shown = "none" if correlated is None else f"{correlated:.2f}"
        yield f"{title}: mean error {100 * error:.1f} points; rank correlation {shown}"


def count_edits(compared: Sequence[Comparison]) -> dict[Regime, dict[str, int]]:
    """Regime to effect to how many edits were measured."""
    counts: dict[Regime, Counter[str]] = {regime: Counter() for regime in Regime}
    for each in compared:
        counts[each.gain.limits.regime].update(each.effects)
    return {regime: dict(sorted(count.items())) for regime, count in counts.items()}


def count_inside(scored: Sequence[Comparison]) -> dict[Regime, Inside]:
    groups = {regime: _of_regime(scored, regime) for regime in Regime}
    return {regime: Inside(sum(each.is_inside() for each in group), len(group)) for regime, group in groups.items()}


def learn(compared: Sequence[Comparison], bases: Sequence[Base]) -> PredictionIntervals:
    """The intervals that all pairs and logs give."""
    shipped = prediction_intervals()
    return replace(
        shipped,
        step_ratio=round(learn_step_ratio(bases), 3),
        quantile=round(shipped.learn(each.gain for each in compared), 3),
        inside=count_inside(leave_bases_out(compared)),
        edits=count_edits(compared),
    )


def write_intervals(learnt: PredictionIntervals) -> None:
    """Renews what is learnt in prediction-intervals.yaml."""
    text = re.sub(r"(?ms)^step_ratio: .*", "", INTERVALS.read_text())
    edits = {regime.value: dict(counts) for regime, counts in learnt.edits.items()}
    inside = {regime.value: asdict(count) for regime, count in learnt.inside.items()}
    values = {"step_ratio": learnt.step_ratio, "quantile": learnt.quantile, "inside": inside, "edits": edits}
    INTERVALS.write_text(text + yaml.safe_dump(values, sort_keys=False))


def is_current(shipped: PredictionIntervals, learnt: PredictionIntervals) -> bool:
    """Whether the ``shipped`` intervals are those that were ``learnt``."""
    ratios = (shipped.quantile / learnt.quantile, shipped.step_ratio / learnt.step_ratio)
    same = all(abs(ratio - 1) <= SAME_QUANTILE_RATIO for ratio in ratios)
    counted = all(shipped.edits.get(regime, {}) == learnt.edits[regime] for regime in Regime)
    return same and counted and shipped.inside == learnt.inside


@click.command(help=__doc__)
@click.option("--write", is_flag=True, help="Renew tables/prediction-intervals.yaml.")
def main(*, write: bool) -> None:
    edits = read_edits()
    wrong = _print_walls()
    compared: list[Comparison] = []
    bases = [check_base(name) for name in dict.fromkeys((*(edit.base for edit in edits), *list_logged()))]
    for base in bases:
        click.echo(f"{base.name:28} {base.description}")
    click.echo()
    click.echo(f"{'edit':64} {'predicted':>10} {'range':>18} {'measured':>9}")
    for edit in edits:
        path = find_base(edit.base)
        found = compare(edit, load_base(path)) if path else f"no trace {edit.base} here"
        if isinstance(found, str):
            click.echo(f"{edit.name:64} not predicted: {found}")
        else:
            compared.append(found)
    if not compared:
        sys.exit("nothing to compare")
    scored = leave_bases_out(compared)
    for each in scored:
        span = f"{each.printed.low:.1%} to {each.printed.high:.1%}"
        mark = "" if each.is_inside() else "  outside" + (", within the noise" if each.is_inside(each.noise) else "")
        click.echo(f"{each.edit.name:64} {each.likely:>10.1%} {span:>18} {each.measured:>9.1%}{mark}")
    for line in describe_scores(scored):
        click.echo(line)
    click.echo(f"not predicted: {len(edits) - len(scored)} of {len(edits)} edits")
    right, judged = count_best_first(scored)
    click.echo(f"best predicted edit measured best, within the noise: {right} of {judged} traces with several edits")
    click.echo(describe_steps(bases))
    click.echo(describe_repeats(scored))
    learnt = learn(compared, bases)
    if write:
        write_intervals(learnt)
    stale = not write and not is_current(prediction_intervals(), learnt)
    if stale:
        click.echo(
            f"{INTERVALS.name} is not what these pairs give ({learnt.quantile}, {learnt.step_ratio}): run --write"
        )
    if untold := list_untold(README.read_text(), scored, len(edits)):
        click.echo(f"the README lacks: {'; '.join(untold)}")
    sys.exit(int(bool(wrong) or stale or bool(untold) or not Score.of(scored).is_enough))


def describe_scores(scored: Sequence[Comparison]) -> Iterator[str]:
    """A table in Markdown, then the baselines."""
    yield ""
    yield "| edits | inside | with the base's noise | median width | rank correlation | mean error | harmful |"
    yield "|---|---|---|---|---|---|---|"
    for title, group in list_groups(scored):
        if group:
            yield f"| {' | '.join((title, *Score.of(group).describe()))} |"
    unchanged = take_bases_as_edits(scored)
    by_regime = ((f", {regime.value} runs", _of_regime(unchanged, regime)) for regime in Regime)
    for title, group in (("", unchanged), *by_regime):
        if group:
            inside, _, width, _, error, _ = Score.of(group).describe()
            yield f"| unchanged bases, taken as edits{title} | {inside} | | {width} | | {error} | |"
    yield ""
    yield from describe_baselines(scored)


def list_untold(readme: str, scored: Sequence[Comparison], edits_count: int) -> list[str]:
    """Of the claims that these edits allow, those that ``readme`` does not make.

    ``edits_count``: of all measured edits, predicted or not.
    """
    score, text = Score.of(scored), " ".join(readme.split())
    unchanged = take_bases_as_edits(scored)
    claims = (
        f"Of {edits_count} measured edits {score.count} are predicted, and {score.inside} of these"
        f" ({score.inside / score.count:.0%})",
        f"the median range is {score.median_width:.1%} of the step wide",
        f"off by {100 * score.mean_error:.1f} points",
        *([f"{100 * Score.of(unchanged).mean_error:.1f} where a run of the unchanged base"] if unchanged else []),
    )
    return [claim for claim in claims if claim not in text]


def _print_walls() -> int:
    """Prints the verdict on every base whose wall is known; how many are wrong."""
    wrong = 0
    for base, wall in read_walls():
        path = find_base(base)
        if path is None:
            continue
        logs, config = find_settings(path)
        found = name_wall(analyze([path], logs=logs, config=config).verdict)
        wrong += found != wall
        click.echo(f"{base:28} wall {found}, {'as known' if found == wall else f'EXPECTED {wall}'}")
    click.echo()
    return wrong


if __name__ == "__main__":
    main()
