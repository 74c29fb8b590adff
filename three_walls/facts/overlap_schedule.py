"""The nodes of overlapped layers without their NVTX ranges, by the fixed order in which the host launches them.

With one pipeline stage Megatron Core (pipeline_parallel/combined_1f1b.py, models/common/model_chunk_schedule_plan.py)
launches the first micro-batch forward alone, then each forward with the backward before it, then the last backward
alone. A forward layer is attention (F) and the exchanges of dispatch (d) and combine (c); a backward layer the
exchanges of combine (C) and dispatch (D) and attention (B). So the host launches, for L layers, M micro-batches::

    (F d c) x L,  (C F d D c B) x L x (M - 1),  (C D B) x L

The exchanges of each kind are counted where layers run alone and must then stand everywhere in this order; that d is
before D is the schedule's word, for between the two nothing else need run. What is launched between exchanges on the
computing stream is the node between; between C and d that is attention forward, as many kernels beyond the router's
last as where it runs alone, and then the experts backward.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from three_walls.facts.attention_passes import BACKWARD, FORWARD
from three_walls.facts.moe_passes import EXCHANGES
from three_walls.facts.stream_order import PRODUCTS
from three_walls.timeline.timeline import (
    ATTENTION,
    COMBINE_NODE,
    DISPATCH_NODE,
    EXPERTS,
    SCHEDULE_NODES,
    WEIGHT_GRADIENTS,
)

F, B, X, OTHER = "F", "B", "X", "-"


@dataclass(frozen=True, slots=True)
class _Launches:
    """What the host launched, in order: marks (F, B, X or other), categories, times, and whether it computes."""

    marks: list[str]
    categories: list[str]
    at_ns: list[int]
    computes: list[bool]


def infer_schedule_nodes(operations: pl.DataFrame, attention: pl.DataFrame) -> pl.DataFrame | None:
    """The nodes (SCHEDULE_NODES) of one rank's step, or None where launches are not in the order of the schedule.

    ``operations``: that rank's of the step, all categories. ``attention``: its passes (attention_passes.PASSES).
    """
    launches = _in_launch_order(operations, attention)
    if launches is None:
        return None
    events = [(mark, at) for at, mark in enumerate(launches.marks) if mark != OTHER]
    roles = _find_roles("".join(mark for mark, _ in events), launches, [at for _, at in events])
    if roles is None:
        return None
    groups = _groups(roles, [at for _, at in events])
    windows = _windows(groups, launches)
    if windows is None:
        return None
    process = operations.select("capture_id", "process").row(0)
    return pl.DataFrame([(*process, *window) for window in windows], schema=SCHEDULE_NODES, orient="row")


def _in_launch_order(operations: pl.DataFrame, attention: pl.DataFrame) -> _Launches | None:
    streams = attention["stream"].unique().to_list()
    if len(streams) != 1 or operations.select("capture_id", "process").n_unique() != 1:
        return None
    phase = pl.when(pl.col("phase") == FORWARD).then(pl.lit(F)).when(pl.col("phase") == BACKWARD).then(pl.lit(B))
    exchange = pl.when(pl.col("category").cast(pl.String).is_in(EXCHANGES)).then(pl.lit(X)).otherwise(pl.lit(OTHER))
    ordered = operations.filter(pl.col("kind") == "kernel").sort("launch_start_ns", "start_ns", "end_ns")
    if ordered.is_empty() or ordered["launch_start_ns"].null_count():
        return None
    marked = ordered.with_columns(mark=pl.coalesce(phase, exchange), computes=pl.col("stream") == streams[0])
    return _Launches(
        marked["mark"].to_list(),
        marked["category"].cast(pl.String).to_list(),
        marked["launch_start_ns"].to_list(),
        marked["computes"].to_list(),
    )


def _find_roles(order: str, launches: _Launches, places: list[int]) -> str | None:
    """The role of every event (F, d, c, C, D, B), in order; None where they are not in the order of the schedule."""
    forward, backward = order.count(F), order.count(B)
    leading = order.replace(X, "").find(B)
    # Where the first backward is launched, one forward pass of the second micro-batch is.
    layers = leading - 1
    if layers < 2 or forward != backward or forward % layers or forward == layers:
        return None
    ahead = _split(order, F, order.index(F), launches, places)
    last = order.rindex(B, 0, order.rindex(B))
    back = _split(order, B, last, launches, places)
    if ahead is None or back is None:
        return None
    (dispatch, combine), (uncombine, undispatch) = ahead, back
    alone = F + "d" * dispatch + "c" * combine
    last_alone = "C" * uncombine + "D" * undispatch + B
    both = "C" * uncombine + F + "d" * dispatch + "D" * undispatch + "c" * combine + B
    roles = alone * layers + both * (forward - layers) + last_alone * layers
    told = "".join(X if role in "dcCD" else role for role in roles)
    return roles if told == order else None


def _split(order: str, mark: str, first: int, launches: _Launches, places: list[int]) -> tuple[int, int] | None:
    """Exchanges between the attention at event ``first`` and the next: before the experts' products and after them."""
    exchanges = places[first + 1 : order.index(mark, first + 1)]
    if len(exchanges) < 2:
        return None
    before = 1
    while before < len(exchanges) and not _has_gemm(launches, exchanges[before - 1], exchanges[before]):
        before += 1
    return (before, len(exchanges) - before) if before < len(exchanges) else None


