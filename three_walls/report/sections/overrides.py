"""The overrides to apply: the whole plan, spelled for each launcher."""

from __future__ import annotations

from three_walls.report.overrides_file import list_forms
from three_walls.report.report import Report
from three_walls.report.section import Block, Copyable, Items, Section, Terminal


def overrides(report: Report) -> Section | None:
    """All edits of the plan as lines to copy, and notes on what no line can express."""
    blocks: list[Block] = [Copyable(name, title, lines) for name, title, lines in list_forms(report.overrides)]
    if report.overrides.notes:
        blocks.append(Items(tuple(f"note: {note}" for note in report.overrides.notes), role="warning"))
    if not blocks:
        return None
    return Section(
        "overrides",
        "Overrides to apply",
        tuple(blocks),
        lead="The whole plan, as in overrides.txt. Use the lines of your launcher: those for Megatron-Bridge and "
        "Megatron-LM are quoted for a shell.",
        link="Overrides",
        is_folded=True,
        terminal=Terminal.ALWAYS,
    )
