"""What the lines of a training log look like: ``tables/log-lines.yaml``, whose header says what each field is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from three_walls.resources import TABLES_DIR
from three_walls.tables.strict_yaml import Problems, load_strict
from three_walls.tables.yaml_nodes import Node

LOG_LINES_FILE = TABLES_DIR / "log-lines.yaml"

UNITS = ("ms", "s", "MiB", "GB", "size", "billions", "count", "number", "text")

LINE_KINDS = (
    "iteration",
    "step_time",
    "memory",
    "theoretical_memory",
    "parameters",
    "parameters_per_rank",
    "layout",
    "training_start",
    "training_end",
    "evaluation",
    "checkpoint",
    "checkpoint_saved",
    "dispatcher",
    "overlap",
    "override_skipped",
    "cuda_graphs",
    "failure",
    "out_of_memory",
    "version",
    "progress",
    "straggler",
    "straggler_detector",
    "memory_snapshot",
    "config_object",
)
BLOCK_KINDS = ("argument_block", "non_default_settings", "config_dump", "timers", "rank_timers", "traceback")
MOST_PATIENCE = 200


@dataclass(frozen=True, slots=True)
class Prefix:
    """What stands before a line. ``origin``: it names the process that wrote it."""

    pattern: re.Pattern[str]
    origin: bool


@dataclass(frozen=True, slots=True)
class LineRow:
    """One kind of line. ``values``, ``fields`` and ``parts`` give names their units."""

    kind: str
    anchor: bytes
    pattern: re.Pattern[str]
    values: Mapping[str, str]
    fields: Mapping[str, tuple[str, str]]
    """Label in the list after the pattern -> (name, unit)."""
    is_closed: bool
    """Whether a value of that list counts only with another ``|`` after it."""
    parts: Mapping[str, tuple[re.Pattern[str], str]]
    ends_line: bool
    """Whether the last value reaches the end of the line, so that a cut one looks whole."""
    required: frozenset[str]


@dataclass(frozen=True, slots=True)
class BlockRow:
    """Several lines that belong together."""

    kind: str
    anchor: bytes
    opens: re.Pattern[str]
    line: re.Pattern[str]
    closes: re.Pattern[str]
    section: re.Pattern[str] | None
    repeats: bool
    """Whether a run prints it again and again; of any other block the first counts."""
    counts_up: bool
    """Whether names are numbers that grow within a section: one that does not shows that a heading was torn."""
    patience: int
    """Lines in a row of the same process that do not belong to the block: after more it was never closed."""


@dataclass(frozen=True, slots=True)
class LogGrammar:
    """Everything that the file says, in its order."""

    prefixes: tuple[Prefix, ...]
    lines: tuple[LineRow, ...]
    blocks: tuple[BlockRow, ...]
    any_prefix: re.Pattern[str]
    """Matches where one of ``prefixes`` does: most lines have none, and one look is cheaper than ten."""

    @property
    def anchors(self) -> tuple[bytes, ...]:
        """Every anchor once."""
        anchors = [row.anchor for row in self.lines] + [row.anchor for row in self.blocks]
        return tuple(dict.fromkeys(anchors))


def load_log_grammar(path: Path) -> LogGrammar:
    """The grammar in ``path``; RuleBaseError lists everything wrong with it."""
    problems = Problems()
    top = problems.fields(load_strict(path, problems), ("prefixes", "lines", "blocks"))
    prefixes = tuple(_prefix(node, problems) for node in problems.items(top.get("prefixes")))
    grammar = LogGrammar(
        prefixes=prefixes,
        lines=tuple(_line(node, problems) for node in problems.items(top.get("lines"))),
        blocks=tuple(_block(node, problems) for node in problems.items(top.get("blocks"))),
        any_prefix=re.compile("|".join(f"(?:{one.pattern.pattern})" for one in prefixes) or "(?!)"),
    )
    problems.raise_if_any()
    return grammar


@cache
def log_grammar() -> LogGrammar:
    """The grammar that ships with the program."""
    return load_log_grammar(LOG_LINES_FILE)


def _prefix(node: Node, problems: Problems) -> Prefix:
    row = problems.fields(node, ("pattern", "reason"), ("origin",))
    problems.text(row.get("reason"))
    return Prefix(problems.pattern(row.get("pattern")), problems.flag(row["origin"]) if "origin" in row else False)


def _line(node: Node, problems: Problems) -> LineRow:
    row = problems.fields(
        node,
        ("kind", "anchor", "pattern", "reason"),
        ("values", "fields", "is_closed", "parts", "ends_line", "required", "source"),
    )
    _check_reason(row, problems)
    pattern = problems.pattern(row.get("pattern"))
    values = {name: problems.choice(unit, UNITS) for name, unit in _entries(row, "values", problems).items()}
    for name in values:
        if name not in pattern.groupindex:
            problems.add(node, f"value {name} is no group of the pattern")
    fields = {}
    for name, field in _entries(row, "fields", problems).items():
        found = problems.fields(field, ("label", "unit"))
        fields[problems.text(found.get("label"))] = (name, problems.choice(found.get("unit"), UNITS))
    parts = {}
    for name, part in _entries(row, "parts", problems).items():
        found = problems.fields(part, ("pattern", "unit"))
        parts[name] = (problems.pattern(found.get("pattern")), problems.choice(found.get("unit"), UNITS))
    required = frozenset(problems.texts(row["required"])) if "required" in row else frozenset()
    named = {*values, *parts, *(name for name, _ in fields.values())}
    for name in sorted(required - named):
        problems.add(node, f"required {name} is neither a value nor a field nor a part")
    return LineRow(
        kind=problems.choice(row.get("kind"), LINE_KINDS),
        anchor=_anchor(row, problems),
        pattern=pattern,
        values=values,
        fields=fields,
        is_closed=problems.flag(row["is_closed"]) if "is_closed" in row else False,
        parts=parts,
        ends_line=problems.flag(row["ends_line"]) if "ends_line" in row else False,
        required=required,
    )


def _block(node: Node, problems: Problems) -> BlockRow:
    row = problems.fields(
        node,
        ("kind", "anchor", "opens", "line", "closes", "reason"),
        ("section", "repeats", "counts_up", "patience", "source"),
    )
    _check_reason(row, problems)
    return BlockRow(
        kind=problems.choice(row.get("kind"), BLOCK_KINDS),
        anchor=_anchor(row, problems),
        opens=problems.pattern(row.get("opens")),
        line=problems.pattern(row.get("line")),
        closes=problems.pattern(row.get("closes")),
        section=problems.pattern(row["section"]) if "section" in row else None,
        repeats=problems.flag(row["repeats"]) if "repeats" in row else False,
        counts_up=problems.flag(row["counts_up"]) if "counts_up" in row else False,
        patience=problems.integer(row["patience"]) if "patience" in row else MOST_PATIENCE,
    )


def _anchor(row: Mapping[str, Node], problems: Problems) -> bytes:
    """Text that stands in files whatever their encoding: ASCII, within one line."""
    text = problems.text(row.get("anchor"))
    if not (text.isascii() and text.isprintable()):
        problems.add(row["anchor"], "an anchor is searched as bytes: expected printable ASCII")
    return text.encode()


def _check_reason(row: Mapping[str, Node], problems: Problems) -> None:
    problems.text(row.get("reason"))
    if "source" in row:
        problems.text(row["source"])


def _entries(row: Mapping[str, Node], key: str, problems: Problems) -> Mapping[str, Node]:
    return problems.entries(row[key]) if key in row else {}
