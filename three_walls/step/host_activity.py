"""What a host thread was doing: its CUDA API calls by kind, and which operation ended a synchronizing call."""

from __future__ import annotations

from functools import lru_cache

import polars as pl

from three_walls.step.intervals import intersect
from three_walls.step.step_tables import CallsOfKind, GapActivities, LateLaunches, Operations
from three_walls.tables.kernel_names import load_api_patterns
from three_walls.trace.api_calls import ApiCalls

MAXIMUM_RETURN_NS = 50_000
"""From the end of an operation to the return of the call that waited for it. A synchronizing call returns some ten
microseconds after what it waits for has ended; a later return means that it waited for something else."""

THREAD = ("capture_id", "thread")
"""Identifies a host thread."""

STARVATION_CAUSES = {
    "synchronize": "starved_synchronizing",
    "allocate": "starved_allocating",
    "module_load": "starved_allocating",
    "copy": "starved_copying",
    "launch": "starved_launching",
    "graph_launch": "starved_launching",
    "event_record": "starved_launching",
    "stream_wait": "starved_launching",
}
"""Kind of API call -> cause of starvation. Calls without a kind (queries, attributes) take no notable time."""

API_VERSION = r"(_ptsz|_ptds|_v\d+)+$"
"""Suffixes of an API function's name: which default stream, which version."""


def calls_of_kind(api_calls: ApiCalls, kinds: tuple[str, ...]) -> CallsOfKind:
    """The rows of ``api_calls`` of one of ``kinds``, with ``kind`` and ``call`` (the name without suffixes)."""
    calls = api_calls.named(lambda name: kind_of(name) in kinds).frame()
    rows = [(name, kind_of(name)) for name in calls["name"].unique().cast(pl.String).to_list()]
    kind_of_name = pl.DataFrame(rows, schema={"name": pl.Categorical, "kind": pl.String}, orient="row").with_columns(
        call=pl.col("name").cast(pl.String).str.replace(API_VERSION, "")
    )
    return calls.join(kind_of_name, on="name", how="inner", maintain_order="left")


@lru_cache(maxsize=10_000)
def kind_of(name: str) -> str | None:
    """Kind of the API call ``name`` in ``tables/api-calls.yaml``; None where the table has none."""
    return next((row.kind for row in load_api_patterns() if row.pattern.search(name)), None)


def name_activities(late: LateLaunches, api_calls: ApiCalls, operations: Operations) -> GapActivities:
    """The CUDA calls of the launching threads during ``late``, which has no overlaps within a rank.

    ``detail`` is the name of the call; for a synchronizing call it also names the operation that released it.
    """
    threads = late.select("rank_index", *THREAD).unique()
    calls = (
        calls_of_kind(api_calls, tuple(STARVATION_CAUSES))
        .select(*THREAD, "start_ns", "end_ns", "kind", "call", begun_ns="start_ns", returned_ns="end_ns")
        .join(threads, on=THREAD)
    )
    inside = intersect(calls, late, ["rank_index", *THREAD], carry=["gap"])
    waiting = pl.col("kind") == "synchronize"
    return pl.concat(
        [
            _with_cause(inside.filter(~waiting), pl.col("call")),
            _with_cause(
                _name_releaser(inside.filter(waiting), operations), pl.concat_str(pl.col("call"), pl.col("released_by"))
            ),
        ]
    )


def _with_cause(inside: LateLaunches, detail: pl.Expr) -> pl.DataFrame:
    cause = pl.col("kind").replace_strict(STARVATION_CAUSES, return_dtype=pl.String)
    return inside.select("gap", "start_ns", "end_ns", cause=cause, detail=detail)


def _name_releaser(waits: LateLaunches, operations: Operations) -> LateLaunches:
    """Adds ``released_by`` to ``waits``: `` until <category> on stream <n>``, or empty.

    A synchronizing call returns when the device has caught up, so the operation that ended last, just before the
    return, released it. A call that found the device ready waited for nothing.
    """
    # Of several that end together always the same is named, whatever their order.
    ends = operations.select("rank_index", "category", "stream", released_ns="end_ns").sort(
        "released_ns", "stream", "category"
    )
    releases = waits.sort("returned_ns").join_asof(
        ends,
        left_on="returned_ns",
        right_on="released_ns",
        by="rank_index",
        strategy="backward",
        check_sortedness=False,
    )
    name = pl.format(" until {} on stream {}", pl.col("category").cast(pl.String), pl.col("stream"))
    earliest = pl.max_horizontal("begun_ns", pl.col("returned_ns") - MAXIMUM_RETURN_NS)
    return releases.with_columns(released_by=pl.when(pl.col("released_ns") > earliest).then(name).otherwise(pl.lit("")))
