"""Files that were read, as the report names them."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path


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


@dataclass(frozen=True, slots=True)
class NamesFile:
    """The user's names of kernels."""

    path_name: str
    """The file's name alone."""
    sha256: str


def describe_names(path: Path) -> NamesFile:
    """The file of kernel names at ``path``."""
    return NamesFile(path.name, sha256(path.read_bytes()).hexdigest())
