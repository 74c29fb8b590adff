"""The job's command with what a run changes: overrides put in, a short run, nothing saved, a profiler around it."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from three_walls.capture.attach.attach_settings import add_settings, count_steps, ends_with_arguments
from three_walls.capture.capture_commands import RUN_CONFIG, TORCHRUN, CaptureRequest, find_launcher, wrap
from three_walls.capture.capture_guide import BRIDGE, MEGATRON_LM
from three_walls.lib.errors import UsageError
from three_walls.lib.shell import quote_word
from three_walls.trace.report_export import find_nsys

TEMPLATE = "{overrides}"
VARIABLE = "THREE_WALLS_OVERRIDES"
"""Holds the overrides in the environment of the command, quoted for a shell: for launch scripts that pass none on."""
_BARE = re.compile(r"[\w@%+=:,./\[\]-]+", re.ASCII)
"""A word that is not quoted there, so that lists, too, reach a script that does not evaluate the variable."""
_NEVER = "1000000000"
_SHORT = {
    BRIDGE: ("train.exit_interval={0}", "logger.log_interval=1", "checkpoint.save=null"),
    MEGATRON_LM: ("--exit-interval", "{0}", "--log-interval", "1", "--save-interval", _NEVER),
}
"""What ends a run after {0} iterations, logs each, and saves nothing. ``train_iters`` stays: schedules follow from it.
Megatron-LM also saves at the end of a run, so :data:`_SAVES` go, too."""
_SAVES = ("--save", "--save-retain-interval", "--non-persistent-save-interval")


@dataclass(frozen=True, slots=True)
class TunedCommand:
    """The user's command, and how it takes settings."""

    words: tuple[str, ...]
    framework: str | None
    """Whose spelling of settings it takes; None: nothing but overrides is added."""
    iterations: int
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises UsageError where overrides have no place in it."""
        if not ends_with_arguments(self.words) and not any(TEMPLATE in word for word in self.words):
            raise UsageError(f"the command is a string for a shell: write {TEMPLATE} where its program takes overrides")

    def put_in(self, overrides: Sequence[str], iterations: int | None = None) -> tuple[str, ...]:
        """The command of a short run with ``overrides``."""
        words, added = list(self.words), [*self.shorten(iterations or self.iterations), *overrides]
        if self.framework == MEGATRON_LM:
            words = _drop_saving(words)
        if TEMPLATE not in " ".join(words):
            return (*words, *added)
        quoted = " ".join(map(quote_word, added))
        whole = [[*added] if word == TEMPLATE else [word.replace(TEMPLATE, quoted)] for word in words]
        return tuple(word for each in whole for word in each)

    def shorten(self, iterations: int) -> tuple[str, ...]:
        """What ends a run after ``iterations`` and keeps it from saving; empty where the spelling is not known."""
        return tuple(word.format(iterations) for word in _SHORT[self.framework]) if self.framework else ()

    def variables(self, overrides: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
        """The variables to set for it."""
        added = (*self.shorten(self.iterations), *overrides)
        line = " ".join(word if _BARE.fullmatch(word) else quote_word(word) for word in added)
        return {VARIABLE: line, **self.environment, **environment}

    def profiled(self, overrides: Sequence[str], out: Path, ranks: tuple[int, ...], steps: str) -> tuple[str, ...]:
        """The command of a run that ``three-walls attach`` profiles on each rank."""
        first, end = count_steps(steps)
        words = self.put_in(overrides, max(self.iterations, end + 1))
        request = CaptureRequest(TORCHRUN, self.framework or MEGATRON_LM, first, end, ranks, command=words)
        added = add_settings(request, self.framework, out / RUN_CONFIG)[0]
        attach = [sys.executable, "-P", "-m", "three_walls", "attach", "--no-analyze", "--no-overrides"]
        attach += ["--nsys", nsys] if (nsys := find_nsys()) else []
        attach += ["--ranks", ",".join(map(str, ranks)), "--out", str(out), "--"]
        words = self.put_in([*overrides, *added], max(self.iterations, end + 1))
        if find_launcher(words) is None:
            return (*attach, *words)
        return ("sh", "-c", f"exec {wrap(words, list(map(quote_word, attach)), ())}")


def _drop_saving(words: Sequence[str]) -> list[str]:
    """``words`` without the flags that make Megatron-LM save."""
    kept: list[str] = []
    drops_value = False
    for word in words:
        if not drops_value and not word.startswith(tuple(f"{flag}=" for flag in _SAVES)) and word not in _SAVES:
            kept.append(word)
        drops_value = word in _SAVES
    return kept


def as_line(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """A command for a shell."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in environment.items() if name != VARIABLE]
    return " ".join([*variables, *map(quote_word, words)])
