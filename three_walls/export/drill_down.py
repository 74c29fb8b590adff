"""The representative step in detail, for the report: its kernels, the host's time by place, the timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from three_walls.export.host_work_rows import HostWork, detail_gaps, measure_host_work
from three_walls.export.kernel_table import describe_operations, tabulate_kernels
from three_walls.export.step_detail_rows import HostWorkRow, KernelRow, Timeline
from three_walls.export.step_timeline import choose_detailed, draw_timeline
from three_walls.export.step_tracks import MeasuredStep
from three_walls.step.operators import read_named_ranges, read_operators
from three_walls.step.step_rows import RankReport


@dataclass(frozen=True, slots=True)
class DrilledDown:
    """Fields of the report with the same names."""

    ranks: tuple[RankReport, ...]
    kernels: tuple[KernelRow, ...] = ()
    host_work: tuple[HostWorkRow, ...] = ()
    timeline: Timeline | None = None


def drill_down(measured: MeasuredStep, ranks: Sequence[RankReport], late: Sequence[int]) -> DrilledDown:
    """The details of the step, and ``ranks`` with more details of the gaps of the representative one.

    ``late``: numbers of ranks that make others wait, the one that costs most first. Raises InputError where a trace
    cannot be read any more.
    """
    step, timeline = measured.step, measured.timeline
    operators = read_operators(step.trace, step.rank.process, step.operations)
    operations = describe_operations(step, measured.graph, operators)
    kernels = tabulate_kernels(step, operations, operators)
    detailed = choose_detailed(measured, late)
    is_detailed = pl.col("rank_index").is_in(list(detailed)) & (pl.col("step") == step.step)
    gaps = measured.gaps.stretches.filter(is_detailed)
    ranges = read_named_ranges(step.trace, step.rank.process, step.operations)
    own_gaps = gaps.filter(pl.col("rank_index") == step.rank_index)
    work = measure_host_work(step, timeline, operations, ranges, own_gaps)
    drawn = draw_timeline(measured, operations, ranges, gaps, detailed, late)
    return DrilledDown(tuple(_add_places(rank, measured, work) for rank in ranks), kernels, work.rows, drawn)


def _add_places(rank: RankReport, measured: MeasuredStep, work: HostWork) -> RankReport:
    is_representative = (rank.rank, rank.median_index) == (measured.step.rank.rank, measured.step.step)
    return detail_gaps(rank, work.starved_ns) if is_representative else rank
