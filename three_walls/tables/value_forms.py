"""What a value may look like: a closed list of words, an expression, a list of elements, or nothing that is shown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from three_walls.tables.strict_yaml import Problems
from three_walls.tables.yaml_nodes import Node

LONGEST_VALUE = 1024
"""Characters; no setting of a run is longer, and no expression has to cope with more."""

_SEPARATORS = re.compile(r"[,;|]")
_FLAGS = re.IGNORECASE | re.ASCII | re.VERBOSE
_EXPRESSIONS = ("words", "pattern", "list_of")
_NOTHING = re.compile(r"(?!)")


@dataclass(frozen=True, slots=True)
class ValueForm:
    """The form of one variable's values. ``says`` is how a message calls it."""

    says: str
    expression: re.Pattern[str]
    is_list: bool = False

    def admits(self, value: str) -> bool:
        """Whether ``value`` is of this form; an empty one is of every form. Reads in time linear in its length."""
        value = value.strip()
        if not value:
            return True
        if len(value) > LONGEST_VALUE:
            return False
        slices = _SEPARATORS.split(value) if self.is_list else [value]
        return all(self.expression.fullmatch(piece.strip()) for piece in slices)


def read_form(says: str, entry: Mapping[str, Node], problems: Problems) -> ValueForm:
    """The form that ``entry`` states (``words``, ``pattern`` or ``list_of``); without any it admits nothing."""
    stated = [name for name in _EXPRESSIONS if name in entry]
    for name in stated[1:]:
        problems.add(entry[name], f"{stated[0]} and {name} exclude each other: a value has one form")
    if not stated:
        return ValueForm(says, _NOTHING)
    node = entry[stated[0]]
    if stated[0] == "words":
        words = problems.texts(node)
        return ValueForm(f"one of {', '.join(words)}", _one_of(words))
    return ValueForm(says, problems.pattern(node, _FLAGS), is_list=stated[0] == "list_of")


def _one_of(words: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(word) for word in words), _FLAGS) if words else _NOTHING
