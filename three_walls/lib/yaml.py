"""Reads YAML event by event as plain data: no object is constructed, and size and depth are bounded.

:func:`read_yaml` reads what programs write: tags are dropped, and an alias becomes the object of its anchor, no copy.

:func:`read_document` reads what people write and review. It keeps the place of every value and is stricter than YAML
1.1 where YAML surprises. These are errors: a repeated key (YAML keeps the last one), ``no`` for false, ``1e-3`` (text
in YAML 1.1), ``1:30`` (a number in base 60), aliases and tags. Quote what is text. Control characters in a text are
errors too, because texts reach the terminal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from three_walls.lib.files import open_regular
from three_walls.lib.problems import Loc, Problem, describe, is_control

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, several times as fast, where PyYAML has it
_RESOLVERS = yaml.SafeLoader.yaml_implicit_resolvers
_MAX_DEPTH = 40
"""Of collections below the outermost one; a saved configuration has four."""
_MOST_BYTES = 4 * 1024 * 1024
"""Of a document that people write; the largest table that ships with the program has 0.1 MB."""
_MOST_ENTRIES = 500_000
"""Of one document. What an alias repeats counts again, because a walk over the data visits it again."""
_LONGEST_NUMBER = 40
"""Characters of a number."""
_MOST_DIGITS = 18
"""Of a whole number that people write: what 64 bits hold."""
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+][0-9]+)?")
_LOOKS_NUMERIC = re.compile(r"[-+]?(\d[\d_]*+(\.\d+|(?<=\d))|\.\d+)([eE][-+]?\d+)?")
_CONSTANTS: Mapping[str, bool | None] = {"": None, "~": None, "null": None, "true": True, "false": False}
_TRUE = ("true", "yes", "on")
_ODD_NUMBER = "a number in an unusual form, which is easily taken for another; quote it, or write it as 90 or 0.5"
_READINGS = {
    "bool": "a boolean; quote it, or write true or false",
    "null": "nothing; quote it, or write null",
    "int": _ODD_NUMBER,
    "float": _ODD_NUMBER,
    "str": "text, though it looks like a number; quote it, or write it as 1.0e-3 or 0.001",
    "timestamp": "a date; quote it",
}
"""Type to which YAML resolves an ambiguous text -> what a message calls it."""
# Tags of Python objects that are names: !!python/name:torch.bfloat16 ''
_NAMING_TAG = "tag:yaml.org,2002:python/name:"

Plain = Any
"""dict by text, list, text, number, bool or None."""
_Event = Any
"""PyYAML's types of events and marks differ between its two parsers."""


class _RefusedError(yaml.MarkedYAMLError):
    """The text is valid YAML, but not read."""


