"""``three-walls scrub``: an export that can be shared."""

from __future__ import annotations

from pathlib import Path

import click

from three_walls.captures.scrub.scrub import scrub
from three_walls.report.scrub_text import describe_scrubbed


@click.command("scrub")
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option("-f", "--force", is_flag=True, help="Replace OUT if it exists.")
def scrub_command(source: Path, target: Path, force: bool) -> None:
    """Write a copy of the export IN that can be shared, to OUT. IN is never changed.

    Exports hold environments of all processes, the program's output, paths and names. OUT keeps what analysis needs:
    times, sizes, names of kernels and calls, settings of the run. Then its bytes are searched for what was removed.

    IN may be a directory of exports; then OUT is one too, and hosts keep their identity as host-1, host-2, ... OUT is
    compressed if its name ends in .xz or .zst.

    \b
    Examples:
      three-walls scrub rank0.sqlite scrubbed.sqlite.xz
      three-walls scrub profiles/ scrubbed/
    """
    for scrubbed in scrub(source, target, force):
        for line in describe_scrubbed(scrubbed):
            click.echo(line)
