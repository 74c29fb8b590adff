"""MoE layers, part by part: router, permute, dispatch, expert GEMMs, combine, unpermute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from three_walls.facts.fact_rows import MoePart
from three_walls.lib.text import format_bandwidth, format_count, format_moved, format_ms, format_share
from three_walls.report.charts import WALL_COLOURS, HeatCell, HeatMap
from three_walls.report.report import Report
from three_walls.report.section import (
    MANY_ROWS,
    Bar,
    Block,
    Cell,
    Chart,
    Column,
    Fold,
    Note,
    PageOnly,
    Section,
    Shade,
    Table,
)
from three_walls.tables.buckets import Wall
from three_walls.tables.model_parts import DIRECTIONS, MOE_PARTS

PART_TITLES = {
    "preprocess": "preparing the dispatch",
    "expert_gemm": "expert GEMM",
    "expert": "experts, besides GEMMs",
    "shared_expert": "shared experts",
}
"""Parts whose name is no word -> what charts call them."""

CARRYING_PARTS = ("dispatch", "combine")
"""Parts that move tokens between ranks. Only they have a bandwidth, so only theirs can be unknown."""


def moe(report: Report) -> Section:
    """All layers together, then layer by layer."""
    sums = sum_parts(report.moe_layers)
    layers = list_parts(report.moe_layers)
    count = len({part.layer for part in layers})
    blocks: list[Block] = []
    if sums:
        columns = (*_columns(), *_rate_columns(is_lower_bound(report)))
        blocks.append(Table("moe", columns, sums, terminal_rows=MANY_ROWS))
    if layers:
        blocks.append(PageOnly(tuple(_show_layers(sums, layers))))
    together = f"the sum of {count} layers" if count else "all layers together"
    return Section(
        "moe",
        "MoE layers",
        tuple(blocks),
        lead=f"The representative step, {together}. Sent: bytes that leave for other ranks. "
        f"{_describe_bandwidth(report)} Limit: the link's, in one direction.",
        link="MoE",
        empty="Unknown, or none: no MoE layer was recognized in the representative step.",
    )


def is_lower_bound(report: Report) -> bool:
    """Whether the bandwidth of token exchanges is estimated from the fastest one, which may have waited too."""
    return report.facts.get("ep_achieved_includes_waiting").value is True


def _describe_bandwidth(report: Report) -> str:
    if is_lower_bound(report):
        return (
            "Bandwidth: estimated, a lower bound, by the fastest exchange of the step. The arrival of the other ranks "
            "was not captured, so that exchange may have waited for them too. Time includes waiting in any case."
        )
    return (
        "Bandwidth: bytes over the time from the arrival of the last rank to the end, on average. Time includes the "
        "waiting before that."
    )


def sum_parts(parts: Sequence[MoePart]) -> tuple[MoePart, ...]:
    """One row per direction and part: that of all layers where it is given, else the sum over the layers."""
    groups: dict[tuple[str, str], list[MoePart]] = {}
    for part in parts:
        groups.setdefault((part.direction, part.part), []).append(part)
    return tuple(
        replace(_add([part for part in groups[key] if part.layer is None] or groups[key]), layer=None, stack=None)
        for key in sorted(groups, key=lambda key: _place(*key))
    )


def list_parts(parts: Sequence[MoePart]) -> tuple[MoePart, ...]:
    """Every part of every single layer, in order of layer, direction and part."""
    single = (part for part in parts if part.layer is not None)
    return tuple(sorted(single, key=lambda part: (part.layer or 0, _place(part.direction, part.part))))


def list_layers(
    direction: str, sums: Sequence[MoePart], layers: Sequence[MoePart]
) -> tuple[tuple[int | None, dict[str, MoePart]], ...]:
    """Each layer in order with its parts by name, then all layers together (None)."""
    rows: dict[int | None, dict[str, MoePart]] = {}
    for part in (*layers, *sums):
        if part.direction == direction:
            rows.setdefault(part.layer, {})[part.part] = part
    return tuple(rows.items())


def name_layers(parts: Sequence[MoePart]) -> dict[int | None, str]:
    """Each layer's number, with the name of its stack where it is not one of the model's own."""
    mark = {part.layer: f" ({part.stack.upper()})" for part in parts if part.stack}
    return {None: "all layers"} | {part.layer: f"{part.layer}{mark.get(part.layer, '')}" for part in parts}


def _place(direction: str, part: str) -> tuple[int, str, int, str]:
    def index(name: str, order: tuple[str, ...]) -> int:
        return order.index(name) if name in order else len(order)

    return index(direction, DIRECTIONS), direction, index(part, MOE_PARTS), part


def _add(parts: list[MoePart]) -> MoePart:
    """The sum of ``parts``. One unknown value makes its sum unknown; the rate is all bytes over all transfer time."""
    if len(parts) == 1:
        return parts[0]
    moved = [part.bytes_moved for part in parts if part.bytes_moved is not None]
    seconds = [
        part.bytes_moved / part.bytes_per_s for part in parts if part.bytes_moved is not None and part.bytes_per_s
    ]
    limits = {part.limit_bytes_per_s for part in parts}
    total_bytes = sum(moved) if len(moved) == len(parts) else None
    is_timed = total_bytes is not None and len(seconds) == len(parts)
    return replace(
        parts[0],
        ns=sum(part.ns for part in parts),
        exposed_ns=sum(part.exposed_ns for part in parts),
        calls=sum(part.calls for part in parts),
        bytes_moved=total_bytes,
        bytes_per_s=total_bytes / sum(seconds) if is_timed and total_bytes is not None else None,
        limit_bytes_per_s=limits.pop() if len(limits) == 1 else None,
    )


def _columns() -> tuple[Column, ...]:
    return (
        Column("Direction", "direction", role="muted", groups=True),
        Column("Part", "part", role="code"),
        Column("Time", "ns", format_ms),
        Column("Exposed", "exposed_ns", format_ms),
        Column("Calls", "calls", format_count),
        Column("Sent", _if_carrying("bytes_moved"), _unless_absent(format_moved), unit="bytes"),
    )


def _rate_columns(is_estimated: bool) -> tuple[Column, ...]:
    """Bandwidth and its limit. An estimate has no bar: a short one would call for another dispatcher."""
    colour = WALL_COLOURS[Wall.COMMUNICATION]

    def reached(part: MoePart) -> float | None:
        is_known = part.bytes_per_s is not None and part.limit_bytes_per_s
        return part.bytes_per_s / part.limit_bytes_per_s if is_known else None  # type: ignore[operator]

    def draw(fraction: float | None) -> Bar:
        return Bar(() if fraction is None else ((fraction, colour),))

    rate = Column(
        "Bandwidth, at least" if is_estimated else "Bandwidth",
        _if_carrying("bytes_per_s"),
        _unless_absent(format_bandwidth),
        unit="bytes_per_s",
    )
    limit = Column("Limit", _if_carrying("limit_bytes_per_s"), _unless_absent(format_bandwidth), unit="bytes_per_s")
    if is_estimated:
        return (rate, limit)
    share = Column(
        "Of limit", reached, lambda fraction: "" if fraction is None else format_share(fraction), unit="fraction"
    )
    return (rate, limit, share, Column("", reached, draw, width="shape", in_terminal=False))


_ABSENT = ""
"""Shown for parts that move no tokens: their bandwidth does not exist, which is not the same as unknown."""


def _if_carrying(field: str) -> Callable[[MoePart], float | str | None]:
    def read(part: MoePart) -> float | str | None:
        value: float | None = getattr(part, field)
        return _ABSENT if value is None and part.part not in CARRYING_PARTS else value

    return read


def _unless_absent(format_number: Callable[[float | None], str]) -> Callable[[float | str | None], str]:
    return lambda value: value if isinstance(value, str) else format_number(value)


def _show_layers(sums: tuple[MoePart, ...], layers: tuple[MoePart, ...]) -> list[Block]:
    longest_ns, named = max(part.ns for part in layers), name_layers(layers)
    chart = Chart("moe_layers", _draw_layers(sums, layers), "Time of each part of each layer, stronger is longer")
    blocks: list[Block] = [
        Note("Layer by layer", role="heading"),
        chart,
        Note(
            "Each cell gives the time, then how much of it is exposed. A stronger colour is longer, on the same "
            "scale in all directions. Orange parts move tokens between ranks, blue parts compute.",
            role="lead",
        ),
    ]
    for place, direction in enumerate(dict.fromkeys(total.direction for total in sums)):
        names = [total.part for total in sums if total.direction == direction]
        columns = (
            Column("Layer", lambda row: row[0], named.__getitem__),
            *(Column(name, _part_of(name), _shade(longest_ns), is_right=True) for name in names),
        )
        rows = list_layers(direction, sums, layers)
        table = Table(f"moe_layers_{place}", columns, rows, is_compact=True, emphasis=lambda row: row[0] is None)
        blocks.append(Fold(direction, (table,)))
    every = Table("moe_parts", (Column("Layer", "layer", named.__getitem__), *_columns()), layers, is_compact=True)
    blocks.append(Fold("Every number of every layer", (every,)))
    return blocks


def _draw_layers(sums: Sequence[MoePart], layers: Sequence[MoePart]) -> HeatMap:
    """A row per layer and a column per direction and part; orange where tokens move between ranks."""
    longest_ns = max(1, *(part.ns for part in layers))
    keys = [(total.direction, total.part) for total in sums]
    by_cell = {(part.layer, part.direction, part.part): part for part in layers}
    names = name_layers(layers)
    numbers = tuple(dict.fromkeys(part.layer for part in layers))

    def shade(part: MoePart | None) -> HeatCell | None:
        if part is None:
            return None
        exposed = f", {format_ms(part.exposed_ns)} of it exposed" if part.exposed_ns else ""
        hue = WALL_COLOURS[Wall.COMMUNICATION if part.part in CARRYING_PARTS else Wall.COMPUTE_HOST]
        where = f"layer {names[part.layer]}, {part.direction} {part.part}: "
        return HeatCell(part.ns / longest_ns, hue, format_ms(part.ns), f"{where}{format_ms(part.ns)}{exposed}")

    cells = tuple(tuple(shade(by_cell.get((layer, *key))) for key in keys) for layer in numbers)
    columns = tuple((direction, PART_TITLES.get(part, part)) for direction, part in keys)
    return HeatMap(tuple(f"layer {names[layer]}" for layer in numbers), columns, cells)


def _part_of(name: str) -> Callable[[tuple[int | None, dict[str, MoePart]]], MoePart | None]:
    return lambda row: row[1].get(name)


def _shade(longest_ns: int) -> Callable[[MoePart | None], Cell]:
    def write(part: MoePart | None) -> Cell:
        if part is None:
            return "-"
        depth = 0.0 if part.layer is None else part.ns / longest_ns
        exposed = format_ms(part.exposed_ns) if 0 < part.exposed_ns < part.ns else "all" if part.exposed_ns else ""
        return Shade(format_ms(part.ns), exposed, depth, "carrying" if part.part in CARRYING_PARTS else "")

    return write
