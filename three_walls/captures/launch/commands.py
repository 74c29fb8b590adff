"""Puts the profiler into a launch command: inside of torchrun or srun, around the program of each rank."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from three_walls.model.errors import UsageError

TORCHRUN, SRUN = "torchrun", "srun"
LAUNCHERS = (TORCHRUN, SRUN)
_RANK_VARIABLES = {TORCHRUN: "RANK", SRUN: "SLURM_PROCID"}
_LAUNCH_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_INTERPRETER = ("python", "python3", "python2")


def report_name(launcher: str) -> str:
    """``-o`` of a report per rank: nsys itself puts in the variable."""
    return f"profiles/rank%q{{{_RANK_VARIABLES[launcher]}}}"


def find_launcher(command: Sequence[str]) -> str | None:
    """Which launcher ``command`` begins with, after variables that are set in front of it."""
    words = [PurePosixPath(word).name for word in command if not _is_assignment(word)]
    if words[:1] == [SRUN]:
        return SRUN
    if words[:1] == [TORCHRUN] or any(module in command for module in _LAUNCH_MODULES):
        return TORCHRUN
    return None


def count_ranks(command: Sequence[str]) -> int | None:
    """Ranks that torchrun starts on this one node; None where the command does not say, or names several nodes."""
    if find_launcher(command) != TORCHRUN:
        return None
    if _option(command, "nnodes") not in (None, "1", "1:1"):
        return None
    count = _option(command, "nproc-per-node")
    return int(count) if count is not None and count.isdecimal() and len(count) < 6 and int(count) else None


def _option(command: Sequence[str], name: str) -> str | None:
    """What stands behind ``--name``, in either spelling, as a word of its own or behind an equals sign."""
    for index, word in enumerate(command):
        option, equals, value = word.partition("=")
        if option.replace("_", "-") == f"--{name}":
            return value if equals else next(iter(command[index + 1 :]), None)
    return None


def wrap(command: Sequence[str], profiler: Sequence[str], appended: Sequence[str]) -> str:
    """``command`` with the words of ``profiler`` before each rank's program and ``appended`` behind it, for a shell.

    Raises UsageError where the program cannot be told from the launcher's options.
    """
    launcher = find_launcher(command)
    at, is_module = _program_index(command)
    if launcher == TORCHRUN:
        module = ("-m",) if is_module else ()
        front = command[: at - 1] if is_module else command[:at]
        program = ("python", *module, *command[at:])
        # torchrun starts Python files; with --no-python it starts any program, here the profiler.
        no_python = () if "--no-python" in command or "--no_python" in command else ("--no-python",)
        front = (*front, *no_python)
    else:
        start = _interpreter_before(command, at)
        front, program = command[:start], tuple(command[start:])
    return " ".join([*_quote(front), *profiler, *_quote(program), *appended])


def _quote(words: Sequence[str]) -> list[str]:
    return [word if _is_assignment(word) and shlex.quote(word) == word else shlex.quote(word) for word in words]


def _is_assignment(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isidentifier()


def _program_index(command: Sequence[str]) -> tuple[int, bool]:
    """Index of the training script, or of the module behind ``-m``."""
    for index, word in enumerate(command):
        if word == "-m" and index + 1 < len(command) and command[index + 1] not in _LAUNCH_MODULES:
            return index + 1, True
        if word.endswith(".py") and not word.endswith(("torch/distributed/run.py", "torch/distributed/launch.py")):
            return index, False
    said = shlex.join(command)
    raise UsageError(f"expected a command that runs a Python file or module (python -m), found: {said}")


def _interpreter_before(command: Sequence[str], at: int) -> int:
    """Where ``python [options]`` before the program begins; the program itself where no interpreter is named."""
    for index in range(at - 1, -1, -1):
        if PurePosixPath(command[index]).name.rstrip("0123456789.") in _INTERPRETER:
            return index
    return at
