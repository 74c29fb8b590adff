"""Charts and the timeline -> where their shapes and texts are placed, for the page's templates to write as SVG.

Bars are placed in percent of the width that the page has, so that they fill any screen and keep the size of their text;
heat maps and rooflines are placed in pixels.
"""

from __future__ import annotations

import json
import math
import zlib
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import fields
from itertools import accumulate, groupby
from typing import Any

from markupsafe import Markup

from three_walls.export.step_detail_rows import TimelineLane, TimelineRank
from three_walls.lib.text import format_bandwidth, show_control_characters
from three_walls.report.charts import FREE_COLOUR, TERAFLOPS, Bars, HeatMap, Lines, Piece, Roofline
from three_walls.report.section import TimelineBlock

_LIGHT = 140
"""Brightness of a colour, of 255, above which text on it is dark."""
_LETTER_SHARE = 0.009
"""Of the width of a bar that a letter takes at most, on a page of usual width."""


Placed = dict[str, Any]
"""Names that a template reads, each with what it draws."""


def place_bars(bars: Bars) -> Placed:
    """Every piece of ``bars`` in percent of the axis."""
    whole = bars.end or 1.0
    rows = []
    for row in bars.rows:
        pieces = [_place_piece(piece, whole) for piece in row.pieces]
        summary = "; ".join(dict.fromkeys(piece["hover"] for piece in pieces)) or row.value
        described = f"{row.label}: {summary}" if row.label else summary  # for readers that do not see the bar
        rows.append({"label": row.label, "value": row.value, "summary": described, "pieces": pieces})
    ticks = [(100 * value / whole, text) for value, text in bars.ticks]
    return {
        "rows": rows,
        "ticks": [(_round(x), text, "start" if x < 3 else "end" if x > 95 else "middle") for x, text in ticks],
    }


def _place_piece(piece: Piece, whole: float) -> Placed:
    """``piece`` with the label only where it has room; ``is_free``: it stands for nothing, such as free memory."""
    red, green, blue = (int(piece.colour[place : place + 2], 16) for place in (1, 3, 5))
    fits = len(piece.label) * _LETTER_SHARE <= piece.length / whole
    return {
        "x": _round(100 * piece.start / whole),
        "width": _round(100 * piece.length / whole),
        "piece": piece,
        "label": piece.label if fits else "",
        "hover": f"{piece.name}: {piece.detail}" if piece.name else piece.detail,
        "is_free": piece.colour == FREE_COLOUR,
        "is_light": 0.299 * red + 0.587 * green + 0.114 * blue > _LIGHT or piece.opacity < 1,
    }


def _round(value: float) -> float:
    return round(value, 3)


def place_lines(lines: Lines) -> Placed:
    """Each series as the area below it, in a square of 1000 by 1000, which the page stretches.

    A value holds from the place before until its own.
    """
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
    return {
        "areas": areas,
        "ticks": [(_round(100 - 100 * value / highest), text) for value, text in ticks[::2]],
        "limit": None if lines.limit is None else _round(100 - 100 * lines.limit / highest),
        "summary": f"{peaks}; {lines.limit_name} {lines.unit.write(lines.limit)}" if lines.limit else peaks,
    }


_LEFT, _TOP, _CELL_WIDTH = 76, 96, 62
_FEW_ROWS = 24


