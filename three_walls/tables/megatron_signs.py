"""``megatron-signs.yaml``: kernels, NVTX ranges and programs that show a Megatron run."""

from __future__ import annotations

from functools import cache

from three_walls.resources import TABLES_DIR
from three_walls.tables.loader import Pattern, Row, Text, load_table


class Sign(Row):
    """A name that only a Megatron run has."""

    pattern: Pattern
    shown_as: Text
    reason: Text
    """Where the name comes from."""


class MegatronSigns(Row):
    """The table."""

    kernels: tuple[Sign, ...]
    ranges: tuple[Sign, ...]
    programs: tuple[Sign, ...]
    """Their patterns match whole names."""
    common_settings: frozenset[str]
    """Keys of settings that a program other than Megatron may have."""


@cache
def megatron_signs() -> MegatronSigns:
    """Signs in the order in which they are looked for."""
    return load_table(TABLES_DIR / "megatron-signs.yaml", MegatronSigns)
