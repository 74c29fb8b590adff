"""What stands in a YAML file: values with their places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from three_walls.model.config import ConfigScalar

Plain = ConfigScalar | list["Plain"] | dict[str, "Plain"]


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where something stands in a file; lines and columns count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Node:
    """A scalar, a list of nodes or a mapping of nodes by key, with its place."""

    value: ConfigScalar | tuple[Node, ...] | Mapping[str, Node]
    place: Place
    key_places: Mapping[str, Place] = field(default_factory=dict)
    """Of a mapping: where each key stands."""
    is_refused: bool = False
    """What stands here is a problem already; reading it as anything adds no second one."""


def plain(node: Node) -> Plain:
    """The node's value without places."""
    if isinstance(node.value, tuple):
        return [plain(item) for item in node.value]
    if isinstance(node.value, Mapping):
        return {key: plain(item) for key, item in node.value.items()}
    return node.value


def describe(node: Node) -> str:
    """What stands at ``node``, for a message."""
    match node.value:
        case None:
            return "nothing"
        case bool():
            return f"a boolean, {str(node.value).lower()}"
        case int() | float():
            return f"a number, {node.value}"
        case str():
            return f"text, {node.value!r}"
        case tuple():
            return "a list"
        case _:
            return "a mapping"
