"""Report <-> report.json: the :class:`Report` type, encoded by pydantic, is the contract.

``tools/generate_report_docs.py`` writes its JSON Schema and its documentation; docs/report-json.md states the rules.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from three_walls.model.errors import UsageError
from three_walls.model.fact import Fact, FactDefinition, FactSheet, FactValue
from three_walls.model.report import SCHEMA_VERSION, Report
from three_walls.report.formats import escape_in_json

Json = dict[str, Any]

_MAJOR = SCHEMA_VERSION.partition(".")[0]
_NUMBERS = re.compile(r"\[\n\s+(-?\d[-+.eE\d,\s]*)\]")
"""An array of numbers, which is written on one line. No text holds a line break, so this is within no text."""
_VALUE_TYPES = ("ConfigData", "FactValue")


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
    plain = Report(**{field.name: getattr(report, field.name) for field in fields(Report)})
    document = _report_type().dump_python(_in_order(plain), mode="json")
    facts = {name: _define(fact) for name, fact in report.facts.facts.items()}
    document["facts"] = TypeAdapter(dict[str, DefinedFact]).dump_python(_in_order(facts, is_sorted=False), mode="json")
    document = {"schema_version": document.pop("schema_version"), **document}
    text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)
    return escape_in_json(_NUMBERS.sub(_join_lines, text)) + "\n"


def _join_lines(numbers: re.Match[str]) -> str:
    return f"[{', '.join(numbers[1].replace(',', ' ').split())}]"


def load_report(path: str | Path) -> Report:
    """Read the report that :func:`render_json` wrote to ``path``. Fields of a newer minor version are ignored.

    Its ``schema_version`` is that of this release, with whose fields it is written again.

    Raises UsageError, in one line, for a file that is no report.json of this major version.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "it is no JSON text"
        raise UsageError(f"{path}: expected a report.json, found none ({reason})") from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if not isinstance(version, str):
        raise UsageError(f"{path}: expected a report.json, found no schema_version in it")
    if version.partition(".")[0] != _MAJOR:
        raise UsageError(
            f"{path}: report.json of schema {version}: this release reads {_MAJOR}.x; analyze the trace again"
        )
    try:
        facts = TypeAdapter(dict[str, DefinedFact]).validate_python(document["facts"])
        report = _report_type().validate_python(document | {"facts": {"facts": {}}})
    except (KeyError, ValidationError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": error.args, "msg": "is missing"}
        place = ".".join(map(str, first["loc"]))
        raise UsageError(
            f"{path}: expected a report.json of schema {version}, found {place}: {first['msg']}"
        ) from error
    sheet = FactSheet.of((_restore(name, fact) for name, fact in facts.items()), report.config.environment_is_known)
    return replace(report, facts=sheet, schema_version=SCHEMA_VERSION)


def _restore(name: str, fact: DefinedFact) -> Fact:
    defined = FactDefinition(name, fact.unit, fact.label, fact.meaning, fact.not_the_same_as, needs=fact.needs)
    return Fact(name, fact.value, fact.unit, fact.missing_reason, defined if fact.meaning else None)


def report_schema() -> Json:
    """JSON Schema (draft 2020-12) of report.json. It allows unknown fields: a newer minor version may add some."""
    schema = _report_type().json_schema(mode="serialization")
    facts = TypeAdapter(dict[str, DefinedFact]).json_schema(mode="serialization", ref_template="#/$defs/{model}")
    definitions: Json = {**schema.pop("$defs"), **facts.pop("$defs")}
    for name in ("FactSheet", "Fact", "FactDefinition", "Pool"):  # a fact is written as a DefinedFact
        del definitions[name]
    schema["properties"]["facts"] = {"type": "object", **facts}
    for part in (schema, *definitions.values()):
        if "properties" in part:
            part["required"] = list(part["properties"])  # every field is always written
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": definitions}


@cache
def _report_type() -> TypeAdapter[Report]:
    return TypeAdapter(Report)


def _define(fact: Fact) -> DefinedFact:
    definition, value = fact.definition, None if fact.is_missing else fact.value
    if definition is None:
        return DefinedFact(value, fact.unit, fact.missing_reason)
    return DefinedFact(
        value,
        fact.unit,
        fact.missing_reason,
        definition.label,
        definition.meaning,
        definition.not_the_same_as,
        definition.needs,
    )


def _in_order(value: Any, *, is_sorted: bool = True) -> Any:
    """``value`` with every mapping sorted by key, so that the order in which it was filled does not show.

    A setting or fact that is not a finite number becomes its name: JSON has no infinity.
    """
    if is_dataclass(value) and not isinstance(value, type):
        changes = {}
        for field in fields(value):
            part = _in_order(getattr(value, field.name))
            changes[field.name] = _name_if_not_finite(part) if field.type in _VALUE_TYPES else part
        return replace(value, **changes)
    if isinstance(value, Mapping):
        items = sorted(value.items()) if is_sorted else value.items()
        return {key: _in_order(part) for key, part in items}
    if not isinstance(value, tuple) or set(map(type, value)) <= {int}:  # the timeline has 100,000 integers
        return value
    return tuple(map(_in_order, value))


def _name_if_not_finite(value: FactValue) -> FactValue:
    if isinstance(value, tuple):
        return tuple(str(part) if isinstance(part, float) and not math.isfinite(part) else part for part in value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
