"""The ordered tables of name patterns: kernels (rules/kernel-categories.yaml) and API calls (rules/api-calls.yaml)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from three_walls.advice.strict_yaml import Problems, choice, compose, fields, items, text
from three_walls.resources import RULES_DIR
from three_walls.vocabulary.categories import CATEGORIES, SEND_RECV

API_KINDS = ("synchronize", "graph_launch")


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


def load_kernel_patterns(path: Path = RULES_DIR / "kernel-categories.yaml") -> tuple[KernelPattern, ...]:
    """The kernel table in order. Raises RuleBaseError with every problem of the file."""
    problems = Problems()
    rows = []
    for node in _rows(path, problems):
        row = fields(node, problems, ("category", "pattern", "because"), ("phase", "anchor"))
        text(row.get("because"), problems)
        phase = choice(row["phase"], problems, ("forward", "backward")) if "phase" in row else None
        anchor = "anchor" in row and choice(row["anchor"], problems, ("step",)) == "step"
        category = choice(row.get("category"), problems, (*CATEGORIES, SEND_RECV))
        rows.append(KernelPattern(category, _regex(row.get("pattern"), problems), phase, anchor))
    problems.raise_if_any()
    return tuple(rows)


def load_api_patterns(path: Path = RULES_DIR / "api-calls.yaml") -> tuple[ApiPattern, ...]:
    """The API table in order. Raises RuleBaseError with every problem of the file."""
    problems = Problems()
    rows = []
    for node in _rows(path, problems):
        row = fields(node, problems, ("kind", "pattern", "because"))
        text(row.get("because"), problems)
        rows.append(ApiPattern(choice(row.get("kind"), problems, API_KINDS), _regex(row.get("pattern"), problems)))
    problems.raise_if_any()
    return tuple(rows)


def union_of(patterns: tuple[ApiPattern, ...], kind: str) -> re.Pattern[str]:
    """One expression that is found where any pattern of ``kind`` is."""
    return re.compile("|".join(f"(?:{row.regex.pattern})" for row in patterns if row.kind == kind))


def _rows(path: Path, problems: Problems) -> list[yaml.Node]:
    root = compose(path, problems)
    return [] if root is None else items(fields(root, problems, ("patterns",)).get("patterns"), problems)


def _regex(node: yaml.Node | None, problems: Problems) -> re.Pattern[str]:
    source = text(node, problems)
    try:
        return re.compile(source)
    except re.error as error:
        assert node is not None  # an absent node is empty text, which compiles
        problems.add(node, f"not a regular expression: {error}")
        return re.compile("(?!)")
