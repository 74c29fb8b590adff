"""Where the training steps of each rank begin and end, and which of them are kept: conclusions rest on those alone.

The boundaries come from the first of these that a rank has:

1. NVTX ranges ``training_step_N``, Megatron-Bridge's or another program's.
2. The NVTX ranges that the user names (``--step-range``).
3. Recurring optimizer phases: a step runs from the end of one to the end of the next.
4. The whole capture as one window, which the report states.

A step that touches an edge of the capture is dropped, unless too few are left.

A step has the number next to what marks its range: 7 for ``train_iter 7 of 1000``. Where these numbers do not increase
from range to range (a repeated iteration), or a range has none, the steps of all ranks are numbered in their order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

import polars as pl

from three_walls.lib import limits
from three_walls.step.intervals import DURATION
from three_walls.step.step_rows import StepSource
from three_walls.step.step_tables import PAUSES, STEPS, Operations, Pauses, StepKeys, Steps
from three_walls.trace.schemas import HostRanges
from three_walls.trace.spans import StepsToRead

SAME_OPTIMIZER_PHASE_FRACTION = 0.1
"""Of a step's model work: clusters of optimizer kernels with less between them are one phase. Between the updates of
dense and expert parameters lies a parameter all-gather, or (Muon) a few GEMMs of the update itself; no forward and
backward pass fits there."""
MAXIMUM_PAUSE_FRACTION = 0.5
"""Of the step: a longer pause between two step ranges belongs to no step. The host also works between two step ranges
(logging, data): that is the earlier step's time. A pause of more than half a step is something else (evaluation, a
checkpoint)."""

LEAST_PAUSED_FRACTION = 0.05
"""Of the median step without pauses: a step that pauses for less stands for the others as well as one without."""
MOST_OFF_FRACTION = 0.1
"""Of the median step without pauses: a step without a pause that is further off does not stand for the others. Of six
steps of a run with few launches the shortest and the longest differ from the median by 10 and 36 percent."""

STEP = ("rank_index", "step")
"""What identifies a step of a rank."""

TRAINING_STEP_TEXT = "training_step_"
"""Precedes the number in the range's text. Megatron-Bridge emits it (since 2026) with profiling.nvtx_ranges=true; other
programs use the name too, so it shows steps, not Megatron."""

_NUMBER = re.compile(r"\d+", re.ASCII)
_NO_NUMBER = -1

MODEL_WORK = ("gemm", "grouped_gemm", "attention", "cuda_graph")
"""Categories that forward and backward passes consist of; an optimizer phase has next to none of them."""


_RangesOfProcesses = Mapping[tuple[object, ...], pl.DataFrame]
"""NVTX ranges by capture and process."""


NUMBERED_IN_ORDER = {
    StepSource.TRAINING_STEP: StepSource.TRAINING_STEP_IN_ORDER,
    StepSource.USER_RANGE: StepSource.USER_RANGE_IN_ORDER,
}
"""What a source becomes where the numbers of some rank's ranges do not number steps."""
COUNTED_SOURCES = (*NUMBERED_IN_ORDER.values(), StepSource.OPTIMIZER)
"""Their steps are counted from the beginning of each capture."""


@dataclass(frozen=True, slots=True)
class _Window:
    """A candidate step. ``opens_at_edge``: nothing before it was captured. ``closes_at_edge``: nothing after it was."""

    index: int
    start_ns: int
    end_ns: int
    opens_at_edge: bool
    closes_at_edge: bool


