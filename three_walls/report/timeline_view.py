"""What the page needs of the timeline: its data for the script, and a picture of the whole step without it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import accumulate, groupby
from typing import NamedTuple

from markupsafe import Markup

from three_walls.export.step_detail_rows import TimelineLane, TimelineRank
from three_walls.lib.text import show_control_characters
from three_walls.report.section import TimelineBlock

COLUMNS = 500
"""Of the picture. Each shows what takes most of its time."""
_PICTURED = ("budget", "gaps", "operations")
_FREE = "#a9b2bf"
_MIDDLE_LUMINANCE = 0.18
"""Where black and white contrast alike: (L + 0.05)^2 = 1.05 x 0.05."""
_HIDDEN_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


class PicturedLane(NamedTuple):
    name: str
    columns: int
    paths: tuple[tuple[str, str], ...]
    """Colour, and the path of all its boxes in a picture of ``columns`` x 10."""


def timeline_data(block: TimelineBlock) -> Markup:
    """The timeline as JSON that may stand inside of a script element. Names have no control characters."""
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
        "ranks": [{**_name_fields(rank), "lanes": list(map(_name_fields, rank.lanes))} for rank in timeline.ranks],
    }
    text = json.dumps(document, separators=(",", ":"))
    for character, escaped in _HIDDEN_IN_SCRIPT.items():
        text = text.replace(character, escaped)
    return Markup(text)


def place_timeline(block: TimelineBlock) -> Iterator[PicturedLane]:
    """The lanes of the representative rank that are coloured, and the budget of the others in detail."""
    timeline = block.timeline
    for order, rank in enumerate(timeline.ranks):
        for lane in rank.lanes:
            if lane.kind not in _PICTURED or (order and lane.kind != "budget"):
                continue
            name = lane.name or block.lane_names[lane.kind]
            shown = name if not order else f"rank {rank.rank}"
            yield PicturedLane(shown, COLUMNS, _paint(lane, rank.begin_ns, rank.length_ns, timeline.texts, block))


def _name_fields(value: TimelineRank | TimelineLane) -> dict[str, object]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def choose_ink(colour: str) -> str:
    """Black or white, whichever reads better on ``colour`` (#rrggbb), by its relative luminance."""
    red, green, blue = ((int(colour[place : place + 2], 16) / 255) ** 2.2 for place in (1, 3, 5))
    return "#0b1220" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > _MIDDLE_LUMINANCE else "#ffffff"


def _paint(
    lane: TimelineLane, begin_ns: int, length_ns: int, texts: Sequence[str], block: TimelineBlock
) -> tuple[tuple[str, str], ...]:
    """Per colour the path of its boxes: of each column the category that takes most of it."""
    per_column = max(1, length_ns) / COLUMNS
    busy: list[dict[int, float]] = [{} for _ in range(COLUMNS)]
    for start_ns, size_ns, category in zip(accumulate(lane.start_ns), lane.length_ns, lane.category, strict=True):
        start, end = (start_ns - begin_ns) / per_column, (start_ns + size_ns - begin_ns) / per_column
        first, last = int(start), int(end)
        if 0 <= start < end < COLUMNS and first == last:  # as most are
            busy[first][category] = busy[first].get(category, 0.0) + (end - start)
            continue
        for column in range(max(0, first), min(COLUMNS, last + 1)):
            covered = min(end, column + 1) - max(start, column)
            if covered > 0:
                busy[column][category] = busy[column].get(category, 0.0) + covered
    # Less than a fifth of a column is left white, so that a gap stays a gap.
    shown = [min(part, key=lambda each: (-part[each], each)) if sum(part.values()) >= 0.2 else -1 for part in busy]
    boxes: dict[str, list[str]] = {}
    at = 0
    for category, run in groupby(shown):
        wide = len(list(run))
        if category >= 0:
            colour = block.colours.get(texts[category], _FREE)
            boxes.setdefault(colour, []).append(f"M{at} 0h{wide}v10h-{wide}z")
        at += wide
    return tuple((colour, "".join(paths)) for colour, paths in boxes.items())
