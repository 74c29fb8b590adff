"""Hydra's grammar of overrides, as strict as Hydra: what it cannot parse, a launch refuses.

Values become plain data: text, numbers, true, false and null, lists as tuples, mappings by name. What only a sweep over
several runs uses (``a,b``, ``choice(a,b)``) is a :class:`Sweep`, and ``${model.seq_length}`` a :class:`Reference`.
``three_walls/tables/hydra_overrides.py`` reads the same words leniently, for what a run was started with.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_KEY = re.compile(
    r"(?P<prefix>\+\+|\+|~)?"
    r"(?P<path>(?:[A-Za-z_$][\w$-]*|0|[1-9](?:_?\d)*)(?:\.(?:[A-Za-z_$][\w$-]*|0|[1-9](?:_?\d)*))*|[A-Za-z_][\w-]*(?:/[A-Za-z_][\w-]*)+)?"
    r"(?P<package>@[\w.$/-]*)?"
    r"(?P<value>=.*)?",
    re.DOTALL | re.ASCII,
)
_WHOLE = r"(?:0|[1-9](?:_?\d)*)"
_POINT = rf"(?:{_WHOLE}?\.\d(?:_?\d)*|{_WHOLE}\.)"
_TOKENS = tuple(
    (name, re.compile(pattern, re.DOTALL | re.ASCII))
    for name, pattern in (
        ("popen", r"[ \t]*\([ \t]*"),
        ("comma", r"[ \t]*,[ \t]*"),
        ("pclose", r"[ \t]*\)"),
        ("open", r"\[[ \t]*"),
        ("close", r"[ \t]*\]"),
        ("brace_open", r"\{[ \t]*"),
        ("brace_close", r"[ \t]*\}"),
        ("colon", r"[ \t]*:[ \t]*"),
        ("equal", r"[ \t]*=[ \t]*"),
        (
            "float",
            rf"[+-]?(?:(?:{_POINT}|{_WHOLE})[eE][+-]?\d(?:_?\d)*|{_POINT}|[Ii][Nn][Ff]|[Nn][Aa][Nn])",
        ),
        ("int", rf"[+-]?{_WHOLE}"),
        ("bool", r"[Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]"),
        ("null", r"[Nn][Uu][Ll][Ll]"),
        ("character", r"[/\-\\+.$%*@?|]"),
        ("id", r"[A-Za-z_][\w-]*"),
        ("escape", r"(?:\\[\\()\[\]{}:=, \t])+"),
        ("space", r"[ \t]+"),
        ("quoted", r'"(?:(?:\\\\)*|.*?[^\\](?:\\\\)*)"' + r"|'(?:(?:\\\\)*|.*?[^\\](?:\\\\)*)'"),
        ("reference", r"\$\{[^}]+\}"),
    )
)
"""The longest match wins, the first of equal ones."""
_SCALARS = ("id", "null", "int", "float", "bool", "reference", "character", "colon", "escape", "space")
_CASTS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "str": str, "bool": bool}
_SWEEPS = ("choice", "range", "interval", "glob", "sort", "shuffle", "tag", "extend_list")


@dataclass(frozen=True, slots=True)
class Sweep:
    """Several values for several runs."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The value of another setting, by its path; empty where the text holds more than the reference."""

    path: str


@dataclass(frozen=True, slots=True)
class ParsedOverride:
    """One override as Hydra parses it."""

    text: str
    prefix: str
    """Empty, ``+``, ``++`` or ``~``."""
    path: str
    package: str
    """What follows ``@``."""
    value: Any
    has_value: bool


def parse_override(text: str) -> ParsedOverride:
    """``text`` parsed; ValueError with a phrase that names what Hydra cannot read."""
    match = _KEY.fullmatch(text)
    if match is None:
        raise ValueError("expected key=value")
    prefix, value = match["prefix"] or "", match["value"]
    if value is None and prefix != "~":
        raise ValueError("expected key=value")
    parsed = _Parser(_tokenize(value[1:].lstrip(" \t"))).parse() if value is not None else None
    return ParsedOverride(text, prefix, match["path"] or "", (match["package"] or "")[1:], parsed, value is not None)