def _has_gemm(launches: _Launches, after: int, until: int) -> bool:
    return any(category in PRODUCTS for category in launches.categories[after:until])


def _groups(roles: str, places: list[int]) -> list[tuple[str, int, int]]:
    """Runs of one role: (role, first and last place among the launches)."""
    groups: list[tuple[str, int, int]] = []
    for role, place in zip(roles, places, strict=True):
        if groups and groups[-1][0] == role and role in "dcCD":
            groups[-1] = (role, groups[-1][1], place)
        else:
            groups.append((role, place, place))
    return groups


_EXCHANGING = {
    "d": (DISPATCH_NODE, FORWARD),
    "c": (COMBINE_NODE, FORWARD),
    "C": (COMBINE_NODE, BACKWARD),
    "D": (DISPATCH_NODE, BACKWARD),
}
Window = tuple[str, str, int, int]


def _windows(groups: list[tuple[str, int, int]], launches: _Launches) -> list[Window] | None:
    """(node, direction, from, until): of every exchange, and of what computes between two of them."""
    exchanges = _around_exchanges([group for group in groups if group[0] in _EXCHANGING], launches)
    tail = _launches_after_router(exchanges, launches)
    if tail is None:
        return None
    found: list[Window] = []
    begin, before = 0, ""
    for role, first, end in [*exchanges, ("", len(launches.at_ns), len(launches.at_ns))]:
        between = _between(before, role, begin, first, launches, tail)
        if between is None:
            return None
        spans = [*between, *([(*_EXCHANGING[role], first, end)] if role else [])]
        found += [(node, way, _at(launches, low), _at(launches, high)) for node, way, low, high in spans if low < high]
        begin, before = end, role
    return found


def _around_exchanges(groups: list[tuple[str, int, int]], launches: _Launches) -> list[tuple[str, int, int]]:
    """``groups`` of exchanges as half-open spans, with what other streams run before and after them.

    Of two with nothing computing between them the first has what stands between.
    """
    spans: list[tuple[str, int, int]] = []
    for number, (role, first, last) in enumerate(groups):
        following = groups[number + 1][1] if number + 1 < len(groups) else len(launches.at_ns)
        begin = max(_computing(launches, first, -1) + 1, spans[-1][2] if spans else 0)
        spans.append((role, begin, min(_computing(launches, last, 1), following)))
    return spans


def _between(before: str, after: str, begin: int, end: int, launches: _Launches, tail: int) -> list[Window] | None:
    """What computes between the exchanges ``before`` and ``after``, as places among the launches."""
    if before + after in ("dc", "Dc"):
        return [(EXPERTS, FORWARD, begin, end)]
    if before + after == "CD":
        return [(EXPERTS, BACKWARD, begin, end)]
    if before + after == "dD":
        return [(EXPERTS, WEIGHT_GRADIENTS, begin, end)]
    # Of attention's node the ledger needs what stands between attention itself and the exchanges.
    marks = launches.marks[begin:end]
    if after == "d":
        if F not in marks:
            return None
        attention, router = begin + marks.index(F), _last_router(launches, begin, end)
        if before != "C":
            return [(ATTENTION, FORWARD, attention, end)]
        if router is None:
            return None
        return [(ATTENTION, FORWARD, attention, router + tail), (EXPERTS, BACKWARD, router + tail, end)]
    return [(ATTENTION, BACKWARD, begin, begin + marks.index(B) + 1)] if B in marks else []


def _launches_after_router(exchanges: list[tuple[str, int, int]], launches: _Launches) -> int | None:
    """Launches from the router's last kernel to dispatch where attention forward runs alone: in every layer as many."""
    counts = set()
    for (before, _, begin), (after, end, _) in zip([("", 0, 0), *exchanges], exchanges, strict=False):
        if after == "d" and before in ("", "c"):
            router = _last_router(launches, begin, end)
            counts.add(None if router is None else end - router)
    return counts.pop() if len(counts) == 1 else None


def _last_router(launches: _Launches, begin: int, end: int) -> int | None:
    return next((at for at in reversed(range(begin, end)) if launches.categories[at] == "router"), None)


def _computing(launches: _Launches, place: int, direction: int) -> int:
    """The nearest launch on the computing stream before (-1) or after (1) ``place``; one beyond the ends if none."""
    place += direction
    while 0 <= place < len(launches.computes) and not launches.computes[place]:
        place += direction
    return place


def _at(launches: _Launches, place: int) -> int:
    return launches.at_ns[place] if place < len(launches.at_ns) else launches.at_ns[-1] + 1
