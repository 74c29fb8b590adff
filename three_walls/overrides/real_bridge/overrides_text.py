"""Reads overrides back: the file that ``analyze`` writes, or one override per line."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from three_walls.inputs.given_files import read_text_file
from three_walls.model.errors import InputError


@dataclass(frozen=True, slots=True)
class WrittenOverrides:
    """Hydra overrides and the environment; Megatron-LM flags and Python lines are left out."""

    overrides: tuple[str, ...]
    environment: dict[str, str]


def read_overrides(path: Path) -> WrittenOverrides:
    """The overrides in ``path``; raises InputError with the line where a quote is not closed."""
    text = read_text_file(path, "overrides, one per line (overrides.txt)")
    overrides: list[str] = []
    environment: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise InputError(f"{path}:{number}: expected words quoted for a shell, found {error}") from error
        if words[:1] == ["export"]:
            environment |= {name: value for name, _, value in (word.partition("=") for word in words[1:])}
        elif words and not words[0].startswith("--"):
            overrides += words
    return WrittenOverrides(tuple(overrides), environment)