def find_steps(
    operations: Operations,
    ranges: HostRanges,
    step_range: str | None,
    to_read: Mapping[int, StepsToRead] = MappingProxyType({}),
) -> tuple[Steps, dict[int, StepSource]]:
    """Steps of every rank, sorted, and the source of each rank's step boundaries.

    ``operations`` are classified, with launches, and sorted by rank and start; ``ranges`` are NVTX ranges of the same
    processes. ``step_range`` is the expression of the user for the ranges that are steps. ``to_read``: by rank index,
    the steps whose operations these are, where they are not those of the whole capture. Only these steps are found.
    """
    ranges_by_source = [
        (source, _ranges_of_processes(ranges, expression)) for source, expression in _list_expressions(step_range)
    ]
    windows_of: dict[int, list[_Window]] = {}
    sources: dict[int, StepSource] = {}
    first = 0
    for count, rank_index in operations.select(pl.col("rank_index").rle()).unnest("rank_index").rows():
        windows, source = _find_windows(operations.slice(first, count), ranges_by_source)
        if (read := to_read.get(rank_index)) is not None:
            if not read.are_marked:
                windows, source = _list_known_windows(read), StepSource.OPTIMIZER
            elif source not in NUMBERED_IN_ORDER:
                windows = []  # nothing was launched in the ranges; what else shows steps was not read as a whole
            windows = [window for window in windows if window.index in read.read]
        windows_of[rank_index], sources[rank_index] = windows, source
        first += count
    if not all(map(_have_increasing_numbers, windows_of.values())):
        windows_of = {
            rank_index: [replace(window, index=order) for order, window in enumerate(windows)]
            for rank_index, windows in windows_of.items()
        }
        sources = {rank_index: NUMBERED_IN_ORDER.get(source, source) for rank_index, source in sources.items()}
    steps = [_keep_or_drop(rank_index, windows, sources[rank_index]) for rank_index, windows in windows_of.items()]
    return pl.concat(steps).sort("rank_index", "start_ns"), sources


def list_marked_steps(ranges: HostRanges, step_range: str | None, first_ns: int) -> Steps | None:
    """Steps (STEPS, of rank index 0) as the host marked them in ``ranges``, NVTX ranges of one process.

    ``first_ns``: when the first operation of its rank started. None where no range marks a step, and no steps where the
    numbers of the ranges do not increase.
    """
    for source, expression in _list_expressions(step_range):
        numbered_ranges = _number_ranges(ranges, expression).filter(pl.col("end_ns").is_not_null())
        spans = [(_NO_NUMBER if number is None else number, *span) for number, *span in _outermost(numbered_ranges)]
        if spans:
            nexts = [*(start for _, start, _ in spans[1:]), spans[-1][2]]
            windows = [
                _Window(
                    number,
                    start,
                    max(_end_before(following, start, end), start + 1),
                    opens_at_edge=start <= first_ns and order == 0,
                    closes_at_edge=order == len(spans) - 1,
                )
                for order, ((number, start, end), following) in enumerate(zip(spans, nexts, strict=True))
            ]
            steps = _keep_or_drop(0, windows, source)
            return steps if _have_increasing_numbers(windows) else steps.clear()
    return None


def list_optimizer_steps(operations: Operations) -> Steps | None:
    """Steps (STEPS, of rank index 0) by the optimizer phases among ``operations`` of one rank; None without any.

    Of its operations only the first, the last, updates and model work are needed: start_ns, end_ns, category, anchor.
    """
    windows = _windows_from_optimizer(operations)
    return _keep_or_drop(0, windows, StepSource.OPTIMIZER) if windows else None


def _list_known_windows(read: StepsToRead) -> list[_Window]:
    opens, closes = (
        read.steps["reason"] == _describe_edge(_Window(0, 0, 1, opens_at_edge=opens, closes_at_edge=not opens))
        for opens in (True, False)
    )
    times = read.steps.select("step", "start_ns", "end_ns").rows()
    return [_Window(*step, *edges) for step, *edges in zip(times, opens, closes, strict=True)]


def _list_expressions(step_range: str | None) -> list[tuple[StepSource, str]]:
    """What marks steps in the texts of ranges, most trustworthy first."""
    users = [] if step_range is None else [(StepSource.USER_RANGE, step_range)]
    return [(StepSource.TRAINING_STEP, TRAINING_STEP_TEXT), *users]


