"""Report -> one HTML file that works offline: scripts, styles and data are inside, nothing is requested.

The page holds no number that report.json does not; charts only add shape to its tables.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from three_walls.model.buckets import BUCKET_BY_NAME
from three_walls.model.glossary import GLOSSARY_BY_NAME
from three_walls.model.memory_snapshot import CATEGORIES
from three_walls.model.report import Report
from three_walls.report import causes, formats, overrides_file, palette, recipe_views, views
from three_walls.report import diagnosis_views as diagnosis
from three_walls.report import efficiency_views as efficiency
from three_walls.report.charts import draw_figures
from three_walls.report.first_trial import describe_expectation
from three_walls.report.log_views import KIND_WORDS, order_timers, spread_of
from three_walls.report.text_log import describe_log, describe_progress
from three_walls.resources import TEMPLATES_DIR

_FILTERS = {
    "expectation": describe_expectation,
    "bandwidth": formats.format_bandwidth,
    "count": formats.format_count,
    "css_percent": formats.format_css_percent,
    "fact": formats.format_fact,
    "flops": formats.format_flops,
    "flops_rate": formats.format_flops_rate,
    "describe_gain": formats.describe_gain,
    "gain": formats.format_gain,
    "gain_bounds": formats.format_gain_bounds,
    "gib": formats.format_gib,
    "kernel": formats.format_kernel,
    "likely": formats.format_likely,
    "moved": formats.format_moved,
    "ms": formats.format_ms,
    "product": formats.format_gemm,
    "ratio": formats.format_ratio,
    "recipe_counts": recipe_views.count_recipe_settings,
    "setting": formats.format_setting,
    "share": formats.format_share,
}


def render_html(report: Report) -> str:
    """``report`` as a page; the same report gives the same text."""
    figures = draw_figures(report)
    page = _make_environment().get_template("report.html.jinja")
    return page.render(
        report=report,
        figures=figures,
        plotly_script=_load_plotly() if figures else "",
        style=_load_asset("report.css"),
        script=_load_asset("report.js"),
        **_views(report),
        **_diagnosis_views(report),
        **_efficiency_views(report),
    )


def _views(report: Report) -> dict[str, Any]:
    """What the templates show of the report beside the report itself."""
    return {
        "budget_rows": views.rows_with_time(report),
        "group_rows": views.sum_groups(report),
        "walls": views.read_walls(report),
        "representative": views.find_representative_rank(report),
        "other_findings": views.group_other_findings(report),
        "facts": views.measured_facts(report),
        "missing_facts": views.group_missing_facts(report),
        "empty_plan": views.explain_empty_plan(report),
        "widest_gain_ns": views.find_widest_gain_ns(report),
        "shell": _shell_text(report),
        "is_set_in_run": partial(views.is_set_in_run, report),
        "share_of_step": partial(views.share_of_step, report=report),
    }


def _diagnosis_views(report: Report) -> dict[str, Any]:
    """The same for why the time went."""
    by_rank = {rank.rank: diagnosis.merge_gap_causes(rank) for rank in report.ranks}
    representative = views.find_representative_rank(report)
    shown = () if representative is None else by_rank[representative.rank]
    names = dict.fromkeys(one.cause for merged in (shown, *by_rank.values()) for one in merged)
    return {
        "gap_causes": shown,
        "idle_by_rank": {rank: {one.cause: one.ns for one in merged} for rank, merged in by_rank.items()},
        "cause_colours": causes.colour_causes(names),
        "stragglers": diagnosis.order_stragglers(report),
        "class_waits": diagnosis.summarize_waits(report),
        "waits": diagnosis.order_waits(report),
        "longest_wait_ns": diagnosis.find_longest_wait_ns(report),
        "moe_sums": diagnosis.sum_moe_parts(report),
        "moe_tables": diagnosis.tabulate_moe_layers(report),
        "moe_parts": diagnosis.list_moe_parts(report),
        "longest_part_ns": diagnosis.find_longest_part_ns(report),
        "taxes": diagnosis.order_overlap_slowdown(report),
        "tax_total_ns": diagnosis.sum_overlap_slowdown_ns(report),
        "stage_phases": diagnosis.summarize_stages(report),
        "log_timers": order_timers(report.log),
    }


def _efficiency_views(report: Report) -> dict[str, Any]:
    return {
        "has_efficiency": efficiency.has_efficiency(report),
        "utilization_facts": efficiency.known_facts(report, efficiency.UTILIZATION_FACTS),
        "shapes_known": report.facts.get("gemm_shapes_known_fraction"),
        "memory_facts": efficiency.known_facts(report, efficiency.MEMORY_FACTS),
    }


def _shell_text(report: Report) -> tuple[tuple[str, str, str], ...]:
    """The plan's overrides to copy: id, title, text; forms without a line are left out."""
    overrides = report.overrides
    forms = (
        ("env", "Environment", overrides_file.quote_env(overrides)),
        ("bridge", f"Megatron-Bridge {overrides.bridge_version}", overrides_file.quote_bridge(overrides)),
        ("megatron-lm", "Megatron-LM", overrides_file.quote_megatron_lm(overrides)),
        ("python", "Python, in the recipe", overrides.python),
    )
    return tuple((form, title, "\n".join(lines)) for form, title, lines in forms if lines)


def _make_environment() -> Environment:
    """Escapes everything; a name that a template misspells is an error, not an empty cell."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES_DIR),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= _FILTERS
    environment.globals |= {
        "awaited": formats.format_awaited,
        "cost": formats.format_cost,
        "describe_log": describe_log,
        "describe_progress": describe_progress,
        "spread_of": spread_of,
        "timer_kinds": KIND_WORDS,
        "ms_range": formats.format_ms_range,
        "wall_name": formats.format_wall,
        "order_communication": views.order_communication,
        "buckets": BUCKET_BY_NAME,
        "recipe_context": recipe_views.CONTEXT,
        "recipe_marks": recipe_views.MARK_MEANINGS,
        "glossary": GLOSSARY_BY_NAME,
        "bucket_colours": palette.BUCKET_COLOURS,
        "group_colours": palette.GROUP_COLOURS,
        "exposed_colour": palette.EXPOSED_COLOUR,
        "hidden_colour": palette.HIDDEN_COLOUR,
        "wait_colour": palette.WAIT_COLOUR,
        "transfer_colour": palette.TRANSFER_COLOUR,
        "explain_cause": causes.explain_cause,
        "carrying_parts": diagnosis.CARRYING_PARTS,
        "memory_categories": CATEGORIES,
    }
    return environment


def _load_asset(name: str) -> Markup:
    """A file of ours that goes into the page as it is."""
    return Markup((TEMPLATES_DIR / name).read_text(encoding="utf-8"))


def _load_plotly() -> Markup:
    """Plotly's own script, embedded once per page."""
    from plotly.offline import get_plotlyjs  # half a second to import, and only the page needs it

    return Markup(get_plotlyjs())
