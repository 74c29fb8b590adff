"""Captures that began at different times: their steps are numbered alike, and distorted steps are found.

Steps without a number of their own are counted from the beginning of each capture. Captures that ``cudaProfilerStart``
opens begin in the same step. Those opened by time or by hand need not, and then equal numbers mean different steps.
Wherever profilers start at different times, the first captured collectives wait for the last profiler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from three_walls.lib.report_warning import ReportWarning
from three_walls.lib.text import in_ms
from three_walls.step.find_steps import COUNTED_SOURCES, STEP
from three_walls.step.intervals import DURATION
from three_walls.step.ranks.align_clocks import ClockSource, CommonClock
from three_walls.step.step_rows import StepSource
from three_walls.step.step_tables import Arrivals, RankIntervals, StepKeys, Steps
from three_walls.trace.schemas import Int64Array

MINIMUM_COMMON_STEPS = 2
"""Step ends that two captures must have in common before their steps are numbered alike. With fewer step ends in common
a coincidence proves nothing."""
SAME_STEP_FRACTION = 0.1
"""Of the step: ends within this distance are of the same step. Ranks finish a step within this share of its length,
because before the update all wait for the gradient norm."""
DIFFERENT_STEP_FRACTION = 0.5
"""Of the step: ends further apart are of different steps."""

MINIMUM_START_SKEW_FRACTION = 0.1
"""Of the step: captures that start further apart than this affect the first captured steps. If profilers start a tenth
of a step apart, the first captured collectives wait for the last profiler; less than that is ordinary skew of the
ranks."""


@dataclass(frozen=True, slots=True)
class CaptureStartSkew:
    """How far apart the captures of the ranks begin."""

    steps: StepKeys
    """The steps that this distorts."""
    skew_ns: int | None = None
    """From the first rank's first operation to that of the last rank; None where the clocks do not show it."""
    warnings: tuple[ReportWarning, ...] = ()


def number_steps(steps: Steps, sources: Mapping[int, StepSource], clocks: Sequence[ClockSource]) -> Steps:
    """``steps``, with those that ran at the same time numbered alike, from the capture that began first.

    ``sources``: where the boundaries of each rank's steps come from. The clocks are not aligned yet, so this needs
    ranks of a single capture, or of a single host whose captures record when they began. A rank is renumbered only if
    its steps end together with steps of another number and apart from those of the same number.
    """
    is_one_capture = len({clock.capture_id for clock in clocks}) == 1
    session_start_ns = {clock.rank_index: 0 if is_one_capture else clock.session_start_ns for clock in clocks}
    hosts = {"" if is_one_capture else clock.host for clock in clocks}
    countable = {rank_index for rank_index, source in sources.items() if source in COUNTED_SOURCES}
    if len(hosts) != 1 or None in hosts or countable != set(session_start_ns) or None in session_start_ns.values():
        return steps
    by_rank = steps.sort("rank_index", "start_ns").group_by(["rank_index"], maintain_order=True)
    ends = {
        int(rank_index): [end_ns + (session_start_ns[int(rank_index)] or 0) for end_ns in of_rank["end_ns"].to_list()]
        for (rank_index,), of_rank in by_rank
    }
    first = min(ends, key=lambda rank_index: (ends[rank_index][0], rank_index))
    shifts = {rank_index: _find_shift(ends_ns, ends[first]) for rank_index, ends_ns in ends.items()}
    return steps.with_columns(step=pl.col("step") + pl.col("rank_index").replace_strict(shifts, return_dtype=pl.Int64))


