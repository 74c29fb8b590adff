"""What a tuning found: the overrides that won, every run with its step, and the page, the JSON and the lines of it."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

from three_walls.capture.capture_guide import BRIDGE
from three_walls.lib.measurement import NS_PER_MS
from three_walls.lib.shell import quote_assignment, quote_word
from three_walls.lib.text import UNKNOWN, escape_in_json, format_gib, format_ms, format_share, shorten
from three_walls.lib.version import VERSION
from three_walls.report.charts import AFTER_COLOUR, MILLISECONDS, NOW_COLOUR, BarRow, Bars, Piece
from three_walls.report.html_report import render_page
from three_walls.report.section import (
    ROW,
    Cell,
    Chart,
    Column,
    Copyable,
    Hero,
    Items,
    Metric,
    Section,
    Table,
    Terminal,
    Text,
)
from three_walls.runs.read_runs import TUNED_NAME
from three_walls.tuning.choose_trial import TrialSearch

SCHEMA_VERSION = "1.2"
"""Version of tune.json: the minor grows when fields are added, the major when one goes, or is another one."""
_DEVIATIONS = 2.0
_SAME_LOSS = 0.01
"""On H200s runs of one base differed by up to 0.2%, and fusions, overlap and recompute changed it by up to 0.1%."""
_LONGEST_LABEL = 46
"""Of a bar, in characters: the table below it has the whole name."""


@dataclass(frozen=True, slots=True)
class TunedRun:
    """A run of the job."""

    run: int
    """Its number, in the order of the runs."""
    name: str
    changed: Mapping[str, str]
    """Setting of the space, or rule of the plan, to what it was changed to; empty for the base."""
    why: str
    """Why it was run."""
    overrides: tuple[str, ...]
    """What was added to the command, a word each."""
    environment: Mapping[str, str]
    step_ms: float | None
    """Mean of the middle half of its usual steps; null where it failed."""
    failure: str
    """Why it failed; empty where it did not."""
    gain: float | None
    """By how much its configuration is faster than the base, as a share of the step, by all runs without the drift."""
    gain_deviation: float | None
    """Standard deviation of that, as a share of the step."""
    predicted: tuple[float, float, float] | None
    """The gain that was predicted before it ran: low, likely, high."""
    kept: bool
    """Whether its configuration is the one to keep."""
    wall_s: float
    peak_bytes: int | None
    """The largest peak of allocated memory that a rank printed after its second step or later; null where none did."""
    loss: float | None
    """The mean loss over the second half of its iterations; null where it printed none."""


@dataclass(frozen=True, slots=True)
class TunedPair:
    """An edit that was measured against the base, in the form of benchmarks/measured_pairs.yaml."""

    name: str
    base: str
    """The directory of the base's capture."""
    set: tuple[str, ...]
    base_ms: float
    edited_ms: float
    noise_ms: float
    runs: int
    same_run: bool = False
    """Whether the base's step is of the very run that was traced: a profiled run is another one."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """``tune.json``."""

    schema_version: str
    tool_version: str
    end: str
    """Why no further run was made; empty while it goes on."""
    kept: Mapping[str, str]
    """What to change; empty: nothing is clearly better than the base."""
    overrides: tuple[str, ...]
    environment: Mapping[str, str]
    settings: Mapping[str, Any]
    """The same by Megatron Core name, or as the space names them."""
    base_ms: float | None
    """Median over the base's runs."""
    gain: float | None
    """By how much the kept configuration is faster than the base, as a share of the step."""
    gain_deviation: float | None
    framework: str | None
    notes: tuple[str, ...]
    runs: tuple[TunedRun, ...]
    pairs: tuple[TunedPair, ...]


