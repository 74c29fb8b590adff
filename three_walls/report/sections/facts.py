"""What the words and numbers mean: every fact that rules compare, and the terms of report/terms.py."""

from __future__ import annotations

from three_walls.lib.fact import Fact
from three_walls.lib.text import format_name
from three_walls.report.formats import format_fact
from three_walls.report.report import Report
from three_walls.report.section import ROW, Cell, Column, Definitions, Note, Section, Table, Terminal, Text
from three_walls.report.terms import GAIN_BASES, TERMS


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


def reading(_: Report) -> Section:
    """Terms, then the bases that a gain can have."""
    terms = tuple((term.name, term.definition) for term in TERMS)
    bases = tuple((format_name(basis).capitalize(), meaning) for basis, meaning in GAIN_BASES.items())
    blocks = (Definitions(terms), Note("Basis of a gain", role="heading"), Definitions(bases))
    return Section(
        "reading",
        "How to read this",
        blocks,
        link="How to read",
        terminal=Terminal.NEVER,
        role="reading",
        is_folded=True,
    )
