"""Rows of tables with other values, for tests of what thresholds and tables decide."""

from __future__ import annotations

from copy import copy
from typing import Any, TypeVar

from three_walls.lib.load_documents import Row

Kind = TypeVar("Kind", bound=Row)


def change(row: Kind, **values: Any) -> Kind:
    """``row`` with other ``values``, by the names of its fields."""
    changed = copy(row)
    vars(changed).update(values)
    return changed