def conclude(
    search: TrialSearch, lines: Sequence[Mapping[str, Any]], notes: tuple[str, ...], end: str, framework: str | None
) -> Tuned:
    """What the runs so far (``lines`` of the journal) show."""
    space = search.space
    kept = search.kept if search.model else space.base
    variants = space.values_of(kept)
    changed = space.describe(kept)
    gains: dict[tuple[tuple[str, str], ...], tuple[float, float]] = {}
    for choice in search.measured:
        assert search.model
        (log_gain,), (spread,) = search.model.gains_over(space.base, [choice])
        left = math.exp(-log_gain)  # of the base's step
        gains[tuple(sorted(space.describe(choice).items()))] = 1 - left, left * float(spread)
    runs = tuple(_as_run(line, changed, gains) for line in lines)
    base = [run.step_ms for run in runs if not run.changed and run.step_ms]
    gain, deviation = gains.get(tuple(sorted(changed.items())), (None, None))
    base_ms = statistics.median(base) if base else None
    if search.not_shown_to_help and end:
        alone = "it" if len(search.not_shown_to_help) == 1 else "each of these alone"
        notes = (
            *notes,
            f"not shown to help: {', '.join(search.not_shown_to_help)}; without {alone} what is kept never ran, or was "
            "not clearly slower",
        )
    if end and search.model:
        (more,), (spread,) = search.model.gains_over(kept, [search.best])
        if more > search.worth / 2:
            named = ", ".join(space.describe(search.best).values()) or "the base"
            told = _describe_gain(-math.expm1(-more), float(spread)).lstrip("+")
            notes = (*notes, f"shorter than what is kept by {told}, and not kept because that is not clear: {named}")
    if end and search.measured and (unknown := _list_unknown(search)):
        notes = (*notes, f"what these give is unknown: {'; '.join(unknown)}")
    if note := _compare_losses(runs):
        notes = (*notes, note)
    return Tuned(
        schema_version=SCHEMA_VERSION,
        tool_version=VERSION,
        end=end,
        kept=changed,
        overrides=tuple(word for variant in variants for word in variant.words),
        environment={name: text for variant in variants for name, text in variant.environment.items()},
        settings={name: value for variant in variants for name, value in variant.config.items()},
        base_ms=base_ms,
        gain=gain,
        gain_deviation=deviation,
        framework=framework,
        notes=notes,
        runs=runs,
        pairs=tuple(_list_pairs(runs, lines, base_ms)),
    )


def _list_unknown(search: TrialSearch) -> list[str]:
    """The values that no run shows, with the reason."""
    ran = {edit for choice in search.measured for edit in enumerate(choice)}
    tried = {edit for choice in search.tried for edit in enumerate(choice)}
    return [
        f"{value.label} ({'every run with it failed' if (place, number) in tried else 'no run had it'}"
        f"{f'; predicted: {_describe_prediction(astuple(value.gain))}' if value.gain else ''})"
        for place, setting in enumerate(search.space.settings)
        for number, value in enumerate(setting.values, start=1)
        if (place, number) not in ran
    ]


def _compare_losses(runs: Sequence[TunedRun]) -> str:
    """How far the loss of what is kept is from the base's; empty where runs of one of them differ by as much."""
    kept = [run.loss for run in runs if run.kept and run.changed and run.loss]
    base = [run.loss for run in runs if not run.changed and run.loss]
    if not kept or not base:
        return ""
    apart = max(min(kept) - max(base), min(base) - max(kept))
    if apart <= max(_SAME_LOSS * max(base), max(kept) - min(kept), max(base) - min(base)):
        return ""
    mean, usual = statistics.fmean(kept), statistics.fmean(base)
    return (
        f"what is kept has a loss of {mean:.4g} over the second half of its iterations, and the base {usual:.4g}: see "
        "whether it still learns the same before it trains for long"
    )


