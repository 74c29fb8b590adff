"""Puts the profiler and its settings into a launch command: inside torchrun or srun, around each rank's program."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from three_walls.model.config import ConfigData
from three_walls.model.errors import UsageError
from three_walls.tables.capture import BRIDGE
from three_walls.tables.config_keys import config_keys

TORCHRUN, SRUN = "torchrun", "srun"
LAUNCHERS = (TORCHRUN, SRUN)
_RANK_VARIABLES = {TORCHRUN: "RANK", SRUN: "SLURM_PROCID"}
_LAUNCH_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_INTERPRETER = ("python", "python3", "python2")


def report_name(launcher: str) -> str:
    """The value of ``-o`` for one report per rank: nsys itself replaces the variable."""
    return f"profiles/rank%q{{{_RANK_VARIABLES[launcher]}}}"


def find_launcher(command: Sequence[str]) -> str | None:
    """The launcher that ``command`` begins with, after the variables set before it."""
    words = [PurePosixPath(word).name for word in command if not _is_assignment(word)]
    if words[:1] == [SRUN]:
        return SRUN
    if words[:1] == [TORCHRUN] or any(module in command for module in _LAUNCH_MODULES):
        return TORCHRUN
    return None


def count_ranks(command: Sequence[str]) -> int | None:
    """Ranks that torchrun starts on this node; None where the command does not state it, or names several nodes."""
    if find_launcher(command) != TORCHRUN:
        return None
    if _option_value(command, "nnodes") not in (None, "1", "1:1"):
        return None
    count = _option_value(command, "nproc-per-node")
    return int(count) if count is not None and count.isdecimal() and len(count) < 6 and int(count) else None


def _option_value(command: Sequence[str], name: str) -> str | None:
    """The value of ``--name``, in either spelling, as the next word or after an equals sign."""
    for index, word in enumerate(command):
        option, equals, value = word.partition("=")
        if option.replace("_", "-") == f"--{name}":
            return value if equals else next(iter(command[index + 1 :]), None)
    return None


def wrap(command: Sequence[str], profiler: Sequence[str], appended: Sequence[str]) -> str:
    """``command`` with the words of ``profiler`` before each rank's program and ``appended`` after it, for a shell.

    Raises UsageError where it names no program.
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
    """Index of the training script, or of the module after ``-m``; and whether it is a module."""
    for index, word in enumerate(command):
        if word == "-m" and index + 1 < len(command) and command[index + 1] not in _LAUNCH_MODULES:
            return index + 1, True
        if word.endswith(".py") and not word.endswith(("torch/distributed/run.py", "torch/distributed/launch.py")):
            return index, False
    found = shlex.join(command)
    raise UsageError(f"expected a command that runs a Python file or module (python -m), found: {found}")


def _interpreter_before(command: Sequence[str], at: int) -> int:
    """Index where ``python [options]`` before the program begins; that of the program where no interpreter is named."""
    for index in range(at - 1, -1, -1):
        if PurePosixPath(command[index]).name.rstrip("0123456789.") in _INTERPRETER:
            return index
    return at


def spell_settings(settings: Mapping[str, ConfigData], framework: str) -> tuple[str, ...]:
    """``settings`` (config keys) as words quoted for a shell, spelled for Megatron-Bridge or Megatron-LM.

    A key that the framework lacks is left out.
    """
    return tuple(word for key, value in settings.items() for word in _spell_setting(key, value, framework))


def _spell_setting(key: str, value: ConfigData, framework: str) -> tuple[str, ...]:
    spelling = config_keys().keys[key]
    if framework == BRIDGE:
        path = spelling.bridge.paths[0] if spelling.bridge else None
        return () if path is None else (shlex.quote(f"{path}={_hydra_value(value)}"),)
    flag = spelling.megatron_lm.flag if spelling.megatron_lm else None
    if flag is None or value is False:
        return ()
    if value is True:
        return (flag,)
    values = value if isinstance(value, tuple) else (value,)
    return (flag, *(shlex.quote(str(part)) for part in values))


def _hydra_value(value: ConfigData) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
