"""``three-walls scrub``: writes a copy of an export that can be shared."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from three_walls.capture.scrub.scrub_export import ScrubSummary, scrub
from three_walls.cli.options import nsys_option
from three_walls.lib.shell import is_variable
from three_walls.lib.text import format_count, show_control_characters
from three_walls.trace.spans import Span

_MOST_NAMES = 12


def _read_steps(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Span | None:
    """``2-3`` as the numbers from 2 to before 4."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text, re.ASCII)
    if found is None:
        raise click.BadParameter(f"expected numbers as in 2-3, found {text!r}")
    return int(found[1]), int(found[2] or found[1]) + 1


@click.command("scrub")
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option("-f", "--force", is_flag=True, help="Replace OUT if it exists.")
@click.option(
    "--steps", metavar="FIRST-LAST", callback=_read_steps, help="Keep these steps alone, by their numbers in a report."
)
@nsys_option
def scrub_command(source: Path, target: Path, force: bool, steps: Span | None) -> None:
    """Write a copy of the export IN that can be shared, to OUT. IN is never changed.

    Exports hold the environments of all processes, the program's output, paths and names. OUT keeps what analysis
    needs: times, sizes, names of kernels and calls, settings of the run. Its bytes are searched for what was removed.

    IN may be a directory of exports; then OUT is one too, and hosts are called host-1, host-2, ... in all of them. OUT
    is compressed if its name ends in .xz or .zst.

    \b
    Examples:
      three-walls scrub rank0.sqlite scrubbed.sqlite.xz
      three-walls scrub --steps 2-3 rank0.sqlite short.sqlite.xz
      three-walls scrub profiles/ scrubbed/
    """
    for summary in scrub(source, target, force, steps):
        for line in describe_scrubbed(summary):
            click.echo(line)


def describe_scrubbed(summary: ScrubSummary) -> Iterator[str]:
    """Lines on what was left out (names and counts), how sizes changed, and what was searched for."""
    sizes = f"{format_count(summary.target_bytes)} bytes, from {format_count(summary.source_bytes)}"
    yield f"Wrote {show_control_characters(str(summary.target))} ({sizes})"
    yield f"  tables left out: {_counts(summary.left_out.tables)}"
    yield f"  columns left out: {len(summary.left_out.columns)} ({_names(summary.left_out.columns)})"
    yield f"  rows left out of {_counts(summary.left_out.pairs)}"
    strings = format_count(summary.left_out.strings)
    yield f"  strings left out: {strings}, {summary.blocks} of them the environment of a process"
    # What stands before = in a damaged environment may be anything, also what was to be removed.
    named = tuple(name for name in summary.variables if is_variable(name))
    yield f"  environment variables left out: {len(summary.variables)} ({_names(named)})"
    yield f"  command-line arguments left out: {summary.arguments}"
    yield f"  texts replaced: {_counts(summary.texts)}"
    if summary.host is not None:
        yield f"  the host is now called {summary.host}"
    yield f"  the file was searched for {summary.searched} removed values: none is left"
    yield from STAYS


STAYS = (
    "  still in the file, because the analysis reads it:",
    "    times (also the date), sizes, ids of processes, devices and streams; NCCL's communicators and message sizes",
    "    of names of kernels, calls and ranges: words of the libraries and numbers of up to six digits; any other word",
    "      is now word1, word2, ..., any other range range-1, range-2, ...",
    "    of the profiler's messages: words of the profiler and numbers of up to nine digits",
    "    GPU models, the profiler's version, settings and variables of the reviewed lists with values of their form",
)
"""What a scrubbed export still holds, as docs/decisions/0010 lists it in full."""


def _counts(counted: Mapping[str, int]) -> str:
    return (
        ", ".join(f"{show_control_characters(name)} ({format_count(count)})" for name, count in counted.items())
        or "none"
    )


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(show_control_characters(name) for name in names[:_MOST_NAMES])
    return f"{shown}, ..." if len(names) > _MOST_NAMES else shown or "none"
