"""A report that can still answer what-if questions."""

from __future__ import annotations
