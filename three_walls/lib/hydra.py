"""Hydra's grammar of overrides: ``model.x=1``, ``+x=[1,2]``, ``++x={a:'b'}``, ``~x``.

Values become plain data: text, numbers, true, false and null, lists as tuples, mappings by name. What only a sweep over
several runs uses (``a,b``, ``choice(a,b)``) is a :class:`Sweep`, and ``${model.seq_length}`` a :class:`Reference`.

:func:`parse_override` is as strict as Hydra: what it cannot parse, a launch refuses. :func:`read_override` reads what a
run was started with, or what a user states. :func:`write_value` writes what both read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

_KEY = re.compile(
    r"(?P<prefix>\+\+|\+|~)?"
    r"(?P<path>(?:[A-Za-z_$][\w$-]*|0|[1-9](?:_?\d)*+)(?:\.(?:[A-Za-z_$][\w$-]*|0|[1-9](?:_?\d)*+))*|[A-Za-z_][\w-]*(?:/[A-Za-z_][\w-]*)+)?"
    r"(?P<package>@[\w.$/-]*)?"
    r"(?P<value>=.*)?",
    re.DOTALL | re.ASCII,
)
_WHOLE = r"(?:0|[1-9](?:_?\d)*+)"
_END = r"(?![\w-])"
_POINT = rf"(?:{_WHOLE}?\.\d(?:_?\d)*+|{_WHOLE}\.)"
_TOKENS = {
    "popen": r"[ \t]*\([ \t]*",
    "comma": r"[ \t]*,[ \t]*",
    "pclose": r"[ \t]*\)",
    "open": r"\[[ \t]*",
    "close": r"[ \t]*\]",
    "brace_open": r"\{[ \t]*",
    "brace_close": r"[ \t]*\}",
    "colon": r"[ \t]*:[ \t]*",
    "equal": r"[ \t]*=[ \t]*",
    "float": rf"[+-]?(?:(?:{_POINT}|{_WHOLE})[eE][+-]?\d(?:_?\d)*+|{_POINT})|[+-](?i:inf|nan)|(?i:inf|nan){_END}",
    "int": rf"[+-]?{_WHOLE}",
    "bool": rf"(?i:true|false){_END}",
    "null": rf"(?i:null){_END}",
    "id": r"[A-Za-z_][\w-]*",
    "escape": r"(?:\\[\\()\[\]{}:=, \t])+",
    "quoted": r'"(?:(?:\\\\)*|.*?[^\\](?:\\\\)*)"' + r"|'(?:(?:\\\\)*|.*?[^\\](?:\\\\)*)'",
    "reference": r"\$\{[^}]+\}",
    "character": r"[/\-\\+.$%*@?|]",
    "space": r"[ \t]+",
}
_TOKEN = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _TOKENS.items()), re.DOTALL | re.ASCII)
"""One token: the longest that there is, because no later kind takes more than an earlier one."""
_PLAIN_WORD = re.compile(r"[A-Za-z_./][\w./+-]*", re.ASCII)
_CONSTANTS = {"null", "true", "false", "nan", "inf"}
_SCALARS = ("id", "null", "int", "float", "bool", "reference", "character", "colon", "escape", "space")
_READERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "bool": lambda text: text.lower() == "true",
    "null": lambda _: None,
    "reference": lambda text: Reference(text[2:-1].strip()),
}
"""Kind of a token that is a value by itself -> how it is read; what is left is text."""
_CASTS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "str": str, "bool": bool}
_LONGEST_PATH = 400
"""In characters; no setting has a longer one."""
_LARGEST_INTEGER = 10**18 - 1
_SWEEPS = ("choice", "range", "interval", "glob", "sort", "shuffle", "tag", "extend_list")


@dataclass(frozen=True, slots=True)
class Sweep:
    """Several values for several runs."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The value of another setting, by its path; empty where the text holds more than the reference."""

    path: str


@dataclass(frozen=True, slots=True)
class Override:
    """One override."""

    prefix: str
    """Empty, ``+``, ``++`` or ``~`` (remove)."""
    path: str
    value: Any
    text: str = ""
    """The whole override, as it was written."""
    package: str = ""
    """What follows ``@``."""


def parse_override(text: str) -> Override:
    """``text`` parsed; ValueError with a phrase that names what Hydra cannot read."""
    override, value = _split(text)
    return override if value is None else replace(override, value=_Parser(value).parse())


def read_override(word: str) -> list[Override]:
    """What ``word`` sets, each entry of a mapping by itself; nothing if it is no override.

    Text stands for what is no value of a single setting: what Hydra cannot parse, sweeps, references, lists within
    lists, numbers that 64 bits do not hold.
    """
    try:
        override, text = _split(word)
    except ValueError:
        return []
    if override.package or not override.path or "/" in override.path:
        return []
    text = (text or "").strip()
    try:
        value = _Parser(text, is_lenient=True).parse()
    except ValueError:
        value = text
    settings = flatten(override.path, text if isinstance(value, Sweep) else value)
    return [replace(override, path=path, value=value) for path, value in settings]


