"""``three-walls baseline``: reports kept under a name, to compare later runs with."""

from __future__ import annotations

from pathlib import Path

import click

from three_walls.cli.analyze import show_progress
from three_walls.cli.compare import baselines_option, write_at_once
from three_walls.lib.text import show_control_characters
from three_walls.model.errors import UsageError
from three_walls.report.comparison_report import describe_baseline
from three_walls.report.json_report import load_report, render_json
from three_walls.runs import baseline_path, find_baseline, list_baselines, parse_run, read_run


@click.group("baseline")
def baseline_command() -> None:
    """Keep reports under a name, to compare later runs with.

    A baseline is a report.json, NAME.json in the directory of --dir or $THREE_WALLS_BASELINES; there is no other
    default. `three-walls compare baseline:NAME AFTER` reads it.
    """


@baseline_command.command("save")
@click.argument("name")
@click.argument("run", metavar="RUN")
@baselines_option
@click.option("--replace", "may_replace", is_flag=True, help="Replace a baseline of that name.")
def save_command(name: str, run: str, baselines: Path | None, may_replace: bool) -> None:
    """Keep RUN as the baseline NAME.

    RUN is what `three-walls compare` takes: a report.json, a directory that holds one, a trace, or a directory with
    traces, log and run_config.yaml. PATH[,log=FILE][,config=FILE][,set=KEY=VALUE].

    \b
    Exit codes:
      0  saved     2  usage, or the name is taken     3  an input cannot be read
    """
    path = baseline_path(baselines, name)
    taken = f"there is a baseline {name} in {path.parent} already: --replace replaces it"
    if path.exists() and not may_replace:  # before an analysis that may take a while
        raise UsageError(taken)
    with show_progress() as progress:
        found = read_run(parse_run(run, baselines), progress)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_at_once(path, render_json(found.report), may_replace=may_replace)
    except FileExistsError as error:
        raise UsageError(taken) from error
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose a directory you can write") from error
    click.echo(f"Wrote {show_control_characters(str(path))}")


@baseline_command.command("list")
@baselines_option
def list_command(baselines: Path | None) -> None:
    """List the baselines, one a line: name, step, wall."""
    directory = baseline_path(baselines, "any").parent
    for name in list_baselines(directory):
        try:
            click.echo(describe_baseline(name, load_report(directory / f"{name}.json")))
        except UsageError as error:
            click.echo(f"{name}  unreadable: {show_control_characters(str(error))}")


@baseline_command.command("show")
@click.argument("name")
@baselines_option
@click.option("--json", "is_json", is_flag=True, help="Print its report.json.")
def show_command(name: str, baselines: Path | None, is_json: bool) -> None:
    """Show the baseline NAME: step, wall, traces."""
    report = load_report(find_baseline(baselines, name))
    if is_json:
        click.echo(render_json(report), nl=False)
        return
    click.echo(describe_baseline(name, report))
    click.echo(f"  {show_control_characters(report.verdict.reason)}")
    for file in report.inputs:
        click.echo(f"  {show_control_characters(file.path_name)}  sha256 {file.sha256}")
    for file_name in report.log.files if report.log else ():
        click.echo(f"  {show_control_characters(file_name)}")
