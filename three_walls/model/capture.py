"""A recipe for a capture: commands in order, each with its reasons."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CaptureStep:
    """One command for a shell, and why it is as it is, one reason per line."""

    reasons: tuple[str, ...]
    command: str


@dataclass(frozen=True, slots=True)
class CaptureRecipe:
    steps: tuple[CaptureStep, ...]
