"""What a capture supports and what not: the result of ``three-walls doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from three_walls.model.report import InputFile


class Answer(StrEnum):
    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One capability of a capture: ``found`` is what it has, ``remedy`` what to do where that is not enough."""

    name: str
    title: str
    answer: Answer
    found: str
    claims: tuple[str, ...]
    """Parts of a report that need it."""
    remedy: str = ""
    nsys: tuple[str, ...] = ()
    """Options of ``nsys profile`` that record it."""
    bridge: tuple[str, ...] = ()
    """Megatron-Bridge overrides that record it."""
    megatron_lm: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Examination:
    """All checks of one run, in order, and the command that captures what is missing (None: nothing is)."""

    inputs: tuple[InputFile, ...]
    ranks: int
    checks: tuple[Check, ...]
    recapture: str | None
    bridge: tuple[str, ...]
    megatron_lm: tuple[str, ...]
