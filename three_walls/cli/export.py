"""``three-walls export``: a step of the run for a trace viewer."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

import click

from three_walls.cli.analyze import show_progress
from three_walls.cli.options import run_options
from three_walls.cli.render import check_can_be_written
from three_walls.cli.signals import loading
from three_walls.lib.errors import UsageError
from three_walls.lib.files import whole_file, write_errors
from three_walls.lib.text import format_count, show_control_characters
from three_walls.trace.run_request import RunRequest

SUFFIXES = (".json", ".json.gz")
_GZIP_LEVEL = 6


@click.command("export")
@click.option(
    "-o",
    "--out",
    "target",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path),
    help="The file to write, .json or .json.gz (compressed).",
)
@click.option(
    "--format",
    "_format",
    type=click.Choice(["perfetto", "chrome"]),
    default="perfetto",
    show_default=True,
    help="Where it will be opened. Both read the same file, Chrome's trace event format in JSON.",
)
@click.option(
    "--rank",
    "ranks",
    metavar="N",
    multiple=True,
    type=click.IntRange(min=0),
    help="Write this rank only. Repeatable.  [default: all ranks that captured the step]",
)
@click.option("-f", "--force", is_flag=True, help="Replace FILE if it exists.")
@run_options()
def export_command(
    request: RunRequest,
    target: Path,
    _format: str,
    ranks: tuple[int, ...],
    force: bool,
) -> None:
    """Write a step of TRACES for Perfetto or chrome://tracing.

    FILE holds the step that the report is about, with what analyze found out about it: what owns each nanosecond, why
    no compute ran, the critical path, and per operation its category, module, layer, micro-batch and launch. Streams,
    host threads and NVTX ranges lie below. Open it at https://ui.perfetto.dev; nothing is uploaded.

    \b
    Examples:
      three-walls export rank0.sqlite --out step.json.gz
      three-walls export profiles/ --rank 0 --rank 3 --log train.log --out step.json.gz
      three-walls export rank0.sqlite --format chrome --out step.json

    \b
    Exit codes:
      0  written                      3  an input cannot be read, is no Nsight export or holds no whole step
      2  usage                        4  no CUDA kernels in the traces
    """
    _check_out(target, (*request.traces, *request.logs, *([request.config] if request.config else [])), force)
    with loading():
        from three_walls import pipeline
        from three_walls.export.chrome_trace import render_chrome_trace
    with show_progress() as progress:
        step = pipeline.export_step(request, ranks, progress)
        progress("writing the step")
        size = write_whole(target, render_chrome_trace(step), force)
    click.echo(
        f"Wrote {show_control_characters(str(target))} ({format_count(size)} bytes): step {step.step}, {step.why}"
    )
    click.echo(step.notes[0])


def _check_out(target: Path, inputs: Iterable[Path], force: bool) -> None:
    """Raises UsageError unless ``target`` may be written. A long analysis must not end with that."""
    if not target.name.endswith(SUFFIXES):
        raise UsageError(f"{target}: expected a name that ends in {' or '.join(SUFFIXES)}")
    if target.exists() and any(path.exists() and path.samefile(target) for path in inputs):
        raise UsageError(f"{target}: expected another file to write to, found an input, which is never changed")
    check_can_be_written(target, force)


def write_whole(target: Path, pieces: Iterable[str], replace: bool) -> int:
    """Writes ``pieces`` to ``target``, whole or not at all; returns the size.

    The pieces are compressed where the name ends in .gz, without name and time, so the same pieces give the same
    bytes. Raises UsageError where the file exists, unless ``replace``, or cannot be written.
    """
    is_compressed = target.name.endswith(".gz")
    with (
        write_errors(target),
        whole_file(target, may_replace=replace) as unfinished,
        unfinished.open("wb") as file,
        gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) if is_compressed else nullcontext(file) as stream,
    ):
        stream.writelines(piece.encode("ascii") for piece in pieces)
    return target.stat().st_size
