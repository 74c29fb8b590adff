"""``three-walls capture``: prints the commands that capture a run well."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

import click

from three_walls.capture.attach.attach_settings import find_framework
from three_walls.capture.capture_commands import (
    LAUNCHERS,
    TORCHRUN,
    CaptureRequest,
    CaptureStep,
    count_ranks,
    find_launcher,
    make_recipe,
    read_ranks,
    read_steps,
)
from three_walls.capture.capture_guide import BRIDGE, FRAMEWORKS, MEGATRON_LM, capture_rules
from three_walls.cli.options import list_recorded, recording_options
from three_walls.lib.errors import UsageError

_DEFAULT_RANKS = 8
"""So many ranks are profiled where --ranks is not given: an expert-parallel group within a host."""
_COLUMNS = 110
"""Width of the comments; commands stay on one line."""


@click.command("capture")
@click.option("--launcher", type=click.Choice(LAUNCHERS), help="[default: COMMAND's, else torchrun]")
@click.option("--framework", type=click.Choice(FRAMEWORKS), help="[default: COMMAND's, else bridge]")
@click.option("--steps", metavar="A-B", help="Profile from step A on, up to but without step B.  [default: 10-16]")
@click.option("--ranks", metavar="LIST", help="Ranks to profile, as 0-7,16.  [default: COMMAND's first 8, else 0-7]")
@click.option("--graphs", is_flag=True, help="The run uses CUDA graphs.")
@recording_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def capture_command(
    launcher: str | None,
    framework: str | None,
    steps: str | None,
    ranks: str | None,
    command: tuple[str, ...],
    **recorded: bool,
) -> None:
    """Print the commands that capture a run well, with reasons; nothing is run.

    COMMAND, given behind --, is the launch as you have it: the profiler is put into it.

    \b
    Examples:
      three-walls capture --framework megatron-lm --steps 20-24 --ranks 0-3
      three-walls capture -- torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 ...
    """
    rules = capture_rules()
    first, end = read_steps(steps or f"{rules.first_step}-{rules.last_step}")
    request = CaptureRequest(
        launcher=launcher or find_launcher(command) or TORCHRUN,
        framework=framework or _find_framework(command),
        first_step=first,
        end_step=end,
        ranks=first_ranks(count_ranks(command)) if ranks is None else read_ranks(ranks),
        command=command,
        recorded=list_recorded(recorded),
    )
    click.echo(format_recipe(make_recipe(request)), nl=False)


def first_ranks(world: int | None) -> tuple[int, ...]:
    """The first ranks of a run of ``world`` ranks, as many as a host usually has."""
    return tuple(range(min(world or _DEFAULT_RANKS, _DEFAULT_RANKS)))


def _find_framework(command: tuple[str, ...]) -> str:
    if not command:
        return BRIDGE
    framework = find_framework(command)
    if framework is None:
        raise UsageError(
            "expected a command of Megatron-Bridge or Megatron-LM, found neither's settings in it; "
            f"state which: --framework {BRIDGE} or --framework {MEGATRON_LM}"
        )
    return framework


def format_recipe(steps: Iterable[CaptureStep]) -> str:
    """The commands as a shell script: reasons are comments, and every command is one line, so that it can be copied."""
    blocks = []
    for step in steps:
        lines = [
            line
            for reason in step.reasons
            for line in textwrap.wrap(
                reason,
                _COLUMNS,
                initial_indent="# ",
                subsequent_indent="#   ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        ]
        blocks.append("\n".join([*lines, step.command]))
    return "\n\n".join(blocks) + "\n"
