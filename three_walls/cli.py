"""The command line: reads arguments, calls the pipeline, shows and writes the result."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from three_walls.pipeline import Progress, analyze, check_release
from three_walls.render.text_report import print_report
from three_walls.render.write import write_report
from three_walls.trace.source import COMPRESSED_SUFFIXES
from three_walls.verification.verify import Target, verify
from three_walls.version import VERSION
from three_walls.vocabulary.errors import ThreeWallsError, UsageError
from three_walls.vocabulary.glossary import GLOSSARY

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
@click.option("--bridge-version", metavar="X.Y.Z", help="Megatron-Bridge release to spell the overrides for.")
@click.option(
    "--rules", "rules_dir", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Another rule base."
)
@click.option("-q", "--quiet", is_flag=True, help="Print only where the report was written.")
def analyze_command(
    traces: tuple[Path, ...],
    out_dir: Path | None,
    step_range: str | None,
    bridge_version: str | None,
    rules_dir: Path | None,
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

    \b
    Exit codes:
      0  analyzed                     3  an input cannot be read or is no Nsight export
      2  usage                        4  no CUDA kernels in the traces
      5  the rule base has errors
    """
    screen = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH, highlight=False)
    with _progress() as progress:
        report = analyze(
            traces, step_range=step_range, bridge_version=bridge_version, rules=rules_dir, progress=progress
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

    Settings are facts too: config.<key> (keys of rules/config-keys.yaml) and env.<VARIABLE>.
    """
    for entry in GLOSSARY:
        click.echo(f"{entry.name} [{entry.unit}]")
        click.echo(f"    {entry.meaning}")
        if entry.not_the_same_as:
            click.echo(f"    Not the same as: {entry.not_the_same_as}")
        if entry.needs:
            click.echo(f"    Needs of the trace: {', '.join(entry.needs)}")


@cli.command("verify")
@click.argument("overrides", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--recipe", metavar="NAME", help="Recipe function that the overrides are for.")
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="run_config.yaml of the run.")
@click.option("--bridge-version", metavar="X.Y.Z", help="Megatron-Bridge release to check against.")
@click.option("--python", default=sys.executable, help="Interpreter that has Megatron-Bridge.  [default: this one]")
@click.option("--gpu", "gpu_name", metavar="NAME", help="GPU of the run, as in 'NVIDIA B200'.  [default: an H100]")
@click.option("--world-size", type=int, help="Number of GPUs of the run.")
@click.option(
    "--models",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of <owner>/<model>/config.json to read model shapes from, instead of the model hub.",
)
def verify_command(
    overrides: Path,
    recipe: str | None,
    config: Path | None,
    bridge_version: str | None,
    python: str,
    gpu_name: str | None,
    world_size: int | None,
    models: Path | None,
) -> None:
    """Check that OVERRIDES apply and that the run they make is valid.

    OVERRIDES is an overrides.txt, or any file with one Hydra override per line. The check of names, types, words and
    constraints needs nothing; where Megatron-Bridge can be imported, its own code applies and validates them too.

    \b
    Exit codes: 0 nothing fails, 1 something does, 2 usage, 3 an input cannot be read
    """
    check_release(bridge_version)
    target = Target(recipe, config, bridge_version, python, gpu_name, world_size, models)
    found = verify(overrides, target)
    for line in found.lines:
        click.echo(line)
    sys.exit(0 if found.is_fine else 1)


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
    except click.exceptions.Abort:
        _fail("interrupted", 130)
    except click.ClickException as error:
        if error.exit_code == UsageError.exit_code and len(sys.argv) == 1:
            error.show()  # no command given: click's message is the help text
            sys.exit(error.exit_code)
        context = getattr(error, "ctx", None)
        hint = f" (see: {context.command_path} --help)" if context else ""
        _fail(error.format_message() + hint, UsageError.exit_code)
    except ThreeWallsError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except Exception as error:
        if os.environ.get("THREE_WALLS_DEBUG"):
            raise
        said = str(error).splitlines()[0] if str(error) else "no message"
        _fail(f"internal error, please report it ({type(error).__name__}: {said}); THREE_WALLS_DEBUG=1 shows more", 70)


def _fail(message: str, exit_code: int) -> None:
    click.echo(f"three-walls: error: {message}", err=True)
    sys.exit(exit_code)
