"""Report -> plotly figures, as plain JSON-ready mappings: no figure holds a number that no table holds.

Built without plotly's Python classes: they take half a second to import and add a theme that the page
overrides anyway. A test hands every figure to ``plotly.graph_objects`` for validation.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from three_walls.model.buckets import BUCKETS
from three_walls.model.report import CommunicationTime, RankReport, Report
from three_walls.model.units import ns_to_ms
from three_walls.report.causes import colour_causes
from three_walls.report.diagnosis_views import merge_gap_causes
from three_walls.report.formats import format_ms, format_ms_range, format_share
from three_walls.report.palette import AFTER_COLOUR, BUCKET_COLOURS, EXPOSED_COLOUR, HIDDEN_COLOUR, NOW_COLOUR
from three_walls.report.views import find_representative_rank, order_communication

Figure = dict[str, Any]


def draw_figures(report: Report) -> dict[str, Figure]:
    """Every figure that the report has the numbers for, by the id of its place in the page."""
    figures = {
        "budget": _draw_budget(report),
        "idle": _draw_idle(report),
        "ranks": _draw_ranks(report),
        "plan": _draw_plan(report),
        "communication": _draw_communication(report),
    }
    return {name: figure for name, figure in figures.items() if figure is not None}


def _draw_budget(report: Report) -> Figure | None:
    """One bar: the representative step, a segment per bucket in order of precedence."""
    budget_ns = {row.bucket: row.ns for row in report.budget}
    total_ns = sum(budget_ns.values())
    if not total_ns:
        return None
    names = [b.name for b in BUCKETS if budget_ns.get(b.name)]
    return _stack_one([_segment(name, [""], [budget_ns], label=name) for name in names], total_ns)


def _draw_idle(report: Report) -> Figure | None:
    """One bar: time without a compute kernel on the representative rank, a segment per cause."""
    rank = find_representative_rank(report)
    causes = () if rank is None else merge_gap_causes(rank)
    if not causes:
        return None
    colours = colour_causes(one.cause for one in causes)
    times = {one.cause: one.ns for one in causes}
    return _stack_one([_segment(c, [""], [times], c, colours[c]) for c in times], sum(times.values()))


def _draw_ranks(report: Report) -> Figure | None:
    """One bar per rank, on one scale; a single rank is the figure above already."""
    ranks = [rank for rank in report.ranks if any(rank.budget_ns.values())]
    if len(ranks) < 2:
        return None
    labels = [_label_rank(rank) for rank in ranks]
    budgets = [rank.budget_ns for rank in ranks]
    names = [b.name for b in BUCKETS if any(budget.get(b.name) for budget in budgets)]
    traces = [_segment(name, labels, budgets) for name in names]
    return _stack(traces, height=54 + 26 * len(ranks))


def _label_rank(rank: RankReport) -> str:
    return f"rank {rank.rank}"


def _segment(
    bucket: str, labels: list[str], budgets: list[Mapping[str, int]], label: str = "", colour: str = ""
) -> Figure:
    """One bucket or cause across bars; ``label`` is written where the segment has room for it."""
    times = [budget.get(bucket, 0) for budget in budgets]
    totals = [sum(budget.values()) for budget in budgets]
    return {
        "type": "bar",
        "orientation": "h",
        "name": escape(bucket),
        "y": labels,
        "x": [ns_to_ms(ns) for ns in times],
        "marker": {
            "color": colour or BUCKET_COLOURS[bucket],
            "line": {"width": 0.6, "color": "rgba(255,255,255,0.55)"},
        },
        "text": [escape(label)] * len(labels),
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "inside",
        "customdata": [
            f"{format_ms(ns)}, {format_share(ns / total if total else None)}"
            for ns, total in zip(times, totals, strict=True)
        ],
        "hovertemplate": f"<b>{escape(bucket)}</b> %{{y}}<br>%{{customdata}}<extra></extra>",
    }


def _stack_one(traces: list[Figure], total_ns: int) -> Figure:
    """A single bar that fills its width."""
    figure = _stack(traces, height=104)
    figure["layout"]["bargap"] = 0.04
    figure["layout"]["xaxis"]["range"] = [0, ns_to_ms(total_ns)]
    figure["layout"]["yaxis"]["showticklabels"] = False
    return figure


def _stack(traces: list[Figure], *, height: int) -> Figure:
    """Horizontal bars, first on top; the page sets the colours of text and grid, light or dark."""
    layout = {
        "barmode": "stack",
        "bargap": 0.22,
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
        "uniformtext": {"minsize": 11, "mode": "hide"},  # a name that does not fit its segment is left to the table
    }
    return {"data": traces, "layout": layout}


def _draw_communication(report: Report) -> Figure | None:
    """Per class of the representative rank: exposed, then hidden; together they are the busy time."""
    rank = find_representative_rank(report)
    if rank is None or not rank.communication:
        return None
    classes = order_communication(rank)
    exposed = _exposure("exposed", EXPOSED_COLOUR, classes, [time.exposed_ns for _, time in classes])
    hidden = _exposure("hidden", HIDDEN_COLOUR, classes, [time.hidden_ns for _, time in classes])
    figure = _stack([exposed, hidden], height=54 + 34 * len(classes))
    figure["layout"]["bargap"] = 0.34
    return figure


def _exposure(kind: str, colour: str, classes: tuple[tuple[str, CommunicationTime], ...], times: list[int]) -> Figure:
    return {
        "type": "bar",
        "orientation": "h",
        "name": kind,
        "y": [escape(name) for name, _ in classes],
        "x": [ns_to_ms(ns) for ns in times],
        "marker": {"color": colour},
        "customdata": [format_ms(ns) for ns in times],
        "hovertemplate": f"<b>%{{y}}</b><br>{kind} %{{customdata}}<extra></extra>",
    }


def _draw_plan(report: Report) -> Figure | None:
    """The step now, then its range after each entry of the plan."""
    step_ns = report.verdict.step_ns
    if step_ns is None or not report.plan:
        return None
    labels = ["now", *(f"after {step.order}" for step in report.plan)]
    lows = [step_ns, *(step.step_after_low_ns for step in report.plan)]
    highs = [step_ns, *(step.step_after_high_ns for step in report.plan)]
    titles = ["the step as measured", *(escape(step.finding.title) for step in report.plan)]
    certain = _bar_to(labels, lows, [NOW_COLOUR] + [AFTER_COLOUR] * len(report.plan), titles, highs)
    open_part = _bar_to(labels, [h - low for low, h in zip(lows, highs, strict=True)], None, titles, highs, lows)
    figure = _stack([certain, open_part], height=54 + 30 * len(labels))
    figure["layout"]["bargap"] = 0.3
    return figure


def _bar_to(
    labels: list[str],
    lengths: list[int],
    colours: list[str] | None,
    titles: list[str],
    highs: list[int],
    lows: list[int] | None = None,
) -> Figure:
    """Solid up to the low end of the range; pale (``colours`` None) from there to the high end."""
    marker = {"color": colours} if colours else {"color": AFTER_COLOUR, "opacity": 0.3}
    return {
        "type": "bar",
        "orientation": "h",
        "y": labels,
        "x": [ns_to_ms(ns) for ns in lengths],
        "marker": marker,
        "customdata": [
            f"{title}<br>{format_ms_range(low, high)}"
            for title, low, high in zip(titles, lows or lengths, highs, strict=True)
        ],
        "hovertemplate": "<b>%{y}</b><br>%{customdata}<extra></extra>",
    }
