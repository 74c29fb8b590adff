"""Finds the training script and its arguments after launchers: python, torchrun, numactl, nsys, bash -c, attach."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from three_walls.lib import limits

_SHELLS = {"sh", "bash", "dash", "zsh"}
_LAUNCH_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_STARTER = "three_walls/capture/attach/start_program.py"
"""What ``three-walls attach`` has the profiler start, with a directory and a name before the program."""
_WORDS_OF_STARTER = 3
_EVERY_ARGUMENT = re.compile(r"\$[@*]|\$\{[@*]\}")
_FIRST_WORD = re.compile(r"\$0\b|\$\{0\}")
# What ends a command in a shell string: a new command, a pipe, a redirection.
_END_OF_COMMAND = re.compile(r"(;|&&?|\|\|?|\d?>{1,2}(&?\d.*|/.*)?|<|\d?>{1,2})")


@dataclass(frozen=True, slots=True)
class LaunchedProgram:
    """The training script and its arguments."""

    script: str | None
    """A path or a module; None where no script was recognized."""
    arguments: tuple[str, ...]
    """The words after the script; every word where no script was recognized."""

    @property
    def file_name(self) -> str | None:
        """The script without its directories."""
        return None if self.script is None else PurePosixPath(self.script).name

    @property
    def script_name(self) -> str:
        """The script without directories and suffix; of a module only its last part."""
        return (self.file_name or "").removesuffix(".py").rpartition(".")[2]


def find_program(words: Sequence[str]) -> LaunchedProgram:
    """The innermost program of a command line (``words``)."""
    return _find(tuple(words), depth=0)


def _find(words: tuple[str, ...], depth: int) -> LaunchedProgram:
    starter = next((index for index, word in enumerate(words) if word.endswith(_STARTER)), None)
    if starter is not None:
        words = words[starter + _WORDS_OF_STARTER :]
    at = _shell_string_index(words)
    if at is not None and depth < limits.MOST_NESTED_SHELLS:
        inner = words[at]
        passed_on = _find(_find_passed_on(inner, words[at + 1 :]), depth + 1)
        if passed_on.script is not None:
            return passed_on
        programs = [_find(command, depth + 1) for command in _commands(inner)]
        with_script = [program for program in programs if program.script is not None]
        return with_script[0] if with_script else LaunchedProgram(None, ())
    scripts = [index for index, word in enumerate(words) if word.endswith(".py")]
    # On some systems torchrun is itself a Python file: .../torch/distributed/run.py [options] train.py
    if len(scripts) > 1 and words[scripts[0]].endswith(("torch/distributed/run.py", "torch/distributed/launch.py")):
        scripts = scripts[1:]
    module = _module_index(words[: scripts[0]] if scripts else words)
    if module is not None:
        return LaunchedProgram(words[module], words[module + 1 :])
    if scripts:
        return LaunchedProgram(words[scripts[0]], words[scripts[0] + 1 :])
    return LaunchedProgram(None, words)


def _shell_string_index(words: tuple[str, ...]) -> int | None:
    """Index of the command string of ``bash -c STRING``, also of ``-lc`` and behind other launchers."""
    for index, word in enumerate(words[:-2]):
        option = words[index + 1]
        if PurePosixPath(word).name in _SHELLS and re.fullmatch(r"-[a-z]*c", option):
            return index + 2
    return None


def _find_passed_on(script: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """What ``script`` runs of ``words``, which follow it, as in ``bash -c 'X=1 "$@"' bash python train.py``."""
    if _EVERY_ARGUMENT.search(script) is None:
        return ()
    return words if _FIRST_WORD.search(script) else words[1:]


def _commands(text: str) -> list[tuple[str, ...]]:
    """The commands of a shell string, each as words."""
    try:
        words = shlex.split(text) if len(text) <= limits.LONGEST_SHELL_STRING else text.split()
    except ValueError:  # an unbalanced quote: the string is truncated, or written for another shell
        words = text.split()
    commands: list[tuple[str, ...]] = []
    current: list[str] = []
    for word in words:
        ends = _END_OF_COMMAND.fullmatch(word) is not None
        if not ends and not word.endswith(";"):
            current.append(word)
            continue
        if not ends:
            current.append(word.rstrip(";"))
        commands.append(tuple(current))
        current = []
    commands.append(tuple(current))
    return [command for command in commands if command]


def _module_index(words: Sequence[str]) -> int | None:
    """Index of MODULE in ``python -m MODULE``; modules that are launchers do not count."""
    for index, word in enumerate(words[:-1]):
        if word == "-m" and words[index + 1] not in _LAUNCH_MODULES and not words[index + 1].startswith("-"):
            return index + 1
    return None
