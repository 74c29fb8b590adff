"""Runs a program and measures it: CPU seconds with those of its children, wall seconds, peak memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
OWN = {"PYTHONPATH": str(REPOSITORY)}
"""Variables with which ``python -m three_walls`` runs this checkout."""

_LAST_BYTES = 1 << 16
"""Of what a program prints, which are read: it may be hundreds of MB, and Linux counts the memory of the process that
starts another one to the other's peak."""


@dataclass(frozen=True, slots=True)
class Use:
    """What one run of a program took, and the end of what it printed on stderr."""

    cpu_s: float
    wall_s: float
    peak_bytes: int
    stderr: str


class FailedProgramError(Exception):
    """A program ended with an error; the message is the last line that it printed."""


def measure(
    command: Sequence[str | Path], variables: Mapping[str, str] | None = None, folder: Path = REPOSITORY
) -> Use:
    """Runs ``command`` in ``folder``, with ``variables`` in its environment.

    Raises FailedProgramError unless it exits with 0.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= variables or {}  # without PYTHONDONTWRITEBYTECODE, with which a program compiles itself every time
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        began_s = time.monotonic()
        process = subprocess.Popen([*map(str, command)], stdout=output, stderr=errors, env=environment, cwd=folder)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.monotonic() - began_s
        texts = []
        for stream in (output, errors):
            stream.seek(max(stream.seek(0, os.SEEK_END) - _LAST_BYTES, 0))
            texts.append(stream.read().decode("utf-8", errors="replace"))
    if process.returncode != 0:
        lines = [line for text in texts for line in text.splitlines() if line.strip()]
        raise FailedProgramError(lines[-1].strip() if lines else f"exit code {process.returncode}")
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    return Use(used.ru_utime + used.ru_stime, wall_s, used.ru_maxrss * unit_bytes, texts[1])
