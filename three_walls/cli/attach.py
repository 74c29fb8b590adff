"""``three-walls attach``: runs the program of a rank and profiles it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from three_walls.capture.attach.attach_job import AttachRequest, attach, end_like, read_job
from three_walls.capture.attach.attach_settings import check_command, count_steps, find_framework, read_profile_ranks
from three_walls.capture.capture_commands import PROFILES, TORCHRUN, CaptureRequest, read_ranks, read_steps
from three_walls.capture.capture_guide import BRIDGE, MEGATRON_LM
from three_walls.cli.capture import first_ranks
from three_walls.cli.options import list_recorded, nsys_option, recording_options
from three_walls.lib.text import show_control_characters


@click.command("attach", context_settings={"allow_interspersed_args": False})
@click.option("--ranks", metavar="LIST", help="Ranks to profile, as 0,3-5.  [default: COMMAND's, else 0-7]")
@click.option(
    "--steps",
    metavar="N or A-B",
    default="4",
    show_default=True,
    help="Clean steps to record; or profile from step A on, up to but without step B.",
)
@click.option(
    "--out",
    "out",
    metavar="DIRECTORY",
    type=click.Path(path_type=Path),  # one that cannot be used must not keep the program from running
    default=Path(PROFILES),
    show_default=True,
    help="Directory that all hosts share. Each launch gets a directory of its own in it.",
)
@click.option("--bridge", "framework", flag_value=BRIDGE, help="COMMAND is Megatron-Bridge's, if it does not look so.")
@click.option("--megatron-lm", "framework", flag_value=MEGATRON_LM, help="COMMAND is Megatron-LM's.")
@click.option("--no-overrides", is_flag=True, help="Add no settings to COMMAND.")
@click.option("--analyze/--no-analyze", "analyzes", default=True, help="Analyze at the end, on rank 0.  [default: on]")
@click.option(
    "--when-done",
    metavar="COMMAND",
    help="Run this in a shell at the end, on rank 0; $THREE_WALLS_RUN is the directory of the launch.",
)
@click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=300,
    show_default=True,
    help="How long rank 0 waits for the exports of the others.",
)
@nsys_option
@recording_options
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def attach_command(
    ranks: str | None,
    steps: str,
    out: Path,
    framework: str | None,
    no_overrides: bool,
    analyzes: bool,
    when_done: str | None,
    wait_s: float,
    command: tuple[str, ...],
    **recorded: bool,
) -> None:
    """Run COMMAND, the program of one rank, and profile it on some ranks.

    The launcher starts attach once per rank. On the ranks to profile it runs COMMAND under nsys profile, on the others
    alone. It passes output and signals through, keeps a log per rank, and ends as COMMAND ends. When the profiler
    fails, COMMAND runs without it. At the end every profiled rank exports its report, and rank 0 analyzes them.

    COMMAND of Megatron-Bridge or Megatron-LM gets settings that start the capture, log every step and save the
    configuration; rank 0 prints them. The first captured step contains the start of the profiler and the last one its
    end, so two more steps are profiled than --steps names. Train at least to step 16, or state others: --steps 20-26.

    \b
    Examples:
      torchrun --nproc-per-node 8 --no-python three-walls attach -- python pretrain_gpt.py --num-layers 4 ...
      srun three-walls attach --ranks 0,8-15 --out /shared/profiles -- python run_recipe.py --recipe RECIPE
      three-walls attach --no-analyze --when-done 'three-walls doctor $THREE_WALLS_RUN' -- python train.py

    \b
    Exit codes:
      those of COMMAND; ended by a signal: 128 + its number, whatever becomes of profile, export and analysis
      2    usage (nothing was run)
      126  COMMAND cannot be executed          127  COMMAND does not exist
    """
    check_command(command)
    first, end = read_steps(steps) if "-" in steps else count_steps(steps)
    found = framework or find_framework(command)
    if ranks is not None:
        profiled = read_ranks(ranks)
    else:
        profiled = read_profile_ranks(command) or first_ranks(read_job(os.environ).world)
    request = AttachRequest(
        capture=CaptureRequest(
            launcher=TORCHRUN,
            framework=found or MEGATRON_LM,
            first_step=first,
            end_step=end,
            ranks=profiled,
            recorded=list_recorded(recorded),
            command=command,
        ),
        framework=found,
        adds_settings=not no_overrides,
        out=out,
        analyzes=analyzes,
        when_done=when_done,
        wait_s=wait_s,
    )
    end_like(attach(request, warn))


def warn(line: str) -> None:
    """Prints a line of attach itself, which must not be taken for the program's."""
    text = show_control_characters(line, kept="")
    try:
        click.echo(f"three-walls attach: {text}", err=True)
    except OSError:  # nobody reads it
        return
