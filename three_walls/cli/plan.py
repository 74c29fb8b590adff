"""``three-walls plan``: what to try next, from the history of a tuning."""

from __future__ import annotations

from pathlib import Path

import click

from three_walls.cli.analyze import show_progress
from three_walls.cli.compare import show, write_files
from three_walls.lib.text import show_control_characters
from three_walls.report.comparison_report import render_all
from three_walls.report.render import FORMATS
from three_walls.runs import read_history


@click.group("plan")
def plan_command() -> None:
    """Propose the next edit from the runs made so far."""


@plan_command.command("next")
@click.argument("runs_dir", metavar="RUNS_DIR", type=click.Path(path_type=Path))
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="What stdout gets."
)
@click.option("--table", metavar="NAME", help="With --format csv: which table.  [default: history]")
@click.option(
    "-o",
    "--out",
    "out_dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Also write history.html, history.json and history.md into this directory.",
)
def next_command(runs_dir: Path, form: str, table: str | None, out_dir: Path | None) -> None:
    """Propose the next edit: the first of the best run's plan that was not tried.

    RUNS_DIR holds a subdirectory per run, in the order of their names (run-2 before run-10), the base first: with a
    report.json, or with traces, log and run_config.yaml, or with logs alone. Each run is compared with the
    earlier one that it differs least from. An edit is accepted where the step is faster beyond the spread, else
    reverted; a run with the settings of an earlier one repeats it. The settings that differ show what was tried. Where
    they are not known, a file tried.yaml in the subdirectory states it:

    \b
      label: grouped GEMM          # optional: a name for the run
      entries: [grouped-gemm]      # optional: ids of the entries that it applies

    \b
    Examples:
      three-walls plan next runs/
      three-walls plan next runs/ --format md

    \b
    Exit codes:
      0  done, also where nothing is left to try     2  usage     3  an input cannot be read
      4  no CUDA kernels in a trace                  5  a tried.yaml has errors
    """
    with show_progress() as progress:
        history = read_history(runs_dir, progress)
    written = write_files(render_all(history), out_dir) if out_dir else []
    show(history, form, table or "", is_full=True)
    for path in written:
        click.echo(f"Wrote {show_control_characters(str(path))}", err=form != "text")
