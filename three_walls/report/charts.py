"""Stacked bars as plotly figures: plain mappings, ready for JSON.

They are built without plotly's Python classes, which take half a second to import and add a theme that the page
overrides anyway. A test validates every figure with ``plotly.graph_objects``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from three_walls.model.units import ns_to_ms
from three_walls.report.formats import format_ms, format_share

Figure = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Segment:
    """One series of stacked bars: its length in each bar, and what the page shows on hover."""

    name: str
    colour: str | tuple[str, ...]
    lengths_ns: tuple[int, ...]
    details: tuple[str, ...]
    label: str = ""
    """Written inside the segment where it has room."""
    opacity: float = 1.0


def draw_whole(parts: Sequence[tuple[str, int, str]], labels: Sequence[str] = ()) -> Figure | None:
    """A single bar that fills its width, of (name, ns, colour); None where all parts are zero."""
    total_ns = sum(ns for _, ns, _ in parts)
    if not total_ns:
        return None
    segments = [
        Segment(name, colour, (ns,), (f"{format_ms(ns)}, {format_share(ns / total_ns)}",), label)
        for (name, ns, colour), label in zip(parts, labels or [name for name, _, _ in parts], strict=True)
    ]
    figure = draw_bars([""], segments, height=104, gap=0.04)
    figure["layout"]["xaxis"]["range"] = [0, ns_to_ms(total_ns)]
    figure["layout"]["yaxis"]["showticklabels"] = False
    return figure


def draw_bars(labels: Sequence[str], segments: Sequence[Segment], *, height: int, gap: float = 0.22) -> Figure:
    """Horizontal bars, the first on top. The page sets the colours of text and grid, light or dark."""
    return {
        "data": [_draw_segment(labels, segment) for segment in segments],
        "layout": {
            "barmode": "stack",
            "bargap": gap,
            "height": height,
            "margin": {"l": 16, "r": 24, "t": 8, "b": 36},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "showlegend": False,
            "font": {"size": 12},
            "xaxis": {"ticksuffix": " ms", "zeroline": False, "fixedrange": True, "automargin": True, "nticks": 10},
            "yaxis": {
                "type": "category",
                "autorange": "reversed",
                "fixedrange": True,
                "automargin": True,
                "ticklabelstandoff": 6,
                "showgrid": False,
            },
            "hoverlabel": {"align": "left"},
            # A label that does not fit its segment is hidden: the table has it.
            "uniformtext": {"minsize": 11, "mode": "hide"},
        },
    }


def _draw_segment(labels: Sequence[str], segment: Segment) -> Figure:
    colour = list(segment.colour) if isinstance(segment.colour, tuple) else segment.colour
    return {
        "type": "bar",
        "orientation": "h",
        "name": escape(segment.name),
        "y": [escape(label) for label in labels],
        "x": [ns_to_ms(ns) for ns in segment.lengths_ns],
        "marker": {
            "color": colour,
            "opacity": segment.opacity,
            "line": {"width": 0.6, "color": "rgba(255,255,255,0.55)"},
        },
        "text": [escape(segment.label)] * len(labels),
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "inside",
        "customdata": [escape(detail) for detail in segment.details],
        "hovertemplate": f"<b>{escape(segment.name)}</b> %{{y}}<br>%{{customdata}}<extra></extra>",
    }