def _tokenize(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        found = [(name, match) for name, pattern in _TOKENS if (match := pattern.match(text, position)) and match[0]]
        if not found:
            raise ValueError(f"{text[position]} is not allowed outside of quotes")
        name, match = max(found, key=lambda token: token[1].end())
        tokens.append((name, match[0]))
        position = match.end()
    return tokens


class _Parser:
    """Reads one value from tokens."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens, self._position = tokens, 0

    def parse(self) -> Any:
        """The whole value; an empty one is an empty text."""
        if not self._tokens:
            return ""
        value = self._element()
        if self._next() == "comma":
            value = Sweep()
            while self._next() == "comma":
                self._take("comma")
                self._element()
        if self._next():
            raise ValueError(f"{self._tokens[self._position][1].strip() or 'a space'} is out of place")
        return value

    def _next(self, ahead: int = 0) -> str:
        position = self._position + ahead
        return self._tokens[position][0] if position < len(self._tokens) else ""

    def _take(self, *names: str) -> str:
        if self._next() not in names:
            raise ValueError("brackets or commas do not fit")
        self._position += 1
        return self._tokens[self._position - 1][1]

    def _element(self) -> Any:
        if self._next() == "open":
            return self._list()
        if self._next() == "brace_open":
            return self._mapping()
        if self._next() == "id" and self._next(1) == "popen":
            return self._function()
        if self._next() == "quoted":
            return _unquote(self._take("quoted"))
        return self._primitive(_SCALARS)

    def _list(self) -> tuple[Any, ...]:
        self._take("open")
        elements: list[Any] = []
        while self._next() != "close":
            if elements:
                self._take("comma")
            elements.append(self._element())
        self._take("close")
        return tuple(elements)

    def _mapping(self) -> dict[str, Any]:
        self._take("brace_open")
        entries: dict[str, Any] = {}
        while self._next() != "brace_close":
            if entries:
                self._take("comma")
            name = self._primitive(tuple(kind for kind in _SCALARS if kind not in ("colon", "reference")))
            self._take("colon")
            entries[str(name)] = self._element()
        self._take("brace_close")
        return entries

    def _function(self) -> Any:
        name = self._take("id")
        self._take("popen")
        arguments: list[Any] = []
        while self._next() != "pclose":
            if arguments:
                self._take("comma")
            if self._next() == "id" and self._next(1) == "equal":
                self._position += 2
            arguments.append(self._element())
        self._take("pclose")
        if name in _SWEEPS:
            return Sweep()
        if name not in (*_CASTS, "json_str") or len(arguments) != 1:
            raise ValueError(f"unknown function {name}")
        return _cast(name, arguments[0])

    def _primitive(self, allowed: tuple[str, ...]) -> Any:
        start = self._position
        while self._next() in allowed:
            self._position += 1
        tokens = self._tokens[start : self._position]
        while tokens and tokens[0][0] == "space":
            tokens = tokens[1:]
        while tokens and tokens[-1][0] == "space":
            tokens = tokens[:-1]
        if not tokens:
            raise ValueError("a value is missing")
        if len(tokens) == 1:
            return _read_token(*tokens[0])
        if any(name == "reference" for name, _ in tokens):
            return Reference("")
        return "".join(_unescape(text) if name == "escape" else text for name, text in tokens)


def _read_token(name: str, text: str) -> Any:
    match name:
        case "int":
            return int(text)
        case "float":
            return float(text)
        case "bool":
            return text.lower() == "true"
        case "null":
            return None
        case "reference":
            return Reference(text[2:-1].strip())
        case "escape":
            return _unescape(text)
    return text


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _unquote(text: str) -> Any:
    quote = text[0]
    inner = text[1:-1].replace(f"\\{quote}", quote)
    if match := re.fullmatch(r"\$\{([^}]+)\}", inner):
        return Reference(match[1].strip())
    return inner


def _cast(name: str, value: Any) -> Any:
    if name == "json_str":
        return str(value)
    if isinstance(value, tuple):
        return tuple(_cast(name, element) for element in value)
    if isinstance(value, dict):
        return {key: _cast(name, element) for key, element in value.items()}
    if name == "bool" and isinstance(value, str):
        if value.lower() not in ("true", "false"):
            raise ValueError(f"bool({value}) is neither true nor false")
        return value.lower() == "true"
    if name == "str" and value is not None:
        return str(value).lower() if isinstance(value, bool) else str(value)
    try:
        if value is None:
            raise TypeError
        return _CASTS[name](value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name}() cannot convert {value}") from error
