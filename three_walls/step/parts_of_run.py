"""The run in parts, so that attributing a long capture takes no more memory than attributing some of its steps.

A part is either several whole ranks or consecutive steps of one rank, with the operations next to these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from three_walls.step.build_timeline import Timeline
from three_walls.step.selected_steps import RankRows
from three_walls.step.stream_edges import EventCalls

MOST_OPERATIONS = 200_000
"""Of a part, unless a single step has more. Smaller parts cost more time, larger ones more memory: about 700 bytes for
each operation."""

_NEEDED = (
    "rank_index",
    "kind",
    "category",
    "name_id",
    "stream",
    "start_ns",
    "end_ns",
    "grid_x",
    "grid_y",
    "grid_z",
    "graph_node",
    "capture_id",
    "process",
    "launch_start_ns",
    "launch_end_ns",
    "launch_thread",
)
"""Columns of Timeline.operations that attributing a part takes."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some steps, and everything that conclusions about them rest on."""

    timeline: Timeline
    """The run's, with the steps of the part alone, and with the operations and calls that matter to them."""
    event_calls: EventCalls


def divide_run(timeline: Timeline, event_calls: EventCalls) -> Iterator[Part]:
    """The parts of a run, by rank and step; a single one where it has no more than ``MOST_OPERATIONS``."""
    if timeline.operations.height <= MOST_OPERATIONS:
        yield Part(timeline, event_calls)
        return
    runs = timeline.operations.select(pl.col("rank_index").rle()).unnest("rank_index")
    ranks = runs["value"]
    first_row = [0, *runs["len"].cum_sum().to_list()]
    begin = 0
    for place in range(len(ranks)):
        rows = first_row[place + 1] - first_row[place]
        if rows > MOST_OPERATIONS:
            yield from _take_ranks(timeline, event_calls, ranks[begin:place], (first_row[begin], first_row[place]))
            steps = timeline.steps.filter(pl.col("rank_index") == ranks[place])
            operations = timeline.operations[first_row[place] : first_row[place + 1]]
            yield from _divide_rank(replace(timeline, steps=steps, operations=operations), event_calls)
            begin = place + 1
        elif first_row[place + 1] - first_row[begin] > MOST_OPERATIONS:
            yield from _take_ranks(timeline, event_calls, ranks[begin:place], (first_row[begin], first_row[place]))
            begin = place
    yield from _take_ranks(timeline, event_calls, ranks[begin:], (first_row[begin], first_row[-1]))


def _take_ranks(timeline: Timeline, event_calls: EventCalls, ranks: pl.Series, rows: tuple[int, int]) -> Iterator[Part]:
    """The whole ``ranks``, whose operations are ``rows``, as a part; none without any."""
    if ranks.is_empty():
        return
    operations = timeline.operations[rows[0] : rows[1]]
    captures = pl.col("capture_id").is_in(operations["capture_id"].unique().implode())
    part = replace(
        timeline,
        operations=operations,
        steps=timeline.steps.filter(pl.col("rank_index").is_in(ranks.implode())),
        api_calls=timeline.api_calls.of_captures(operations["capture_id"].unique().to_list()),
    )
    yield Part(part, event_calls.filter(captures))


def _divide_rank(timeline: Timeline, event_calls: EventCalls) -> Iterator[Part]:
    """The parts of a single rank: ``timeline`` has its operations and steps alone."""
    operations, steps = timeline.operations.select(_NEEDED), timeline.steps.sort("start_ns")
    capture_id, process = operations.select("capture_id", "process").row(0)
    of_process = (pl.col("capture_id") == capture_id) & (pl.col("process") == process)
    own_calls = event_calls.filter(of_process)
    rank_rows = RankRows(operations)
    first_row, last_row = (rank_rows.count_before(steps[bound]) for bound in ("start_ns", "end_ns"))
    begin = 0
    while begin < steps.height:
        end = max(begin + 1, int(np.searchsorted(last_row, first_row[begin] + MOST_OPERATIONS, "right")))
        own_steps = steps[begin:end]
        begin_ns, end_ns = own_steps["start_ns"][0], own_steps["end_ns"][-1]
        still_running, first, after = rank_rows.find(begin_ns, end_ns)
        own = pl.concat([operations[still_running], operations[first:after]])
        part = replace(
            timeline,
            operations=own,
            steps=own_steps,
            api_calls=timeline.api_calls.during({capture_id: [(begin_ns, end_ns)]}),
        )
        yield Part(part, own_calls.around(own["launch_start_ns"]))
        begin = end
