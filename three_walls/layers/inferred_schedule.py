"""The nodes of overlapped layers without their NVTX ranges, from the fixed order in which the host launches them.

With one pipeline stage Megatron Core (pipeline_parallel/combined_1f1b.py, models/common/model_chunk_schedule_plan.py)
launches the first micro-batch forward alone, then each forward with the backward before it, then the last backward
alone. A forward layer is attention (F) and the exchanges of dispatch (d) and combine (c); a backward layer the
exchanges of combine (C) and dispatch (D) and attention (B). So the host launches, for L layers, M micro-batches::

    (F d c) x L,  (C F d D c B) x L x (M - 1),  (C D B) x L

The exchanges of each kind are counted where layers run alone, and must then follow this order everywhere. Only the
schedule shows that d comes before D, for nothing has to run between the two. What is launched between two exchanges on
the compute stream belongs to the node between them. Between C and d, that is first attention forward, which extends as
many kernels beyond the router's last kernel as where it runs alone, and then the experts' backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from three_walls.layers.attention_passes import BACKWARD, FORWARD, AttentionPasses
from three_walls.step.build_timeline import (
    ATTENTION,
    COMBINE_NODE,
    DISPATCH_NODE,
    EXPERTS,
    WEIGHT_GRADIENTS,
)
from three_walls.step.step_tables import SCHEDULE_NODES, Operations, ScheduleNodes
from three_walls.tables.buckets import GEMM_CATEGORIES, TOKEN_EXCHANGES

F, B, X, OTHER = "F", "B", "X", "-"

_EXCHANGE_NODES = {
    "d": (DISPATCH_NODE, FORWARD),
    "c": (COMBINE_NODE, FORWARD),
    "C": (COMBINE_NODE, BACKWARD),
    "D": (DISPATCH_NODE, BACKWARD),
}

Window = tuple[str, str, int, int]
"""Node, direction, and the half-open range of places among the launches, or of times."""


@dataclass(frozen=True, slots=True)
class _Launches:
    """What the host launched, in order: marks (F, B, X or other), categories, times, whether on the compute stream."""

    marks: list[str]
    categories: list[str]
    at_ns: list[int]
    computes: list[bool]

    def __len__(self) -> int:
        return len(self.at_ns)

    def time_of(self, place: int) -> int:
        """When the launch at ``place`` began; after the last launch where there is none."""
        return self.at_ns[place] if place < len(self) else self.at_ns[-1] + 1

    def last_router(self, begin: int, end: int) -> int | None:
        """Place of the router's last kernel among the launches [begin, end)."""
        return next((place for place in reversed(range(begin, end)) if self.categories[place] == "router"), None)

    def has_gemm(self, begin: int, end: int) -> bool:
        return any(category in GEMM_CATEGORIES for category in self.categories[begin:end])

    def nearest_on_compute_stream(self, place: int, step: int) -> int:
        """Place of the nearest launch on the compute stream before (``step`` -1) or after (1) ``place``.

        Where there is none it is the place before the first or after the last launch.
        """
        place += step
        while 0 <= place < len(self) and not self.computes[place]:
            place += step
        return place


def infer_schedule_nodes(operations: Operations, attention: AttentionPasses) -> ScheduleNodes | None:
    """The nodes of one rank's step, or None where launches are not in the order of the schedule.

    ``operations``: that rank's of the step, all categories.
    """
    launches = _order_launches(operations, attention)
    if launches is None:
        return None
    places = [place for place, mark in enumerate(launches.marks) if mark != OTHER]
    roles = _find_roles("".join(launches.marks[place] for place in places), launches, places)
    if roles is None:
        return None
    windows = _find_windows(_group_exchanges(roles, places), launches)
    if windows is None:
        return None
    process = operations.select("capture_id", "process").row(0)
    return pl.DataFrame([(*process, *window) for window in windows], schema=SCHEDULE_NODES, orient="row")


def _order_launches(operations: pl.DataFrame, attention: pl.DataFrame) -> _Launches | None:
    streams = attention["stream"].unique().to_list()
    if len(streams) != 1 or operations.select("capture_id", "process").n_unique() != 1:
        return None
    phase = pl.when(pl.col("phase") == FORWARD).then(pl.lit(F)).when(pl.col("phase") == BACKWARD).then(pl.lit(B))
    exchange = (
        pl.when(pl.col("category").cast(pl.String).is_in(TOKEN_EXCHANGES)).then(pl.lit(X)).otherwise(pl.lit(OTHER))
    )
    kernels = operations.filter(pl.col("kind") == "kernel").sort("launch_start_ns", "start_ns", "end_ns")
    if kernels.is_empty() or kernels["launch_start_ns"].null_count():
        return None
    marked = kernels.with_columns(mark=pl.coalesce(phase, exchange), computes=pl.col("stream") == streams[0])
    return _Launches(
        marked["mark"].to_list(),
        marked["category"].cast(pl.String).to_list(),
        marked["launch_start_ns"].to_list(),
        marked["computes"].to_list(),
    )


