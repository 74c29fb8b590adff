"""Writes docs/guide-coverage.md: each statement of the published guides, with what implements it.

    python tools/guide_coverage.py

Reads docs/guide-coverage.yaml. Tests hold every reference of that file against what exists, and hold the page against
the file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from three_walls.tables.loader import Row, Text, load_table, suggest  # noqa: E402
from three_walls.tables.rows import AfterValidator, checked  # noqa: E402

COVERAGE_FILE = ROOT / "docs" / "guide-coverage.yaml"
PAGE = ROOT / "docs" / "guide-coverage.md"
KINDS = ("rule", "fact", "warning", "report", "command", "doc", "data")
HEAD = """\
<!-- Written by tools/guide_coverage.py from guide-coverage.yaml; do not edit. -->
# What the published guides say, and what implements it

Every statement of the published guides on MoE training, in reading order, with the rule, fact, warning, section of
report.json, command, document or table that implements it, or the reason why nothing does. The statements are kept in
[guide-coverage.yaml](guide-coverage.yaml).
"""


def check_reference(text: str) -> str:
    """A reference is ``<kind>:<name>``; the header of the file explains the name of each kind."""
    kind, _, name = text.partition(":")
    if kind not in KINDS:
        raise ValueError(f"expected a reference such as rule:ep-overlap, found {text}{suggest(kind, KINDS)}")
    if not name:
        raise ValueError(f"expected the name of a {kind}, found none")
    if kind == "data" and not all(name.partition("#")):
        raise ValueError(f"expected data:<file>#<key>, found {text}")
    return text


def check_references(references: tuple[str, ...]) -> tuple[str, ...]:
    if not references:
        raise ValueError("expected at least one reference, found none")
    return references


Reference = Annotated[Text, AfterValidator(check_reference)]


class Statement(Row):
    """One statement of a guide, in our own words; it is implemented, or there is a reason why it is not."""

    statement: Text
    implemented_by: Annotated[tuple[Reference, ...], AfterValidator(check_references)] | None = None
    not_implemented_because: Text | None = None
    resolved: Text = ""
    """Where sources disagree: what counts, and the evidence; empty where they agree."""

    @checked
    def check(self) -> Statement:
        if (self.implemented_by is None) == (self.not_implemented_because is None):
            raise ValueError("a statement has either implemented_by or not_implemented_because")
        return self

    def references(self, kind: str) -> list[str]:
        """Names of the references of ``kind``."""
        parts = [reference.partition(":") for reference in self.implemented_by or ()]
        return [name for found, _, name in parts if found == kind]


class Coverage(Row):
    """``guide-coverage.yaml``."""

    documents: Mapping[str, Mapping[str, tuple[Statement, ...]]]
    """Title of a document -> title of a part -> statements in reading order."""
    beyond_the_documents: Mapping[str, Text]
    """Rules that no statement calls for, by id, with their origin."""

    def statements(self, title: str | None = None) -> Iterator[Statement]:
        """The statements of the document ``title``, or of all."""
        for document, parts in self.documents.items():
            for rows in parts.values() if title in (None, document) else ():
                yield from rows


def read_coverage(path: Path = COVERAGE_FILE) -> Coverage:
    """The statements in ``path``; RuleBaseError lists every error. Whether a reference exists is not checked."""
    return load_table(path, Coverage)


def coverage_page(coverage: Coverage) -> str:
    """A section per document with a table per part, then the rules that no document calls for, as Markdown."""
    return HEAD + "\n" + "\n".join(_lines(coverage)) + "\n"


def _lines(coverage: Coverage) -> Iterator[str]:
    rows = list(coverage.statements())
    implemented = sum(row.implemented_by is not None for row in rows)
    yield f"{len(rows)} statements: {implemented} implemented, {len(rows) - implemented} not, each with the reason."
    for title, parts in coverage.documents.items():
        yield f"\n## {title}"
        for part, statements in parts.items():
            yield f"\n**{part}**\n"
            yield "| statement | implemented by, or why not | where sources disagree |\n|---|---|---|"
            for row in statements:
                yield f"| {_cell(row.statement)} | {_cell(_implementation(row))} | {_cell(row.resolved)} |"
    yield "\n## Rules that no document calls for\n"
    yield "| rule | origin |\n|---|---|"
    for rule, origin in coverage.beyond_the_documents.items():
        yield f"| `{rule}` | {_cell(origin)} |"


def _implementation(row: Statement) -> str:
    if row.implemented_by is None:
        return f"*not:* {row.not_implemented_because}"
    return ", ".join(f"{kind} `{name}`" for kind, _, name in (text.partition(":") for text in row.implemented_by))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(coverage_page(read_coverage()), encoding="utf-8")
