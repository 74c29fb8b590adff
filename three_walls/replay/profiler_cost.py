"""What the profiler added to each host segment, so that a replay can predict the step that nobody profiled.

Two things cost host time while a capture runs:

- **NVTX ranges**: PyTorch formats a text and opens a range around every operator (``emit_nvtx``), and with recorded
  shapes the text holds all of them. What one costs is read off the capture itself: the median time from the begin of a
  range to the begin of the next one right inside it, and between two ends, where no CUDA call lies between. On one H200
  the same program ran with and without ranges: they cost 1.0 us each without shapes, where this measure gives 1.1 us,
  and 4.4 to 5.6 us each with shapes, where it gives 3.5 us.
- **Recorded CUDA calls**: the profiler's callbacks around each call. Measured on one H200 with Nsight Systems 2024.2
  (tables/profiler-costs.yaml) and scaled with the speed of the host, as the median duration of ``cudaLaunchKernel``
  shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated

import numpy as np
import polars as pl

from three_walls.lib.load_documents import Pattern, Text, load_table
from three_walls.lib.resources import TABLES_DIR
from three_walls.replay.host_chains import find_first_calls, find_handoffs
from three_walls.replay.step_graph import HostCalls
from three_walls.step.step_tables import RangeTimes
from three_walls.trace.schemas import Float64Array, Int64Array


@dataclass(frozen=True, slots=True)
class CallCost:
    """Host time that the profiler adds to calls whose name matches."""

    pattern: Pattern
    before_ns: int
    inside_ns: int
    reason: Text


@dataclass(frozen=True, slots=True)
class ProfilerCosts:
    """``tables/profiler-costs.yaml``: host time that a recorded CUDA call or NVTX range costs."""

    source: Text
    pace_call: str
    """Its median duration shows how fast a host is."""
    pace_call_ns: int
    range_begin_ns: int
    """Where the capture has no neighbouring ranges to measure it by."""
    range_end_ns: int
    calls: tuple[CallCost, ...]

    def of_call(self, name: str) -> tuple[int, int]:
        """(before, inside) of the first pattern that is found in ``name``; zeros where none is."""
        costs = ((cost.before_ns, cost.inside_ns) for cost in self.calls if cost.pattern.search(name))
        return next(costs, (0, 0))


@cache
def profiler_costs() -> ProfilerCosts:
    """What ships with the program."""
    return load_table(TABLES_DIR / "profiler-costs.yaml", ProfilerCosts)


_ENDS_STRETCH = ("launch", "graph_launch", "synchronize", "allocate")
"""Kinds of calls before which the host thinks of what it does next, and not of other calls."""


@dataclass(frozen=True, slots=True)
class RangeCost:
    """Host time that one NVTX range takes, in ns."""

    begin_ns: float
    begin_with_shapes_ns: float
    end_ns: float


RangeEvents = Annotated[
    pl.DataFrame,
    {"thread": pl.Int64, "at_ns": pl.Int64, "is_begin": pl.Boolean, "has_shapes": pl.Boolean},
]
"""Begins and ends of ranges, thread by thread in the order of time."""


def measure_profiler_cost(calls: HostCalls, ranges: RangeTimes) -> Float64Array:
    """Per host point (2i: think time before call i, 2i + 1: call i) what the profiler added, in ns.

    ``calls``: of one rank. ``ranges``: of its process around them.
    """
    scale = _measure_host_pace(calls)
    before, inside = _cost_of_calls(calls)
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    first, (resumed, followed) = find_first_calls(calls), find_handoffs(calls)
    since = np.roll(end, 1)
    since[first] = start[first]
    since[resumed] = end[followed]
    added = np.zeros(2 * calls.height)
    added[0::2], added[1::2] = _spread_before_launches(calls, before * scale, start - since), inside * scale
    events = _list_events(ranges)
    cost = measure_range_cost(events, calls)
    thread = calls["thread"].to_numpy()
    for number, of_thread in events.group_by("thread", maintain_order=True):
        places = np.flatnonzero(thread == number[0])
        at = of_thread["at_ns"].to_numpy()
        each = np.where(
            of_thread["is_begin"].to_numpy(),
            np.where(of_thread["has_shapes"].to_numpy(), cost.begin_with_shapes_ns, cost.begin_ns),
            cost.end_ns,
        )
        total = np.concatenate([[0.0], np.cumsum(each)])
        between = [np.searchsorted(at, times[places]) for times in (since, start, end)]
        added[2 * places] += total[between[1]] - total[between[0]]
        added[2 * places + 1] += total[between[2]] - total[between[1]]
    return added


def _spread_before_launches(calls: pl.DataFrame, before: Float64Array, think_ns: Int64Array) -> Float64Array:
    """``before`` each call, spread in proportion over all ``think_ns`` since the launch or the wait before it.

    Calls that look a kernel up are recorded a tenth of a microsecond before its launch, so no time is left right there.
    """
    ends = calls["kind"].is_in(_ENDS_STRETCH).fill_null(value=False).to_numpy()
    thread = calls["thread"].to_numpy()
    begins = np.concatenate([[True], ends[:-1] | (thread[1:] != thread[:-1])]) if len(ends) else ends
    stretch = np.cumsum(begins) - 1
    sums = np.bincount(stretch, before) / np.maximum(1, np.bincount(stretch, think_ns))
    return np.asarray(think_ns * sums[stretch])


def measure_range_cost(events: RangeEvents, calls: HostCalls) -> RangeCost:
    """What a range costs in this capture: medians over neighbouring begins and ends without a CUDA call between."""
    gaps = (
        pl.concat(
            [
                events.select("thread", "at_ns", "is_begin", "has_shapes", is_call=pl.lit(value=False)),
                calls.select(
                    "thread",
                    at_ns="start_ns",
                    is_begin=pl.lit(value=False),
                    has_shapes=pl.lit(value=False),
                    is_call=pl.lit(value=True),
                ),
            ]
        )
        .sort("thread", "at_ns", maintain_order=True)
        .with_columns(
            gap_ns=pl.col("at_ns") - pl.col("at_ns").shift(1).over("thread"),
            follows=pl.when(pl.col("is_call").shift(1).over("thread"))
            .then(None)
            .otherwise(pl.col("is_begin").shift(1).over("thread")),
        )
        .filter(~pl.col("is_call"))
    )
    nested = gaps.filter(pl.col("is_begin") & pl.col("follows"))
    closing = gaps.filter(~pl.col("is_begin") & ~pl.col("follows"))

    def median(frame: pl.DataFrame, otherwise: float) -> float:
        value = frame["gap_ns"].median()
        return float(value) if isinstance(value, int | float) else otherwise

    table = profiler_costs()
    plain = median(nested.filter(~pl.col("has_shapes")), table.range_begin_ns)
    return RangeCost(
        begin_ns=plain,
        begin_with_shapes_ns=median(nested.filter("has_shapes"), plain),
        end_ns=median(closing, table.range_end_ns),
    )


def _list_events(ranges: RangeTimes) -> pl.DataFrame:
    """Begins and ends of ``ranges``: thread, at_ns, is_begin, has_shapes; thread by thread in the order of time."""
    begins = ranges.select("thread", "has_shapes", at_ns="start_ns", is_begin=pl.lit(value=True))
    ends = ranges.select("thread", "has_shapes", at_ns="end_ns", is_begin=pl.lit(value=False)).drop_nulls("at_ns")
    return pl.concat([begins, ends]).sort("thread", "at_ns", "is_begin")


def _measure_host_pace(calls: pl.DataFrame) -> float:
    """How much longer a launch takes on this host than on the one that the table was measured on."""
    table = profiler_costs()
    names = calls["name"].unique().cast(pl.String).drop_nulls()
    launches = calls.filter(pl.col("name").is_in(names.filter(names.str.starts_with(table.pace_call)).implode()))
    usual = (launches["end_ns"] - launches["start_ns"]).median()
    return float(usual) / table.pace_call_ns if isinstance(usual, int | float) else 1.0


def _cost_of_calls(calls: pl.DataFrame) -> tuple[Float64Array, Float64Array]:
    """Per call what the profiler adds (before it, inside it), on the host of the table."""
    names = calls["name"].unique().cast(pl.String).drop_nulls().to_list()
    rows = [(name, *map(float, profiler_costs().of_call(name))) for name in names]
    costs = pl.DataFrame(
        rows, schema={"name": pl.Categorical, "before_ns": pl.Float64, "inside_ns": pl.Float64}, orient="row"
    )
    joined = calls.select("name").join(costs, on="name", how="left", maintain_order="left")
    return joined["before_ns"].fill_null(0.0).to_numpy(), joined["inside_ns"].fill_null(0.0).to_numpy()
