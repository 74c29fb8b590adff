"""How to read the report: the definitions of its terms, from report/terms.py."""

from __future__ import annotations

from three_walls.lib.text import format_name
from three_walls.report.report import Report
from three_walls.report.section import Definitions, Note, Section, Terminal
from three_walls.report.terms import GAIN_BASES, TERMS


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
