"""Compares predicted steps with measured ones: `make accuracy`.

    python -m tools.accuracy            # every measured edit whose base trace exists
    THREE_WALLS_TRACES=/traces python -m tools.accuracy

Prints for every base trace the replay error and the predicted unprofiled step, and for every edit of
``benchmarks/measured_pairs.yaml`` the predicted gain with its range, the measured one, and whether the range holds it;
then the share of edits inside, the median width of a range, the rank correlation, for how many traces the edit that was
predicted best measured best, and how many edits that were to help made the step slower. The same follows for runs of
one or two GPUs, of four and of eight, each with its walls and replay errors. Before that the verdicts on the traces
whose wall is known. Exits with 1 if a verdict is wrong, or the gates below are not met.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf, sqrt
from pathlib import Path
from statistics import median, stdev

import click
import yaml

from three_walls.advice.answer_what_if import ReplayedRun, find_changes
from three_walls.advice.counterfactuals import heal
from three_walls.advice.verdict_rows import Verdict
from three_walls.advice.what_if import Question
from three_walls.lib.fact import FactSheet
from three_walls.lib.plain_data import ConfigData
from three_walls.megatron.settings.option_words import read_user_settings
from three_walls.pipeline import analyze, replay_run
from three_walls.trace.run_request import RunRequest

ROOT = Path(__file__).resolve().parent.parent
PAIRS = ROOT / "benchmarks" / "measured_pairs.yaml"

LEAST_INSIDE_FRACTION = 0.7
LEAST_RANK_CORRELATION = 0.8
MOST_NOISE_FRACTION = 0.03
"""Where runs of the base differ by more than twice this share of the step, a smaller change was not measured."""
NARROW_FRACTION = 0.06
"""A range is narrow up to this share of the step, or up to half of the gain."""
HELPS_FRACTION = 0.03
"""An edit that is predicted to shorten the step by more than this must not lengthen it."""
GPU_GROUPS = {"1 or 2 GPUs": 2, "4 GPUs": 4, "8 GPUs or more": inf}
"""Each with the most GPUs of a run in it."""
NOT_KNOWN = "GPUs not known"


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

    @property
    def spread_ms(self) -> float:
        """What one more run differs from the mean of the base's runs by; 0 for fewer than two runs."""
        count = len(self.base_runs_ms)
        return stdev(self.base_runs_ms) * sqrt(1 + 1 / count) if count > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """An edit's gain as a fraction of the unprofiled step, predicted and measured."""

    edit: MeasuredEdit
    low: float
    likely: float
    high: float
    measured: float
    noise: float
    neighbour_noise: float = 0.0
    """The noise by the two runs of the base beside the edit alone."""
    gpus: int | None = None
    """How many the edit was measured on; None where neither the pair nor the trace says so."""

    @property
    def is_lost_in_noise(self) -> bool:
        """Whether the edit changed the step by less than runs of its base differ, and those differ much."""
        return self.noise > MOST_NOISE_FRACTION and abs(self.measured) <= 2 * self.noise

    @property
    def is_inside(self) -> bool:
        """Whether the printed range holds the measured gain, within what two runs differ by."""
        return self.low - self.noise <= self.measured <= self.high + self.noise

    @property
    def is_narrow(self) -> bool:
        return self.width <= max(NARROW_FRACTION, abs(self.likely) / 2)

    @property
    def width(self) -> float:
        return self.high - self.low


@dataclass(frozen=True, slots=True)
class Base:
    """What a base trace shows without its edits. None: not known."""

    name: str
    gpus: int | None
    replay_error_fraction: float | None
    unclassified_fraction: float | None
    description: str


@dataclass(frozen=True, slots=True)
class JudgedWall:
    """The wall that a report names, beside the known one."""

    base: str
    gpus: int | None
    found: str
    known: str


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


def read_walls() -> tuple[tuple[str, str], ...]:
    """Base traces whose wall is known, with that wall (or "rank N", a straggler)."""
    return tuple((row["base"], row["wall"]) for row in yaml.safe_load(PAIRS.read_text())["walls"])


def name_wall(verdict: Verdict) -> str:
    """The verdict as ``walls`` of measured_pairs.yaml name it."""
    if verdict.culprit is not None:
        return f"rank {verdict.culprit.rank}"
    return ".".join(filter(None, (verdict.wall, verdict.sub_wall))) or "none"


def _find_settings(path: Path) -> tuple[tuple[Path, ...], Path | None]:
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
    logs, config = _find_settings(path)
    return replay_run(RunRequest((path,), logs, config))


