"""``three-walls doctor``: shows what a capture can support."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from three_walls.capture.judge_capture import Answer, Check, Examination, examine
from three_walls.cli.options import nsys_option, traces_argument
from three_walls.lib.errors import NothingToAnalyzeError
from three_walls.lib.text import escape_in_json, show_control_characters

FORMAT_VERSION = "1.0"
"""Version of what --json prints; docs/doctor.md states its fields."""

_COLUMNS = 100
_INDENT = " " * 9


@click.command("doctor")
@traces_argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@nsys_option
def doctor_command(traces: tuple[Path, ...], as_json: bool) -> None:
    """Show what a capture can support, and how to record what is missing.

    TRACES are exports or reports of one run, or a directory of them, as for analyze. Exit code 4: none of them has
    CUDA kernels.

    \b
    Examples:
      three-walls doctor rank0.sqlite
      three-walls doctor profiles/ --json
    """
    examination = examine(traces)
    click.echo(render_examination(examination) if as_json else format_examination(examination), nl=as_json)
    if not examination.ranks:
        raise NothingToAnalyzeError("expected CUDA kernels in the traces, found none")


def format_examination(examination: Examination) -> str:
    """Every check with its answer and, where something is missing, how to record it; then one command for all of it."""
    beside = f", beside them: {', '.join(examination.beside)}" if examination.beside else ""
    of = f"(reports: {len(examination.inputs)}, ranks: {examination.ranks}{beside})"
    lines = [f"What this capture can support {of}", ""]
    for check in examination.checks:
        lines += _describe(check)
    lines.append("")
    lines += _describe_recapture(examination)
    return "\n".join(lines) + "\n"


def render_examination(examination: Examination) -> str:
    """``examination`` as JSON text; the same examination gives the same bytes."""
    document = {"format_version": FORMAT_VERSION, **asdict(examination)}
    for check in document["checks"]:
        check["remedy"] = check["remedy"] or None
    return escape_in_json(json.dumps(document, indent=2, ensure_ascii=False))


def _describe(check: Check) -> Iterator[str]:
    yield from _wrap(f"{check.answer.value:<7}  {check.title}: {show_control_characters(check.found)}", "", _INDENT)
    if check.answer is Answer.YES:
        return
    yield from _wrap(f"needed for: {'; '.join(check.claims)}")
    yield from _wrap(f"how to record: {check.remedy}")
    for name, words in (("nsys", check.nsys), ("Megatron-Bridge", check.bridge), ("Megatron-LM", check.megatron_lm)):
        if words:
            yield f"{_INDENT}{name}: {' '.join(words)}"


def _describe_recapture(examination: Examination) -> Iterator[str]:
    if examination.recapture is None:
        yield "Nothing is missing that another capture could add."
        return
    yield "To record all that is missing, per rank (three-walls capture prints the whole script):"
    yield f"  {examination.recapture}"
    if examination.bridge:
        yield f"  Megatron-Bridge: {' '.join(examination.bridge)}"
    if examination.megatron_lm:
        yield f"  Megatron-LM: {' '.join(examination.megatron_lm)}"


def _wrap(text: str, first: str = _INDENT, following: str = _INDENT + "  ") -> list[str]:
    return textwrap.wrap(
        text,
        _COLUMNS,
        initial_indent=first,
        subsequent_indent=following,
        break_long_words=False,
        break_on_hyphens=False,
    )
