"""Strict YAML: nodes with positions in, values or a list of problems out.

PyYAML on its own lets a repeated key win silently and turns ``no`` into False and ``1e-3`` into text. Here
every surprise is a problem with file, line and column, and all problems of all files are collected first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import yaml

from three_walls.vocabulary.config import ConfigData
from three_walls.vocabulary.errors import RuleBaseError

_KINDS = {str: "text", bool: "a boolean", int: "a number", float: "a number", type(None): "nothing"}


@dataclass(slots=True)
class Problems:
    """What is wrong so far: file, line, column and a sentence each."""

    found: list[tuple[str, int, int, str]] = field(default_factory=list)

    def add(self, node: yaml.Node, message: str) -> None:
        """Note ``message`` at the position of ``node``."""
        mark = node.start_mark
        self.add_at(mark.name, mark.line + 1, mark.column + 1, message)

    def add_at(self, path: Path | str, line: int, column: int, message: str) -> None:
        """Note ``message`` at a place."""
        self.found.append((str(path), line, column, message))

    def raise_if_any(self) -> None:
        """One RuleBaseError that lists every problem as ``file:line:column: sentence``, in reading order."""
        if self.found:
            lines = (f"{path}:{line}:{column}: {message}" for path, line, column, message in sorted(self.found))
            raise RuleBaseError("\n".join(lines))


def compose(path: Path, problems: Problems) -> yaml.Node | None:
    """Root node of ``path``; ``None`` after noting why it has none."""
    try:
        stream = path.read_text(encoding="utf-8")
        loader = yaml.SafeLoader(stream)
        loader.name = str(path)  # marks carry the file's name into every message
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        problems.add_at(path, line, column, f"not valid YAML: {error.problem or error.context}")
        return None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        problems.add_at(path, 1, 1, f"cannot be read: {error}")
        return None
    if node is None:
        problems.add_at(path, 1, 1, "the file is empty")
    return node


def entries(node: yaml.Node, problems: Problems) -> list[tuple[yaml.Node, str, yaml.Node]]:
    """Key node, key and value node of each entry of a mapping, in order; repeated keys are noted."""
    if not isinstance(node, yaml.MappingNode):
        problems.add(node, f"expected a mapping, found {describe(node)}")
        return []
    seen: dict[str, int] = {}
    found: list[tuple[yaml.Node, str, yaml.Node]] = []
    for key_node, value_node in node.value:
        key = construct(key_node)
        if not isinstance(key, str):
            problems.add(key_node, f"expected a text key, found {describe(key_node)} (quote it?)")
        elif key in seen:
            problems.add(key_node, f"key {key} is repeated (first on line {seen[key]})")
        else:
            seen[key] = key_node.start_mark.line + 1
            found.append((key_node, key, value_node))
    return found


def fields(
    node: yaml.Node, problems: Problems, required: Collection[str], optional: Collection[str] = ()
) -> dict[str, yaml.Node]:
    """Values of a mapping with known keys by key; unknown and absent keys are noted."""
    if not isinstance(node, yaml.MappingNode):
        problems.add(node, f"expected a mapping, found {describe(node)}")
        return {}
    known = [*required, *optional]
    found: dict[str, yaml.Node] = {}
    for key_node, key, value_node in entries(node, problems):
        if key in known:
            found[key] = value_node
        else:
            problems.add(key_node, f"unknown key {key}{suggest(key, known)}")
    for key in required:
        if key not in found:
            problems.add(node, f"key {key} is missing")
    return found


def items(node: yaml.Node | None, problems: Problems) -> list[yaml.Node]:
    """Elements of a list; an absent list is empty."""
    if node is None:
        return []
    if not isinstance(node, yaml.SequenceNode):
        problems.add(node, f"expected a list, found {describe(node)}")
        return []
    return list(node.value)


def text(node: yaml.Node | None, problems: Problems) -> str:
    """Non-empty text, folded lines joined; an absent node is ``""``."""
    if node is None:
        return ""
    value = construct(node)
    if not isinstance(value, str):
        problems.add(node, f"expected text, found {describe(node)} (quote it?)")
        return ""
    if not value.strip():
        problems.add(node, "expected text, found none")
    return value.strip()


def choice(node: yaml.Node | None, problems: Problems, allowed: Collection[str]) -> str:
    """One word of ``allowed``."""
    word = text(node, problems)
    if node is not None and word and word not in allowed:
        problems.add(node, f"expected one of {', '.join(allowed)}, found {word}{suggest(word, allowed)}")
    return word


def flag(node: yaml.Node | None, problems: Problems) -> bool:
    """A boolean; an absent node is False."""
    value = False if node is None else construct(node)
    if node is not None and not isinstance(value, bool):
        problems.add(node, f"expected true or false, found {describe(node)}")
    return value is True


def number(node: yaml.Node | None, problems: Problems, low: float, high: float) -> float:
    """A number within [low, high]; an absent or wrong node is 0.0 (the problem is noted)."""
    if node is None:
        return 0.0
    value = construct(node)
    if isinstance(value, bool) or not isinstance(value, int | float):
        hint = " (YAML reads 1e-3 as text: write 0.001)" if isinstance(value, str) else ""
        problems.add(node, f"expected a number, found {describe(node)}{hint}")
        return 0.0
    if not low <= value <= high:
        problems.add(node, f"expected a number from {low:g} to {high:g}, found {value:g}")
    return float(value)


def value(node: yaml.Node | None, problems: Problems) -> ConfigData:
    """A scalar or a flat list of scalars, as settings and operands have."""
    if node is None:
        return None
    if isinstance(node, yaml.SequenceNode):
        return tuple(_scalar(item, problems) for item in node.value)
    return _scalar(node, problems)


def construct(node: yaml.Node) -> object:
    """The Python value YAML 1.1 gives ``node`` (lists and mappings included)."""
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    except yaml.YAMLError as error:
        return error  # an exotic tag: never of an expected type, so the caller notes it


def describe(node: yaml.Node) -> str:
    """What stands at ``node``, for a message."""
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    kind = _KINDS.get(type(construct(node)), "something else")
    return kind if not node.value else f"{kind} {node.value!r}"


def suggest(word: str, known: Collection[str]) -> str:
    """`` (did you mean x?)`` when ``known`` has a close match, else nothing."""
    close = get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _scalar(node: yaml.Node, problems: Problems) -> str | int | float | bool | None:
    found = construct(node)
    if found is None or isinstance(found, str | int | float | bool):
        return found
    problems.add(node, f"expected text, a number, true, false or null, found {describe(node)}")
    return None