def compare(edit: MeasuredEdit, run: ReplayedRun) -> Comparison | str:
    """Predicted against measured; or why nothing is predicted."""
    if run.predictor.missing_reason:
        return run.predictor.missing_reason
    stated = read_user_settings(edit.settings)
    settings: dict[str, ConfigData] = {f"config.{key}": found.value for key, found in stated.values.items()}
    settings |= {f"env.{name}": found.value for name, found in stated.environment.items()}
    changes = find_changes(Question(settings=settings), run)
    if changes.unknown:
        return "; ".join(changes.unknown)
    transformations = changes.transformations
    if edit.heals:
        transformations = (*transformations, heal((round(run.facts.number("culprit_rank") or 0),)))
    neighbour_ms = max(edit.noise_ms, _measure_mismatch_ms(edit, run))
    now, after = run.predictor.step_ns.likely_ns, run.predictor.predict(transformations)
    return Comparison(
        edit,
        low=(now - after.high_ns) / now,
        likely=(now - after.likely_ns) / now,
        high=(now - after.low_ns) / now,
        measured=(edit.base_ms - edit.edited_ms) / edit.base_ms,
        noise=max(neighbour_ms, edit.spread_ms) / edit.base_ms,
        neighbour_noise=neighbour_ms / edit.base_ms,
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
    """Spearman's rank correlation; None for fewer than three pairs."""
    if len(pairs) < 3:
        return None

    def ranks(values: Sequence[float]) -> list[float]:
        order = sorted(range(len(values)), key=values.__getitem__)
        placed = [0.0] * len(values)
        for place, index in enumerate(order):
            placed[index] = float(place)
        return placed

    first, second = ranks([pair[0] for pair in pairs]), ranks([pair[1] for pair in pairs])
    middle = (len(pairs) - 1) / 2
    product = sum((a - middle) * (b - middle) for a, b in zip(first, second, strict=True))
    return product / sum((a - middle) ** 2 for a in first)


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


def check_base(name: str) -> Base | None:
    """The base trace called ``name``, or None where it is not here."""
    path = find_base(name)
    if path is None:
        return None
    facts = load_base(path).facts
    error, predicted, logged, unclassified = (
        facts.number(fact)
        for fact in (
            "replay_error_fraction", "predicted_unprofiled_step_ns", "unprofiled_step_ns", "unclassified_fraction",
        )
    )  # fmt: skip
    if error is None or predicted is None:
        description = str(facts.get("replay_error_fraction").missing_reason)
    else:
        known = f"log {logged / 1e6:.0f} ms ({predicted / logged - 1:+.1%})" if logged else "no log"
        description = f"replay error {error:.2%}; unprofiled step {predicted / 1e6:.0f} ms, {known}"
    return Base(name, _count_gpus(facts), error, unclassified, description)


def main() -> int:
    """Prints the comparison; 1 if a gate is not met."""
    edits = read_edits()
    walls = _print_walls()
    bases = []
    for name in dict.fromkeys(edit.base for edit in edits):
        base = check_base(name)
        click.echo(f"{name:28} {base.description if base else 'no such trace here'}")
        bases += [base] if base else []
    click.echo()
    click.echo(f"{'edit':64} {'predicted':>10} {'range':>18} {'measured':>9}")
    predicted: list[Comparison] = []
    for edit in edits:
        path = find_base(edit.base)
        found = compare(edit, load_base(path)) if path else f"no trace {edit.base} here"
        if isinstance(found, str):
            click.echo(f"{edit.name:64} not predicted: {found}")
            continue
        predicted.append(found)
        mark = "lost in noise" if found.is_lost_in_noise else "inside" if found.is_inside else "OUTSIDE"
        if edit.is_set_aside:
            mark += ", set aside"
        span = f"{found.low:.1%} to {found.high:.1%}"
        click.echo(f"{edit.name:64} {found.likely:>10.1%} {span:>18} {found.measured:>9.1%}  {mark}")
    compared = [each for each in predicted if not each.is_lost_in_noise]
    failed = _judge(compared)
    click.echo(describe_neighbour_score(predicted))
    click.echo(describe_bare_score(compared))
    click.echo(describe_whole_score(predicted))
    click.echo()
    for line in describe_gpu_groups(compared, walls, bases):
        click.echo(line)
    return max(failed, int(any(wall.found != wall.known for wall in walls)))


def describe_neighbour_score(predicted: Iterable[Comparison]) -> str:
    """What the score would be if the noise were only what the two runs of the base beside each edit differ by."""
    beside = [replace(each, noise=each.neighbour_noise) for each in predicted]
    return f"with the noise of neighbouring base runs alone: {_count_inside(beside)}"


def describe_bare_score(compared: Sequence[Comparison]) -> str:
    """How many of the same edits are inside if nothing is allowed for noise."""
    return f"with nothing allowed for noise: {_count_inside(_without_noise(compared))}"


def describe_whole_score(predicted: Iterable[Comparison]) -> str:
    """The score of every predicted edit, also of those that are lost in noise, if nothing is allowed for noise."""
    bare = _without_noise(predicted)
    correlation = correlate_ranks([(each.likely, each.measured) for each in bare])
    described = "unknown" if correlation is None else f"{correlation:.2f}"
    return f"of edits lost in noise too, with nothing allowed: {_count_inside(bare)}; rank correlation {described}"


def _without_noise(compared: Iterable[Comparison]) -> list[Comparison]:
    return [replace(each, noise=0.0) for each in compared]


def _count_inside(compared: Sequence[Comparison]) -> str:
    scores = []
    for title, some in (("all", compared), ("set aside", [each for each in compared if each.edit.is_set_aside])):
        counted = [each for each in some if not each.is_lost_in_noise]
        scores.append(f"{title} {sum(each.is_inside for each in counted)} of {len(counted)} inside")
    return "; ".join(scores)


def describe_gpu_groups(
    compared: Sequence[Comparison], walls: Sequence[JudgedWall], bases: Sequence[Base]
) -> Iterator[str]:
    """The scores by how many GPUs an edit was measured on and a trace was captured on.

    A group says "none measured" where it holds nothing. What says no number of GPUs stands at the end.
    """
    for title in (*GPU_GROUPS, NOT_KNOWN):
        edits, judged, seen = (
            [each for each in some if _find_group(each.gpus) == title] for some in (compared, walls, bases)
        )
        if edits or judged or seen:
            yield describe_scores(title, edits) if edits else f"{title}: no edit measured"
            yield f"  {_describe_walls(judged)}; {_describe_replays(seen)}"
        elif title != NOT_KNOWN:
            yield f"{title}: none measured"


def _find_group(gpus: int | None) -> str:
    return NOT_KNOWN if gpus is None else next(title for title, most in GPU_GROUPS.items() if gpus <= most)


def _describe_walls(walls: Sequence[JudgedWall]) -> str:
    right = sum(wall.found == wall.known for wall in walls)
    return f"wall as known: {right} of {len(walls)} traces" if walls else "no known wall"


def _describe_replays(bases: Sequence[Base]) -> str:
    """The worst of the traces; those without a figure are counted beside it."""
    described = []
    for title, values in (
        ("replay error", [base.replay_error_fraction for base in bases]),
        ("unclassified", [base.unclassified_fraction for base in bases]),
    ):
        known = [value for value in values if value is not None]
        unknown = f", unknown on {len(values) - len(known)}" if len(known) < len(values) else ""
        described.append(
            f"{title} at most {max(known):.2%} on {len(known)} traces{unknown}" if known else f"{title} unknown"
        )
    return "; ".join(described) if bases else "no base trace"


def _print_walls() -> list[JudgedWall]:
    """Prints the verdict on every base whose wall is known."""
    judged = []
    for base, wall in read_walls():
        path = find_base(base)
        if path is None:
            continue
        logs, config = _find_settings(path)
        report = analyze([path], logs=logs, config=config)
        judged.append(JudgedWall(base, _count_gpus(report.facts), name_wall(report.verdict), wall))
        found = judged[-1].found
        click.echo(f"{base:28} wall {found}, {'as known' if found == wall else f'EXPECTED {wall}'}")
    click.echo()
    return judged


def _judge(compared: Sequence[Comparison]) -> int:
    if not compared:
        click.echo("nothing to compare")
        return 1
    click.echo()
    for title, some in (("all", compared), ("set aside", [each for each in compared if each.edit.is_set_aside])):
        if some:
            click.echo(describe_scores(title, some))
    harmful = _count_harmful(compared)
    correlation = correlate_ranks([(each.likely, each.measured) for each in compared])
    fails = (
        harmful
        or _inside_fraction(compared) < LEAST_INSIDE_FRACTION
        or (correlation is not None and correlation < LEAST_RANK_CORRELATION)
    )
    return int(bool(fails))


def describe_scores(title: str, compared: Sequence[Comparison]) -> str:
    """Two lines on one or more edits."""
    correlation = correlate_ranks([(each.likely, each.measured) for each in compared])
    right, judged = count_best_first(compared)
    return (
        f"{title}: inside {_inside_fraction(compared):.0%} of {len(compared)} edits; median width "
        f"{median(each.width for each in compared):.1%} of the step, "
        f"{sum(each.is_narrow for each in compared) / len(compared):.0%} narrow; "
        f"rank correlation {'unknown' if correlation is None else f'{correlation:.2f}'};\n"
        f"  best predicted edit measured best: {right} of {judged} traces with several edits; "
        f"predicted to help by more than {HELPS_FRACTION:.0%} and slower: {_count_harmful(compared)}"
    )


def _inside_fraction(compared: Sequence[Comparison]) -> float:
    return sum(each.is_inside for each in compared) / len(compared)


def _count_harmful(compared: Sequence[Comparison]) -> int:
    return sum(each.likely > HELPS_FRACTION and each.measured + each.noise < 0 for each in compared)


if __name__ == "__main__":
    sys.exit(main())
