"""A warning of the report: a stable code and a sentence."""

from __future__ import annotations

from dataclasses import dataclass

UNREADABLE = "trace-unreadable"
"""Code of the warning that a trace of several could not be read."""
SETTINGS_UNKNOWN = "settings-unknown"
"""Code of the warning that rules wait for the settings of the run."""


@dataclass(frozen=True, slots=True)
class ReportWarning:
    """Something that limits what the report can claim."""

    code: str
    """Stable; the message is for people."""
    message: str
