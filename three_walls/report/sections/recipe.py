"""Known-good recipe: how the run's settings differ from those of NVIDIA's nearest benchmark recipe."""

from __future__ import annotations

from three_walls.bridge.recipe_rows import BATCH_SIZE, BENCHMARK_SETTING, RecipeDifference
from three_walls.lib.text import format_count, format_setting
from three_walls.report.report import Report
from three_walls.report.section import ROW, Cell, Column, Note, Section, Table, Text
from three_walls.report.sections.config import SETTING

MARK_MEANINGS = {
    BENCHMARK_SETTING: "not for a production run",
    BATCH_SIZE: "changes what the model learns, or how the batch is split",
}


def recipe(report: Report) -> Section | None:
    """The settings that differ, or why no recipe is near."""
    known = report.known_good_recipe
    if known is None:
        reason = report.no_recipe_reason
        return Section("recipe", "Known-good recipe", (), link="Recipe", empty=f"None: {reason}") if reason else None
    columns = (
        SETTING,
        Column("This run", "run", lambda value: Text(format_setting(value), "from")),
        Column("Recipe", "recipe", lambda value: Text(format_setting(value), "code")),
        Column("", ROW, _remark),
    )
    unknown = f", {format_count(known.unknown_count)} unknown in the run" if known.unknown_count else ""
    return Section(
        "recipe",
        "Known-good recipe",
        (
            Note((Text(known.name, "code"), Text(known.source, "source")), "Nearest recipe:"),
            Note(known.distance_note),
            Table("recipe", columns, known.differences),
            Note(f"{format_count(known.same_count)} settings are the same{unknown}.", role="muted"),
        ),
        lead="How the run differs from NVIDIA's nearest benchmark recipe. Context for the plan, not a promise: the "
        "recipe was fast with forced expert balance and mock data, and its parallel sizes suit its number of GPUs.",
        link="Recipe",
        is_folded=True,
    )


def _remark(row: RecipeDifference) -> Cell:
    pieces = []
    if row.in_plan:
        pieces.append(Text("in the plan", "badge"))
    if row.mark:
        pieces += [Text(row.mark, "badge warn"), Text(MARK_MEANINGS[row.mark], "muted")]
    return tuple(pieces)
