"""``three-walls compare``: did the step change, and where? ``three-walls plan``: what to try next."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from three_walls.cli.analyze import show_progress
from three_walls.cli.options import Command
from three_walls.facts.sheet import DEFINITION_BY_NAME
from three_walls.lib.errors import UsageError
from three_walls.lib.files import write_texts
from three_walls.lib.text import show_control_characters
from three_walls.report.comparison import ChangeOutcome, Comparison, ConditionOutcome
from three_walls.report.comparison_report import Shown, print_shown, render_all, render_shown
from three_walls.report.render_report import FORMATS
from three_walls.report.terminal_report import open_console
from three_walls.runs.compare_runs import compare
from three_walls.runs.gate import Gate, judge_gate, read_gate
from three_walls.runs.read_runs import GivenRun, parse_run, read_history, read_run
from three_walls.trace.read_inputs import Progress

CONDITION_HOLDS, UNKNOWN = 1, 6
"""Exit codes."""


def _output_options(stem: str, default_table: str) -> Callable[[Command], Command]:
    """Adds --format, --table and --out of a command that writes files of the name ``stem``."""

    def decorate(command: Command) -> Command:
        out = click.option(
            "-o",
            "--out",
            "out_dir",
            type=click.Path(path_type=Path, file_okay=False),
            help=f"Also write {stem}.html, {stem}.json and {stem}.md into this directory.",
        )
        table = click.option(
            "--table", metavar="NAME", help=f"With --format csv: which table.  [default: {default_table}]"
        )
        form = click.option(
            "--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="What stdout gets."
        )
        return form(table(out(command)))

    return decorate


@click.command("compare")
@click.argument("before", metavar="BEFORE")
@click.argument("afters", metavar="AFTER...", nargs=-1, required=True)
@click.option(
    "--repeat",
    "repetitions",
    metavar="RUN",
    multiple=True,
    help="A further run of BEFORE: what its runs differ by counts as spread. Repeatable.",
)
@click.option(
    "--fail-if",
    "expressions",
    metavar="CONDITION",
    multiple=True,
    help="Exit with 1 where the condition holds: NAME OP [+-]NUMBER[UNIT], see below. Repeatable.",
)
@click.option("--strict", is_flag=True, help="Let conditions hold for differences within the spread of the steps too.")
@click.option(
    "--ignore-unknown", is_flag=True, help="Do not fail where a step, or a value of a condition, is not known."
)
@click.option("--force", is_flag=True, help="Compare runs of different models or GPUs.")
@_output_options("compare", "buckets, else runs")
@click.option("--full", "is_full", is_flag=True, help="Print communication and kernels too, in text and Markdown.")
@click.option("-q", "--quiet", is_flag=True, help="Print the verdict and the conditions only.")
def compare_command(
    before: str,
    afters: tuple[str, ...],
    repetitions: tuple[str, ...],
    expressions: tuple[str, ...],
    strict: bool,
    ignore_unknown: bool,
    force: bool,
    **output: Any,
) -> None:
    """Compare AFTER with BEFORE: the step, the settings, the buckets, the wall.

    A run is a trace, a directory with its traces (and its log and run_config.yaml), a report.json or a directory
    that holds one, or training logs alone. Options follow its path:
    PATH[,log=FILE][,config=FILE][,set=KEY=VALUE][,kernel-names=FILE][,name=TEXT].

    The step is the median of the logs where both runs have one, else a replay without the profiler, else the traced
    step; the output states which. A difference counts where it exceeds the spread of the steps of both runs. Where the
    tokens per GPU differ, the steps are compared per token.

    \b
    Conditions of --fail-if: NAME OP [+-]NUMBER[UNIT] with OP one of > >= < <=
      'step > +3%'                    a sign or % compares the change against BEFORE
      'step > 550 ms'                 without, AFTER's own value
      'ep.exposed_fraction > +0.02'   a change of a fraction; +2pp is the same
      'idle > +5 ms'                  a group: compute, communication, copy, graph, idle
      'memory.peak > 70 GiB'          the logged peak, else the best known one
    Other names: buckets (gemm), CLASS.busy|exposed|hidden|exposed_fraction, traced_step, and every numeric fact
    of `three-walls facts`. Buckets, groups and classes are times of the traced step.
    A difference within the spread of the steps holds with --strict only.

    \b
    Examples:
      three-walls compare before.sqlite after.sqlite
      three-walls compare runs/base runs/edit --out comparison
      three-walls compare base.sqlite,log=base.log edit.sqlite,log=edit.log --fail-if 'step > +3%'
      three-walls compare main/report.json report/ --format md >> "$GITHUB_STEP_SUMMARY"

    \b
    Exit codes:
      0  compared; no condition holds   4  no CUDA kernels in a trace
      1  a condition holds              6  a step, or a value of a condition, is not known
      2  usage                          7  the runs are of different models or GPUs
      3  an input cannot be read
    """
    gates = tuple(read_gate(expression, DEFINITION_BY_NAME) for expression in expressions)
    given = CompareRequest(
        parse_run(before), tuple(map(parse_run, afters)), tuple(map(parse_run, repetitions)), gates, strict, force
    )
    with show_progress() as progress:
        comparison = compare_given(given, progress)
    _output(comparison, **output)
    failed, unknown = list_outcomes(comparison)
    for text in failed:
        click.echo(f"three-walls: {show_control_characters(text)}", err=True)
    for text in unknown:
        kind = "warning" if ignore_unknown else "error"
        click.echo(f"three-walls: {kind}: {show_control_characters(text)}", err=True)
    if failed:
        sys.exit(CONDITION_HOLDS)
    if unknown and not ignore_unknown:
        sys.exit(UNKNOWN)


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """What is to be compared."""

    before: GivenRun
    afters: tuple[GivenRun, ...]
    repetitions: tuple[GivenRun, ...] = ()
    """Further runs of ``before``."""
    gates: tuple[Gate, ...] = ()
    is_strict: bool = False
    is_forced: bool = False


def compare_given(request: CompareRequest, progress: Progress = lambda _: None) -> Comparison:
    """Reads or analyzes the runs, compares them, and judges the conditions."""
    given = name_apart([request.before, *request.afters, *request.repetitions])
    read = {each: read_run(each, progress) for each in dict.fromkeys(given)}  # a run may be given twice
    base, *runs = [read[each] for each in given]
    afters, repetitions = runs[: len(request.afters)], runs[len(request.afters) :]
    comparison = compare(base, afters, repetitions, force=request.is_forced)
    results = [
        judge_gate(gate, base, run, pair, strict=request.is_strict)
        for run, pair in zip(afters, comparison.pairs, strict=True)
        for gate in request.gates
    ]
    return replace(comparison, gate=tuple(results))


def list_outcomes(comparison: Comparison) -> tuple[list[str], list[str]]:
    """Sentences on the conditions that hold, and on what is not known."""
    failed = [
        f"failed: {result.expression} ({result.after})"
        for result in comparison.gate
        if result.outcome is ConditionOutcome.HOLDS
    ]
    unknown = [
        f"the steps cannot be compared ({pair.after.name}): {pair.step.basis_note}"
        for pair in comparison.pairs
        if pair.step.outcome is ChangeOutcome.UNKNOWN
    ]
    unknown += [
        f"condition not judged: {result.expression} ({result.after}): {result.reason}"
        for result in comparison.gate
        if result.outcome is ConditionOutcome.UNKNOWN
    ]
    return failed, unknown


def name_apart(given: Sequence[GivenRun]) -> list[GivenRun]:
    """``given``, where runs whose files have the same name are called by their directories, or by both."""
    others = {each.path.resolve(): each.path for each in given}  # a run may be given twice
    names, parents = [path.name for path in others.values()], [path.parent.name for path in others]
    called = []
    for each in given:
        name, parent = each.path.name, each.path.resolve().parent.name
        if each.name or names.count(name) == 1 or not parent:
            called.append(each)
        else:
            is_enough = parents.count(parent) == 1 and parent not in names
            called.append(replace(each, name=parent if is_enough else f"{parent}/{name}"))
    return called


def _output(
    shown: Shown, form: str, table: str | None, out_dir: Path | None, *, is_full: bool = True, quiet: bool = False
) -> None:
    """Write the files into ``out_dir``, whole or not at all, and print ``shown`` on stdout as ``form``.

    Raises UsageError for a directory that cannot be written.
    """
    written: list[Path] = []
    if out_dir:
        contents = render_all(shown)
        written = [out_dir / name for name in contents]
        try:
            out_dir.mkdir(parents=True, exist_ok=True)
            write_texts(contents, out_dir)
        except OSError as error:
            raise UsageError(
                f"cannot write to {out_dir}: {error.strerror}; choose a directory you can write"
            ) from error
    if form == "text":
        print_shown(shown, open_console(), is_full=is_full, is_short=quiet)
    else:
        click.echo(render_shown(shown, form, table=table or "", is_full=is_full), nl=False)
    for path in written:
        click.echo(f"Wrote {show_control_characters(str(path))}", err=form != "text")


@click.group("plan")
def plan_command() -> None:
    """Propose the next edit from the runs made so far."""


@plan_command.command("next")
@click.argument("runs_dir", metavar="RUNS_DIR", type=click.Path(path_type=Path))
@_output_options("history", "history")
def next_command(runs_dir: Path, form: str, table: str | None, out_dir: Path | None) -> None:
    """Propose the next edit: the first of the best run's plan that was not tried.

    RUNS_DIR holds a subdirectory per run: with a report.json, or with traces, log and run_config.yaml, or with logs
    alone. The first run is the base. Runs are in the order in which they began, by their traces or by their logs, else
    in that of their names (run-2 before run-10). Each run is compared with the earlier one that it differs least from.
    An edit is accepted where the step is faster beyond the spread, else reverted; a run with the settings of an earlier
    one repeats it. The settings that differ show what was tried. Where they are not known, a file tried.yaml in the
    subdirectory states it:

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
    _output(history, form, table, out_dir)