def _as_run(
    line: Mapping[str, Any], kept: Mapping[str, str], gains: Mapping[tuple[tuple[str, str], ...], tuple[float, float]]
) -> TunedRun:
    predicted = line["predicted"]
    gain, deviation = gains.get(tuple(sorted(line["changed"].items())), (None, None))
    return TunedRun(
        run=line["run"],
        name=line["name"],
        changed=line["changed"],
        why=line["why"],
        overrides=tuple(line["words"]),
        environment=line["environment"],
        step_ms=line["step_s"] and line["step_s"] * 1000,
        failure=line["failure"],
        gain=gain if line["step_s"] else None,
        gain_deviation=deviation if line["step_s"] else None,
        predicted=(predicted[0]["low"], predicted[0]["likely"], predicted[0]["high"]) if predicted else None,
        kept=not line["failure"] and line["changed"] == kept,
        wall_s=line["wall_s"],
        peak_bytes=line["memory"][1] if line.get("memory") else None,
        loss=line.get("loss"),
    )


def _list_pairs(runs: Sequence[TunedRun], lines: Sequence[Mapping[str, Any]], base_ms: float | None) -> list[TunedPair]:
    """A pair per configuration: its step by the gain without drift, on the base's median step."""
    pairs: dict[str, TunedPair] = {}
    for run, line in zip(runs, lines, strict=True):
        if base_ms is None or not run.changed or run.gain is None or run.gain_deviation is None:
            continue
        times = sum(other.changed == run.changed and other.step_ms is not None for other in runs)
        edited_ms, noise_ms = base_ms * (1 - run.gain), base_ms * _DEVIATIONS * run.gain_deviation
        pairs[run.name] = TunedPair(
            run.name, "profiles", tuple(line["set"]), round(base_ms, 3), round(edited_ms, 3), round(noise_ms, 3), times
        )
    return list(pairs.values())


def render_tuned(tuned: Tuned) -> dict[str, str]:
    """File name to content: page, JSON, and the overrides to paste."""
    document = json.dumps(asdict(tuned), indent=2, allow_nan=False, ensure_ascii=False, default=str)
    lines = paste_lines(tuned)
    return {
        TUNED_NAME: escape_in_json(document) + "\n",
        "overrides.txt": "".join(f"{line}\n" for line in lines),
        "tune.html": render_page(make_tuned_sections(tuned), tuned, TUNED_NAME),
    }


def paste_lines(tuned: Tuned) -> tuple[str, ...]:
    """The overrides that won, quoted for a shell."""
    variables = [f"export {quote_assignment(name, text)}" for name, text in sorted(tuned.environment.items())]
    if tuned.framework == BRIDGE or any("=" in word for word in tuned.overrides):
        return (*variables, *map(quote_word, tuned.overrides))
    flags = " ".join(f"\n{quote_word(w)}" if w.startswith("--") else quote_word(w) for w in tuned.overrides)
    return (*variables, *(line.strip() for line in flags.split("\n") if line.strip()))


_PRINTED = (
    Column("Memory", "peak_bytes", lambda peak: format_gib(peak) if peak else "", is_right=True),
    Column("Loss", "loss", lambda loss: f"{loss:.4g}" if loss else "", is_right=True, in_terminal=False),
)
"""Columns of what not every job prints."""


