"""Ordered name patterns: kernels (tables/kernel-categories.yaml) and API calls (tables/api-calls.yaml)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from three_walls.model.buckets import CATEGORIES, SEND_RECV
from three_walls.resources import TABLES_DIR
from three_walls.tables.strict_yaml import Problems, load_strict
from three_walls.tables.yaml_nodes import Node

API_KINDS = (
    "synchronize",
    "graph_launch",
    "launch",
    "copy",
    "allocate",
    "module_load",
    "event_record",
    "stream_wait",
)


@dataclass(frozen=True, slots=True)
class KernelPattern:
    """One row of the kernel table; see its header for the fields."""

    category: str
    regex: re.Pattern[str]
    phase: str | None
    anchor: bool


@dataclass(frozen=True, slots=True)
class ApiPattern:
    """One row of the API table."""

    kind: str
    regex: re.Pattern[str]


def load_kernel_patterns(path: Path = TABLES_DIR / "kernel-categories.yaml") -> tuple[KernelPattern, ...]:
    """The kernel table in order. Raises RuleBaseError with every problem of the file."""
    problems = Problems()
    rows = []
    for node in _rows(path, problems):
        row = problems.fields(node, ("category", "pattern", "reason"), ("phase", "anchor"))
        problems.text(row.get("reason"))
        phase = problems.choice(row.get("phase"), ("forward", "backward")) or None
        anchor = problems.choice(row.get("anchor"), ("step",)) == "step"
        category = problems.choice(row.get("category"), (*CATEGORIES, SEND_RECV))
        rows.append(KernelPattern(category, problems.pattern(row.get("pattern")), phase, anchor))
    problems.raise_if_any()
    return tuple(rows)


def load_api_patterns(path: Path = TABLES_DIR / "api-calls.yaml") -> tuple[ApiPattern, ...]:
    """The API table in order. Raises RuleBaseError with every problem of the file."""
    problems = Problems()
    rows = []
    for node in _rows(path, problems):
        row = problems.fields(node, ("kind", "pattern", "reason"))
        problems.text(row.get("reason"))
        rows.append(ApiPattern(problems.choice(row.get("kind"), API_KINDS), problems.pattern(row.get("pattern"))))
    problems.raise_if_any()
    return tuple(rows)


def union_of(patterns: tuple[ApiPattern, ...], kind: str) -> re.Pattern[str]:
    """One expression that is found where any pattern of ``kind`` is."""
    return re.compile("|".join(f"(?:{row.regex.pattern})" for row in patterns if row.kind == kind))


def _rows(path: Path, problems: Problems) -> tuple[Node, ...]:
    top = problems.fields(load_strict(path, problems), ("patterns",))
    return problems.items(top.get("patterns"))
