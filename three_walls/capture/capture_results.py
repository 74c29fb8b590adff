"""Results of ``three-walls capture`` and ``three-walls doctor``: a recipe for captures, and what a capture supports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from three_walls.trace.input_file import InputFile


@dataclass(frozen=True, slots=True)
class CaptureStep:
    """A command for a shell, and the reasons for it, one per line."""

    reasons: tuple[str, ...]
    command: str


@dataclass(frozen=True, slots=True)
class CaptureRecipe:
    """The result of ``three-walls capture``: commands in order."""

    steps: tuple[CaptureStep, ...]


class Answer(StrEnum):
    """Whether a capture has a capability."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One capability of a capture."""

    name: str
    title: str
    answer: Answer
    found: str
    """What the capture contains of it."""
    claims: tuple[str, ...]
    """Parts of a report that need it."""
    remedy: str = ""
    """What to do where the answer is not yes."""
    nsys: tuple[str, ...] = ()
    """Options of ``nsys profile`` that record it."""
    bridge: tuple[str, ...] = ()
    """Megatron-Bridge overrides that record it."""
    megatron_lm: tuple[str, ...] = ()
    """Megatron-LM flags that record it."""


@dataclass(frozen=True, slots=True)
class Examination:
    """The result of ``three-walls doctor`` for a run."""

    inputs: tuple[InputFile, ...]
    ranks: int
    """Number of captured ranks."""
    checks: tuple[Check, ...]
    recapture: str | None
    """The command that captures all that is missing; None where nothing is that a capture can add."""
    bridge: tuple[str, ...]
    """Megatron-Bridge overrides to launch that command with."""
    megatron_lm: tuple[str, ...]
    """Megatron-LM flags to launch that command with."""
