"""``megatron-signs.yaml``: kernels, NVTX ranges and programs that show a Megatron run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from three_walls.lib.load_documents import Pattern, Text, load_table
from three_walls.lib.resources import TABLES_DIR


@dataclass(frozen=True, slots=True)
class Sign:
    """A name of a kernel or a program, and where it comes from."""

    pattern: Pattern
    shown_as: Text
    reason: Text
    """Where the name comes from."""


@dataclass(frozen=True, slots=True)
class RangeSign:
    """Texts of NVTX ranges, and where they come from."""

    texts: tuple[Text, ...]
    """Parts of a range's text."""
    shown_as: Text
    reason: Text


@dataclass(frozen=True, slots=True)
class MegatronSigns:
    """The table."""

    kernels: tuple[Sign, ...]
    ranges: tuple[RangeSign, ...]
    shared_kernels: tuple[Sign, ...]
    """Kernels that Megatron's runs have and other programs too: no sign of Megatron."""
    shared_ranges: tuple[RangeSign, ...]
    programs: tuple[Sign, ...]
    """Their patterns match whole names."""
    common_settings: frozenset[str]
    """Keys of settings that a program other than Megatron may have."""


@cache
def megatron_signs() -> MegatronSigns:
    """Signs in the order in which they are looked for."""
    return load_table(TABLES_DIR / "megatron-signs.yaml", MegatronSigns)
