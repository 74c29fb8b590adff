"""Charts -> where their shapes and texts are placed, for the page's templates to write as SVG.

Bars are placed in percent of the width that the page has, so that they fill any screen and keep the size of their text;
heat maps and rooflines are placed in pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby

from three_walls.report.charts import TERAFLOPS, Bars, HeatCell, HeatMap, Piece, Roofline
from three_walls.report.formats import format_bandwidth

_LETTER_SHARE = 0.012
"""Of the width of a bar that a letter takes at most, on a page of usual width."""


@dataclass(frozen=True, slots=True)
class PlacedPiece:
    x: float
    width: float
    """Both in percent."""
    piece: Piece
    label: str
    """Empty where it has no room."""

    @property
    def hover(self) -> str:
        """Name and detail."""
        return f"{self.piece.name}: {self.piece.detail}" if self.piece.name else self.piece.detail


@dataclass(frozen=True, slots=True)
class PlacedRow:
    label: str
    value: str
    summary: str
    """The bar in words, for readers that do not see it."""
    pieces: tuple[PlacedPiece, ...]


@dataclass(frozen=True, slots=True)
class PlacedBars:
    rows: tuple[PlacedRow, ...]
    ticks: tuple[tuple[float, str, str], ...]
    """Place in percent, text, and ``text-anchor``."""
    limit: float | None


def place_bars(bars: Bars) -> PlacedBars:
    """Every piece of ``bars`` in percent of the axis."""
    whole = bars.end or 1.0

    def place(piece: Piece) -> PlacedPiece:
        width = 100 * piece.length / whole
        fits = len(piece.label) * _LETTER_SHARE <= piece.length / whole
        return PlacedPiece(_round(100 * piece.start / whole), _round(width), piece, piece.label if fits else "")

    rows = []
    for row in bars.rows:
        pieces = tuple(map(place, row.pieces))
        summary = "; ".join(dict.fromkeys(piece.hover for piece in pieces)) or row.value
        rows.append(PlacedRow(row.label, row.value, f"{row.label}: {summary}" if row.label else summary, pieces))
    ticks = [(100 * value / whole, text) for value, text in bars.ticks]
    return PlacedBars(
        tuple(rows),
        tuple((_round(x), text, "start" if x < 3 else "end" if x > 95 else "middle") for x, text in ticks),
        None if bars.limit is None else _round(100 * bars.limit / whole),
    )


def _round(value: float) -> float:
    return round(value, 3)


@dataclass(frozen=True, slots=True)
class PlacedHeatMap:
    """All in pixels."""

    width: int
    height: int
    cells: tuple[tuple[int, int, HeatCell], ...]
    """x, y and the cell."""
    cell_width: int
    cell_height: int
    row_labels: tuple[tuple[int, str], ...]
    column_labels: tuple[tuple[int, str], ...]
    groups: tuple[tuple[int, int, str], ...]
    """x, width and name of neighbouring columns with the same group."""
    shows_text: bool
    """Whether cells have room for their text."""


_LEFT, _TOP, _CELL_WIDTH = 76, 96, 62
_FEW_ROWS = 24


def place_heat_map(heat_map: HeatMap) -> PlacedHeatMap:
    """Rows are lower where there are many; then their texts are left to hover and table."""
    is_short = len(heat_map.rows) <= _FEW_ROWS
    cell_height = 24 if is_short else 12
    every = 1 if is_short else 4
    groups, x = [], _LEFT
    for name, members in groupby(heat_map.columns, key=lambda column: column[0]):
        width = len(list(members)) * _CELL_WIDTH
        groups.append((x, width, name))
        x += width
    return PlacedHeatMap(
        width=x + 8,
        height=_TOP + len(heat_map.rows) * cell_height + 6,
        cells=tuple(
            (_LEFT + place * _CELL_WIDTH, _TOP + line * cell_height, cell)
            for line, cells in enumerate(heat_map.cells)
            for place, cell in enumerate(cells)
            if cell is not None
        ),
        cell_width=_CELL_WIDTH - 2,
        cell_height=cell_height - 2,
        row_labels=tuple(
            (_TOP + line * cell_height + cell_height // 2, label)
            for line, label in enumerate(heat_map.rows)
            if line % every == 0
        ),
        column_labels=tuple(
            (_LEFT + place * _CELL_WIDTH + _CELL_WIDTH // 2, name) for place, (_, name) in enumerate(heat_map.columns)
        ),
        groups=tuple(groups),
        shows_text=is_short,
    )


@dataclass(frozen=True, slots=True)
class PlacedRoofline:
    """All in pixels."""

    width: int
    height: int
    points: tuple[tuple[float, float, float, str, str, str], ...]
    """x, y, radius, number of the legend (empty: none), hover, and number format."""
    roofs: tuple[tuple[str, str, float, float], ...]
    """Polyline, label, and the end of the label."""
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    legend: tuple[tuple[str, str], ...]
    bottom: float
    left: float
    right: float


_WIDTH, _HEIGHT, _MARGIN_LEFT, _MARGIN_RIGHT, _MARGIN_TOP, _MARGIN_BOTTOM = 880, 400, 74, 20, 26, 46
_MOST_NAMED = 8


def place_roofline(roofline: Roofline) -> PlacedRoofline:
    """Both axes are logarithmic. The shapes with most of the time are numbered."""
    (x_low, x_high), (y_low, y_high) = roofline.x_range, roofline.y_range
    right, bottom = _WIDTH - _MARGIN_RIGHT, _HEIGHT - _MARGIN_BOTTOM

    def x_of(value: float) -> float:
        share = math.log(value / x_low) / math.log(x_high / x_low)
        return round(_MARGIN_LEFT + share * (right - _MARGIN_LEFT), 1)

    def y_of(value: float) -> float:
        share = math.log(value / y_low) / math.log(y_high / y_low)
        return round(bottom - share * (bottom - _MARGIN_TOP), 1)

    roofs = []
    for name, peak in roofline.peaks:
        start = x_low
        line = []
        if roofline.bytes_per_s:
            foot = max(x_low, y_low / roofline.bytes_per_s)
            start = min(x_high, peak / roofline.bytes_per_s)
            line.append(f"{x_of(foot)},{y_of(max(y_low, foot * roofline.bytes_per_s))}")
        line += [f"{x_of(start)},{y_of(peak)}", f"{x_of(x_high)},{y_of(peak)}"]
        bandwidth = f", memory {format_bandwidth(roofline.bytes_per_s)}" if roofline.bytes_per_s else ""
        roofs.append((" ".join(line), f"{name} peak {TERAFLOPS.write(peak)}{bandwidth}".strip(), right, y_of(peak) - 6))
    points = tuple(
        (
            x_of(point.intensity),
            y_of(min(point.rate, y_high)),
            round(4 + 14 * math.sqrt(point.weight), 1),
            str(number) if number <= _MOST_NAMED else "",
            f"{point.name}; {point.detail}",
            point.group,
        )
        for number, point in enumerate(roofline.points, start=1)
    )
    return PlacedRoofline(
        width=_WIDTH,
        height=_HEIGHT,
        points=points,
        roofs=tuple(roofs),
        x_ticks=tuple((x_of(value), f"{value:,g}") for value in _powers(x_low, x_high)),
        y_ticks=tuple((y_of(value), f"{value / TERAFLOPS.size:,g}") for value in _powers(y_low, y_high)),
        legend=tuple((str(number), point.name) for number, point in enumerate(roofline.points[:_MOST_NAMED], start=1)),
        bottom=bottom,
        left=_MARGIN_LEFT,
        right=right,
    )


def _powers(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]
