"""``three-walls analyze``: names the wall, plans the edits, writes the report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from three_walls.advice.finding import APPLICABILITIES
from three_walls.cli.options import run_options
from three_walls.cli.render import check_table, show
from three_walls.cli.signals import loading
from three_walls.lib.errors import UsageError
from three_walls.lib.report_warning import UNREADABLE
from three_walls.lib.text import show_control_characters
from three_walls.report.render_report import FORMATS
from three_walls.trace.report_export import REPORT_SUFFIX
from three_walls.trace.run_request import EXPORTS, RunRequest

if TYPE_CHECKING:
    from three_walls.report.report import Report
    from three_walls.trace.read_inputs import Progress


_LONGEST_STEM = 60
"""Characters of a trace's name in that of its directory: a name has at most 255 bytes, four for a character."""


@click.command("analyze")
@click.option(
    "-o",
    "--out",
    "out_dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for report.html, report.json, overrides.txt and overrides/.  [default: <trace stem>.three-walls, "
    "with --format none]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Print the report in this format and nothing else; no file is written without --out.",
)
@click.option("--table", metavar="NAME", help="The table that --format csv prints.")
@run_options("settings", "bridge_version", "rules", "memory_snapshot", "jobs", "scheduler")
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    type=click.Choice(APPLICABILITIES[1:]),
    help="Plan edits of this class too: they change what the model learns, or suit benchmarks only.",
)
@click.option(
    "--history",
    "history_dir",
    metavar="RUNS_DIR",
    type=click.Path(path_type=Path),
    help="Earlier runs, as for `plan next`: what was tried, with predicted and measured gains, goes into the report.",
)
@click.option("--full", "is_full", is_flag=True, help="Print every section, not one screen; also with --format md.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the verdict and where the report was written.")
def analyze_command(
    request: RunRequest,
    out_dir: Path | None,
    form: str | None,
    table: str | None,
    allowed: tuple[str, ...],
    history_dir: Path | None,
    is_full: bool,
    quiet: bool,
) -> None:
    """Find the wall in TRACES and plan the edits.

    TRACES are exports of one run (nsys export --type sqlite or parquetdir), one per rank or several ranks in one, also
    compressed (.sqlite.xz, .sqlite.zst), or a directory that holds them. Reports (.nsys-rep) are exported first, into
    three-walls-exports/ next to the output directory, by nsys on PATH or $NSYS.

    \b
    Examples:
      three-walls analyze rank0.sqlite
      three-walls analyze profiles/ --out report
      three-walls analyze rank*.sqlite --step-range 'train_step'
      three-walls analyze profiles/ --log train.log
      three-walls analyze profiles/ --config run_config.yaml --set env_vars.WORLD_SIZE=64
      three-walls analyze profiles/ --format md >> "$GITHUB_STEP_SUMMARY"

    \b
    Exit codes:
      0  analyzed                     3  an input cannot be read or is no Nsight export
      2  usage                        4  no CUDA kernels in the traces
      5  the rule base has errors
    """
    check_table(table, form)
    if form == "csv" and table is None:
        raise UsageError("--format csv: expected --table with the name of a table; render without one lists them")
    out = out_dir or default_out_dir(request.traces)
    request = replace(request, exports=out.parent / EXPORTS)
    written: list[Path] = []
    with show_progress() as progress:
        progress("starting the analysis")
        with loading():
            from three_walls.pipeline import analyze_run
        report: Report = analyze_run(request, allowed, progress)
        if history_dir is not None:
            with loading():
                from three_walls.runs.read_runs import read_history
            report = replace(report, history=read_history(history_dir, progress))
        if form is None or out_dir is not None:
            progress("writing the report")
            with loading():
                from three_walls.report.write_report import write_report
            written = write_report(report, out)
    for warning in report.warnings:
        if warning.code == UNREADABLE:
            click.echo(show_control_characters(f"three-walls: warning: {warning.message}"), err=True)
    if form is not None:
        show(report, form, table=table, is_full=is_full)
    elif quiet:
        with loading():
            from three_walls.report.sections.brief import name_verdict
        click.echo(show_control_characters(name_verdict(report)))
    else:
        with loading():
            from three_walls.report.terminal_report import open_console, print_report
        print_report(report, open_console(), is_full=is_full)
        page, *others = written
        names = ", ".join(f"{path.name}/" if path.is_dir() else path.name for path in others)
        click.echo(f"Wrote {show_control_characters(str(page))} (next to it: {names})")
        return
    for path in written:
        click.echo(f"Wrote {show_control_characters(str(path))}", err=form is not None)


def default_out_dir(traces: tuple[Path, ...]) -> Path:
    """``<trace stem>.three-walls`` in the current directory; of a directory or several traces, the first one's."""
    from three_walls.trace.table_directory import SUFFIXES as TABLE_SUFFIXES
    from three_walls.trace.unpack import COMPRESSED_SUFFIXES

    first = traces[0]
    if not first.name and first.resolve().name:  # `.` and `..`
        first = first.resolve()
    name = first.name
    for suffix in (*COMPRESSED_SUFFIXES, ".sqlite", REPORT_SUFFIX, *TABLE_SUFFIXES):
        name = name.removesuffix(suffix)
    return Path(f"{name[:_LONGEST_STEM] or 'trace'}.three-walls")


@contextmanager
def show_progress() -> Iterator[Progress]:
    """A spinner on a terminal's stderr; silence anywhere else."""
    with loading():
        from rich.console import Console
        from rich.text import Text
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("starting") as status:
        yield lambda stage: status.update(Text(show_control_characters(stage)))
