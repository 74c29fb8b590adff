"""Loads reviewed YAML into typed rows and reports every error of a file as ``file:line:column: sentence``.

The type of a table is its reader: a dataclass whose fields are the keys of the file, read by pydantic without silent
conversions and without undeclared keys. One message lists the errors of form and type, the contradictions within each
row whose fields are sound (``__post_init__``), and the contradictions between the rows that are sound
(:func:`raise_contradictions`). ``yaml.py`` refuses what YAML makes ambiguous.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass
from difflib import get_close_matches
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_args, get_type_hints

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    PlainValidator,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from three_walls.lib.errors import RuleBaseError
from three_walls.lib.parsed_documents import keep_parsed, read_parsed
from three_walls.lib.plain_data import ConfigData, ConfigScalar
from three_walls.lib.problems import Loc as Loc
from three_walls.lib.problems import Problem as Problem
from three_walls.lib.problems import describe as describe

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

KEY = "[key]"
"""Ends the location of an error that is about a key and not its value, as in pydantic's own errors about keys."""
T = TypeVar("T")
_MOST_PROBLEMS = 100
"""Of one file that are worded, and of all that are listed."""
_NAME = re.compile(r"[\w.-]+")
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
    "dataclass_type": "a mapping",
}
"""pydantic's type of an error -> what the file should hold there."""


def load_table(path: Path, kind: type[T], context: Mapping[str, Any] | None = None) -> T:
    """The file at ``path`` as ``kind``; RuleBaseError lists everything wrong with it.

    Validators of ``kind`` find ``context`` in ``info.context``: for example the names that the file may refer to.
    """
    problems: list[Problem] = []
    table = read_table(path, kind, problems, context)
    raise_problems(problems)
    assert table is not None  # else there was a problem
    return table


def read_table(
    path: Path, kind: type[T], problems: list[Problem], context: Mapping[str, Any] | None = None
) -> T | None:
    """As :func:`load_table`, for several files: adds errors to ``problems`` and then returns None."""

    def validate(text: bytes) -> T:
        listed: tuple[T] = _adapter(cast("Any", kind)).validate_json(b"[" + text + b"]", strict=True, context=context)
        return listed[0]

    if (parsed := read_parsed(path)) is not None:
        with suppress(ValidationError):  # the places of errors are in the YAML
            return validate(parsed)
    from three_walls.lib.yaml import read_document

    before = len(problems)
    document = read_document(path, problems)
    if document is None:
        return None
    text = json.dumps(document.value)
    if len(problems) == before:
        keep_parsed(path, text)
    try:
        return validate(text.encode())
    except ValidationError as error:
        details = _errors_of(error)
    refused = {problem.place for problem in problems}  # a value of refused form is no second problem
    keys = set(_field_names(kind))
    contradictions = _contradictions_of_sound_rows(document.value, details, validate)
    for detail in islice(chain(details, contradictions), _MOST_PROBLEMS):
        loc, is_about_key = detail["loc"], detail["type"] == "unexpected_keyword_argument"
        if loc[-1:] == (KEY,):
            loc, is_about_key = loc[:-1], True
        place = document.place_of(loc, is_about_key)
        if place not in refused:
            problems.append(Problem(place, _sentence(detail, keys)))
    return None


