"""Reviewed YAML -> typed rows: every error of a file at once, each as ``file:line:column: sentence``.

A table's type is its reader: a frozen pydantic model whose fields are the keys. The form is stricter than YAML where
YAML surprises: a repeated key is an error (YAML keeps the last one), so are ``no`` for false, ``1e-3`` (text in
YAML 1.1), ``1:30`` (a number in base 60), aliases and tags. Quote what is text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from three_walls.model.errors import RuleBaseError

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
"""Text that is not blank."""

KEY = "[key]"
"""Ends the location of an error that is about a key rather than its value, as pydantic's own errors of keys do."""

T = TypeVar("T")
Loc = tuple[int | str, ...]

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
_DEEPEST = 40


class Row(BaseModel):
    """Base of every table and row: immutable, no key that is not declared, no silent conversion."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


def load_table(path: Path, kind: type[T], context: Mapping[str, Any] | None = None) -> T:
    """The file at ``path`` as ``kind``; RuleBaseError lists everything wrong with it.

    ``context`` reaches the validators of ``kind`` as ``info.context`` (names that the file may refer to).
    """
    problems: list[Problem] = []
    table = read_table(path, kind, problems, context)
    raise_problems(problems)
    assert table is not None  # else there was a problem
    return table


def read_table(
    path: Path, kind: type[T], problems: list[Problem], context: Mapping[str, Any] | None = None
) -> T | None:
    """Like :func:`load_table`, for several files: notes what is wrong in ``problems`` and returns None."""
    document = _compose(path, problems)
    if document is None:
        return None
    adapter: TypeAdapter[T] = TypeAdapter(kind)
    try:
        return adapter.validate_json(json.dumps(document.value), strict=True, context=context)
    except ValidationError as error:
        known = _field_names(adapter)
        found = [Problem(document.place_of(one["loc"], one["type"]), _sentence(one, known)) for one in error.errors()]
        # A value whose form was refused already is no second problem.
        places = {one.place for one in problems}
        problems += [one for one in found if one.place not in places]
        return None


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing wrong with a file."""

    place: tuple[str, int, int]
    """File, line and column, counted from 1."""
    message: str

    def __str__(self) -> str:
        return f"{':'.join(map(str, self.place))}: {self.message}"


def raise_problems(problems: Collection[Problem]) -> None:
    """One RuleBaseError that lists every problem in reading order; nothing if there is none."""
    if problems:
        raise RuleBaseError("\n".join(map(str, sorted(set(problems)))))


def suggest(word: str, known: Collection[str]) -> str:
    """`` (did you mean x?)`` when ``known`` has a close match, else nothing."""
    close = get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def describe(value: object) -> str:
    """What stands in a file, for a message."""
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


@dataclass(frozen=True, slots=True)
class _Document:
    """A YAML document as plain data, with the place of every value and every key."""

    file: str
    value: Any
    values: Mapping[Loc, tuple[int, int]]
    keys: Mapping[Loc, tuple[int, int]]

    def place_of(self, loc: Loc, error: str) -> tuple[str, int, int]:
        """Where ``loc`` stands: the key itself for one that is unknown, else the value or what encloses it."""
        key = loc[:-1] if loc[-1:] == (KEY,) else loc
        if (error == "extra_forbidden" or key != loc) and key in self.keys:
            return (self.file, *self.keys[key])
        path: Loc = ()
        for part in loc:  # pydantic names branches of a union on the way; those are no part of the file
            if (*path, part) in self.values:
                path = (*path, part)
        return (self.file, *self.values[path])


def _compose(path: Path, problems: list[Problem]) -> _Document | None:
    """The document in ``path``, its form checked; None after noting why there is none."""
    start = (str(path), 1, 1)
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (str(path), mark.line + 1, mark.column + 1) if mark else start
        problems.append(Problem(place, f"not valid YAML: {error.problem or error.context}"))
        return None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        problems.append(Problem(start, f"cannot be read: {reason}"))
        return None
    if root is None:
        problems.append(Problem(start, "the file is empty"))
        return None
    reader = _Reader(str(path), problems)
    return _Document(str(path), reader.read(root, ()), reader.values, reader.keys)


