"""Rows of tables with other values, for tests of what thresholds and tables decide."""

from __future__ import annotations

from typing import Any, TypeVar

from three_walls.tables.loader import Row

Kind = TypeVar("Kind", bound=Row)


def change(row: Kind, **values: Any) -> Kind:
    """``row`` with other ``values``, by the names of its fields."""
    return type(row)(**{name: getattr(row, name) for name in row.fields_stated} | values)
