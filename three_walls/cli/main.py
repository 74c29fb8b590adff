"""The command line: reads arguments, calls the pipeline, shows and writes the result."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from three_walls.cli.capture import capture_command
from three_walls.cli.doctor import doctor_command
from three_walls.cli.rules import rules_command
from three_walls.cli.scrub import scrub_command
from three_walls.cli.verify import verify_command
from three_walls.facts.registry import DEFINITIONS
from three_walls.inputs.nsys.source import COMPRESSED_SUFFIXES
from three_walls.inputs.read_inputs import Progress
from three_walls.model.errors import InputError, RuleBaseError, ThreeWallsError, UsageError
from three_walls.model.rule import APPLICABILITIES
from three_walls.pipeline import analyze
from three_walls.report.text_report import print_report
from three_walls.report.write import write_report
from three_walls.version import VERSION

PLAIN_WIDTH = 100
"""Columns of the report where the output is not a terminal."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="three-walls")
def cli() -> None:
    """Names the wall that holds a Megatron MoE training run back, and the config edits to try.

    Reads SQLite exports of Nsight Systems. Works offline; never changes a trace.
    """


@cli.command("analyze")
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    "out_dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for report.html, report.json and overrides.txt.  [default: <trace stem>.three-walls]",
)
@click.option(
    "--step-range",
    metavar="REGEX",
    help="NVTX ranges that are training steps, where the trace has no training_step_N ranges.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="The run's saved configuration: run_config.yaml of a checkpoint or of logger.save_config_filepath.",
)
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="A setting of the run, by Megatron Core name or Megatron-Bridge path; counts before every source. Repeatable.",
)
@click.option("--bridge-version", metavar="X.Y.Z", help="Megatron-Bridge release to spell the overrides for.")
@click.option(
    "--rules",
    "rules_dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A directory of rules of your own, judged besides the built-in ones.",
)
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    type=click.Choice(APPLICABILITIES[1:]),
    help="Plan edits of this class too: they change what is learnt, or suit benchmarks only.",
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Training log of the same run, its progress.txt, or a directory (.xz, .zst, .gz too); may be repeated.",
)
@click.option(
    "--memory-snapshot",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Snapshot of PyTorch's CUDA allocator (.pickle, .json) of one rank; nothing in it is run.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print only where the report was written.")
def analyze_command(
    traces: tuple[Path, ...],
    out_dir: Path | None,
    step_range: str | None,
    config_file: Path | None,
    settings: tuple[str, ...],
    bridge_version: str | None,
    rules_dir: Path | None,
    allowed: tuple[str, ...],
    logs: tuple[Path, ...],
    memory_snapshot: Path | None,
    quiet: bool,
) -> None:
    """Find the wall in TRACES and plan the edits.

    TRACES are exports of one run (nsys export --type sqlite), one per rank or several ranks in one, also
    compressed (.sqlite.xz, .sqlite.zst), or a directory that holds them.

    \b
    Examples:
      three-walls analyze rank0.sqlite
      three-walls analyze profiles/ --out report
      three-walls analyze rank*.sqlite --step-range 'train_step'
      three-walls analyze profiles/ --log train.log
      three-walls analyze profiles/ --config run_config.yaml --set env_vars.WORLD_SIZE=64

    \b
    Exit codes:
      0  analyzed                     3  an input cannot be read or is no Nsight export
      2  usage                        4  no CUDA kernels in the traces
      5  the rule base has errors
    """
    screen = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH, highlight=False)
    with _progress() as progress:
        report = analyze(
            traces,
            step_range=step_range,
            bridge_version=bridge_version,
            rules=rules_dir,
            allowed=allowed,
            logs=logs,
            memory_snapshot=memory_snapshot,
            config=config_file,
            settings=settings,
            progress=progress,
        )
        progress("writing the report")
        written = write_report(report, out_dir or default_out_dir(traces))
    if not quiet:
        print_report(report, screen)
    for path in written:
        click.echo(f"Wrote {path}")


@cli.command("facts")
def facts_command() -> None:
    """List every fact that a report may hold and a rule may compare, with its unit and definition.

    Settings are facts too: config.<key> (keys of tables/config-keys.yaml) and env.<VARIABLE>.
    """
    for entry in DEFINITIONS:
        click.echo(f"{entry.name} [{entry.unit}]")
        click.echo(f"    {entry.meaning}")
        if entry.not_the_same_as:
            click.echo(f"    Not the same as: {entry.not_the_same_as}")
        if entry.needs:
            click.echo(f"    Needs of the trace: {', '.join(entry.needs)}")


cli.add_command(capture_command)
cli.add_command(doctor_command)
cli.add_command(rules_command)
cli.add_command(scrub_command)
cli.add_command(verify_command)


def default_out_dir(traces: tuple[Path, ...]) -> Path:
    """``<trace stem>.three-walls`` in the current directory; of a directory or several traces, the first one's."""
    first = traces[0]
    if not first.name and first.resolve().name:  # `.` and `..`
        first = first.resolve()
    name = first.name
    for suffix in (*COMPRESSED_SUFFIXES, ".sqlite"):
        name = name.removesuffix(suffix)
    return Path(f"{name or 'trace'}.three-walls")


@contextmanager
def _progress() -> Iterator[Progress]:
    """A spinner on a terminal's stderr; silence anywhere else."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("starting") as status:
        yield lambda said: status.update(said)


def main() -> None:
    """Runs the command line; every error is one line on stderr and its own exit code."""
    try:
        cli(standalone_mode=False)
        if sys.stdout is not None:  # it is where the shell closed it
            sys.stdout.flush()  # a full disk is told here, not by a traceback at exit
    except click.exceptions.Abort:
        _fail("interrupted", 130)
    except click.ClickException as error:
        if error.format_message().startswith("Usage:"):
            error.show()  # no command given: click's message is the help text
            sys.exit(error.exit_code)
        context = getattr(error, "ctx", None)
        hint = f" (see: {context.command_path} --help)" if context else ""
        _fail(error.format_message() + hint, UsageError.exit_code)
    except ThreeWallsError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of our output has read enough, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor does flushing at exit fail
        sys.exit(1)  # as click itself does
    except OSError as error:
        where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "output"
        _fail(f"{where}: cannot be read or written ({error.strerror or error})", InputError.exit_code)
    except Exception as error:
        if os.environ.get("THREE_WALLS_DEBUG"):
            raise
        said = str(error).splitlines()[0] if str(error) else "no message"
        _fail(f"internal error, please report it ({type(error).__name__}: {said}); THREE_WALLS_DEBUG=1 shows more", 70)


def _fail(message: str, exit_code: int) -> None:
    """A rule base lists all its errors, a line each; any other message is one line, whatever names a user gave."""
    if exit_code != RuleBaseError.exit_code:
        message = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in message)
    click.echo(f"three-walls: error: {message}", err=True)
    sys.exit(exit_code)
