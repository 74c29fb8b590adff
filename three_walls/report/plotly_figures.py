"""The report's charts as plotly figures, for notebooks: the same values, with zoom and hover.

Plotly is an extra: ``pip install 'three-walls[plotly]'``.
"""

from __future__ import annotations

from html import escape
from typing import Any

from three_walls.lib.errors import UsageError
from three_walls.report.charts import TERAFLOPS, Bars, HeatMap, Lines, Plot, Roofline
from three_walls.report.report import Report
from three_walls.report.section import Chart, nested_blocks
from three_walls.report.sections import make_sections


def plotly_figures(report: Report) -> dict[str, Any]:
    """Name of each chart of ``report`` to a ``plotly.graph_objects.Figure``, in the order of the page.

    Raises UsageError where plotly is not installed.
    """
    try:
        from plotly.graph_objects import Figure
    except ImportError as error:
        raise UsageError("plotly is not installed: pip install 'three-walls[plotly]'") from error
    blocks = (block for section in make_sections(report) for block in nested_blocks(section.blocks))
    charts = [block for block in blocks if isinstance(block, Chart)]
    return {chart.name: Figure(_describe(chart.plot, chart.label)) for chart in charts}


def _describe(plot: Plot, title: str) -> dict[str, Any]:
    """Data and layout as plain mappings."""
    if isinstance(plot, Bars):
        figure = _describe_bars(plot)
    elif isinstance(plot, HeatMap):
        figure = _describe_heat_map(plot)
    elif isinstance(plot, Lines):
        figure = _describe_lines(plot)
    else:
        figure = _describe_roofline(plot)
    figure["layout"] |= {"title": {"text": escape(title)}, "showlegend": False, "hoverlabel": {"align": "left"}}
    return figure


def _describe_bars(bars: Bars) -> dict[str, Any]:
    """A trace per piece: pieces of one bar begin where the chart has them, so gaps stay."""
    size = bars.unit.size
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": escape(piece.name),
            "y": [escape(row.label) or " "],
            "base": [piece.start / size],
            "x": [piece.length / size],
            "marker": {"color": piece.colour, "opacity": piece.opacity},
            "text": [escape(piece.label)],
            "textposition": "inside",
            "customdata": [escape(piece.detail)],
            "hovertemplate": f"<b>{escape(piece.name)}</b> %{{y}}<br>%{{customdata}}<extra></extra>",
        }
        for row in bars.rows
        for piece in row.pieces
    ]
    layout = {
        "barmode": "overlay",
        "bargap": 0.25,
        "height": 120 + 30 * len(bars.rows),
        "xaxis": {"ticksuffix": f" {bars.unit.suffix}", "range": [0, bars.end / size]},
        "yaxis": {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [escape(row.label) or " " for row in bars.rows],
            "autorange": "reversed",
            "automargin": True,
        },
    }
    return {"data": data, "layout": layout}


def _describe_heat_map(heat_map: HeatMap) -> dict[str, Any]:
    trace = {
        "type": "heatmap",
        "x": [escape(f"{group} {name}") for group, name in heat_map.columns],
        "y": [escape(row) for row in heat_map.rows],
        "z": [[None if cell is None else cell.depth for cell in cells] for cells in heat_map.cells],
        "text": [["" if cell is None else escape(cell.detail) for cell in cells] for cells in heat_map.cells],
        "hovertemplate": "%{text}<extra></extra>",
        "colorscale": "Blues",
        "showscale": False,
    }
    layout = {"yaxis": {"autorange": "reversed", "automargin": True}, "xaxis": {"automargin": True}}
    return {"data": [trace], "layout": layout}


def _describe_lines(lines: Lines) -> dict[str, Any]:
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "fill": "tozeroy",
            "line": {"color": series.colour, "shape": "vh"},
            "name": escape(series.name),
            "x": list(lines.places),
            "y": [value / lines.unit.size for value in series.values],
        }
        for series in lines.series
    ]
    limits = [] if lines.limit is None else [lines.limit / lines.unit.size]
    shapes = [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": limit, "y1": limit, "line": {"dash": "dash"}}
        for limit in limits
    ]
    layout = {
        "xaxis": {"title": {"text": escape(lines.place_name)}},
        "yaxis": {"ticksuffix": f" {lines.unit.suffix}", "rangemode": "tozero"},
        "shapes": shapes,
    }
    return {"data": data, "layout": layout}


def _describe_roofline(roofline: Roofline) -> dict[str, Any]:
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": [point.intensity for point in roofline.points],
        "y": [point.rate / TERAFLOPS.size for point in roofline.points],
        "marker": {"size": [10 + 30 * point.weight**0.5 for point in roofline.points], "opacity": 0.6},
        "text": [escape(f"{point.name}: {point.detail}") for point in roofline.points],
        "hovertemplate": "%{text}<extra></extra>",
    }
    low, high = roofline.x_range
    roofs = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": escape(name),
            "x": [x for x, _ in corners],
            "y": [y / TERAFLOPS.size for _, y in corners],
            "hovertemplate": f"{escape(name)} peak<extra></extra>",
        }
        for name, peak in roofline.peaks
        for corners in [_list_corners(roofline.bytes_per_s, peak, low, high)]
    ]
    layout = {
        "xaxis": {"type": "log", "title": {"text": "FLOP per byte"}},
        "yaxis": {"type": "log", "title": {"text": "TFLOP/s"}},
    }
    return {"data": [*roofs, points], "layout": layout}


def _list_corners(bytes_per_s: float | None, peak: float, low: float, high: float) -> list[tuple[float, float]]:
    """The roof from left to right: up the slope of the memory, then along the peak."""
    if not bytes_per_s:
        return [(low, peak), (high, peak)]
    return [(low, low * bytes_per_s), (peak / bytes_per_s, peak), (high, peak)]