def _ranges_of_processes(ranges: HostRanges, expression: str) -> _RangesOfProcesses:
    """The numbered ``ranges`` in whose text ``expression`` is found, and that have ended."""
    ended = _number_ranges(ranges, expression).filter(pl.col("end_ns").is_not_null())
    return ended.partition_by("capture_id", "process", as_dict=True)


def _number_ranges(ranges: HostRanges, expression: str) -> HostRanges:
    """The ``ranges`` in whose text ``expression`` is found, with the ``number`` nearest to it, null without one.

    Of two equally near numbers the later counts, of several inside of what was found the first. polars searches, in
    linear time: Python's re takes exponential time to search for an expression like ``(a+)+$``.
    """
    text = pl.col("text")
    texts = ranges.select(text.unique())
    matches = texts.with_columns(start=text.str.find(expression), match=text.str.extract(expression, 0))
    numbers: dict[str, int | None] = {}
    for full, start_bytes, match in matches.drop_nulls().rows():
        start = len(full.encode()[:start_bytes].decode())
        numbers[full] = _nearest_number(full, start, start + len(match))
    columns = pl.Schema({"text": pl.String, "number": pl.Int64})
    return ranges.join(pl.DataFrame([*numbers.items()], columns, orient="row"), on="text", maintain_order="left")


def _nearest_number(text: str, start: int, end: int) -> int | None:
    """The number in ``text`` that is nearest to what stands from ``start`` to ``end``."""
    nearest = min(
        _NUMBER.finditer(text),
        key=lambda number: (max(number.start() - end, start - number.end(), 0), number.end() <= start),
        default=None,
    )
    return int(nearest[0]) if nearest and len(nearest[0]) <= limits.LONGEST_STEP_NUMBER else None


def _have_increasing_numbers(windows: Sequence[_Window]) -> bool:
    numbers = [window.index for window in windows]
    return _NO_NUMBER not in numbers and all(before < after for before, after in pairwise(numbers))


