"""Strict YAML: nodes with places out of a file, values out of nodes, and every problem raised together.

Stricter than YAML where YAML surprises: a repeated key is a problem (YAML keeps the last one), so are ``no`` for
false, ``1e-3`` (text in YAML 1.1), ``1:30`` (a number in base 60), aliases and tags. Quote what is text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import yaml

from three_walls.model.config import ConfigData, ConfigScalar
from three_walls.model.errors import RuleBaseError
from three_walls.tables.yaml_nodes import Node, Place, describe

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, several times as fast, where PyYAML has it
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]{0,30})")
_FLOAT = re.compile(r"[-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+][0-9]+)?")
_LOOKS_NUMERIC = re.compile(r"[-+]?(\d[\d_]*)?\.?\d+([eE][-+]?\d+)?")
_ODD_NUMBER = "a number in an unusual form, which is easily taken for another; quote it, or write it as 90 or 0.5"
_READINGS = {
    "bool": "a boolean; quote it, or write true or false",
    "null": "nothing; quote it, or write null",
    "int": _ODD_NUMBER,
    "float": _ODD_NUMBER,
    "str": "text, though it looks like a number; quote it, or write it as 1.0e-3 or 0.001",
    "timestamp": "a date; quote it",
}


@dataclass(slots=True)
class Problems:
    """What is wrong so far. The readers add to it and return something harmless, as they do for an absent node."""

    found: list[tuple[Place, str]] = field(default_factory=list)

    def add(self, at: Node | Place, message: str) -> None:
        """Note ``message``, a sentence without its place."""
        self.found.append((at.place if isinstance(at, Node) else at, message))

    def raise_if_any(self) -> None:
        """One RuleBaseError that lists every problem as ``file:line:column: sentence``, in reading order."""
        if self.found:
            raise RuleBaseError("\n".join(f"{place}: {message}" for place, message in sorted(set(self.found))))

    def entries(self, node: Node | None) -> Mapping[str, Node]:
        """Entries of a mapping with any keys."""
        if node is not None and isinstance(node.value, Mapping):
            return node.value
        self._note_kind(node, "a mapping")
        return {}

    def fields(
        self, node: Node | None, required: Collection[str] = (), optional: Collection[str] = ()
    ) -> Mapping[str, Node]:
        """Entries of a mapping with known keys only; unknown and absent ones are problems."""
        found = self.entries(node)
        if node is None or not isinstance(node.value, Mapping):
            return {}
        known = [*required, *optional]
        for key in found:
            if key not in known:
                self.add(node.key_places.get(key, node.place), f"unknown key {key}{suggest(key, known)}")
        for key in required:
            if key not in found:
                self.add(node, f"key {key} is missing")
        return {key: value for key, value in found.items() if key in known}

    def items(self, node: Node | None) -> tuple[Node, ...]:
        """Elements of a list."""
        if node is not None and isinstance(node.value, tuple):
            return node.value
        self._note_kind(node, "a list")
        return ()

    def text(self, node: Node | None) -> str:
        """Text that is not blank, folded lines joined."""
        if node is None or not isinstance(node.value, str):
            self._note_kind(node, "text", " (quote it?)")
            return ""
        if not node.value.strip():
            self.add(node, "expected text, found none")
        return node.value.strip()

    def texts(self, node: Node | None) -> tuple[str, ...]:
        """A list of texts; one text is a list of one."""
        if node is not None and isinstance(node.value, str):
            return (self.text(node),)
        return tuple(self.text(item) for item in self.items(node))

    def choice(self, node: Node | None, allowed: Collection[str]) -> str:
        """One word of ``allowed``."""
        word = self.text(node)
        if node is not None and not node.is_refused and word and word not in allowed:
            self.add(node, f"expected one of {', '.join(allowed)}, found {word}{suggest(word, allowed)}")
        return word

    def flag(self, node: Node | None) -> bool:
        """True or false."""
        if node is None or not isinstance(node.value, bool):
            self._note_kind(node, "true or false")
            return False
        return node.value

    def integer(self, node: Node | None) -> int:
        """A whole number."""
        if node is None or isinstance(node.value, bool) or not isinstance(node.value, int):
            self._note_kind(node, "a whole number")
            return 0
        return node.value

    def number(self, node: Node | None, low: float, high: float) -> float:
        """A number within [low, high]."""
        if node is None or isinstance(node.value, bool) or not isinstance(node.value, int | float):
            self._note_kind(node, "a number")
            return 0.0
        if not low <= node.value <= high:
            self.add(node, f"expected a number from {low:g} to {high:g}, found {node.value:g}")
        return float(node.value)

    def scalar(self, node: Node | None) -> ConfigScalar:
        """A single value."""
        if node is None or isinstance(node.value, tuple | Mapping):
            self._note_kind(node, "text, a number, true, false or null")
            return None
        return node.value

    def value(self, node: Node | None) -> ConfigData:
        """A single value or a flat list of them, as settings and operands have."""
        if node is not None and isinstance(node.value, tuple):
            return tuple(self.scalar(item) for item in node.value)
        return self.scalar(node)

    def pattern(self, node: Node | None, flags: int = 0) -> re.Pattern[str]:
        """A regular expression; where there is none, one that finds nothing."""
        source = self.text(node)
        return self.expression(source, node, flags) if node is not None and source else re.compile("(?!)")

    def expression(self, source: str, at: Node | Place, flags: int = 0) -> re.Pattern[str]:
        """``source`` as a regular expression."""
        try:
            return re.compile(source, flags)
        except re.error as error:
            self.add(at, f"not a regular expression: {error}")
            return re.compile("(?!)")

    def _note_kind(self, node: Node | None, wanted: str, hint: str = "") -> None:
        if node is not None and not node.is_refused:
            self.add(node, f"expected {wanted}, found {describe(node)}{hint}")


def load_strict(path: Path, problems: Problems) -> Node | None:
    """The document in ``path``, its form checked; ``None`` after noting why there is none."""
    start = Place(str(path), 1, 1)
    try:
        composed = yaml.compose(path.read_text(encoding="utf-8"), Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(str(path), mark.line + 1, mark.column + 1) if mark else start
        problems.add(place, f"not valid YAML: {error.problem or error.context}")
        return None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        problems.add(start, f"cannot be read: {reason}")
        return None
    if composed is None:
        problems.add(start, "the file is empty")
        return None
    return _Checker(str(path), problems).node(composed)


def suggest(word: str, known: Collection[str]) -> str:
    """`` (did you mean x?)`` when ``known`` has a close match, else nothing."""
    close = get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


@dataclass(slots=True)
class _Checker:
    """Turns what PyYAML composed from one file into nodes, noting what is ambiguous on the way."""

    file: str
    problems: Problems
    seen: set[int] = field(default_factory=set)
    """Nodes met so far, by identity: an alias is the same node again."""

    def node(self, composed: yaml.Node) -> Node:
        if id(composed) in self.seen:
            return self._refuse(composed, "aliases are not read; write the value out")
        self.seen.add(id(composed))
        if isinstance(composed, yaml.ScalarNode):
            return self._scalar(composed)
        if composed.tag.rsplit(":", 1)[-1] not in ("map", "seq"):
            return self._refuse(composed, f"tag {composed.tag} is not read; leave it out")
        if isinstance(composed, yaml.MappingNode):
            return self._mapping(composed)
        return Node(tuple(self.node(item) for item in composed.value), self._place(composed))

    def _mapping(self, composed: yaml.MappingNode) -> Node:
        entries: dict[str, Node] = {}
        places: dict[str, Place] = {}
        for key_node, value_node in composed.value:
            key, value = self.node(key_node), self.node(value_node)
            if not isinstance(key.value, str):
                if not key.is_refused:
                    self.problems.add(key, f"expected a text key, found {describe(key)} (quote it?)")
            elif key.value in entries:
                self.problems.add(key, f"key {key.value} is repeated (first on line {places[key.value].line})")
            else:
                entries[key.value], places[key.value] = value, key.place
        return Node(entries, self._place(composed), places)

    def _scalar(self, composed: yaml.ScalarNode) -> Node:
        text, place = str(composed.value), self._place(composed)
        kind = composed.tag.removeprefix("tag:yaml.org,2002:")
        if composed.style:  # quoted or a block: text, whatever it looks like
            return Node(text, place)
        if kind == "null" and text in ("", "~", "null"):
            return Node(None, place)
        if kind == "bool" and text in ("true", "false"):
            return Node(text == "true", place)
        if kind == "int" and _INT.fullmatch(text):
            return Node(int(text.replace("_", "")), place)
        if kind == "float" and _FLOAT.fullmatch(text):
            return Node(float(text.replace("_", "")), place)
        if kind == "str" and not _LOOKS_NUMERIC.fullmatch(text):
            return Node(text, place)
        reading = _READINGS.get(kind, f"it as {kind}; quote it")
        return self._refuse(composed, f"{text} is ambiguous: YAML reads {reading}")

    def _refuse(self, composed: yaml.Node, message: str) -> Node:
        place = self._place(composed)
        self.problems.add(place, message)
        return Node(None, place, is_refused=True)

    def _place(self, composed: yaml.Node) -> Place:
        return Place(self.file, composed.start_mark.line + 1, composed.start_mark.column + 1)