@dataclass(slots=True)
class _Reader:
    """Turns what PyYAML composed into plain data, noting what is ambiguous on the way."""

    file: str
    problems: list[Problem]
    values: dict[Loc, tuple[int, int]] = field(default_factory=dict)
    keys: dict[Loc, tuple[int, int]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    """Nodes met so far, by identity: an alias is the same node again."""

    def read(self, node: yaml.Node, loc: Loc) -> Any:
        self.values[loc] = _mark(node)
        if id(node) in self.seen:
            return self._refuse(node, "aliases are not read; write the value out")
        self.seen.add(id(node))
        if len(loc) > _DEEPEST:
            return self._refuse(node, f"more than {_DEEPEST} levels")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if node.tag.rsplit(":", 1)[-1] not in ("map", "seq"):
            return self._refuse(node, f"tag {node.tag} is not read; leave it out")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, loc)
        return [self.read(item, (*loc, place)) for place, item in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                self._refuse(key_node, f"expected a text key, found {describe(key)} (quote it?)")
            elif key in entries:
                first = self.keys[(*loc, key)][0]
                self._refuse(key_node, f"key {key} is repeated (first on line {first})")
            else:
                self.keys[(*loc, key)] = _mark(key_node)
                entries[key] = self.read(value_node, (*loc, key))
        return entries

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text = str(node.value)
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        if node.style:  # quoted or a block: text, whatever it looks like
            return text
        if kind == "null" and text in ("", "~", "null"):
            return None
        if kind == "bool" and text in ("true", "false"):
            return text == "true"
        if kind == "int" and _INT.fullmatch(text):
            return int(text.replace("_", ""))
        if kind == "float" and _FLOAT.fullmatch(text):
            return float(text.replace("_", ""))
        if kind == "str" and not _LOOKS_NUMERIC.fullmatch(text):
            return text
        reading = _READINGS.get(kind, f"it as {kind}; quote it")
        return self._refuse(node, f"{text} is ambiguous: YAML reads {reading}")

    def _refuse(self, node: yaml.Node, message: str) -> None:
        problem = Problem((self.file, *_mark(node)), message)
        if not any(one.place == problem.place for one in self.problems):
            self.problems.append(problem)


def _mark(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1


_EXPECTED = {
    "string_type": "text (quote it?)",
    "string_too_short": "text",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "tuple_type": "a list",
    "list_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dataclass_type": "a mapping",
}


def _sentence(error: ErrorDetails, known: Collection[str]) -> str:
    """pydantic's error as a sentence that says what was expected and what was found."""
    key, context, found = str(error["loc"][-1]) if error["loc"] else "", error.get("ctx", {}), describe(error["input"])
    match error["type"]:
        case "missing":
            return f"key {key} is missing"
        case "extra_forbidden":
            return f"unknown key {key}{suggest(key, known)}"
        case "literal_error" | "enum":
            words = str(context.get("expected", "")).replace("'", "").replace(" or ", ", ")
            return f"expected one of {words}, found {error['input']}{suggest(str(error['input']), words.split(', '))}"
        case "value_error":
            return str(context.get("error", error["msg"]))
        case "pattern_regex":
            return f"not a regular expression: {_why_no_expression(error['input'])}"
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            limit = error["msg"].removeprefix("Input should be ")
            return f"expected a number {limit}, found {error['input']}"
        case kind if kind in _EXPECTED:
            return f"expected {_EXPECTED[kind]}, found {found}"
        case _:
            return f"{error['msg'][:1].lower()}{error['msg'][1:]}, found {found}"


def _why_no_expression(text: Any) -> str:
    try:
        re.compile(text)
    except (re.error, TypeError) as error:
        return str(error)
    return "it cannot be compiled"


def _field_names(adapter: TypeAdapter[Any]) -> set[str]:
    """Every key that some row of the table may have, for suggestions."""
    names: set[str] = set()

    def collect(schema: Any) -> None:
        if isinstance(schema, dict):
            names.update(schema.get("properties", {}))
            for part in schema.values():
                collect(part)
        elif isinstance(schema, list):
            for part in schema:
                collect(part)

    collect(adapter.json_schema())
    return names
