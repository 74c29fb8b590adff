"""Pauses of the host (``step/host_pauses.py``): where, how often, what the host did, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import polars as pl

from three_walls.layers.labels import LabelledOperations
from three_walls.lib.declare import artifact, duration, fact, flag
from three_walls.lib.load_documents import Pattern, Text, load_table
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.lib.resources import TABLES_DIR
from three_walls.lib.text import in_ms
from three_walls.step.attribute_steps import Attribution
from three_walls.step.intervals import DURATION
from three_walls.step.operators import generalize
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.step_tables import Pauses
from three_walls.step.step_view import StepView
from three_walls.tables.model_parts import OPTIMIZER, OUTSIDE
from three_walls.trace.read_tables import THREADS_PER_PROCESS

BETWEEN_STEPS, INSIDE_STEP = "between_steps", "inside_step"
"""What is known of a pause of which no name tells more."""
_NO_PAUSE = "the host does not pause"


@dataclass(frozen=True, slots=True)
class PauseCause:
    """A cause, by the names of ranges and of the operating system's functions that show it."""

    cause: str
    pattern: Pattern
    reason: Text


@dataclass(frozen=True, slots=True)
class PauseCauses:
    """``tables/host-pauses.yaml``."""

    causes: tuple[PauseCause, ...]


@cache
def pause_causes() -> tuple[PauseCause, ...]:
    """What ships with the program."""
    return load_table(TABLES_DIR / "host-pauses.yaml", PauseCauses).causes


@artifact
def costliest_pauses(attribution: Attribution) -> Measurement[Pauses]:
    """The pauses at the place where they take most time in all, the longest first."""
    pauses = attribution.pauses
    if pauses.is_empty():
        return missing(_NO_PAUSE)
    by_place = pauses.with_columns(ns=DURATION, total_ns=DURATION.sum().over("place"))
    return known(by_place.filter(pl.col("total_ns") == pl.col("total_ns").max()).sort("ns", descending=True))


@fact("count", "the number of pauses of the host")
def host_pause_count(attribution: Attribution) -> int:
    """Stretches in all kept steps in which no thread that launches work does anything, for far longer than the same
    place takes in other layers, micro-batches, steps or ranks, and for at least 2% of the step, or together 5%; or for
    at least 5% where every step has the like."""
    return attribution.pauses.height


@fact("count", "the number of gaps not searched for pauses")
def gaps_left_out_count(attribution: Attribution) -> int:
    """Gaps between launches in all kept steps that are long enough for a pause of the host, and were not looked into,
    because others are longer."""
    return attribution.gaps_left_out


@duration("idle time per step in host pauses")
def host_pause_ns(step: StepView) -> int:
    """Time per step in which the GPU is idle because the host pauses.

    Not the same as: Launch-starved time, which edits shorten.
    """
    return step.owned_ns("host_pause")


@flag(
    "whether the host pauses in every step",
    if_true="The host pauses in every step",
    if_false="The host does not pause in every step",
)
def host_pauses_recur(attribution: Attribution, step: StepView) -> bool:
    """Whether the host pauses in all of several kept steps for at least half as long as in the representative one."""
    steps = attribution.steps.filter("kept")["step"].unique()
    of_step = dict(attribution.pauses.group_by("step").agg(DURATION.sum().alias("ns")).iter_rows())
    least_ns = min(of_step.get(number, 0) for number in steps)
    return steps.len() > 1 and least_ns > 0 and 2 * least_ns >= of_step.get(step.step, 0)


@duration("the step time that host pauses cost")
def host_pause_cost_ns(pause_cost_ns: Measurement[int], host_pause_ns: Measurement[int]) -> Measurement[int]:
    """The unprofiled step less its replay without the pauses of the host; without a replay at most the idle time in
    them. 0 where only other steps have some, or where those of the log show that unprofiled ones have none."""
    return host_pause_ns if pause_cost_ns.is_missing else pause_cost_ns


