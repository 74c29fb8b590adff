"""A trace that was read, as the report names it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InputFile:
    """One trace that was read."""

    path_name: str
    """The file's name alone: no directory leaves the machine."""
    sha256: str
    nsys_version: str | None
    """Nsight Systems release that recorded it."""
    schema: str | None
    """Version of the export's schema."""
