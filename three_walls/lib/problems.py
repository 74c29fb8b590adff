"""What is wrong in a file that people write, and where; apart from ``yaml.py``, which a run rarely needs."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

Loc = tuple[int | str, ...]
"""Path to a value: keys of mappings and positions in lists."""
_LONGEST_MESSAGE = 400
"""Characters of a problem's message, which may quote a word of any length."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One error in a file."""

    place: tuple[str, int, int]
    """File, line and column, counted from 1."""
    message: str

    def __str__(self) -> str:
        message = self.message if len(self.message) <= _LONGEST_MESSAGE else f"{self.message[:_LONGEST_MESSAGE]} ..."
        line = f"{':'.join(map(str, self.place))}: {message}"
        return line if line.isprintable() else "".join(map(_escape_control, line))


def _escape_control(character: str) -> str:
    return repr(character)[1:-1] if is_control(character) else character


def is_control(character: str) -> bool:
    """Whether a terminal may obey ``character`` instead of showing it."""
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def describe(value: object) -> str:
    """What a file holds in some place, for a message."""
    match value:
        case None:
            return "nothing"
        case bool():
            return f"a boolean, {str(value).lower()}"
        case int() | float():
            return f"a number, {value}"
        case str():
            return f"text, {value!r}"
        case list() | tuple():
            return "a list"
        case _:
            return "a mapping"
