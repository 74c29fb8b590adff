"""The settings with which the program starts the capture, saves its configuration and logs every step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from three_walls.capture.capture_commands import CaptureRequest, capture_settings, find_launcher, setting_words, wrap
from three_walls.capture.capture_guide import BRIDGE, MEGATRON_LM, capture_rules
from three_walls.lib.errors import UsageError
from three_walls.lib.hydra import write_value
from three_walls.lib.shell import quote_word
from three_walls.megatron.settings.launchers import find_program
from three_walls.megatron.settings.option_words import find_dialect, read_command_line

_SPOILT_STEPS = 2
"""The first profiled step contains the start of the profiler, the last one its end."""
_RANGE = ("profile_step_start", "profile_step_end")
_FRAMEWORKS = {"bridge": BRIDGE, "megatron_lm": MEGATRON_LM}


def find_framework(command: Sequence[str]) -> str | None:
    """``bridge`` or ``megatron-lm`` where ``command`` is recognized as one of them."""
    return _FRAMEWORKS.get(find_dialect(find_program(command)))


def read_profile_ranks(command: Sequence[str]) -> tuple[int, ...] | None:
    """The ranks that ``command`` itself states as those to profile, or None."""
    setting = read_command_line(command).values.get("profile_ranks")
    ranks = setting.value if setting is not None and setting.is_stated else None
    return tuple(rank for rank in ranks if isinstance(rank, int)) if isinstance(ranks, tuple) else None


def count_steps(text: str) -> tuple[int, int]:
    """The profiled range for ``4`` clean steps: two steps longer. Raises UsageError for anything else than a number."""
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:6]) <= 1000 or len(text) > 4:
        raise UsageError(f"--steps: expected a number of clean steps like 4, or steps like 10-16, found {text}")
    first = capture_rules().first_step
    return first, first + int(text) + _SPOILT_STEPS


def check_command(command: Sequence[str]) -> None:
    """Raises UsageError where ``command`` is a launcher: the profiler has to run inside of it, once per rank."""
    if find_launcher(command) is None:
        return
    try:
        right = wrap(command, ["three-walls", "attach", "--"], ())
    except UsageError:
        right = f"{quote_word(command[0])} ... three-walls attach -- python train.py ..."
    raise UsageError(f"expected the program of one rank, found a launcher; put attach inside: {right}")


def add_settings(request: CaptureRequest, framework: str | None, config: Path) -> tuple[tuple[str, ...], str]:
    """The settings that the command of ``request`` lacks, spelled for ``framework`` (None: the command is neither's).

    Also a line for the user, which states what was added, or why nothing was. What the command states itself stays as
    it is. ``config``: where Megatron-Bridge is asked to save its configuration.
    """
    command = request.command
    if framework is None:
        return (), "the command is neither Megatron-Bridge's nor Megatron-LM's: nothing is added to it"
    if not ends_with_arguments(command):
        return (), "nothing is added to the command, which is a string for a shell: add the settings inside it"
    values = read_command_line(command).values
    explicit = {key for key, value in values.items() if value.is_stated}
    if "use_pytorch_profiler" in explicit and values["use_pytorch_profiler"].value:
        return (), "nothing is added to the command, which uses PyTorch's profiler: only one of the two can run"
    if explicit & set(_RANGE):
        explicit |= set(_RANGE)  # one end of a range does not fit another's other end
    settings = {key: value for key, value in capture_settings(request).items() if key not in explicit}
    words = setting_words(settings, framework)
    path = capture_rules().saved_config
    if framework == BRIDGE and not any(word.lstrip("+").startswith(f"{path}=") for word in command):
        words = (*words, f"{path}={write_value(str(config))}")
    note = f"added to the command: {' '.join(map(quote_word, words))}" if words else "nothing is added to the command"
    return words, note + _warn_of_few_steps(command, request)


def _warn_of_few_steps(command: Sequence[str], request: CaptureRequest) -> str:
    steps = read_command_line(command).values.get("train_iters")
    if steps is None or not isinstance(steps.value, int) or steps.value >= request.end_step:
        return ""
    return f"; it trains {steps.value} steps, and the capture ends at step {request.end_step}: give other --steps"


def ends_with_arguments(command: Sequence[str]) -> bool:
    """Whether words after ``command`` are arguments of its program; not so for ``bash -c STRING``."""
    program = find_program(command)
    if program.script is None:
        return True
    return list(command[-len(program.arguments) - 1 :]) == [program.script, *program.arguments]
