"""``three-walls tune``: tries edits on the user's own job."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from three_walls.advice.finding import APPLICABILITIES
from three_walls.capture.attach.attach_job import read_job
from three_walls.capture.attach.attach_settings import find_framework
from three_walls.capture.capture_commands import count_ranks, read_ranks
from three_walls.capture.capture_guide import BRIDGE, MEGATRON_LM
from three_walls.cli.capture import first_ranks
from three_walls.cli.options import nsys_option
from three_walls.cli.signals import Terminated, loading
from three_walls.lib.errors import UsageError
from three_walls.lib.shell import is_variable, quote_word
from three_walls.lib.text import show_control_characters
from three_walls.trace.report_export import find_nsys, name_nsys

if TYPE_CHECKING:
    from three_walls.tuning.tune_job import TuneRequest

BASE_FAILS = 8
"""Exit code."""
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_ASKED = "asked.json"
"""What was asked for, from which --resume goes on."""
_MAY_CHANGE = ("most_runs", "budget", "worth", "patience_s", "nsys")
_OPTIONS = {"space_file": "--space", "with_plan": "--plan", "allowed": "--allow", "variables": "--env"}
"""Names of parameters to their options, where these are called otherwise."""
_LAUNCHERS = re.compile(r"(?<![\w.-])(?:srun|mpirun|mpiexec)(?![\w.-])")
"""Of all ranks on all hosts: with one in the command a rank starts the whole job."""


@click.command("tune", context_settings={"allow_interspersed_args": False})
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("tuned"),
    show_default=True,
    help="Directory for journal, logs, page and results.",
)
@click.option(
    "--budget",
    metavar="TIME",
    help="Start no run that would end later than so long after the first (40m, 2h), and end one that does.",
)
@click.option(
    "--runs",
    "most_runs",
    metavar="N",
    type=click.IntRange(min=1),
    help="The most runs.  [default: a third of a sweep of --space; a few per entry of the plan]",
)
@click.option(
    "--iterations",
    metavar="N",
    type=click.IntRange(min=8),
    default=25,
    show_default=True,
    help="Iterations of a run; those of its warm-up do not count.",
)
@click.option(
    "--worth",
    metavar="FRACTION",
    type=click.FloatRange(0.001, 0.5),
    default=0.01,
    show_default=True,
    help="The share of a step that matters.",
)
@click.option(
    "--space",
    "space_file",
    metavar="FILE",
    type=click.Path(path_type=Path, resolve_path=True),
    help="YAML of settings, each with the values to try instead of a plan; where nsys is at hand the profiled base "
    "predicts them.",
)
@click.option("--no-capture", is_flag=True, help="Tune by logs alone: profile nothing, so that nothing is predicted.")
@click.option("--plan", "with_plan", is_flag=True, help="With --space: try the plan of the profiled base, too.")
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    type=click.Choice(APPLICABILITIES[1:]),
    help="Try edits of this class too: they change what the model learns, or suit benchmarks only.",
)
@click.option(
    "--patience",
    "patience_s",
    metavar="SECONDS",
    type=click.FloatRange(min=1),
    default=900,
    show_default=True,
    help="How long the base may be silent; edits four times as long as it was.",
)
@click.option("--ranks", metavar="LIST", help="Ranks to profile, as 0,3-5.  [default: up to 8]")
@click.option("--env", "variables", metavar="NAME=VALUE", multiple=True, help="A variable of the job. Repeatable.")
@click.option("--bridge", "framework", flag_value=BRIDGE, help="COMMAND is Megatron-Bridge's, if it does not look so.")
@click.option("--megatron-lm", "framework", flag_value=MEGATRON_LM, help="COMMAND is Megatron-LM's.")
@click.option("--dry-run", is_flag=True, help="Print the commands and how many runs they take; run nothing.")
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with the tuning in --out, with the command and options of its start; --runs, --budget, --worth and "
    "--patience may be others.",
)
@nsys_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def tune_command(
    context: click.Context, /, out: Path, dry_run: bool, resume: bool, command: tuple[str, ...], **options: object
) -> None:
    """Try edits on a job, and keep those that are measured to be faster.

    COMMAND launches the whole job. It runs for a few iterations without saving: the base, then edits, with bases in
    between. Edits come from the plan that the profiled base gets, or from --space. Overrides are appended to COMMAND,
    or stand where it says {overrides}; $THREE_WALLS_OVERRIDES has them, too. A run that fails, hangs or is out of
    memory is ended with all its processes, and counted. Page, tune.json and overrides.txt in --out state what won.

    \b
    Examples:
      three-walls tune --dry-run -- torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 ...
      three-walls tune --budget 40m -- torchrun --nproc-per-node 8 train.py train.micro_batch_size=1
      three-walls tune --space space.yaml -- bash -c 'source env.sh; srun python train.py {overrides}'
      three-walls tune --resume

    \b
    Exit codes:
      0  tuned, also where nothing is better     2  usage     3  an input cannot be read
      8  the base fails: nothing could be tuned
    """
    job = read_job(os.environ)
    saved = out / (f"asked-{job.rank}.json" if job.rank else _ASKED)  # commands of ranks may name the rank
    asked: dict[str, Any] = {"command": list(command), **options}
    if resume:
        stated = [name for name in options if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
        if fixed := [name for name in stated if name not in _MAY_CHANGE]:
            raise UsageError(f"--resume: {_OPTIONS.get(fixed[0], f'--{fixed[0]}')} stays as it was; leave it out")
        asked = _read_asked(saved, asked.keys()) | {name: options[name] for name in stated}
    if nsys := find_nsys() or asked.get("nsys"):  # on --resume as at the start
        asked["nsys"] = os.path.abspath(nsys)  # noqa: PTH100 - a link stays one
        name_nsys(asked["nsys"])
    launches_all = _LAUNCHERS.search(" ".join(asked["command"])) is not None
    if job.rank and (launches_all or dry_run):
        say(f"rank {job.rank} has nothing to do; rank 0 tunes")
        return
    if resume and command and list(command) != asked["command"]:
        raise UsageError(f"--resume: the tuning in {out} has another command; leave the command out")
    if not (resume or dry_run or job.rank):
        _refuse_another(out)
    with loading():
        from three_walls.report.terminal_report import open_console, print_sections
        from three_walls.tuning import journal
        from three_walls.tuning.other_ranks import follow
        from three_walls.tuning.tune_job import Tuning
        from three_walls.tuning.tuned_page import make_tuned_sections
    request = _make_request(out, asked)
    if dry_run:
        for line in Tuning(request, say, -1).preview():
            click.echo(show_control_characters(line))
        return
    if job.rank:
        assert request.command
        out.mkdir(parents=True, exist_ok=True)
        _save(asked, saved)
        follow(out, request.command, job.rank)
        return
    with journal.locked(out, say) as lock:
        if not resume:  # one that began just before this
            _refuse_another(out)
        _save(asked, saved)
        tuning = Tuning(request, say, lock, others=0 if launches_all else (job.world or 1) - 1)
        go_on = f"go on with: three-walls tune --resume --out {quote_word(str(out))}"
        try:
            tuned = tuning.run()
        except Terminated:
            say(go_on)
            raise
    print_sections(make_tuned_sections(tuned), open_console(), is_full=False)
    click.echo(f"Wrote {show_control_characters(str(out / 'tune.html'))} (next to it: tune.json, overrides.txt, runs/)")
    if tuned.base_ms is None:
        say(f"once the base runs, {go_on}")
        sys.exit(BASE_FAILS)


def _refuse_another(out: Path) -> None:
    if (out / "journal.jsonl").exists():
        raise UsageError(f"{out}: holds a tuning; go on with it by --resume, or give another --out")


def _save(asked: dict[str, Any], file: Path) -> None:
    """For the user alone: a command or ``--env`` may hold a token."""
    file.touch(mode=0o600)
    file.write_text(json.dumps(asked, default=str), encoding="utf-8")


def _read_asked(saved: Path, names: Collection[str]) -> dict[str, Any]:
    try:
        asked = json.loads(saved.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--resume: {saved.parent} holds no tuning") from error
    if not isinstance(asked, dict) or not asked.keys() >= set(names):
        raise UsageError(f"--resume: {saved.parent} holds a tuning of another version")
    return asked


def _make_request(out: Path, asked: dict[str, Any]) -> TuneRequest:
    from three_walls.tuning.make_space import freeze_space, read_space
    from three_walls.tuning.tune_job import TuneRequest
    from three_walls.tuning.tuned_command import TunedCommand

    words = tuple(asked["command"])
    if not words:
        raise UsageError("tune: expected the command that launches the job behind --, found none")
    variables = dict(text.partition("=")[::2] for text in asked["variables"])
    if bad := [text for text in asked["variables"] if "=" not in text or not is_variable(text.partition("=")[0])]:
        raise UsageError(f"--env: expected NAME=VALUE, found {bad[0]}")
    if "given" not in asked:  # the file may be another one on --resume
        asked["given"] = read_space(Path(asked["space_file"])) if asked["space_file"] else {}
    framework = asked["framework"] or find_framework(words)
    return TuneRequest(
        out,
        TunedCommand(words, framework, asked["iterations"], variables),
        given=freeze_space(asked["given"]),
        only_given=bool(asked["given"]) and not asked["with_plan"],
        may_capture=not asked["no_capture"],
        allowed=tuple(asked["allowed"]),
        budget_s=_read_budget(asked["budget"]),
        most_runs=asked["most_runs"],
        worth=asked["worth"],
        patience_s=asked["patience_s"],
        ranks=read_ranks(asked["ranks"]) if asked["ranks"] else first_ranks(count_ranks(words)),
    )


def _read_budget(text: str | None) -> float:
    if text is None:
        return float("inf")
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None:
        raise UsageError(f"--budget: expected a time like 40m, 2h or 90s, found {text}")
    return float(match[1]) * _SECONDS[match[2]]


def say(line: str) -> None:
    """Prints a line about the tuning, which must not be taken for the job's."""
    click.echo(f"three-walls tune: {show_control_characters(line, kept='')}", err=True)
