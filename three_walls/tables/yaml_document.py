"""Reads a YAML file as plain data with the place of every value, and refuses what YAML makes ambiguous.

It is stricter than YAML 1.1 where YAML surprises. These are errors: a repeated key (YAML keeps the last one), ``no``
for false, ``1e-3`` (text in YAML 1.1), ``1:30`` (a number in base 60), aliases and tags. Quote what is text. Control
characters in a text are errors too, because texts reach the terminal.

The file may be anyone's: it must be a regular file, and its size, its depth and the digits of its numbers are limited.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from three_walls.model.config import ConfigScalar, as_whole_number
from three_walls.tables.problems import Loc, Problem, describe, is_control

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, several times as fast, where PyYAML has it
_RESOLVERS = yaml.SafeLoader.yaml_implicit_resolvers
_MAX_DEPTH = 40
_MOST_BYTES = 4 * 1024 * 1024
"""Of a file; the largest table that ships with the program has 0.1 MB."""
_LONGEST_NUMBER = 40
"""Characters of a number."""
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+][0-9]+)?")
_LOOKS_NUMERIC = re.compile(r"[-+]?(\d[\d_]*+(\.\d+|(?<=\d))|\.\d+)([eE][-+]?\d+)?")
_CONSTANTS: Mapping[str, bool | None] = {"": None, "~": None, "null": None, "true": True, "false": False}
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


@dataclass(slots=True)
class Document:
    """A YAML document as plain data, with the place of every value and every key."""

    file: str
    problems: list[Problem]
    value: Any = None
    marks: dict[Loc, yaml.Mark] = field(default_factory=dict)
    """Where each value begins."""
    keys: dict[Loc, yaml.Mark] = field(default_factory=dict)
    """Where the key of each value begins."""
    refused: set[tuple[str, int, int]] = field(default_factory=set)
    """The places of the problems."""

    def place_of(self, loc: Loc, is_about_key: bool = False) -> tuple[str, int, int]:
        """File, line and column of the value at ``loc``, or of its key; if it is absent, of what should hold it."""
        if is_about_key and loc in self.keys:
            return self._place(self.keys[loc])
        path: Loc = ()
        for part in loc:  # pydantic also names branches of unions, which are not in the file
            if (*path, part) in self.marks:
                path = (*path, part)
        return self._place(self.marks[path])

    # PyYAML's types of events and marks differ between its two parsers, so events are Any.
    def read(self, event: Any, events: Iterator[Any], loc: Loc) -> Any:
        """The value that begins with ``event``, as plain data. What is ambiguous becomes a problem."""
        self.marks[loc] = event.start_mark
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if isinstance(event, yaml.AliasEvent):
            self._refuse(event, "aliases are not read; write the value out")
            return None
        if len(loc) > _MAX_DEPTH:  # so the recursion is bounded
            raise yaml.MarkedYAMLError(problem=f"more than {_MAX_DEPTH} levels", problem_mark=event.start_mark)
        if event.tag is not None:
            self._refuse(event, f"tag {event.tag} is not read; leave it out")
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(events, loc)
        items: list[Any] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(self.read(event, events, (*loc, len(items))))
        return items

    def _mapping(self, events: Iterator[Any], loc: Loc) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = self.read(event, events, (*loc, "?"))
            if isinstance(key, str) and key not in entries:
                self.keys[*loc, key] = event.start_mark
                entries[key] = self.read(next(events), events, (*loc, key))
                continue
            if isinstance(key, str):
                self._refuse(event, f"key {key} is repeated (first on line {self.keys[*loc, key].line + 1})")
            else:
                self._refuse(event, f"expected a text key, found {describe(key)} (quote it?)")
            self.read(next(events), events, (*loc, "?"))
        return entries

    def _scalar(self, event: Any) -> ConfigScalar:
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

    def _number(self, event: Any, digits: str) -> ConfigScalar:
        number: ConfigScalar = None
        if len(digits) <= _LONGEST_NUMBER and "." in digits:
            number = float(digits) if math.isfinite(float(digits)) else None
        elif len(digits) <= _LONGEST_NUMBER:
            number = as_whole_number(int(digits))
        if number is None:
            self._refuse(event, "the number is too large; quote it if it is text")
        return number

    def _refuse(self, event: Any, message: str) -> None:
        """Adds a problem at ``event``, unless one is there already."""
        place = self._place(event.start_mark)
        if place not in self.refused:
            self.refused.add(place)
            self.problems.append(Problem(place, message))

    def _place(self, mark: yaml.Mark) -> tuple[str, int, int]:
        return self.file, mark.line + 1, mark.column + 1


def read_document(path: Path, problems: list[Problem]) -> Document | None:
    """The document in ``path``; None if there is none. What is wrong with its form is added to ``problems``."""
    start = (str(path), 1, 1)
    document = Document(str(path), problems)
    try:
        events: Iterator[Any] = yaml.parse(_read_text(path), Loader=_LOADER)
        content = (event for event in events if not isinstance(event, yaml.StreamStartEvent | yaml.DocumentStartEvent))
        first = next(content)
        if isinstance(first, yaml.StreamEndEvent):
            problems.append(Problem(start, "the file is empty"))
            return None
        document.value = document.read(first, content, ())
        next(content)  # the end of the document
        if not isinstance(rest := next(content), yaml.StreamEndEvent):
            raise yaml.MarkedYAMLError(problem="expected a single document", problem_mark=rest.start_mark)
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
    # Opening a pipe would wait for its writer, so the file is opened without waiting and then examined.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "expected a file, found a directory, a pipe or a device")
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise OSError(0, f"expected at most {_MOST_BYTES >> 20} MiB, found more")
    return content.decode("utf-8")


def _kind_in_yaml(text: str) -> str:
    """The type that YAML 1.1 resolves an unquoted ``text`` to."""
    for tag, pattern in (*_RESOLVERS.get(text[0], ()), *_RESOLVERS.get(None, ())):
        if pattern.match(text):
            return str(tag).rpartition(":")[2]
    return "str"
