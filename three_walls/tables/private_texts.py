"""Paths, addresses and keys inside of texts that have no form of their own: names of kernels, of ranges, messages."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from three_walls.resources import TABLES_DIR
from three_walls.tables.strict_yaml import Problems, load_strict
from three_walls.tables.yaml_nodes import Node

PATH = re.compile(r"(?:[A-Za-z][\w+.-]*://|[A-Za-z]:\\|~?/)[^\s'\"<>|;,()\[\]]*[^\s'\"<>|;,()\[\].:]")
"""A path or an address inside of a text."""

_STANDS_ALONE = "(?<![A-Za-z0-9])"


def cut_private(text: str) -> str:
    """``text`` with every path, address and key replaced."""
    return key_shapes().sub("<key>", PATH.sub("<path>", text))


def holds_key(text: str) -> bool:
    """Whether something in ``text`` has the shape of a key."""
    return key_shapes().search(text) is not None


@cache
def key_shapes() -> re.Pattern[str]:
    """The shapes of ``tables/key-shapes.yaml``, any of them."""
    return load_key_shapes(TABLES_DIR / "key-shapes.yaml")


def load_key_shapes(path: Path) -> re.Pattern[str]:
    """The shapes in ``path`` as one expression; raises RuleBaseError that lists every error."""
    problems = Problems()
    top = problems.fields(load_strict(path, problems), ("shapes",))
    shapes = [_shape(node, problems) for node in problems.items(top.get("shapes"))]
    problems.raise_if_any()
    return re.compile(f"{_STANDS_ALONE}(?:{'|'.join(shapes)})", re.ASCII)


def _shape(node: Node, problems: Problems) -> str:
    row = problems.fields(node, ("pattern", "reason"))
    problems.text(row.get("reason"))
    return problems.pattern(row.get("pattern")).pattern