class _Reader:
    """One walk over the events of a text, which takes every document up to a number of levels and entries."""

    def __init__(self, text: str) -> None:
        self._events = yaml.parse(text, Loader=_LOADER)
        self._entries = 0
        self._anchors: dict[str, tuple[Plain, int]] = {}
        """Values with their number of entries."""

    def begin_document(self) -> _Event | None:
        """The event with which the next document begins; None if there is none."""
        while not isinstance(event := self._next(), yaml.DocumentStartEvent):
            if isinstance(event, yaml.StreamEndEvent):
                return None
        return event

    def read(self) -> Plain:
        """The document that has begun."""
        return self._value(self._next(), ())

    def _next(self) -> _Event:
        self._entries += 1
        if self._entries > _MOST_ENTRIES:
            raise _RefusedError(problem=f"more than {_MOST_ENTRIES:,} entries")
        return next(self._events)

    def _value(self, event: _Event, loc: Loc) -> Plain:
        """The value at ``loc``, which begins with ``event``."""
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = self._entries
        value: Plain
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
        elif len(loc) > _MAX_DEPTH:  # PyYAML's composer has no such limit and exhausts the stack
            raise _RefusedError(problem=f"more than {_MAX_DEPTH} levels", problem_mark=event.start_mark)
        elif isinstance(event, yaml.MappingStartEvent):
            value = {}
            while not isinstance(inner := self._next(), yaml.MappingEndEvent):
                key = self._key(inner, loc, value)
                entry = self._value(self._next(), (*loc, "?" if key is None else key))
                if key is not None:
                    value[key] = entry
        else:
            value = []
            while not isinstance(inner := self._next(), yaml.SequenceEndEvent):
                value.append(self._value(inner, (*loc, len(value))))
        if event.anchor is not None:
            self._anchors[event.anchor] = value, self._entries - before
        return value

    def _alias(self, event: _Event) -> Plain:
        if event.anchor not in self._anchors:
            raise _RefusedError(problem="an alias without an anchor before it", problem_mark=event.start_mark)
        value, entries = self._anchors[event.anchor]
        self._entries += entries
        return value

    def _key(self, event: _Event, loc: Loc, entries: Mapping[str, Plain]) -> str | None:  # noqa: ARG002
        """The key that begins with ``event``, of the mapping at ``loc``; None to leave its entry out."""
        key = self._value(event, (*loc, "?"))
        return "" if isinstance(key, dict | list) else str(key)

    def _scalar(self, event: _Event) -> Plain:
        text = str(event.value)
        if event.tag is not None and event.tag.startswith(_NAMING_TAG):
            return event.tag.removeprefix(_NAMING_TAG)
        if event.tag is not None or not event.implicit[0]:  # tagged or quoted: text
            return text
        kind = _kind_in_yaml(text)
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() in _TRUE
        if kind not in ("int", "float") or len(text) > _LONGEST_NUMBER:
            return text
        digits = text.replace("_", "")
        try:  # decimal numbers; base 60, octal and the like stay text
            if kind == "int":
                return text if digits.lstrip("+-").startswith("0") and int(digits) else int(digits)
            return float(digits.lower().replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError:
            return text


def read_yaml(text: str) -> Plain:
    """The single document in ``text``; raises ValueError with a phrase for what was found instead, and where."""
    reader = _Reader(text)
    try:
        if reader.begin_document() is None:
            raise ValueError("nothing")
        value = reader.read()
        if reader.begin_document() is not None:
            raise ValueError("more than one document")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where, problem = f" on line {mark.line + 1}" if mark else "", error.problem or error.context
        is_refused = isinstance(error, _RefusedError)
        raise ValueError(f"{problem}{where}" if is_refused else f"invalid YAML{where} ({problem})") from error
    except yaml.YAMLError as error:
        raise ValueError(f"invalid YAML ({str(error).partition(chr(10))[0]})") from error
    return value


class PlacedDocument(_Reader):
    """A document with the place of every value and every key. What is ambiguous becomes a problem."""

    def __init__(self, file: str, text: str, problems: list[Problem]) -> None:
        super().__init__(text)
        self.value: Plain = None
        self._file, self._problems = file, problems
        self._refused: set[tuple[str, int, int]] = set()
        """The places of the problems."""
        self._marks: dict[Loc, yaml.Mark] = {}
        """Where each value begins."""
        self._keys: dict[Loc, yaml.Mark] = {}
        """Where the key of each value begins."""

    def place_of(self, loc: Loc, is_about_key: bool = False) -> tuple[str, int, int]:
        """File, line and column of the value at ``loc``, or of its key; if it is absent, of what should hold it."""
        if is_about_key and loc in self._keys:
            return self._place(self._keys[loc])
        path: Loc = ()
        for part in loc:  # pydantic also names branches of unions, which are not in the file
            if (*path, part) in self._marks:
                path = (*path, part)
        return self._place(self._marks[path])

    def _value(self, event: _Event, loc: Loc) -> Plain:
        self._marks[loc] = event.start_mark
        if isinstance(event, yaml.CollectionStartEvent) and event.tag is not None:
            self._refuse(event, f"tag {event.tag} is not read; leave it out")
        return super()._value(event, loc)

    def _alias(self, event: _Event) -> Plain:
        self._refuse(event, "aliases are not read; write the value out")

    def _key(self, event: _Event, loc: Loc, entries: Mapping[str, Plain]) -> str | None:
        key = self._value(event, (*loc, "?"))
        if not isinstance(key, str):
            self._refuse(event, f"expected a text key, found {describe(key)} (quote it?)")
            return None
        if key in entries:
            self._refuse(event, f"key {key} is repeated (first on line {self._keys[*loc, key].line + 1})")
            return None
        self._keys[*loc, key] = event.start_mark
        return key

    def _scalar(self, event: _Event) -> Plain:
        text = str(event.value)
        if not text.isprintable() and any(is_control(character) and character not in "\n\t" for character in text):
            self._refuse(event, "the text holds a control character; leave it out")
            return text
        is_plain, is_untagged = event.implicit[0], any(event.implicit)
        if is_untagged and not is_plain:  # quoted or a block: text, whatever it looks like
            return text
        if is_untagged and text in _CONSTANTS:
            return _CONSTANTS[text]
        if is_untagged and (_INT.fullmatch(text) or _FLOAT.fullmatch(text)):
            return self._number(event, text.replace("_", ""))
        kind = _kind_in_yaml(text) if is_untagged else str(event.tag)
        if kind == "str" and not _LOOKS_NUMERIC.fullmatch(text):
            return text
        reading = _READINGS.get(kind, f"it as {kind}; quote it")
        self._refuse(event, f"{text} is ambiguous: YAML reads {reading}")
        return None

    def _number(self, event: _Event, digits: str) -> int | float | None:
        if "." in digits and len(digits) <= _LONGEST_NUMBER and math.isfinite(float(digits)):
            return float(digits)
        if "." not in digits and len(digits.lstrip("+-")) <= _MOST_DIGITS:
            return int(digits)
        self._refuse(event, "the number is too large; quote it if it is text")
        return None

    def _refuse(self, event: _Event, message: str) -> None:
        """Adds a problem at ``event``, unless one is there already."""
        place = self._place(event.start_mark)
        if place not in self._refused:
            self._refused.add(place)
            self._problems.append(Problem(place, message))

    def _place(self, mark: yaml.Mark) -> tuple[str, int, int]:
        return self._file, mark.line + 1, mark.column + 1


def read_document(path: Path, problems: list[Problem]) -> PlacedDocument | None:
    """The document in ``path``; None if there is none. What is wrong with its form is added to ``problems``.

    The file may be anyone's: it must be a regular file of limited size.
    """
    start = (str(path), 1, 1)
    try:
        document = PlacedDocument(str(path), _read_text(path), problems)
        if document.begin_document() is None:
            problems.append(Problem(start, "the file is empty"))
            return None
        document.value = document.read()
        if (second := document.begin_document()) is not None:
            raise yaml.MarkedYAMLError(problem="expected a single document", problem_mark=second.start_mark)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (str(path), mark.line + 1, mark.column + 1) if mark else start
        problems.append(Problem(place, f"not valid YAML: {error.problem or error.context}"))
        return None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        problems.append(Problem(start, f"cannot be read: {reason}"))
        return None
    return document


def _read_text(path: Path) -> str:
    with open_regular(path) as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise OSError(0, f"expected at most {_MOST_BYTES >> 20} MiB, found more")
    return content.decode("utf-8")


def _kind_in_yaml(text: str) -> str:
    """The type that YAML 1.1 resolves an unquoted ``text`` to."""
    for tag, pattern in (*_RESOLVERS.get(text[:1], ()), *_RESOLVERS.get(None, ())):
        if pattern.match(text):
            return str(tag).rpartition(":")[2]
    return "str"
