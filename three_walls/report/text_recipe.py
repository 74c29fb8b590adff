"""The tuned recipe nearest to the run, for the terminal; a report that looked for none says nothing."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from three_walls.model.report import Report
from three_walls.report.formats import format_count, format_setting
from three_walls.report.recipe_views import CONTEXT, MARK_MEANINGS, count_recipe_settings
from three_walls.report.text_parts import heading, indent, indent_table, make_table, plain

_SHOWN = 8
"""Differences in the terminal; all are in report.json and in the page."""


def show_recipe(report: Report) -> Iterator[RenderableType]:
    recipe = report.known_good_recipe
    if recipe is None:
        if report.no_recipe_reason:
            yield heading("Known-good recipe")
            yield indent(f"none: {report.no_recipe_reason}")
        return
    yield heading("Known-good recipe", "NVIDIA's nearest benchmark; context, not a promise")
    yield indent(plain(recipe.name, "bold"))
    yield indent(recipe.distance_note)
    yield indent(CONTEXT)
    shown = recipe.differences[:_SHOWN]
    if shown:
        table = make_table("setting", "run", "recipe", "")
        for one in shown:
            about = "in the plan" if one.in_plan else MARK_MEANINGS.get(one.mark, "")
            table.add_row(plain(one.key), plain(format_setting(one.run)), plain(format_setting(one.recipe)), about)
        yield indent_table(table)
    left = len(recipe.differences) - len(shown)
    more = f"{format_count(left)} more in report.json; " if left else ""
    yield indent(plain(f"{more}{count_recipe_settings(recipe)}", "dim"))
