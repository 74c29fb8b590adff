"""YAML read strictly: every problem is kept with its file, line and column, and all are raised together.

Stricter than YAML itself where YAML surprises: a repeated key is an error (YAML keeps the last one), so is
``no`` for false, ``1e-3`` (a string in YAML 1.1) and ``1:30`` (a number in base 60). Quote what is text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from three_walls.vocabulary.errors import RuleBaseError

Scalar = str | int | float | bool | None
Plain = Scalar | list["Plain"] | dict[str, "Plain"]

_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+][0-9]+)?")
_LOOKS_NUMERIC = re.compile(r"[-+]?(\d[\d_]*)?\.?\d+([eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands in a file; lines and columns count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Node:
    """A scalar, a list of nodes or a mapping of nodes, with its place. ``value`` of a mapping is by key."""

    value: Scalar | tuple[Node, ...] | Mapping[str, Node]
    place: Place
    key_places: Mapping[str, Place] = field(default_factory=dict)
    """Of a mapping: where each key stands."""


@dataclass(slots=True)
class Problems:
    """Errors found so far. The readers below add to it and return something harmless."""

    found: list[tuple[Place, str]] = field(default_factory=list)

    def add(self, place: Place, message: str) -> None:
        self.found.append((place, message))

    def raise_if_any(self) -> None:
        """Raise one RuleBaseError that lists every problem in order of place."""
        if self.found:
            ordered = sorted(set(self.found), key=lambda p: (p[0].file, p[0].line, p[0].column, p[1]))
            raise RuleBaseError("\n".join(f"{place}: {message}" for place, message in ordered))

    def mapping(
        self, node: Node, required: Collection[str] = (), optional: Collection[str] | None = None
    ) -> Mapping[str, Node]:
        """Entries of a mapping. Keys beyond ``required`` and ``optional`` are errors (``None``: any key)."""
        if not isinstance(node.value, Mapping):
            self.add(node.place, f"expected a mapping, found {_kind(node)}")
            return {}
        for key in sorted(set(required) - set(node.value)):
            self.add(node.place, f"missing key {key}")
        if optional is not None:
            for key in node.value:
                if key not in required and key not in optional:
                    self.add(node.key_places.get(key, node.place), f"unknown key {key}")
        return node.value

    def items(self, node: Node) -> tuple[Node, ...]:
        """Elements of a list."""
        if not isinstance(node.value, tuple):
            self.add(node.place, f"expected a list, found {_kind(node)}")
            return ()
        return node.value

    def text(self, node: Node) -> str:
        """A string."""
        if not isinstance(node.value, str):
            self.add(node.place, f"expected text, found {_kind(node)}")
            return ""
        return node.value

    def integer(self, node: Node) -> int:
        """A whole number."""
        if isinstance(node.value, bool) or not isinstance(node.value, int):
            self.add(node.place, f"expected a whole number, found {_kind(node)}")
            return 0
        return node.value

    def texts(self, node: Node) -> tuple[str, ...]:
        """A list of strings; one string is a list of one."""
        if isinstance(node.value, str):
            return (node.value,)
        return tuple(self.text(item) for item in self.items(node))


def load_strict(path: Path, problems: Problems) -> Node:
    """The document in ``path``; what is wrong with its form is added to ``problems``."""
    start = Place(path.name, 1, 1)
    try:
        composed = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        problems.add(start, f"cannot be read: {error.strerror}")
        return Node({}, start)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = start if mark is None else Place(path.name, mark.line + 1, mark.column + 1)
        problems.add(place, f"not valid YAML: {error.problem}")
        return Node({}, start)
    if composed is None:
        problems.add(start, "is empty")
        return Node({}, start)
    return _node(composed, path.name, problems)


def plain(node: Node) -> Plain:
    """The node's value without places."""
    if isinstance(node.value, tuple):
        return [plain(item) for item in node.value]
    if isinstance(node.value, Mapping):
        return {key: plain(item) for key, item in node.value.items()}
    return node.value


def _node(composed: yaml.Node, file: str, problems: Problems) -> Node:
    place = Place(file, composed.start_mark.line + 1, composed.start_mark.column + 1)
    if isinstance(composed, yaml.SequenceNode):
        return Node(tuple(_node(item, file, problems) for item in composed.value), place)
    if isinstance(composed, yaml.MappingNode):
        return _mapping(composed, place, problems)
    assert isinstance(composed, yaml.ScalarNode)
    return Node(_scalar(composed, place, problems), place)


def _mapping(composed: yaml.MappingNode, place: Place, problems: Problems) -> Node:
    entries: dict[str, Node] = {}
    places: dict[str, Place] = {}
    for key_node, value_node in composed.value:
        key_place = Place(place.file, key_node.start_mark.line + 1, key_node.start_mark.column + 1)
        if not isinstance(key_node, yaml.ScalarNode):
            problems.add(key_place, "a key must be text")
            continue
        key = str(key_node.value)
        if key in entries:
            problems.add(key_place, f"key {key} is given twice")
            continue
        entries[key] = _node(value_node, place.file, problems)
        places[key] = key_place
    return Node(entries, place, places)


def _scalar(node: yaml.ScalarNode, place: Place, problems: Problems) -> Scalar:
    text = str(node.value)
    if node.style is not None:  # quoted or a block: text, whatever it looks like
        return text
    kind = node.tag.rsplit(":", 1)[-1]
    if kind == "null" and text in ("", "~", "null"):
        return None
    if kind == "bool" and text in ("true", "false"):
        return text == "true"
    if kind == "int" and _INT.fullmatch(text):
        return int(text.replace("_", ""))
    if kind == "float" and _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    if kind != "str" or _LOOKS_NUMERIC.fullmatch(text):
        problems.add(place, f"{text} is ambiguous in YAML: quote it, or write true, false, null, 1 or 1.0e-3")
    return text


def _kind(node: Node) -> str:
    if isinstance(node.value, Mapping):
        return "a mapping"
    if isinstance(node.value, tuple):
        return "a list"
    return repr(node.value)
