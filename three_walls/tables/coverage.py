"""What the published guides say, statement by statement, and what carries each: ``tables/coverage.yaml``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from three_walls.resources import TABLES_DIR
from three_walls.tables.strict_yaml import Problems, load_strict, suggest
from three_walls.tables.yaml_nodes import Node

COVERAGE_FILE = TABLES_DIR / "coverage.yaml"
KINDS = ("rule", "fact", "warning", "report", "command", "doc", "data")


@dataclass(frozen=True, slots=True)
class Reference:
    """Something that carries a statement; the header of the file says what ``name`` is for each of ``KINDS``."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement in our own words; it has either carriers or the reason why there is none."""

    says: str
    carried_by: tuple[Reference, ...]
    because_not: str
    """Why nothing carries it; empty where something does."""
    resolved: str
    """Where sources disagree: what counts, and the evidence; empty where they agree."""


@dataclass(frozen=True, slots=True)
class Part:
    title: str
    statements: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A guide, its statements in reading order."""

    title: str
    parts: tuple[Part, ...]

    def statements(self) -> Iterator[Statement]:
        """All of them, in reading order."""
        for part in self.parts:
            yield from part.statements


@dataclass(frozen=True, slots=True)
class Coverage:
    documents: tuple[Document, ...]
    beyond_the_documents: Mapping[str, str]
    """Rules that no statement calls for, by id, with what they come from."""


@cache
def coverage() -> Coverage:
    """The table that ships with the program."""
    return load_coverage(COVERAGE_FILE)


def load_coverage(path: Path) -> Coverage:
    """The table in ``path``; raises RuleBaseError that lists every error. Whether a reference exists is not checked."""
    problems = Problems()
    top = problems.fields(load_strict(path, problems), ("documents", "beyond_the_documents"))
    documents = tuple(
        Document(title, _parts(node, problems)) for title, node in problems.entries(top.get("documents")).items()
    )
    beyond = {rule: problems.text(node) for rule, node in problems.entries(top.get("beyond_the_documents")).items()}
    problems.raise_if_any()
    return Coverage(documents, beyond)


def _parts(node: Node, problems: Problems) -> tuple[Part, ...]:
    return tuple(
        Part(title, tuple(_statement(row, problems) for row in problems.items(rows)))
        for title, rows in problems.entries(node).items()
    )


def _statement(node: Node, problems: Problems) -> Statement:
    row = problems.fields(node, ("says",), ("carried_by", "because_not", "resolved"))
    if ("carried_by" in row) == ("because_not" in row):
        problems.add(node, "a statement has either carried_by or because_not")
    carriers = problems.items(row["carried_by"]) if "carried_by" in row else ()
    if "carried_by" in row and not carriers:
        problems.add(row["carried_by"], "expected at least one reference, found none")
    return Statement(
        says=problems.text(row.get("says")),
        carried_by=tuple(_reference(one, problems) for one in carriers),
        because_not=problems.text(row["because_not"]) if "because_not" in row else "",
        resolved=problems.text(row["resolved"]) if "resolved" in row else "",
    )


def _reference(node: Node, problems: Problems) -> Reference:
    text = problems.text(node)
    kind, _, name = text.partition(":")
    if text and kind not in KINDS:
        problems.add(node, f"expected a reference such as rule:ep-overlap, found {text}{suggest(kind, KINDS)}")
    elif text and not name:
        problems.add(node, f"expected the name of a {kind}, found none")
    elif kind == "data" and not all(name.partition("#")):
        problems.add(node, f"expected data:<file>#<key>, found {text}")
    return Reference(kind, name)
