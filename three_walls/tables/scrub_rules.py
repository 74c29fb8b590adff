"""What of an export may be shared: ``tables/scrub.yaml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from three_walls.resources import TABLES_DIR
from three_walls.tables.strict_yaml import Problems, load_strict
from three_walls.tables.yaml_nodes import Node

COLUMN_KINDS = (
    "numbers",
    "kernel_ids",
    "call_ids",
    "label_ids",
    "range_ids",
    "range_texts",
    "gpu_names",
    "labels",
    "sentences",
    "field_names",
    "nccl_payloads",
)


@dataclass(frozen=True, slots=True)
class ScrubRules:
    """The file's header says what each part means."""

    tables: Mapping[str, Mapping[str, str]]
    """Table -> column -> kind, in the order of the file."""
    pairs: Mapping[str, tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]]
    """Table -> expressions that match a whole name and the values that may stay with it."""
    ranges: tuple[re.Pattern[str], ...]
    parts: re.Pattern[str]
    """What stays of a range that does not."""
    scripts: frozenset[str]


@cache
def scrub_rules() -> ScrubRules:
    """The rules that ship with the program."""
    return load_scrub_rules(TABLES_DIR / "scrub.yaml")


def load_scrub_rules(path: Path) -> ScrubRules:
    """The rules in ``path``; raises RuleBaseError that lists every error."""
    problems = Problems()
    top = problems.fields(load_strict(path, problems), ("tables", "pairs", "ranges", "parts", "scripts"))
    rules = ScrubRules(
        tables={name: _columns(node, problems) for name, node in problems.entries(top.get("tables")).items()},
        pairs={
            name: tuple(
                (problems.expression(named, value), problems.pattern(value, re.ASCII))
                for named, value in problems.entries(node).items()
            )
            for name, node in problems.entries(top.get("pairs")).items()
        },
        ranges=tuple(_range(node, problems) for node in problems.items(top.get("ranges"))),
        parts=re.compile("|".join(problems.pattern(one).pattern for one in problems.items(top.get("parts")))),
        scripts=frozenset(problems.texts(top.get("scripts"))),
    )
    problems.raise_if_any()
    return rules


def _columns(node: Node, problems: Problems) -> Mapping[str, str]:
    columns: dict[str, str] = {}
    for kind, names in problems.fields(node, (), COLUMN_KINDS).items():
        for name in problems.texts(names):
            if name in columns:
                problems.add(names, f"column {name} is listed twice")
            columns[name] = kind
    return columns


def _range(node: Node, problems: Problems) -> re.Pattern[str]:
    row = problems.fields(node, ("pattern", "reason"))
    problems.text(row.get("reason"))
    return problems.pattern(row.get("pattern"), re.ASCII)
