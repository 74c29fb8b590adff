"""Charts -> where their shapes and texts are placed, for the page's templates to write as SVG.

Bars are placed in percent of the width that the page has, so that they fill any screen and keep the size of their text;
heat maps and rooflines are placed in pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from three_walls.lib.text import format_bandwidth
from three_walls.report.charts import TERAFLOPS, Bars, HeatCell, HeatMap, Lines, Piece, Roofline
from three_walls.report.palette import FREE_COLOUR

_LIGHT = 140
"""Brightness of a colour, of 255, above which text on it is dark."""
_LETTER_SHARE = 0.009
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
    def is_free(self) -> bool:
        """Whether it stands for nothing, such as free memory: its colour then follows the page's."""
        return self.piece.colour == FREE_COLOUR

    @property
    def is_light(self) -> bool:
        """Whether text on it is dark."""
        red, green, blue = (int(self.piece.colour[place : place + 2], 16) for place in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue > _LIGHT or self.piece.opacity < 1

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
class PlacedLines:
    """In a square of 1000 by 1000, which the page stretches."""

    areas: tuple[tuple[str, str, str], ...]
    """Name, colour and points of a closed polygon."""
    ticks: tuple[tuple[float, str], ...]
    """Height from the top in percent, and text."""
    limit: float | None
    summary: str


def place_lines(lines: Lines) -> PlacedLines:
    """Each series as the area below it: the value holds from the place before until its own."""
    highest = max(*(value for series in lines.series for value in series.values), lines.limit or 0) or 1.0
    first, last = lines.places[0], lines.places[-1]
    whole = (last - first) or 1.0
    areas = []
    for series in lines.series:
        corners = [(0.0, 1000.0)]
        for place, value in zip(lines.places, series.values, strict=True):
            height = _round(1000 - 1000 * value / highest)
            corners += [(corners[-1][0], height), (_round(1000 * (place - first) / whole), height)]
        corners.append((1000.0, 1000.0))
        areas.append((series.name, series.colour, " ".join(f"{x:g},{y:g}" for x, y in corners)))
    peaks = "; ".join(f"{series.name} at most {lines.unit.write(max(series.values))}" for series in lines.series)
    ticks = Bars((), highest, lines.unit).ticks[1:]
    return PlacedLines(
        areas=tuple(areas),
        ticks=tuple((_round(100 - 100 * value / highest), text) for value, text in ticks[::2]),
        limit=None if lines.limit is None else _round(100 - 100 * lines.limit / highest),
        summary=f"{peaks}; {lines.limit_name} {lines.unit.write(lines.limit)}" if lines.limit else peaks,
    )


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
class PlacedPoint:
    x: float
    y: float
    radius: float
    hover: str
    label: str
    """Empty where it has no room."""
    label_x: float
    label_y: float
    anchor: str
    """``text-anchor`` of the label."""


@dataclass(frozen=True, slots=True)
class PlacedRoofline:
    """All in pixels."""

    width: int
    height: int
    points: tuple[PlacedPoint, ...]
    roofs: tuple[tuple[str, str, float, float], ...]
    """Polyline, label, and the end of the label."""
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    top: float
    bottom: float
    left: float
    right: float


_WIDTH, _HEIGHT, _MARGIN_LEFT, _MARGIN_RIGHT, _MARGIN_TOP, _MARGIN_BOTTOM = 960, 420, 64, 20, 30, 46
_Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels."""
_LETTER, _LINE = 6.6, 14
"""Pixels of a letter and of a line of labels, at most."""


def place_roofline(roofline: Roofline) -> PlacedRoofline:
    """Both axes are logarithmic. Shapes are named, those with most of the time first, as long as there is room."""
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
        ridge = min(max(peak / roofline.bytes_per_s, x_low), x_high) if roofline.bytes_per_s else x_low
        line = [f"{x_of(ridge)},{y_of(peak)}", f"{x_of(x_high)},{y_of(peak)}"]
        if roofline.bytes_per_s and ridge > x_low:
            foot = max(x_low, y_low / roofline.bytes_per_s)
            line.insert(0, f"{x_of(foot)},{y_of(foot * roofline.bytes_per_s)}")
        bandwidth = f", memory {format_bandwidth(roofline.bytes_per_s)}" if roofline.bytes_per_s else ""
        roofs.append((" ".join(line), f"{name} peak {TERAFLOPS.write(peak)}{bandwidth}".strip(), right, y_of(peak) - 6))
    taken: list[_Box] = [(x - len(name) * _LETTER, y - _LINE, x, y) for _, name, x, y in roofs]
    points = []
    circles = [
        (x_of(point.intensity), y_of(point.rate), round(3.5 + 12 * math.sqrt(point.weight), 1))
        for point in roofline.points
    ]
    taken += [(x - radius, y - radius, x + radius, y + radius) for x, y, radius in circles]
    for point, (x, y, radius) in zip(roofline.points, circles, strict=True):
        label_x, label_y, anchor, box = _find_room(x, y, radius, len(point.name) * _LETTER, taken, right)
        if box:
            taken.append(box)
        hover = f"{point.name}; {point.detail}"
        points.append(PlacedPoint(x, y, radius, hover, point.name if box else "", label_x, label_y, anchor))
    return PlacedRoofline(
        width=_WIDTH,
        height=_HEIGHT,
        points=tuple(points),
        roofs=tuple(roofs),
        x_ticks=tuple((x_of(value), f"{value:,g}") for value in _round_values(x_low, x_high)),
        y_ticks=tuple((y_of(value), f"{value / TERAFLOPS.size:,g}") for value in _round_values(y_low, y_high)),
        top=_MARGIN_TOP,
        bottom=bottom,
        left=_MARGIN_LEFT,
        right=right,
    )


def _find_room(
    x: float, y: float, radius: float, width: float, taken: list[_Box], right: float
) -> tuple[float, float, str, _Box | None]:
    """Where a label of ``width`` stands next to a point without covering another one; None: nowhere."""
    for shift in (0, _LINE, -_LINE):
        for anchor, left in (("start", x + radius + 4), ("end", x - radius - 4 - width)):
            box = (left, y + shift - _LINE / 2, left + width, y + shift + _LINE / 2)
            is_inside = left >= _MARGIN_LEFT and box[2] <= right and box[3] <= _HEIGHT - _MARGIN_BOTTOM
            if is_inside and not any(map(_overlaps(box), taken)):
                return (left if anchor == "start" else left + width), y + shift + 4, anchor, box
    return x, y, "start", None


def _overlaps(box: _Box) -> Callable[[_Box], bool]:
    """A function that states whether another box shares area with ``box``."""
    return lambda other: box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]


def _round_values(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten within the bounds; over many decades the powers alone."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if math.log10(high / low) < 2.5 else (1,)
    values = [factor * 10.0**power for power in powers for factor in factors]
    return [value for value in values if low * 0.999 <= value <= high * 1.001]
