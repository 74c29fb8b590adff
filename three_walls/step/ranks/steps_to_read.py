"""Which steps of a long capture are read, chosen before anything else of it is: memory then does not grow with it.

One pass finds when the steps of each rank ran. It goes over the NVTX ranges that mark steps and over the kernels: where
no range marks a step, steps are found by the kernels of optimizer and model. A run of which some ranks have steps that
a range marks, and others not, is read whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl

from three_walls.lib.errors import InputError
from three_walls.lib.threads import read_each
from three_walls.step import selected_steps
from three_walls.step.build_timeline import Timeline
from three_walls.step.categories import CATEGORY_OR_SEND_RECV, classify
from three_walls.step.find_steps import (
    MODEL_WORK,
    TRAINING_STEP_TEXT,
    list_marked_steps,
    list_optimizer_steps,
)
from three_walls.step.ranks.align_clocks import ClockSource, align_clocks
from three_walls.step.ranks.attributed_steps import MOST_ATTRIBUTED_OPERATIONS, choose_numbers
from three_walls.step.ranks.capture_start import drop_skewed_steps, find_capture_start_skew, number_steps
from three_walls.step.ranks.match_calls import MatchedCalls, RankOutline, outline_ranks
from three_walls.step.step_rows import StepSource
from three_walls.step.step_tables import RankIntervals, Steps
from three_walls.tables.kernel_names import KernelPack
from three_walls.trace.identity import read_host
from three_walls.trace.nsys_export import NsysExport
from three_walls.trace.read_tables import GRAPHS, HAS_ENDED, KERNELS, WantedRanges, count_operations, read_ranges
from three_walls.trace.read_trace import Trace, cut_names, list_steps_to_read, read_session_start
from three_walls.trace.schemas import KINDS
from three_walls.trace.spans import Device, SampledSteps, Span, StepsToRead, are_within, join_spans
from three_walls.trace.trace_files import plain_sqlite
from three_walls.trace.unpack import COMPRESSED_SUFFIXES


@dataclass(frozen=True, slots=True)
class RankSteps:
    """What one pass shows of a rank."""

    device: Device
    steps: Steps
    """STEPS, of rank index 0; counted from 0 where no range marks them."""
    is_marked: bool
    kernels: int
    begins: Span
    """The earliest start and the earliest end of a kernel."""


@dataclass(frozen=True, slots=True)
class CaptureSteps:
    """What one pass shows of a capture."""

    ranks: Sequence[RankSteps]
    host: str | None
    session_start_ns: int | None


class UnknownStepsError(Exception):
    """Some rank's steps are not found in one pass."""


def find_step_times(
    path: Path, step_range: str | None, own_names: KernelPack | None = None, *, with_shared_gpus: bool = False
) -> CaptureSteps:
    """The steps of all ranks in the capture at ``path``. ``step_range``: of the user, for the ranges that are steps.

    ``with_shared_gpus``: whether a process without steps may share the GPU of one with steps, and is no rank.

    Raises UnknownStepsError where one pass does not show the steps of every rank, and InputError if the file cannot be
    read.
    """
    with plain_sqlite(path) as plain, NsysExport(plain, path) as export:
        ranges = read_ranges(export, WantedRanges((TRAINING_STEP_TEXT,), step_range, numbered=TRAINING_STEP_TEXT))
        signs = _StepSigns(export, own_names, of_names=ranges.is_empty())
        ranks: list[RankSteps] = []
        unknown: set[int] = set()
        for (process, device), (begin, end, kernels) in sorted(signs.kernels.items()):
            steps = list_marked_steps(ranges.filter(pl.col("process") == process), step_range, begin)
            is_marked = steps is not None
            if steps is None and ranges.is_empty():
                is_own = (pl.col("process") == process) & (pl.col("device") == device)
                steps = list_optimizer_steps(signs.rows.filter(is_own))
            if steps is None or steps.is_empty():
                unknown.add(device)
                continue
            ranks.append(RankSteps((process, device), steps, is_marked, kernels, (begin, end)))
        if unknown - {rank.device[1] for rank in ranks if with_shared_gpus}:
            raise UnknownStepsError
        return CaptureSteps(ranks, read_host(export), read_session_start(export))


