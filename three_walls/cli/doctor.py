"""``three-walls doctor``: what a capture can and cannot support."""

from __future__ import annotations

from pathlib import Path

import click

from three_walls.captures.doctor import examine
from three_walls.model.errors import NothingToAnalyzeError
from three_walls.report.examination import format_examination, render_examination


@click.command("doctor")
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor_command(traces: tuple[Path, ...], as_json: bool) -> None:
    """Check what the capture TRACES supports, and how to record what is missing.

    TRACES are exports of one run, or a directory of them, as for analyze. Exit code 4: no CUDA kernels in any of them.

    \b
    Examples:
      three-walls doctor rank0.sqlite
      three-walls doctor profiles/ --json
    """
    examination = examine(traces)
    click.echo(render_examination(examination) if as_json else format_examination(examination), nl=as_json)
    if not examination.ranks:
        raise NothingToAnalyzeError("expected CUDA kernels in the traces, found none")
