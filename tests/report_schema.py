"""The published schema of report.json, as a validator that is quick on long columns."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
from jsonschema.validators import extend

from three_walls.report.json_report import report_schema

_DRAFT: Any = jsonschema.Draft202012Validator


def _check_items(validator: Any, items: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Of a million numbers of a timeline the schema says the type alone: each is asked for it, without a validator."""
    is_column = isinstance(instance, list) and [*items] == ["type"]
    if not (is_column and all(validator.is_type(each, items["type"]) for each in instance)):
        yield from _DRAFT.VALIDATORS["items"](validator, items, instance, schema)


@cache
def report_validator() -> Any:
    """Validates a report.json that was loaded."""
    return extend(_DRAFT, {"items": _check_items})(report_schema())
