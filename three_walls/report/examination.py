"""An examination of a capture for the terminal, and as JSON (docs/doctor.md states its fields)."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict

from three_walls.model.capture import Answer, Check, Examination
from three_walls.report.formats import show_control_characters

FORMAT_VERSION = "1.0"

_COLUMNS = 100
_INDENT = " " * 9


def format_examination(examination: Examination) -> str:
    """Every check with its answer; for what is missing also what needs it and how to record it; then one command."""
    lines = [f"What this capture can support (reports: {len(examination.inputs)}, ranks: {examination.ranks})", ""]
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
    return json.dumps(document, indent=2, ensure_ascii=False)


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
    yield "To capture all that is missing, per rank (three-walls capture prints the whole script):"
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