def list_median_steps(steps: Steps, pauses: Pauses | None = None) -> StepKeys:
    """The kept step of each rank that stands for it: the one of median length.

    Of two in the middle it is the shorter, of equally long ones the earlier. Where hosts pause in some steps, lengths
    count without ``pauses``, and of the steps without long ones it is the nearest, unless that is far off. In the first
    of several steps of a capture none are looked for: where all others have some, it has them, too.
    """
    found = pl.DataFrame(schema=PAUSES) if pauses is None else pauses
    paused = found.group_by(STEP).agg(paused_ns=DURATION.sum()).group_by("step").agg(pl.col("paused_ns").max())
    length_ns, rank, off_ns, behind = pl.col("length_ns"), "rank_index", pl.col("off_ns"), pl.col("behind")
    kept = (
        steps.with_columns(is_first=pl.col("start_ns") == pl.col("start_ns").min().over(rank))
        .filter("kept")
        .join(paused, on="step", how="left")  # its peers wait for a rank that pauses
        .with_columns(length_ns=DURATION - pl.col("paused_ns").fill_null(0))
        .sort(rank, "length_ns", "start_ns")
        .with_columns(behind=(pl.int_range(pl.len()) - (pl.len() - 1) // 2).over(rank))  # the one in the middle
        .with_columns(usual_ns=length_ns.filter(behind == 0).first().over(rank))
        .with_columns(
            off_ns=(length_ns - pl.col("usual_ns")).abs(),
            is_paused=pl.col("paused_ns").fill_null(0) > LEAST_PAUSED_FRACTION * pl.col("usual_ns"),
        )
    )
    later = kept.filter(~pl.col("is_first"))
    is_regular = later["step"].n_unique() > 1 and bool(later["is_paused"].all())
    is_usual = pl.col("is_paused") if is_regular else ~pl.col("is_paused")
    is_usual &= off_ns <= MOST_OFF_FRACTION * pl.col("usual_ns")
    return (
        kept.filter(is_usual | ~is_usual.any().over(rank))
        .sort(rank, off_ns, behind.abs(), behind)
        .group_by(rank, maintain_order=True)
        .agg(pl.col("step").first())
    )


def list_steps(step_of: Mapping[int, int]) -> StepKeys:
    """One step of each rank. ``step_of``: its number by rank index."""
    return pl.DataFrame(list(step_of.items()), schema={"rank_index": pl.Int64, "step": pl.Int64}, orient="row")


def _find_windows(
    operations: Operations, ranges_by_source: Sequence[tuple[StepSource, _RangesOfProcesses]]
) -> tuple[list[_Window], StepSource]:
    process = operations.select("capture_id", "process").row(0)
    for source, ranges in ranges_by_source:
        windows = _windows_from_ranges(operations, ranges[process]) if process in ranges else []
        if windows:
            return windows, source
    windows = _windows_from_optimizer(operations)
    if windows:
        return windows, StepSource.OPTIMIZER
    first, last = _extent(operations)
    return [_Window(0, first, max(last, first + 1), opens_at_edge=True, closes_at_edge=True)], StepSource.ONE_WINDOW


def _extent(operations: pl.DataFrame) -> tuple[int, int]:
    first, last = operations.select(first=pl.col("start_ns").min(), last=pl.col("end_ns").max()).row(0)
    return int(first), int(last)


def _windows_from_ranges(operations: Operations, ranges: HostRanges) -> list[_Window]:
    """Host ranges projected onto the device: a step runs from its first kernel to the next step's first kernel."""
    outermost = _outermost(ranges)
    kernels = (
        operations.select("kind", "launch_start_ns", "start_ns", "end_ns")
        .filter(pl.col("kind").is_in(["kernel", "graph"]) & pl.col("launch_start_ns").is_not_null())
        .sort("launch_start_ns")
    )
    begins, ends = (
        kernels["launch_start_ns"].search_sorted(pl.Series(times_ns, dtype=pl.Int64), "left").to_list()
        for times_ns in ([start_ns for _, start_ns, _ in outermost], [end_ns for _, _, end_ns in outermost])
    )
    projected: list[tuple[int, int, int]] = []
    for (number, _, _), begin, end in zip(outermost, begins, ends, strict=True):
        if begin < end:
            launched = kernels.slice(begin, end - begin)
            projected.append((_NO_NUMBER if number is None else number, *_extent(launched)))
    capture_start, _ = _extent(operations)
    windows: list[_Window] = []
    for order, (index, first, last) in enumerate(projected):
        is_last = order == len(projected) - 1
        end_ns = last if is_last else _end_before(projected[order + 1][1], first, last)
        # Kernels of a later range may start first, on another stream; windows do not overlap nonetheless.
        start_ns = max(first, windows[-1].end_ns) if windows else first
        windows.append(_Window(index, start_ns, max(end_ns, start_ns + 1), first <= capture_start, is_last))
    return windows


def _end_before(following_ns: int, start_ns: int, end_ns: int) -> int:
    """When the step from ``start_ns`` to ``end_ns`` ends, if the next one starts at ``following_ns``.

    Host work between two ranges (logging, data) counts to the earlier step. A pause far longer than the step
    (evaluation, a checkpoint) does not.
    """
    longest_pause = MAXIMUM_PAUSE_FRACTION
    return following_ns if following_ns - end_ns <= longest_pause * (end_ns - start_ns) else end_ns


def _outermost(ranges: HostRanges) -> list[tuple[int | None, int, int]]:
    """Number, start and end of each range that lies in no other."""
    found: list[tuple[int | None, int, int]] = []
    in_order = ranges.sort("start_ns", "end_ns", descending=[False, True])
    for number, start_ns, end_ns in in_order.select("number", "start_ns", "end_ns").rows():
        if not found or start_ns >= found[-1][2]:
            found.append((number, start_ns, end_ns))
    return found


def _windows_from_optimizer(operations: Operations) -> list[_Window]:
    """A step runs from the end of one optimizer phase to the end of the next."""
    first, _ = _extent(operations)
    ends = [end for end in _optimizer_phase_ends(operations) if end > first]
    if not ends:
        return []
    continues = not operations.filter(pl.col("start_ns") >= ends[-1]).is_empty()  # work follows the last update
    starts = [first, *ends[:-1]]
    return [
        _Window(order, start, end, opens_at_edge=order == 0, closes_at_edge=order == len(ends) - 1 and not continues)
        for order, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _optimizer_phase_ends(operations: Operations) -> list[int]:
    """When each optimizer phase of one rank ends (end of its last update kernel), increasing.

    Collectives can split the update kernels of one phase into clusters, and a step must not be cut between those. So
    consecutive clusters belong together unless forward and backward work lies between them. A phase that ends inside of
    an earlier one, as a damaged time can make it, belongs to that one.
    """
    anchors = operations.filter(pl.col("anchor")).select("start_ns", "end_ns").sort("start_ns", "end_ns")
    if anchors.is_empty():
        return []
    work = (
        operations.select("category", "start_ns", "end_ns")
        .filter(pl.col("category").is_in(list(MODEL_WORK)))
        .sort("start_ns")
        .select("start_ns", work_ns=DURATION.cum_sum())
    )
    done = anchors.join_asof(work, on="start_ns", strategy="backward").with_columns(pl.col("work_ns").fill_null(0))
    total = int(work["work_ns"][-1]) if work.height else 0
    # Model work between update kernels, before the first and after the last one.
    between = done["work_ns"].diff().fill_null(0).to_list()
    longest = max([*between, done["work_ns"][0], total - done["work_ns"][-1]])
    least = SAME_OPTIMIZER_PHASE_FRACTION * longest
    opens_phase = [order == 0 or between[order] > least for order in range(done.height)]
    phases = done.with_columns(phase=pl.Series(opens_phase).cast(pl.Int64).cum_sum())
    ends = phases.group_by("phase", maintain_order=True).agg(pl.col("end_ns").max())
    return [int(end) for end in ends["end_ns"].cum_max().unique(maintain_order=True)]


def _keep_or_drop(rank_index: int, windows: Sequence[_Window], source: StepSource) -> Steps:
    """STEPS of one rank: keeps the windows that conclusions may rest on, with the reason for dropping the others."""
    clean = [window for window in windows if not window.opens_at_edge and not window.closes_at_edge]
    rows = []
    for window in windows:
        if clean:
            is_kept = not window.opens_at_edge and not window.closes_at_edge
            only_one = "the only complete step: two were captured, and the first starts where the capture starts"
            reason = _describe_edge(window) or (only_one if len(windows) == 2 else "")
        elif len(windows) == 1:
            is_kept, reason = True, "the only step in the capture: it may be cut off at either end"
        else:
            # Of two steps the first contains the profiler's start, which takes seconds and differs between ranks.
            is_kept = not window.opens_at_edge
            end = "it ends with an optimizer update" if source is StepSource.OPTIMIZER else "its range was closed"
            spared = f"kept although it ends near the end of the capture: only two steps were captured, and {end}"
            reason = spared if is_kept else _describe_edge(window)
        rows.append((rank_index, window.index, window.start_ns, window.end_ns, is_kept, reason))
    return pl.DataFrame(rows, schema=STEPS, orient="row")


def _describe_edge(window: _Window) -> str:
    if window.opens_at_edge:
        return "starts where the capture starts: it may be cut off, and it contains the start of the profiler"
    if window.closes_at_edge:
        return "ends where the capture ends: it may be cut off, or delayed by the end of profiling"
    return ""
