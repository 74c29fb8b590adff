"""Report <-> report.json: the :class:`Report` type, as pydantic reads it, is the contract.

``tools/generate_report_docs.py`` writes its JSON Schema and its documentation; docs/report-json.md states the rules.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from three_walls.advice.verdict_rows import REMOVED
from three_walls.lib import limits
from three_walls.lib.errors import UsageError
from three_walls.lib.fact import Fact, FactDefinition, FactSheet, FactValue
from three_walls.lib.files import open_regular
from three_walls.lib.text import escape_in_json, shorten, show_control_characters
from three_walls.report.report import SCHEMA_VERSION, Report

Json = dict[str, Any]

_MAJOR = SCHEMA_VERSION.partition(".")[0]
_VALUE_TYPES = ("ConfigData", "FactValue")
_NO_JSON = "it is no JSON text"
_LONGEST_QUOTE = 60
"""Characters of what a message repeats of a file."""
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class DefinedFact:
    """One fact with its definition."""

    value: FactValue
    """Null when it is missing; null without a ``missing_reason``: known to be unset."""
    unit: str
    """``ns``, ``bytes``, ``count``, ``fraction``, ``ratio``, ``flag``, ``text``, ``bytes_per_s``, ``config``, ..."""
    missing_reason: str | None = None
    """Set exactly when the fact is missing."""
    label: str = ""
    """What sentences call the fact; empty for a setting of the run."""
    meaning: str = ""
    not_the_same_as: str = ""
    needs: tuple[str, ...] = ()
    """Capabilities of the trace without which the fact is missing."""


def render_json(report: Report) -> str:
    """``report`` as JSON text; the same report gives the same bytes.

    Raises ValueError for a measured number that is not finite: JSON has none.
    """
    # Of Report: what analyze() returns has more, for replays.
    names = sorted((field.name for field in fields(Report)), key=lambda name: name != "schema_version")
    return escape_in_json(_write_object(((name, getattr(report, name)) for name in names), "\n") + "\n")


def _write(value: Any, line: str) -> str:
    """``value`` as ``json.dumps(value, indent=2)`` writes it, but with arrays of numbers on one line.

    ``line``: a line break with the indentation of the line on which the value begins.
    """
    if isinstance(value, str):
        return encode_basestring(value)
    if value.__class__ is int or (value.__class__ is float and math.isfinite(value)):
        return repr(value)  # as an encoder writes it, which takes ten times as long
    if value is None or isinstance(value, int | float):
        return _encode(value)
    if isinstance(value, FactSheet):  # facts are in the order of their definitions
        return _write_object([(name, _define(fact)) for name, fact in value.facts.items()], line)
    if isinstance(value, Mapping):  # others are sorted, so that the order in which it was filled does not show
        return _write_object(sorted(value.items()), line)
    if not isinstance(value, tuple):
        return _write_object(_members_of(value), line)
    if set(map(type, value)) <= {int, float}:
        return _encode(value)
    inner = line + "  "
    return f"[{inner}{f',{inner}'.join([_write(part, inner) for part in value])}{line}]"


def _write_object(members: Iterable[tuple[str, Any]], line: str) -> str:
    inner = line + "  "
    written = f",{inner}".join([f"{encode_basestring(name)}: {_write(value, inner)}" for name, value in members])
    return f"{{{inner}{written}{line}}}" if written else "{}"


def _members_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a dataclass. A setting or fact that is not a finite number becomes its name."""
    for name, is_any_value in _fields_of(value.__class__):
        part = getattr(value, name)
        yield name, _name_if_not_finite(part) if is_any_value else part


@cache
def _fields_of(kind: type) -> tuple[tuple[str, bool], ...]:
    """Names of the fields of a dataclass, and whether each holds any value of a setting or fact.

    A field that does not count when reports are compared (the replay of a live one) is not written.
    """
    return tuple((field.name, field.type in _VALUE_TYPES) for field in fields(kind) if field.compare)


