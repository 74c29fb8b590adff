"""``three-walls render``: any format again from a report.json."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from three_walls.cli.signals import loading
from three_walls.lib.errors import UsageError
from three_walls.lib.files import check_target, encode, write_errors, write_texts
from three_walls.lib.text import show_control_characters
from three_walls.report.render_report import FORMATS, REPORT_NAME, render

if TYPE_CHECKING:
    from three_walls.report.report import Report

_FORMAT_OF = {".html": "html", ".json": "json", ".md": "md", ".csv": "csv", ".txt": "text"}


@click.command("render")
@click.argument("source", metavar="REPORT", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="What to make.  [default: by the ending of FILE; all files that analyze writes with DIR; else text]",
)
@click.option(
    "-o",
    "--out",
    "target",
    metavar="FILE|DIR",
    type=click.Path(path_type=Path),
    help="Where to write it.  [default: standard output]",
)
@click.option("--table", metavar="NAME", help="The table that --format csv writes; without a name the error lists all.")
@click.option("--full", "is_full", is_flag=True, help="Text and Markdown with every section.")
def render_command(source: Path, form: str | None, target: Path | None, table: str | None, is_full: bool) -> None:
    """Make any format again from REPORT, a report.json or its directory.

    The files are byte for byte those that analyze wrote, if the same release wrote them. A report.json of an earlier
    release of schema 3 works too. No trace is read.

    \b
    Examples:
      three-walls render rank0.three-walls
      three-walls render report.json --format md >> "$GITHUB_STEP_SUMMARY"
      three-walls render report.json --format csv --table budget
      three-walls render report.json --out report/

    \b
    Exit codes: 0 rendered, 2 usage, or REPORT is no report.json
    """
    if form is None and target is not None and not target.is_dir():
        form = _FORMAT_OF.get(target.suffix)
    check_table(table, form)
    with loading():
        from three_walls.report.json_report import load_report
    source = source / REPORT_NAME if source.is_dir() else source
    report = load_report(source)
    if target is None:
        show(report, form or "text", table=table, is_full=is_full)
        return
    if form is None:
        with loading():
            from three_walls.report.write_report import write_report
        written = write_report(report, target)
    elif form == "csv" and table is None and target.is_dir():
        with loading():
            from three_walls.report.csv_report import render_csv
        written = [_write(target / f"{name}.csv", text) for name, text in render_csv(report).items()]
    else:
        suffix = "txt" if form == "text" else form
        path = target / f"{table or 'report'}.{suffix}" if target.is_dir() else target
        if path.exists() and path.samefile(source):
            raise UsageError(f"{path}: expected another file to write to, found REPORT itself")
        written = [_write(path, render(report, form, table=table, is_full=is_full))]
    for path in written:
        click.echo(f"Wrote {show_control_characters(str(path))}")


def check_table(table: str | None, form: str | None) -> None:
    """Raises UsageError for ``--table`` with another format than CSV."""
    if table is not None and form != "csv":
        raise UsageError("--table: it chooses the table of --format csv, and other formats have all of them")


def show(report: Report, form: str, *, table: str | None, is_full: bool) -> None:
    """Print ``report`` and nothing else on standard output: text with colours on a terminal, all else as in a file."""
    if form == "text":
        with loading():
            from three_walls.report.terminal_report import open_console, print_report
        print_report(report, open_console(), is_full=is_full)
        return
    click.echo(encode(render(report, form, table=table, is_full=is_full)), nl=False)


def _write(target: Path, text: str) -> Path:
    """Write ``text`` to ``target``, whole or not at all; an earlier file is replaced."""
    check_can_be_written(target, True)
    with write_errors(target):
        write_texts({target.name: text}, target.parent)
    return target


def check_can_be_written(target: Path, may_replace: bool) -> None:
    """Raises UsageError where ``target`` is not as :func:`check_target` says, or its directory cannot be written."""
    check_target(target, may_replace)
    if not os.access(target.absolute().parent, os.W_OK):
        raise UsageError(f"{target}: cannot be written (its directory is missing or read-only)")