def _contradictions_of_sound_rows(
    table: object, details: Sequence[ErrorDetails], validate: Callable[[bytes], object]
) -> Iterator[ErrorDetails]:
    """The contradictions that are left when the rows with an error (``details``) are taken out of ``table``.

    pydantic checks a table as a whole only if every row is sound. A row is an entry of a section; where a whole section
    is wrong, nothing can be checked. A contradiction that names a row with an error may only follow from that error, so
    it is left out.
    """
    broken = {detail["loc"][:2] for detail in details}
    if not isinstance(table, dict) or any(len(loc) < 2 for loc in broken):
        return
    sound: dict[str, object] = {}
    positions: dict[int | str, list[int]] = {}
    for section, rows in table.items():
        if isinstance(rows, dict):
            sound[section] = {name: row for name, row in rows.items() if (section, name) not in broken}
        elif isinstance(rows, list):
            positions[section] = [position for position in range(len(rows)) if (section, position) not in broken]
            sound[section] = [rows[position] for position in positions[section]]
        else:
            sound[section] = rows
    try:
        validate(json.dumps(sound).encode())
    except ValidationError as error:
        names = {name for _, name in broken}
        for detail in _errors_of(error):
            section, *rest = detail["loc"] or ("",)
            if detail["type"] != "contradiction" or not names.isdisjoint(_NAME.findall(detail["msg"])):
                continue
            if rest and section in positions:
                rest[0] = positions[section][int(rest[0])]
            yield {**detail, "loc": (section, *rest)}


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Reads a list of one ``kind``: only around a dataclass does pydantic let its treatment of other keys be set.

    Cached: building one takes as long as reading a small file, and there are many files of rules.
    """
    return TypeAdapter(tuple[kind], config=ConfigDict(extra="forbid"))


def _errors_of(error: ValidationError) -> list[ErrorDetails]:
    """The errors of a table that :func:`_adapter` read, by their places in it."""
    return [{**detail, "loc": detail["loc"][1:]} for detail in error.errors()]


def raise_problems(problems: Collection[Problem]) -> None:
    """Raises one RuleBaseError that lists the problems in reading order, the first 100; returns if there is none."""
    if problems:
        listed = sorted(set(problems))
        more = [f"and {len(listed) - _MOST_PROBLEMS} more"] if len(listed) > _MOST_PROBLEMS else []
        raise RuleBaseError("\n".join([*map(str, listed[:_MOST_PROBLEMS]), *more]))


def raise_contradictions(contradictions: Iterable[tuple[Loc, str]]) -> None:
    """For validators: reports several problems at once, each at its path below the validated value."""
    errors = [
        InitErrorDetails(type=PydanticCustomError("contradiction", "{text}", {"text": text}), loc=loc, input=None)
        for loc, text in contradictions
    ]
    if errors:
        raise ValidationError.from_exception_data("contradictions", errors)


def suggest(word: str, words: Collection[str]) -> str:
    """`` (did you mean x?)`` if ``words`` has a close match, else nothing."""
    close = get_close_matches(word, list(words), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def between(low: float, high: float) -> AfterValidator:
    """Checks that a number lies within [low, high]."""

    def check(number: float) -> float:
        if not low <= number <= high:
            raise ValueError(f"expected a number from {low:g} to {high:g}, found {number:g}")
        return number

    return AfterValidator(check)


_MOST_WORDS = 12
"""Words that an error lists."""


def one_of(allowed: Collection[str]) -> AfterValidator:
    """Checks that a text is one of ``allowed``. Of many words an error names the closest, and the first ones."""

    def check(word: str) -> str:
        if word in allowed:
            return word
        if len(allowed) <= _MOST_WORDS:
            raise ValueError(f"expected one of {', '.join(allowed)}, found {word}{suggest(word, allowed)}")
        first = ", ".join(list(allowed)[:_MOST_WORDS])
        raise ValueError(f"found {word}{suggest(word, allowed)}, expected one of {first} ({len(allowed)} words)")

    return AfterValidator(check)


def compiled(flags: int = 0) -> BeforeValidator:
    """Reads a text as a regular expression with ``flags``."""
    return BeforeValidator(lambda text: _compile(text, flags))


def compilable(flags: int = 0) -> BeforeValidator:
    """Checks that a text is a regular expression with ``flags``, which is compiled when it is used: that takes long."""
    return BeforeValidator(lambda text: _compile(text, flags).pattern)


def _compile(text: object, flags: int) -> re.Pattern[str]:
    if not isinstance(text, str):
        raise ValueError(f"expected text (quote it?), found {describe(text)}")
    if not text.strip():
        raise ValueError("expected text, found none")
    try:
        return re.compile(text.strip(), flags)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error


def _read_scalar(value: object) -> ConfigScalar:
    if isinstance(value, str | int | float | bool | None):
        return value
    raise ValueError(f"expected text, a number, true, false or null, found {describe(value)}")


def _read_value(value: object) -> ConfigData:
    return tuple(map(_read_scalar, value)) if isinstance(value, list | tuple) else _read_scalar(value)


def _as_tuple(value: object) -> object:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class NamedRow:
    """A row of a mapping; its key in the mapping is its name. Declare the mapping as ``ByName``."""

    name: str = field(default="", kw_only=True)
    """No key of the row."""


def _name_rows(rows: dict[str, Named]) -> dict[str, Named]:
    raise_contradictions(((name, "name", KEY), "unknown key name") for name, row in rows.items() if row.name)
    for name, row in rows.items():
        object.__setattr__(row, "name", name)  # nobody has seen it yet
    return rows


NOT_STATED: Any = object()
"""Default of a field for which null in the file is not the same as no entry."""
Named = TypeVar("Named", bound=NamedRow)
ByName = Annotated[dict[str, Named], AfterValidator(_name_rows)]
"""Rows by name."""
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
"""Text that is not blank."""
Texts = Annotated[tuple[Text, ...], BeforeValidator(_as_tuple)]
"""A list of texts; a single text is a list of one."""
Pattern = Annotated[re.Pattern[str], compiled()]
"""A regular expression."""
Scalar = Annotated[ConfigScalar, PlainValidator(_read_scalar)]
"""Text, a number, true, false or null."""
Value = Annotated[ConfigData, PlainValidator(_read_value)]
"""A scalar or a flat list of them, as settings have."""


def _sentence(error: ErrorDetails, keys: Collection[str]) -> str:
    """pydantic's error as a sentence that states what was expected and what was found."""
    key = str(error["loc"][-1]) if error["loc"] else ""
    context, value = error.get("ctx", {}), error["input"]
    match error["type"]:
        case "missing":
            is_element = isinstance(error["loc"][-1], int)
            return (
                f"the list is too short: element {int(key) + 1} is missing" if is_element else f"key {key} is missing"
            )
        case "unexpected_keyword_argument":
            return f"unknown key {key}{suggest(key, keys)}"
        case "literal_error" | "enum":
            words = str(context.get("expected", "")).replace("'", "").replace(" or ", ", ")
            return f"expected one of {words}, found {value}{suggest(str(value), words.split(', '))}"
        case "value_error":
            return str(context.get("error", error["msg"]))
        case "contradiction":
            return error["msg"]
        case "string_too_short":
            return "expected text, found none"
        case kind if kind in _EXPECTED:
            return f"expected {_EXPECTED[kind]}, found {describe(value)}"
        case _:
            return f"{error['msg'][:1].lower()}{error['msg'][1:]}, found {describe(value)}"


def _field_names(kind: Any) -> Iterator[str]:
    """Every key that a row of the table may have, for suggestions."""
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        if issubclass(kind, NamedRow):
            del hints["name"]
        for name, hint in hints.items():
            aliases = (part.alias for part in get_args(hint) if isinstance(part, FieldInfo) and part.alias)
            yield next(aliases, name)
            yield from _field_names(hint)
    for part in get_args(kind):
        yield from _field_names(part)
