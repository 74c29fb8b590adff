"""The table of what the guides say as Markdown, and its place in a document."""

from __future__ import annotations

from collections.abc import Iterator

from three_walls.model.errors import UsageError
from three_walls.tables.coverage import Coverage, Document, Reference, Statement

BEGIN = "<!-- coverage: written by `three-walls rules coverage --into`, from coverage.yaml -->"
END = "<!-- end of coverage -->"


def coverage_table(coverage: Coverage) -> str:
    """A section per document with a table per part, then the rules that no document calls for; no trailing newline."""
    return "\n".join(_lines(coverage))


def insert_coverage(text: str, table: str) -> str:
    """``text`` with ``table`` between the two markers. Raises UsageError where they are not there once, in order."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise UsageError(f"expected one line {BEGIN!r} and below it one line {END!r}; add them where the table belongs")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def _lines(coverage: Coverage) -> Iterator[str]:
    rows = [row for document in coverage.documents for row in document.statements()]
    carried = sum(bool(row.carried_by) for row in rows)
    yield f"{len(rows)} statements: {carried} carried, {len(rows) - carried} not, each with its reason."
    for document in coverage.documents:
        yield from _document(document)
    yield "\n### Rules that none of them calls for\n"
    yield "| rule | comes from |\n|---|---|"
    for rule, origin in coverage.beyond_the_documents.items():
        yield f"| `{rule}` | {_cell(origin)} |"


def _document(document: Document) -> Iterator[str]:
    yield f"\n### {document.title}"
    for part in document.parts:
        yield f"\n**{part.title}**\n"
        yield "| it says | carried by, or why not | where sources disagree |\n|---|---|---|"
        for row in part.statements:
            yield f"| {_cell(row.says)} | {_cell(_carriers(row))} | {_cell(row.resolved)} |"


def _carriers(row: Statement) -> str:
    return ", ".join(map(_reference, row.carried_by)) if row.carried_by else f"*not:* {row.because_not}"


def _reference(reference: Reference) -> str:
    return f"{reference.kind} `{reference.name}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