def load_report(path: str | Path) -> Report:
    """Read the report that :func:`render_json` wrote to ``path``. Fields of a newer minor version are ignored.

    Its ``schema_version`` is that of this release, with whose fields it is written again.

    Raises UsageError, in one line, for a file that is no report.json of this major version.
    """
    try:
        with open_regular(Path(path)) as file:
            content = file.read(limits.MOST_REPORT_BYTES + 1)
        text = content.decode("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or _NO_JSON
        raise UsageError(f"{path}: expected a report.json, found none ({reason})") from error
    if len(content) > limits.MOST_REPORT_BYTES:
        most = f"{limits.MOST_REPORT_BYTES >> 20} MiB"
        raise UsageError(f"{path}: expected a report.json of at most {most}, found a larger file")
    return parse_report(text, path)


def _find_wrong_values(report: Report) -> Iterator[str]:
    """Values of the right type that no release writes, and that nothing could be shown of."""
    verdict = report.verdict
    if verdict.replayed_step_ns is not None and verdict.replayed_step_ns <= 0:
        yield "verdict.replayed_step_ns: a step of no length"
    for place, row in enumerate(verdict.counterfactuals):
        if unknown := set(row.without).difference(REMOVED):
            yield f"verdict.counterfactuals.{place}.without: {_quote(min(unknown))}"
    timeline = report.timeline
    for rank in timeline.ranks if timeline else ():
        for lane in rank.lanes:
            if any(column and len(column) != len(lane.start_ns) for column in (lane.length_ns, lane.category)):
                yield f"timeline: columns of unequal length in the lane {_quote(lane.name or lane.kind)}"


def _quote(text: str) -> str:
    """Something of a file as a part of one line."""
    return shorten(show_control_characters(text, kept=""), _LONGEST_QUOTE)


def parse_report(text: str, path: str | Path) -> Report:
    """The report in ``text``, which stands at ``path``; the rest is as for :func:`load_report`."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: expected a report.json, found none ({_NO_JSON})") from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if not isinstance(version, str):
        raise UsageError(f"{path}: expected a report.json, found no schema_version in it")
    if document.keys() >= {"kept", "pairs", "runs"}:
        raise UsageError(f"{path}: expected a report.json, found the results of a tuning, which lie beside its runs/")
    if version.partition(".")[0] != _MAJOR:
        raise UsageError(
            f"{path}: report.json of schema {_quote(version)}: this release reads {_MAJOR}.x; analyze the trace again"
        )
    try:
        facts = TypeAdapter(dict[str, DefinedFact]).validate_python(document["facts"])
        report = _report_type().validate_python(document | {"facts": {"facts": {}}})
    except (KeyError, ValidationError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": error.args, "msg": "is missing"}
        place = ".".join(map(str, first["loc"]))
        raise UsageError(
            f"{path}: expected a report.json of schema {_quote(version)}, found {_quote(place)}: {first['msg']}"
        ) from error
    for wrong in _find_wrong_values(report):
        raise UsageError(f"{path}: expected a report.json of schema {_quote(version)}, found {wrong}")
    restored = []
    for name, fact in facts.items():
        defined = FactDefinition(name, fact.unit, fact.label, fact.meaning, fact.not_the_same_as, needs=fact.needs)
        restored.append(Fact(name, fact.value, fact.unit, fact.missing_reason, defined if fact.meaning else None))
    sheet = FactSheet.of(restored, report.config.environment_is_known)
    return replace(report, facts=sheet, schema_version=SCHEMA_VERSION)


def report_schema() -> Json:
    """JSON Schema (draft 2020-12) of report.json. It allows unknown fields: a newer minor version may add some."""
    schema = _report_type().json_schema(mode="serialization")
    facts = TypeAdapter(dict[str, DefinedFact]).json_schema(mode="serialization", ref_template="#/$defs/{model}")
    definitions: Json = {**schema.pop("$defs"), **facts.pop("$defs")}
    for name in ("FactSheet", "Fact", "FactDefinition"):  # a fact is written as a DefinedFact
        del definitions[name]
    schema["properties"]["facts"] = {"type": "object", **facts}
    return finish_schema({**schema, "$defs": definitions})


def finish_schema(schema: Json) -> Json:
    """``schema`` as a JSON Schema (draft 2020-12) of a file in which every field is always written."""
    for part in (schema, *schema["$defs"].values()):
        if "properties" in part:
            part["required"] = list(part["properties"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


@cache
def _report_type() -> TypeAdapter[Report]:
    return TypeAdapter(Report)


def _define(fact: Fact) -> DefinedFact:
    value, definition = None if fact.is_missing else fact.value, fact.definition
    words = (definition.label, definition.meaning, definition.not_the_same_as, definition.needs) if definition else ()
    return DefinedFact(value, fact.unit, fact.missing_reason, *words)


def _name_if_not_finite(value: FactValue) -> FactValue:
    if isinstance(value, tuple):
        return tuple(str(part) if isinstance(part, float) and not math.isfinite(part) else part for part in value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