_COLUMNS = {"start_ns": "start", "end_ns": "end", "process": "globalPid", "device": "deviceId"}
_NAMES = {"name_id": "demangledName", "short_name_id": "shortName"}
_DEVICE = ("process", "device")
_SIGNS = pl.Schema(
    {
        "process": pl.Int64(),
        "device": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "category": CATEGORY_OR_SEND_RECV,
        "anchor": pl.Boolean(),
    }
)


class _StepSigns:
    """What one pass over the kernels and graphs of an export shows."""

    def __init__(self, export: NsysExport, own_names: KernelPack | None, *, of_names: bool) -> None:
        """``of_names``: whether kernels are told apart. Raises UnknownStepsError where one states no process."""
        self.kernels: dict[Device, tuple[int, int, int]] = {}
        """Of each device the earliest start, the earliest end, and how many there are."""
        self._export, self._own_names = export, own_names
        self._known = pl.DataFrame(
            schema={**dict.fromkeys(_NAMES, pl.Int64()), "category": CATEGORY_OR_SEND_RECV, "anchor": pl.Boolean()}
        )
        if of_names:
            kernels = export.frame(KERNELS, _COLUMNS | _NAMES, reduce=self._keep_signs)
        else:
            kernels = export.frame(KERNELS, _COLUMNS, reduce=lambda rows: _as_work(self._count(rows).clear()))
        graphs = export.frame(GRAPHS, _COLUMNS, reduce=lambda rows: _as_work(self._count(rows)))
        self.rows = pl.concat([kernels, graphs]).sort("start_ns", "end_ns")
        """The operations by which steps are found: updates, model work, and the first and last kernel of each part.

        Columns: _SIGNS; sorted by start.
        """

    def _count(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Counts ``rows``, kernels or graphs, and gives those with usable times."""
        timed = rows.filter(HAS_ENDED & (pl.col("start_ns") > 0))
        counts = timed.group_by(_DEVICE).agg(pl.col("start_ns").min(), pl.col("end_ns").min(), pl.len())
        if counts.select(pl.any_horizontal(pl.col(_DEVICE).is_null().any())).item():
            raise UnknownStepsError
        for process, device, start_ns, end_ns, count in counts.rows():
            start, end, before = self.kernels.get((process, device), (start_ns, end_ns, 0))
            self.kernels[process, device] = min(start, start_ns), min(end, end_ns), before + count
        return timed

    def _keep_signs(self, rows: pl.DataFrame) -> pl.DataFrame:
        timed, name = self._count(rows), list(_NAMES)
        new = timed.select(name).unique().join(self._known, on=name, how="anti", nulls_equal=True)
        if new.height:
            texts = self._export.strings({*new["name_id"].drop_nulls(), *new["short_name_id"].drop_nulls()})
            absent = [pl.lit(None, dtype=pl.Int8).alias(each) for each in ("copy_kind", "source_kind", "target_kind")]
            kernel = [pl.lit(0, dtype=pl.Int64).alias("rank_index"), pl.lit("kernel", dtype=KINDS).alias("kind")]
            categories = classify(new.with_columns(*kernel, *absent), cut_names(texts), self._own_names)
            self._known = pl.concat([self._known, categories.select(self._known.columns)])
        is_sign = pl.col("anchor") | pl.col("category").is_in(list(MODEL_WORK))
        start_ns = pl.col("start_ns")
        is_edge = (start_ns == start_ns.min().over(_DEVICE)) | (start_ns == start_ns.max().over(_DEVICE))
        signs = timed.join(self._known.filter(is_sign), on=name, nulls_equal=True)
        edges = timed.filter(is_edge).join(self._known.filter(~is_sign), on=name, nulls_equal=True)
        return pl.concat([signs.select(_SIGNS.names()), edges.select(_SIGNS.names())])


def _as_work(rows: pl.DataFrame) -> pl.DataFrame:
    """``rows`` as _SIGNS: graphs are model work."""
    category = pl.lit("cuda_graph", dtype=CATEGORY_OR_SEND_RECV)
    return rows.with_columns(category=category, anchor=pl.lit(value=False)).select(_SIGNS.names())


T = TypeVar("T")


def choose_steps_to_read(
    paths: Sequence[Path],
    captures_count: int,
    step_range: str | None,
    progress: Callable[[str], None],
    jobs: int = 1,
    own_names: KernelPack | None = None,
) -> Mapping[Path, Mapping[Device, StepsToRead]]:
    """For each of the captures at ``paths`` the steps to read of each of its ranks; none where all are.

    They are the same of all ranks, so that the ranks can be compared. What cannot be read is left to whoever reads it.
    ``captures_count``: how many captures the run has; those not among ``paths`` are taken to be as large. ``jobs``: in
    how many threads captures are read.
    """
    if any(path.suffix in COMPRESSED_SUFFIXES for path in paths):
        progress("unpacking traces")
    counts = dict(zip(paths, _read_each(_count_operations, paths, jobs), strict=True))
    readable = [path for path in paths if counts[path]]
    operations = sum(filter(None, counts.values()))
    # As in choose_steps, leaving out fewer than half saves little. A survey attributes every step that it reads.
    least = 2 if captures_count == len(paths) else 1
    if operations <= least * MOST_ATTRIBUTED_OPERATIONS:
        return {}
    progress("choosing the steps to read")
    try:
        captures = _read_each(partial(find_step_times, step_range=step_range, own_names=own_names), readable, jobs)
    except UnknownStepsError:
        return {}
    capture_of = {path: capture for path, capture in zip(readable, captures, strict=True) if capture is not None}
    return _choose(capture_of, operations * captures_count // len(paths))


def sample_steps(first: Trace) -> SampledSteps | None:
    """The steps that were read of the first rank of ``first``, to be attributed of all; None where all were."""
    read = next(iter(list_steps_to_read([first]).values()), None)
    if read is None:
        return None
    times = read.steps.filter(pl.col("step").is_in(sorted(read.attributed))).select("start_ns", "end_ns").rows()
    start_ns = first.session_start_ns
    spans = None if start_ns is None else join_spans((begin + start_ns, end + start_ns) for begin, end in times)
    return SampledSteps(read.attributed, read.are_marked, spans, read.steps.filter("kept").height)


def take_sampled(
    path: Path, sample: SampledSteps, step_range: str | None, own_names: KernelPack | None = None
) -> Mapping[Device, StepsToRead]:
    """The steps to read of each rank of the capture at ``path``: those in ``sample``; none where all are.

    Steps that no range marks are counted from the begin of each capture, so they are found by when they ran. Clocks of
    different hosts are milliseconds apart, far less than a step takes.
    """
    try:
        capture = find_step_times(path, step_range, own_names)
    except (InputError, UnknownStepsError):
        return {}
    to_read = {}
    for rank in capture.ranks:
        kept_steps = rank.steps.filter("kept")
        if rank.is_marked or sample.spans is None or capture.session_start_ns is None:
            are_sampled = kept_steps["step"].is_in(sorted(sample.numbers))
        else:
            are_sampled = are_within(
                sample.spans, (kept_steps["start_ns"] + kept_steps["end_ns"]) // 2 + capture.session_start_ns
            )
        numbers = frozenset(kept_steps.filter(are_sampled)["step"].to_list())
        if not numbers or rank.is_marked != sample.are_marked:
            return {}
        to_read[rank.device] = _take(rank, rank.steps, numbers)
    return to_read


def _read_each(read: Callable[[Path], T], paths: Sequence[Path], jobs: int) -> list[T | None]:
    """``read`` of each of ``paths``; None of one that cannot be read."""

    def attempt(path: Path) -> T | None:
        try:
            return read(path)
        except InputError:
            return None

    return read_each(attempt, paths, jobs, lambda _: None)


def _count_operations(path: Path) -> int:
    with plain_sqlite(path) as plain, NsysExport(plain, path) as export:
        return count_operations(export)


def _choose(captures: Mapping[Path, CaptureSteps], operations: int) -> dict[Path, dict[Device, StepsToRead]]:
    """The steps to read of runs with so many ``operations``."""
    ranks = [(path, capture, rank) for path, capture in captures.items() for rank in capture.ranks]
    if len({rank.is_marked for _, _, rank in ranks}) != 1:
        return {}
    source = StepSource.TRAINING_STEP if ranks[0][2].is_marked else StepSource.OPTIMIZER
    places = {path: place for place, path in enumerate(captures)}
    clocks = [
        ClockSource(index, index, places[path], capture.host, capture.session_start_ns)
        for index, (path, capture, _) in enumerate(ranks)
    ]
    each = [_with_rank_index(rank.steps, index) for index, (_, _, rank) in enumerate(ranks)]
    steps = number_steps(pl.concat(each), dict.fromkeys(range(len(ranks)), source), clocks)
    numbers = choose_numbers(_drop_skewed(steps, [rank for _, _, rank in ranks], clocks), operations)
    if numbers is None:
        return {}
    to_read: dict[Path, dict[Device, StepsToRead]] = defaultdict(dict)
    for index, (path, _, rank) in enumerate(ranks):
        to_read[path][rank.device] = _take(rank, steps.filter(pl.col("rank_index") == index), numbers)
    return dict(to_read)


def _drop_skewed(steps: Steps, ranks: Sequence[RankSteps], clocks: Sequence[ClockSource]) -> Steps:
    """``steps`` as they are kept when the ranks are compared, by the clocks that are known before that."""
    begins = _list_begins({index: rank.begins for index, rank in enumerate(ranks)})
    no_calls = pl.DataFrame(schema=_CALLS)
    clock = align_clocks(clocks, MatchedCalls(no_calls, no_calls, no_calls))
    return drop_skewed_steps(steps, find_capture_start_skew(steps, begins, no_calls, clock).steps)


_CALLS = pl.Schema(
    {
        "instance": pl.Int64(),
        "rank_index": pl.Int64(),
        "step": pl.Int64(),
        "class": pl.String(),
        "sure": pl.Boolean(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
    }
)


def _take(rank: RankSteps, steps: Steps, numbers: frozenset[int]) -> StepsToRead:
    """``numbers`` of the ``steps`` of a rank, with as many others around them as select_steps may need."""
    margin = 1 + -(-selected_steps.LARGEST_MARGIN * steps.height // rank.kernels)
    places = np.flatnonzero(steps["step"].is_in(sorted(numbers)).to_numpy())
    around = np.zeros(steps.height + 2 * margin + 2, dtype=bool)
    for shift in range(2 * margin + 1):
        around[places + shift] = True
    are_read = around[margin : margin + steps.height]
    # What the host launches in a range runs later, so that the ranges before and after belong to it.
    more = 2 if rank.is_marked else 0
    starts, ends = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    spans = [
        (int(starts[max(0, place - more // 2)]), int(ends[min(steps.height - 1, place + more)]))
        for place in np.flatnonzero(are_read).tolist()
    ]
    numbers_read = frozenset(steps.filter(pl.Series(are_read))["step"].to_list())
    return StepsToRead(steps, rank.is_marked, numbers, numbers_read, join_spans(spans), rank.begins)


def outline_run(timeline: Timeline, to_read: Mapping[int, StepsToRead]) -> RankOutline:
    """What comparing the ranks of ``timeline`` needs; of the ranks in ``to_read``, also of what was not read."""
    outline = outline_ranks(timeline.operations)
    if not to_read:
        return outline
    unread = [
        _with_rank_index(read.steps.filter(~pl.col("step").is_in(sorted(read.read))), rank_index)
        for rank_index, read in to_read.items()
    ]
    others = outline.begins.filter(~pl.col("rank_index").is_in(list(to_read)))
    begins = _list_begins({rank_index: read.begins for rank_index, read in to_read.items()})
    begins = pl.concat([others, begins.select(others.columns)]).sort("rank_index")
    return replace(outline, begins=begins, unread=pl.concat(unread))


def _list_begins(begins: Mapping[int, Span]) -> RankIntervals:
    """RankOutline.begins."""
    return pl.DataFrame(
        [(rank_index, *times_ns) for rank_index, times_ns in begins.items()],
        schema={"rank_index": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64},
        orient="row",
    )


def _with_rank_index(steps: Steps, rank_index: int) -> Steps:
    return steps.with_columns(rank_index=pl.lit(rank_index, dtype=pl.Int64))