def write_value(value: Any) -> str:
    """``value`` in Hydra's grammar: null, true, 1, 1.5, word, "quoted text", [a,b]."""
    if isinstance(value, tuple):
        return f"[{','.join(_write_scalar(element) for element in value)}]"
    return _write_scalar(value)


def _write_scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return repr(value)
    if _PLAIN_WORD.fullmatch(value) and value.lower() not in _CONSTANTS:
        return value
    # OmegaConf resolves ${...} unless a backslash stands before it, and halves the backslashes before that.
    escaped = re.sub(r"(?<!\\)(\\*+)\$\{", r"\1\1\\${", value)
    # Within quotes Hydra reads backslashes as they are, but for those before a quote and at the end.
    escaped = re.sub(r'(?<!\\)(\\*+)"', r'\1\1\\"', escaped)
    escaped = re.sub(r"(?<!\\)(\\++)$", r"\1\1", escaped)
    return f'"{escaped}"'


def flatten(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """``p={a:1,b:{c:2}}`` is p.a=1 and p.b.c=2; anything else is one setting."""
    if not isinstance(value, dict):
        yield path, value
    elif len(path) > _LONGEST_PATH:  # it is no setting, and writing it out for each entry takes time
        yield path, None
    else:
        for name, inner in value.items():
            yield from flatten(f"{path}.{name}", inner)


def _split(text: str) -> tuple[Override, str | None]:
    """The override without its value, and the text of the value; ValueError if ``text`` is no override."""
    match = _KEY.fullmatch(text)
    if match is None or (match["value"] is None and match["prefix"] != "~"):
        raise ValueError("expected key=value")
    override = Override(match["prefix"] or "", match["path"] or "", None, text, (match["package"] or "")[1:])
    return override, None if match["value"] is None else match["value"][1:].lstrip(" \t")


def _tokenize(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"{text[position]} is not allowed outside of quotes")
        tokens.append((str(match.lastgroup), match[0]))
        position = match.end()
    return tokens


class _Parser:
    """Reads one value from tokens. A lenient one leaves as text what is no value of a single setting."""

    def __init__(self, text: str, is_lenient: bool = False) -> None:
        self._tokens, self._position, self._is_lenient = _tokenize(text), 0, is_lenient

    def parse(self) -> Any:
        """The whole value; an empty one is an empty text."""
        if not self._tokens:
            return ""
        try:
            value = self._element()
        except RecursionError as error:
            raise ValueError("brackets are nested too deeply") from error
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

    def _element(self, is_in_list: bool = False) -> Any:
        start, value = self._position, self._value()
        if self._is_lenient and not _is_setting(value, is_in_list):
            return "".join(text for _, text in self._tokens[start : self._position]).strip()
        return value

    def _value(self) -> Any:
        if self._next() == "open":
            return tuple([self._element(is_in_list=True) for _ in self._separated("open", "close")])
        if self._next() == "brace_open":
            return self._mapping()
        if self._next() == "id" and self._next(1) == "popen":
            return self._function()
        if self._next() == "quoted":
            return _unquote(self._take("quoted"))
        return self._primitive(_SCALARS)

    def _separated(self, opening: str, closing: str) -> Iterator[None]:
        """Goes from each entry between two brackets to the next; commas separate them."""
        self._take(opening)
        is_first = True
        while self._next() != closing:
            if not is_first:
                self._take("comma")
            is_first = False
            yield
        self._take(closing)

    def _mapping(self) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for _ in self._separated("brace_open", "brace_close"):
            name = self._primitive(tuple(kind for kind in _SCALARS if kind not in ("colon", "reference")))
            self._take("colon")
            entries[str(name)] = self._element()
        return entries

    def _function(self) -> Any:
        name = self._take("id")
        arguments: list[Any] = []
        for _ in self._separated("popen", "pclose"):
            if self._next() == "id" and self._next(1) == "equal":
                self._position += 2
            arguments.append(self._element())
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
        if tokens and tokens[0][0] == "space":
            del tokens[0]
        if tokens and tokens[-1][0] == "space":
            del tokens[-1]
        if not tokens:
            raise ValueError("a value is missing")
        kinds = [kind for kind, _ in tokens]
        if len(tokens) == 1 and kinds[0] in _READERS:
            return _READERS[kinds[0]](tokens[0][1])
        if "reference" in kinds:
            return Reference("")
        return "".join(_unescape(text) if name == "escape" else text for name, text in tokens)


def _is_setting(value: Any, is_in_list: bool) -> bool:
    """Whether ``value`` can be that of a single setting, or an element of its list."""
    match value:
        case int():
            return abs(value) <= _LARGEST_INTEGER
        case float():
            return math.isfinite(value)
        case Sweep() | Reference():
            return False
    return not (is_in_list and isinstance(value, tuple | dict))


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