def make_tuned_sections(tuned: Tuned) -> tuple[Section, ...]:
    """The sections of the page and of the terminal."""
    failed = sum(bool(run.failure) for run in tuned.runs)
    after_ms = None if tuned.base_ms is None or tuned.gain is None else tuned.base_ms * (1 - tuned.gain)
    gain = _describe_gain(tuned.gain, tuned.gain_deviation) if tuned.kept else ""
    title, text = "Nothing is clearly faster than the base", "The job stays as it is."
    if tuned.kept:
        title = f"{len(tuned.kept)} edit{'s' if len(tuned.kept) > 1 else ''} kept: a step {gain.lstrip('+')} shorter"
        text = f"{'; '.join(tuned.kept.values())}."
    elif tuned.base_ms is None:
        title, text = (
            "The base fails, so nothing was tried",
            "; ".join(dict.fromkeys(run.failure for run in tuned.runs)),
        )
    elif not any(run.changed for run in tuned.runs):
        title = "Nothing was tried but the base"
    metrics = (
        Metric("Base", _format_step(tuned.base_ms)),
        Metric("Kept", _format_step(after_ms), gain, "after"),
        Metric("Runs", str(len(tuned.runs)), f"{failed} failed" if failed else ""),
    )
    hero = Hero(
        eyebrow=f"{len(tuned.runs)} runs",
        title=title,
        text=text,
        notes=(*tuned.notes, *((f"End: {tuned.end}.",) if tuned.end else ())),
        metrics=metrics,
        shares=(),
        role="history",
        remark=f"End: {tuned.end}." if tuned.end else "",
        step_line=f"Base {_format_step(tuned.base_ms)}, kept {_format_step(after_ms)}." if tuned.base_ms else "",
    )
    predicted = Column("Predicted", "predicted", _describe_prediction, is_right=True)
    columns = (
        Column("Run", "run", str),
        Column("Step", "step_ms", _format_step, is_right=True),
        *([predicted] if any(run.predicted for run in tuned.runs) else ()),  # without a capture there are none
        Column("Measured", ROW, lambda run: _describe_gain(run.gain, run.gain_deviation), is_right=True),
        *(column for column in _PRINTED if any(getattr(run, str(column.value)) for run in tuned.runs)),
        Column("Changed", ROW, _name_run, width="wide"),
        Column("Why", "why", role="muted", width="third", in_terminal=False),
    )
    rows = tuned.runs
    table = Table("runs", columns, rows, terminal_rows=len(rows), emphasis=lambda run: run.kept)
    lead = (
        "Every run in its order. What is measured is against the base, by all runs together and without the machine's "
        "drift, give or take two standard deviations."
    )
    lines = paste_lines(tuned)
    overrides = (Copyable("tuned", "Overrides", lines),) if lines else ()
    notes = Section("notes", "What to know", (Items(tuned.notes, role="list"),), link="Notes", terminal=Terminal.NEVER)
    return (
        Section("verdict", "", (hero,), terminal=Terminal.ALWAYS, role="hero history"),
        *((Section("overrides", "What won", overrides, link="Overrides", terminal=Terminal.ALWAYS),) if lines else ()),
        *((notes,) if tuned.notes else ()),
        Section("runs", "What was tried", (*_draw(tuned), table), lead=lead, link="Runs", terminal=Terminal.ALWAYS),
    )


def _draw(tuned: Tuned) -> tuple[Chart, ...]:
    """The steps of all runs that did not fail, in their order."""
    ran = [(run, run.step_ms * NS_PER_MS) for run in tuned.runs if run.step_ms]
    rows = tuple(
        BarRow(
            shorten(f"{run.run}. {run.name}", _LONGEST_LABEL),
            (Piece(0, ns, AFTER_COLOUR if run.kept else NOW_COLOUR, run.name, format_ms(ns)),),
            format_ms(ns),
        )
        for run, ns in ran
    )
    return (Chart("tuned", Bars(rows, max(ns for _, ns in ran), MILLISECONDS), "Steps of the runs"),) if ran else ()


def _name_run(run: TunedRun) -> Cell:
    """What it changed, and what became of it."""
    return run.name, Text("kept", "badge") if run.kept else Text(run.failure, "badge warn long")


def _format_step(step_ms: float | None) -> str:
    return format_ms(None if step_ms is None else step_ms * NS_PER_MS)


def _describe_gain(gain: float | None, deviation: float | None) -> str:
    if gain is None or deviation is None:
        return UNKNOWN
    return f"{gain:+.1%} \u00b1 {format_share(_DEVIATIONS * deviation)}"


def _describe_prediction(predicted: Sequence[float] | None) -> str:
    return f"{predicted[1]:+.1%} ({predicted[0]:+.1%} to {predicted[2]:+.1%})" if predicted else ""
