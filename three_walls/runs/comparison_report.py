"""Comparison or history -> HTML, Markdown, CSV, JSON or the terminal, by the renderers of the report."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console

from three_walls.lib.text import escape_in_json
from three_walls.report.csv_report import write_tables
from three_walls.report.html_report import render_page
from three_walls.report.markdown_report import write_markdown
from three_walls.report.section import Section, Terminal
from three_walls.report.sections.history import make_history_sections
from three_walls.report.terminal_report import print_sections
from three_walls.report.tuning_rows import History
from three_walls.runs.comparison import Comparison
from three_walls.runs.sections.comparison_sections import make_comparison_sections

Shown = Comparison | History

_SHORT = ("verdict", "gate", "runs")
MORE = "--full prints communication and kernels too; --out DIR writes a page."
HISTORY_MORE = "--format html and --format json have all of it."


def make_sections_of(shown: Shown) -> tuple[Section, ...]:
    """The sections of a comparison or a history."""
    return make_comparison_sections(shown) if isinstance(shown, Comparison) else make_history_sections(shown)


def render_shown_html(shown: Shown) -> str:
    """``shown`` as a page that works offline."""
    return render_page(make_sections_of(shown), shown, f"{_stem(shown)}.json")


def render_shown_markdown(shown: Shown, *, is_full: bool = True) -> str:
    """``shown`` as Markdown. Without ``is_full`` what the terminal shows, for a ticket or a job summary."""
    return write_markdown(
        section for section in make_sections_of(shown) if is_full or section.terminal is Terminal.ALWAYS
    )


def render_shown_csv(shown: Shown) -> dict[str, str]:
    """Name of each table -> its CSV text."""
    return write_tables(make_sections_of(shown))


def render_shown_json(shown: Shown) -> str:
    """``shown`` as JSON; the same value gives the same bytes."""
    document = TypeAdapter(type(shown)).dump_python(shown, mode="json")
    in_order = {"schema_version": document.pop("schema_version")}
    in_order |= {field.name: document[field.name] for field in fields(shown) if field.name in document}
    return escape_in_json(json.dumps(in_order, indent=2, allow_nan=False, ensure_ascii=False)) + "\n"


def comparison_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of compare.json. It allows unknown fields: a newer minor version may add some."""
    schema = TypeAdapter(Comparison).json_schema(mode="serialization")
    for part in (schema, *schema["$defs"].values()):
        if "properties" in part:
            part["required"] = list(part["properties"])  # every field is always written
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def print_shown(shown: Shown, console: Console, *, is_full: bool, is_short: bool = False) -> None:
    """Print ``shown`` as the terminal shows a report; ``is_short``: its head, the conditions and a row per run."""
    sections = make_sections_of(shown)
    if is_short:
        sections = tuple(section for section in sections if section.name in _SHORT)
    more = "" if is_short else MORE if isinstance(shown, Comparison) else HISTORY_MORE
    print_sections(sections, console, is_full=is_full, more=more)


def render_all(shown: Shown) -> dict[str, str]:
    """File name -> content of what ``--out`` writes."""
    stem = _stem(shown)
    return {
        f"{stem}.html": render_shown_html(shown),
        f"{stem}.json": render_shown_json(shown),
        f"{stem}.md": render_shown_markdown(shown),
    }


def _stem(shown: Shown) -> str:
    return "compare" if isinstance(shown, Comparison) else "history"