def place_heat_map(heat_map: HeatMap) -> Placed:
    """All in pixels. Rows are lower where there are many; then their texts are left to hover and table."""
    is_short = len(heat_map.rows) <= _FEW_ROWS
    cell_height = 24 if is_short else 12
    labelled = list(enumerate(heat_map.rows))[:: 1 if is_short else 4]
    groups, x = [], _LEFT
    for name, members in groupby(heat_map.columns, key=lambda column: column[0]):
        width = len(list(members)) * _CELL_WIDTH
        groups.append((x, width, name))
        x += width
    return {
        "width": x + 8,
        "height": _TOP + len(heat_map.rows) * cell_height + 6,
        "cells": [
            (_LEFT + place * _CELL_WIDTH, _TOP + line * cell_height, cell)
            for line, cells in enumerate(heat_map.cells)
            for place, cell in enumerate(cells)
            if cell is not None
        ],
        "cell_width": _CELL_WIDTH - 2,
        "cell_height": cell_height - 2,
        "row_labels": [(_TOP + line * cell_height + cell_height // 2, label) for line, label in labelled],
        "column_labels": [
            (_LEFT + place * _CELL_WIDTH + _CELL_WIDTH // 2, name) for place, (_, name) in enumerate(heat_map.columns)
        ],
        "groups": groups,
        "shows_text": is_short,
    }


_WIDTH, _HEIGHT, _MARGIN_LEFT, _MARGIN_RIGHT, _MARGIN_TOP, _MARGIN_BOTTOM = 960, 420, 64, 20, 30, 46
_Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels."""
_LETTER, _LINE = 6.6, 14
"""Pixels of a letter and of a line of labels, at most."""


def place_roofline(roofline: Roofline) -> Placed:
    """All in pixels; both axes are logarithmic. As long as there is room shapes are named, the longest first."""
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
    occupied: list[_Box] = [(x - len(name) * _LETTER, y - _LINE, x, y) for _, name, x, y in roofs]
    points = []
    circles = [
        (x_of(point.intensity), y_of(point.rate), round(3.5 + 12 * math.sqrt(point.weight), 1))
        for point in roofline.points
    ]
    occupied += [(x - radius, y - radius, x + radius, y + radius) for x, y, radius in circles]
    for point, (x, y, radius) in zip(roofline.points, circles, strict=True):
        label_x, label_y, anchor, box = _find_room(x, y, radius, len(point.name) * _LETTER, occupied, right)
        if box:
            occupied.append(box)
        points.append(
            {
                "x": x,
                "y": y,
                "radius": radius,
                "hover": f"{point.name}; {point.detail}",
                "label": point.name if box else "",
                "label_x": label_x,
                "label_y": label_y,
                "anchor": anchor,
            }
        )
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "points": points,
        "roofs": roofs,
        "x_ticks": [(x_of(value), f"{value:,g}") for value in _round_values(x_low, x_high)],
        "y_ticks": [(y_of(value), f"{value / TERAFLOPS.size:,g}") for value in _round_values(y_low, y_high)],
        "top": _MARGIN_TOP,
        "bottom": bottom,
        "left": _MARGIN_LEFT,
        "right": right,
    }


def _find_room(
    x: float, y: float, radius: float, width: float, occupied: list[_Box], right: float
) -> tuple[float, float, str, _Box | None]:
    """Where a label of ``width`` stands next to a point without covering another one; None: nowhere."""
    for shift in (0, _LINE, -_LINE):
        for anchor, left in (("start", x + radius + 4), ("end", x - radius - 4 - width)):
            box = (left, y + shift - _LINE / 2, left + width, y + shift + _LINE / 2)
            is_inside = left >= _MARGIN_LEFT and box[2] <= right and box[3] <= _HEIGHT - _MARGIN_BOTTOM
            if is_inside and not any(_overlap(box, other) for other in occupied):
                return (left if anchor == "start" else left + width), y + shift + 4, anchor, box
    return x, y, "start", None


def _overlap(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _round_values(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten within the bounds; over many decades the powers alone."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if math.log10(high / low) < 2.5 else (1,)
    values = [factor * 10.0**power for power in powers for factor in factors]
    return [value for value in values if low * 0.999 <= value <= high * 1.001]


COLUMNS = 500
"""Of the picture. Each shows what takes most of its time."""
_PICTURED = ("budget", "gaps", "operations")
_FREE = "#a9b2bf"
_MIDDLE_LUMINANCE = 0.18
"""Where black and white contrast alike: (L + 0.05)^2 = 1.05 x 0.05."""


def timeline_data(block: TimelineBlock) -> Markup:
    """The timeline as JSON, deflated, in base64. Names have no control characters."""
    timeline = block.timeline
    used = {timeline.texts[place] for rank in timeline.ranks for lane in rank.lanes for place in lane.category}
    colours = {name: colour for name, colour in block.colours.items() if name in used}
    document = {
        "texts": [show_control_characters(text) for text in timeline.texts],
        "colours": colours,
        "inks": {colour: choose_ink(colour) for colour in colours.values()},
        "titles": {name: title for name, title in block.titles.items() if name in used},
        "rank": timeline.rank,
        "lanes": dict(block.lane_names),
        "ranks": timeline.ranks,
    }
    text = json.dumps(
        document, separators=(",", ":"), default=lambda row: {f.name: getattr(row, f.name) for f in fields(row)}
    )
    return Markup(b64encode(zlib.compress(text.encode("ascii"))).decode("ascii"))


def place_timeline(block: TimelineBlock) -> Iterator[Placed]:
    """The coloured lanes of the representative rank, and the budget of the others, each as paths in COLUMNS x 10."""
    timeline = block.timeline
    for order, rank in enumerate(timeline.ranks):
        for lane in rank.lanes:
            if lane.kind == "budget" or (not order and lane.kind in _PICTURED):
                name = f"rank {rank.rank}" if order else lane.name or block.lane_names[lane.kind]
                yield {"name": name, "columns": COLUMNS, "paths": _paint(lane, rank, block)}


def choose_ink(colour: str) -> str:
    """Black or white, whichever reads better on ``colour`` (#rrggbb), by its relative luminance."""
    red, green, blue = ((int(colour[place : place + 2], 16) / 255) ** 2.2 for place in (1, 3, 5))
    return "#0b1220" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > _MIDDLE_LUMINANCE else "#ffffff"


def _paint(lane: TimelineLane, rank: TimelineRank, block: TimelineBlock) -> tuple[tuple[str, str], ...]:
    """Per colour the path of its boxes: of each column the category that takes most of it."""
    per_column = max(1, rank.length_ns) / COLUMNS
    busy: list[dict[int, float]] = [{} for _ in range(COLUMNS)]
    for start_ns, size_ns, category in zip(accumulate(lane.start_ns), lane.length_ns, lane.category, strict=True):
        start, end = (start_ns - rank.begin_ns) / per_column, (start_ns + size_ns - rank.begin_ns) / per_column
        first, last = int(start), int(end)
        if 0 <= start < end < COLUMNS and first == last:  # as most are
            busy[first][category] = busy[first].get(category, 0.0) + (end - start)
            continue
        for column in range(max(0, first), min(COLUMNS, last + 1)):
            covered = min(end, column + 1) - max(start, column)
            if covered > 0:
                busy[column][category] = busy[column].get(category, 0.0) + covered
    # Less than a fifth of a column is left white, so that a gap stays a gap.
    categories = [min(part, key=lambda each: (-part[each], each)) if sum(part.values()) >= 0.2 else -1 for part in busy]
    boxes: dict[str, list[str]] = {}
    at = 0
    for category, run in groupby(categories):
        wide = len(list(run))
        if category >= 0:
            colour = block.colours.get(block.timeline.texts[category], _FREE)
            boxes.setdefault(colour, []).append(f"M{at} 0h{wide}v10h-{wide}z")
        at += wide
    return tuple((colour, "".join(paths)) for colour, paths in boxes.items())