def _find_shift(ends_ns: list[int], first_ends_ns: list[int]) -> int:
    """How many steps after the first capture this one began, judged by when steps end; 0 where that is not clear.

    Only those shifts are compared at which most steps end together. They are counted for all shifts at once: comparing
    at each of them takes time with the square of the number of steps.
    """
    shifts = len(first_ends_ns) - MINIMUM_COMMON_STEPS + 1
    if len(ends_ns) < MINIMUM_COMMON_STEPS or shifts < 2:
        return 0
    ends, first_ends = np.array(ends_ns, dtype=np.int64), np.array(first_ends_ns, dtype=np.int64)
    lengths = np.sort(np.diff(first_ends))
    step_ns = int(lengths[len(lengths) // 2])
    same_ns = int(SAME_STEP_FRACTION * step_ns)
    places = np.arange(len(ends))
    begins = np.clip(np.searchsorted(first_ends, ends - same_ns, "left") - places, 0, shifts)
    untils = np.clip(np.searchsorted(first_ends, ends + same_ns, "right") - places, 0, shifts)
    together = np.cumsum(np.bincount(begins, minlength=shifts + 1) - np.bincount(untils, minlength=shifts + 1))[:shifts]
    compared = np.minimum(len(ends), len(first_ends) - np.arange(shifts))
    candidates = np.flatnonzero(together > compared // 2).tolist()
    is_elsewhere = _median_distance(ends, first_ends) > DIFFERENT_STEP_FRACTION * step_ns
    if not candidates or not is_elsewhere:
        return 0
    return min(candidates, key=lambda shift: _median_distance(ends, first_ends[shift:]))


def _median_distance(ends_ns: Int64Array, other_ends_ns: Int64Array) -> int:
    """Of two in the middle the longer."""
    compared = min(len(ends_ns), len(other_ends_ns))
    distances = np.abs(ends_ns[:compared] - other_ends_ns[:compared])
    return int(np.partition(distances, compared // 2)[compared // 2])


def find_capture_start_skew(
    steps: Steps, begins: RankIntervals, arrivals: Arrivals, clock: CommonClock
) -> CaptureStartSkew:
    """The skew of capture starts, and those of ``steps`` that it distorts if it is long against a step.

    ``begins``: see RankOutline.
    """
    no_steps = steps.select(*STEP).clear()
    if not clock.is_resolved:
        return CaptureStartSkew(no_steps)
    first = clock.add_common_times(begins)
    first_begin, last_begin = first.select(pl.col("common_start_ns").min(), last=pl.col("common_start_ns").max()).row(0)
    skew_ns = int(last_begin) - int(first_begin)
    step_ns = steps.filter("kept").select(ns=DURATION)["ns"].median()
    is_small = not isinstance(step_ns, int | float) or skew_ns <= max(
        MINIMUM_START_SKEW_FRACTION * step_ns, clock.error_ns
    )
    # The first step of the last capture begins with that capture, up to the error of the clocks, and is not distorted.
    began_before = pl.col("common_start_ns") + clock.error_ns < last_begin
    affected = clock.add_common_times(steps).filter(began_before)
    if is_small or affected.is_empty():
        return CaptureStartSkew(no_steps, skew_ns)
    return CaptureStartSkew(affected.select(*STEP), skew_ns, (_warn_of_skew(skew_ns, arrivals, affected),))


def _warn_of_skew(skew_ns: int, arrivals: Arrivals, affected: Steps) -> ReportWarning:
    # Ranks often made different numbers of calls in these steps; then nothing is matched and no wait is known.
    calls = arrivals.join(affected.select(*STEP), on=STEP, how="semi")
    longest = calls.select(pl.col("wait_ns").max()).item() if calls.height else None
    wait = f", and a collective there waits up to {in_ms(longest, '.0f')}" if longest else ""
    are_kept = affected["kept"].any()
    state = "some of them are kept, but they do not compare ranks" if are_kept else "none of them is kept"
    begin = "1 step begins" if affected.height == 1 else f"{affected.height} steps begin"
    return ReportWarning(
        "capture-start-skew",
        f"The ranks' captures begin {in_ms(skew_ns, '.0f')} apart{wait}. This comes from the start of the "
        f"profilers, not from the run. {begin} before the last capture does ({state}).",
    )


def drop_skewed_steps(steps: Steps, skewed: StepKeys) -> Steps:
    """``steps`` with those in ``skewed`` no longer kept, unless that would leave a rank without a step."""
    all_steps = steps.join(
        skewed.with_columns(is_skewed=pl.lit(value=True)), on=STEP, how="left", maintain_order="left"
    ).with_columns(is_skewed=pl.col("is_skewed").fill_null(value=False) & pl.col("kept"))
    has_others = (pl.col("kept") & ~pl.col("is_skewed")).any().over("rank_index")
    reason = "began before the last rank's capture: its first collectives wait for that rank's profiler to start"
    return all_steps.with_columns(
        kept=pl.col("kept") & ~(pl.col("is_skewed") & has_others),
        reason=pl.when("is_skewed").then(pl.lit(reason)).otherwise("reason"),
    ).drop("is_skewed")