@fact("text", "the longest pause of the host")
def longest_host_pause(
    costliest_pauses: Pauses,
    attribution: Attribution,
    matched_ranks: MatchedRanks,
    step: StepView,
    labelled_step: LabelledOperations,
    pause_cost_ns: Measurement[int],
    captured_pauses_ns: Measurement[Mapping[int, int]],
) -> str:
    """Where the host pauses longest, how often, on which thread, what it is known to do meanwhile, and what all pauses
    cost by replay."""
    pause = costliest_pauses.row(0, named=True)
    steps, ranks = (costliest_pauses[name].n_unique() for name in ("step", "rank_index"))
    kept = attribution.steps.filter("kept")["step"].n_unique()
    where = _name_place(pause, step, labelled_step)
    others = attribution.pauses["place"].n_unique() - 1
    parts = [
        f"{in_ms(pause['end_ns'] - pause['start_ns'])} {where}",
        f"{costliest_pauses.height} times in {steps} of {kept} steps" if costliest_pauses.height > 1 else "once",
        f"on thread {pause['thread'] % THREADS_PER_PROCESS} of rank {matched_ranks.rank_of[pause['rank_index']]}"
        + (f" and of {ranks - 1} more" if ranks > 1 else ""),
        _name_activity(pause["range"], pause["call"]),
        *([f"others at {others} more places"] if others else []),
    ]
    captured_ns = (captured_pauses_ns.value or {}).get(pause["step"])
    if captured_ns is not None and pause_cost_ns.value is not None:
        parts.append(
            _name_cost(captured_ns, None if pause["step"] != step.step else pause_cost_ns.value, pause["step"])
        )
    return ", ".join(parts)


@fact("text", "the likely cause of the longest pause")
def host_pause_cause(costliest_pauses: Pauses) -> str:
    """data_loader, garbage_collection, checkpoint, evaluation or logging, by the name of the NVTX range around it or of
    the operating system's function that the process is in; else between_steps or inside_step."""
    pause = costliest_pauses.row(0, named=True)
    names = pause["range"], pause["call"]
    found = (row.cause for row in pause_causes() for name in names if name and row.pattern.search(name))
    return next(found, BETWEEN_STEPS if pause["is_first"] else INSIDE_STEP)


def _name_place(pause: dict[str, object], step: StepView, labelled: LabelledOperations) -> str:
    if pause["is_first"]:
        return "between steps"
    if (pause["rank_index"], pause["step"]) != (step.rank_index, step.step):
        return f"inside step {pause['step']}"
    following = labelled.filter(pl.col("launch_start_ns") == pause["launch_ns"])
    names = ("module", "part", "direction", "layer", "micro_batch")
    for module, part, direction, layer, micro_batch in following.select(names).head(1).iter_rows():
        if OPTIMIZER in (module, part):
            return "in the optimizer"
        if module is not None and module != OUTSIDE:
            numbers = {"of layer": layer, "in micro-batch": micro_batch}
            known_numbers = (f"{name} {number}" for name, number in numbers.items() if number is not None)
            return " ".join(["before", *filter(None, (module, direction)), *known_numbers])
    return "outside of layers"


def _name_cost(captured_ns: int, cost_ns: int | None, step: int) -> str:
    """What the pauses of ``step`` cost by replay. ``cost_ns``: unprofiled; None where another step is shown."""
    if in_ms(captured_ns) == in_ms(0):
        return "which by replay costs nothing: the device or other ranks have as much to do meanwhile"
    if cost_ns is None:
        return f"by replay {in_ms(captured_ns)} of step {step}, which is not the one shown"
    return f"by replay {in_ms(cost_ns)} of the step" if cost_ns else "which steps of the log are without"


def _name_activity(around: str, call: str) -> str:
    inside = f"inside {generalize(around)}" if around else "in no range"
    return f"{inside}, in {call}()" if call else f"{inside} and in no CUDA call"
