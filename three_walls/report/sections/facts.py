"""Every fact that rules compare, with its definition."""

from __future__ import annotations

from three_walls.lib.fact import Fact
from three_walls.report.formats import format_fact
from three_walls.report.report import Report
from three_walls.report.section import ROW, Cell, Column, Section, Table, Terminal, Text


def facts(report: Report) -> Section:
    """Facts in the order of their definition; settings of the run are in the configuration."""
    columns = (
        Column("Fact", ROW, _name),
        Column("Value", ROW, format_fact, is_right=True),
        Column("Definition", ROW, _define, width="wide"),
    )
    measured = [fact for fact in report.facts.facts.values() if not fact.name.startswith(("config.", "env."))]
    return Section(
        "facts",
        "Facts",
        (Table("facts", columns, measured, anchor=lambda fact: f"fact-{fact.name}"),),
        lead="The named numbers that the rules compare. Hover over a name to see what it must not be confused with.",
        link="Facts",
        is_folded=True,
        terminal=Terminal.NEVER,
    )


def _name(fact: Fact) -> Text:
    definition = fact.definition
    if definition is None:
        return Text(fact.name, "code")
    other = f" Not the same as: {definition.not_the_same_as}" if definition.not_the_same_as else ""
    return Text(fact.name, "code", f"{definition.meaning}{other}")


def _define(fact: Fact) -> Cell:
    meaning = Text(fact.definition.meaning if fact.definition else "", "muted")
    return (meaning, Text(f"Missing: {fact.missing_reason}", "missing")) if fact.is_missing else meaning