def _find_roles(events: str, launches: _Launches, places: list[int]) -> str | None:
    """The role of every event (F, d, c, C, D, B), in order; None where they are not in the order of the schedule.

    ``events``: the marks F, B and X; ``places``: where they are among the launches.
    """
    forward, backward = events.count(F), events.count(B)
    # Where the first backward is launched, one forward layer of the second micro-batch is launched already.
    layers = events.replace(X, "").find(B) - 1
    if layers < 2 or forward != backward or forward % layers or forward == layers:
        return None
    forward_alone = _split_exchanges(events, F, events.index(F), launches, places)
    last_but_one_backward = events.rindex(B, 0, events.rindex(B))
    backward_alone = _split_exchanges(events, B, last_but_one_backward, launches, places)
    if forward_alone is None or backward_alone is None:
        return None
    dispatch, combine = ("d" * forward_alone[0], "c" * forward_alone[1])
    combine_backward, dispatch_backward = ("C" * backward_alone[0], "D" * backward_alone[1])
    first = F + dispatch + combine
    both = combine_backward + F + dispatch + dispatch_backward + combine + B
    last = combine_backward + dispatch_backward + B
    roles = first * layers + both * (forward - layers) + last * layers
    expected = "".join(X if role in _EXCHANGE_NODES else role for role in roles)
    return roles if expected == events else None


def _split_exchanges(
    events: str, mark: str, first: int, launches: _Launches, places: list[int]
) -> tuple[int, int] | None:
    """Exchanges between the attention at event ``first`` and the next: (before the expert GEMMs, after them)."""
    exchanges = places[first + 1 : events.index(mark, first + 1)]
    if len(exchanges) < 2:
        return None
    before = 1
    while before < len(exchanges) and not launches.has_gemm(exchanges[before - 1], exchanges[before]):
        before += 1
    return (before, len(exchanges) - before) if before < len(exchanges) else None


def _group_exchanges(roles: str, places: list[int]) -> list[tuple[str, int, int]]:
    """Consecutive exchanges of one role: (role, first and last place among the launches)."""
    groups: list[tuple[str, int, int]] = []
    previous = ""
    for role, place in zip(roles, places, strict=True):
        if role in _EXCHANGE_NODES:
            if role == previous:
                groups[-1] = (role, groups[-1][1], place)
            else:
                groups.append((role, place, place))
        previous = role
    return groups


def _find_windows(groups: list[tuple[str, int, int]], launches: _Launches) -> list[Window] | None:
    """Node, direction and times of every exchange, and of what computes between two of them."""
    exchanges = _extend_over_other_streams(groups, launches)
    tail = _launches_after_router(exchanges, launches)
    if tail is None:
        return None
    windows: list[Window] = []
    begin, before = 0, ""
    for after, first, end in [*exchanges, ("", len(launches), len(launches))]:
        between = _nodes_between(before, after, (begin, first), launches, tail)
        if between is None:
            return None
        windows += between
        if after:
            windows.append((*_EXCHANGE_NODES[after], first, end))
        begin, before = end, after
    return [
        (node, direction, launches.time_of(low), launches.time_of(high))
        for node, direction, low, high in windows
        if low < high
    ]


def _extend_over_other_streams(groups: list[tuple[str, int, int]], launches: _Launches) -> list[tuple[str, int, int]]:
    """``groups`` of exchanges as half-open spans, with what other streams run before and after them.

    Where nothing computes between two groups, the first one gets what is launched between them.
    """
    spans: list[tuple[str, int, int]] = []
    for number, (role, first, last) in enumerate(groups):
        following = groups[number + 1][1] if number + 1 < len(groups) else len(launches)
        begin = max(launches.nearest_on_compute_stream(first, -1) + 1, spans[-1][2] if spans else 0)
        spans.append((role, begin, min(launches.nearest_on_compute_stream(last, 1), following)))
    return spans


def _nodes_between(
    before: str, after: str, places: tuple[int, int], launches: _Launches, tail: int
) -> list[Window] | None:
    """What computes between the exchanges ``before`` and ``after``, at ``places`` [begin, end) among the launches."""
    begin, end = places
    if before + after in ("dc", "Dc"):
        return [(EXPERTS, FORWARD, begin, end)]
    if before + after == "CD":
        return [(EXPERTS, BACKWARD, begin, end)]
    if before + after == "dD":
        return [(EXPERTS, WEIGHT_GRADIENTS, begin, end)]
    # Of attention's node the ledger needs only what is launched between attention itself and the exchanges.
    marks = launches.marks[begin:end]
    if after == "d":
        if F not in marks:
            return None
        attention, router = begin + marks.index(F), launches.last_router(begin, end)
        if before != "C":
            return [(ATTENTION, FORWARD, attention, end)]
        if router is None:
            return None
        return [(ATTENTION, FORWARD, attention, router + tail), (EXPERTS, BACKWARD, router + tail, end)]
    return [(ATTENTION, BACKWARD, begin, begin + marks.index(B) + 1)] if B in marks else []


def _launches_after_router(exchanges: list[tuple[str, int, int]], launches: _Launches) -> int | None:
    """Launches from the router's last kernel to dispatch where attention forward runs alone; None where layers differ
    or one has no router."""
    counts = set()
    for (before, _, begin), (after, end, _) in zip([("", 0, 0), *exchanges], exchanges, strict=False):
        if after == "d" and before in ("", "c"):
            router = launches.last_router(begin, end)
            counts.add(None if router is None else end - router)
    return counts.pop() if len(counts) == 1 else None
