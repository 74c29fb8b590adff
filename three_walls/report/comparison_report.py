"""Comparison or history -> HTML, Markdown, CSV, JSON or the terminal, by the renderers of the report."""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console

from three_walls.lib.errors import UsageError
from three_walls.lib.text import escape_in_json
from three_walls.report.comparison import Comparison, History
from three_walls.report.csv_report import write_tables
from three_walls.report.html_report import render_page
from three_walls.report.json_report import finish_schema
from three_walls.report.markdown_report import write_markdown
from three_walls.report.section import Section, Terminal
from three_walls.report.sections import make_comparison_sections
from three_walls.report.sections.history import make_history_sections
from three_walls.report.terminal_report import print_sections

Shown = Comparison | History

_SHORT = ("verdict", "gate", "runs")
_MAIN_TABLES = ("buckets", "runs", "history")
MORE = "--full prints communication and kernels too; --out DIR writes a page."
HISTORY_MORE = "--format html and --format json have all of it."


def make_sections_of(shown: Shown) -> tuple[Section, ...]:
    """The sections of a comparison or a history."""
    return make_comparison_sections(shown) if isinstance(shown, Comparison) else make_history_sections(shown)


def render_shown(shown: Shown, form: str, *, table: str = "", is_full: bool = True) -> str:
    """``shown`` as a page that works offline (html), as json, md or csv; the same value gives the same bytes.

    ``is_full`` counts for Markdown: everything, not only what the terminal shows. Of CSV the table of that name, else
    the main one. Raises UsageError for a table that there is not.
    """
    if form == "json":
        document = TypeAdapter(type(shown)).dump_python(shown, mode="json")
        in_order = {"schema_version": document.pop("schema_version")} | document
        return escape_in_json(json.dumps(in_order, indent=2, allow_nan=False, ensure_ascii=False)) + "\n"
    sections = make_sections_of(shown)
    if form == "html":
        return render_page(sections, shown, f"{_stem(shown)}.json")
    if form == "md":
        return write_markdown(section for section in sections if is_full or section.terminal is Terminal.ALWAYS)
    tables = write_tables(sections)
    name = table or next(name for name in (*_MAIN_TABLES, *tables) if name in tables)
    if name not in tables:
        raise UsageError(f"--table: expected one of {', '.join(tables)}, found {table}")
    return tables[name]


def comparison_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of compare.json. It allows unknown fields: a newer minor version may add some."""
    return finish_schema(TypeAdapter(Comparison).json_schema(mode="serialization"))


def print_shown(shown: Shown, console: Console, *, is_full: bool, is_short: bool = False) -> None:
    """Print ``shown`` as the terminal shows a report; ``is_short``: its head, the conditions and a row per run."""
    sections = make_sections_of(shown)
    if is_short:
        sections = tuple(section for section in sections if section.name in _SHORT)
    more = "" if is_short else MORE if isinstance(shown, Comparison) else HISTORY_MORE
    print_sections(sections, console, is_full=is_full, more=more)


def render_all(shown: Shown) -> dict[str, str]:
    """File name -> content of what ``--out`` writes."""
    return {f"{_stem(shown)}.{form}": render_shown(shown, form) for form in ("html", "json", "md")}


def _stem(shown: Shown) -> str:
    return "compare" if isinstance(shown, Comparison) else "history"
