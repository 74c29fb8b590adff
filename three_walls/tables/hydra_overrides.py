"""Reads Hydra overrides: ``model.x=1``, ``+x``, ``++x``, ``~x``, with null, numbers, quoted texts, lists and dicts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from three_walls.model.config import ConfigData, ConfigScalar

_OVERRIDE = re.compile(r"(?P<prefix>\+\+|\+|~)?(?P<path>[A-Za-z_][\w]*(\.[\w]+)*)(=(?P<value>.*))?", re.DOTALL)
_INT = re.compile(r"[-+]?\d{1,18}")
_FLOAT = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d{1,3})?")
_CONSTANTS: dict[str, ConfigScalar] = {"null": None, "true": True, "false": False}
_QUOTES = "\"'"
_MOST_LEVELS = 40
"""Of dicts within dicts; a setting of Megatron-Bridge has four."""
_LONGEST_PATH = 400
"""In characters. No deeper or longer path is a setting, and reading each level again takes time."""
_OPENING, _CLOSING = "[{(", "]})"
BUILDS_COMM_OVERLAP = "derived: comm_overlap._target_"
"""Source of a ``comm_overlap`` that the command line itself builds: the fields it does not give have to be appended."""


@dataclass(frozen=True, slots=True)
class Override:
    """One setting of an override. ``prefix`` is empty, ``+``, ``++`` or ``~`` (remove)."""

    prefix: str
    path: str
    value: ConfigData


def read_override(word: str) -> list[Override]:
    """The settings of one word: several if its value is a dict, none if it is no override."""
    match = _OVERRIDE.fullmatch(word)
    if match is None or (match["value"] is None and match["prefix"] != "~"):
        return []
    prefix, path = match["prefix"] or "", match["path"]
    return [Override(prefix, inner, value) for inner, value in _settings(path, (match["value"] or "").strip())]


def _settings(path: str, text: str) -> Iterator[tuple[str, ConfigData]]:
    """``p={a:1,b:{c:2}}`` is p.a=1 and p.b.c=2; anything else is one setting."""
    is_dict = text.startswith("{") and text.endswith("}")
    if not is_dict or path.count(".") >= _MOST_LEVELS or len(path) > _LONGEST_PATH:
        yield path, read_value(text)
        return
    for entry in split_at_commas(text[1:-1])[0]:
        name, colon, inner = entry.partition(":")
        if colon and name.strip():
            yield from _settings(f"{path}.{name.strip()}", inner.strip())


def read_value(text: str) -> ConfigData:
    """A value as Hydra reads it: a constant, a number, a list, and else text."""
    if text.startswith("[") and text.endswith("]") and len(text) > 1:
        return tuple(_scalar(item.strip()) for item in split_at_commas(text[1:-1])[0] if item.strip())
    return _scalar(text)


def _scalar(text: str) -> ConfigScalar:
    if len(text) > 1 and text[0] in _QUOTES and text[-1] == text[0]:
        quote = text[0]
        return text[1:-1].replace(f"\\{quote}", quote)
    lowered = text.lower()
    if lowered in _CONSTANTS:
        return _CONSTANTS[lowered]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def split_at_commas(text: str, brackets: tuple[str, str] = ("[{(", "]})")) -> tuple[list[str], bool]:
    """``text`` split at the commas outside quotes and brackets, and whether every quote and bracket is closed."""
    opening, closing = brackets
    parts, start, depth, quote = [], 0, 0, ""
    for index, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in _QUOTES:
            quote = character
        elif character in opening:
            depth += 1
        elif character in closing:
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]], depth == 0 and not quote
