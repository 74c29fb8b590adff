"""What every format shows of three reports and a comparison: the form of a report is reviewed by the diff of its files.

``eight-ranks`` fills nearly every section, ``unusual`` the rest, with the forms that values seldom take (an upper
bound, a gain that may cost time, an entry that needs another, what is unknown), and ``no-steps`` next to none.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from tests.golden import check_golden
from tests.report.rendered import print_plain
from tests.report.sample_report import CASES, case_file, load_case
from tests.runs.sample_runs import make_run
from three_walls.report.comparison import Comparison
from three_walls.report.comparison_report import make_sections_of, print_shown, render_shown
from three_walls.report.csv_report import render_csv, write_tables
from three_walls.report.html_report import render_html
from three_walls.report.json_report import render_json
from three_walls.report.markdown_report import render_markdown
from three_walls.report.overrides_file import render_entries, render_overrides
from three_walls.runs.compare_runs import compare

GOLDEN = Path(__file__).parent / "golden"


def _join(files: dict[str, str]) -> str:
    return "".join(f"=== {name}\n{text}" for name, text in files.items())


def _body(page: str) -> str:
    """The page without its scripts and styles, which are files of their own."""
    return re.sub(r"(<(script|style)\b[^>]*>).*?(?=</\2>)", r"\1", page, flags=re.DOTALL)


def _print_comparison(comparison: Comparison) -> str:
    page = io.StringIO()
    print_shown(comparison, Console(file=page, width=100), is_full=True)
    return page.getvalue()


RENDERERS = {
    "txt": print_plain,
    "short.txt": lambda report: print_plain(report, is_full=False),
    "md": render_markdown,
    "short.md": lambda report: render_markdown(report, is_full=False),
    "csv": lambda report: _join(render_csv(report)),
    "html": lambda report: _body(render_html(report)),
    "overrides.txt": lambda report: _join({"overrides.txt": render_overrides(report)} | render_entries(report)),
}

COMPARISON_RENDERERS = {
    "txt": _print_comparison,
    "md": lambda comparison: render_shown(comparison, "md"),
    "csv": lambda comparison: _join(write_tables(make_sections_of(comparison))),
    "html": lambda comparison: _body(render_shown(comparison, "html")),
    "json": lambda comparison: render_shown(comparison, "json"),
}


@pytest.mark.parametrize("suffix", RENDERERS)
@pytest.mark.parametrize("case", CASES)
def test_a_report_looks_as_it_did(case: str, suffix: str) -> None:
    check_golden(GOLDEN / f"{case}.{suffix}", RENDERERS[suffix](load_case(case)))


@pytest.mark.parametrize("case", CASES)
def test_report_json_reads_back_and_is_written_the_same(case: str) -> None:
    check_golden(case_file(case), render_json(load_case(case)))


@pytest.mark.parametrize("suffix", COMPARISON_RENDERERS)
def test_a_comparison_looks_as_it_did(suffix: str) -> None:
    edit = make_run("edit", 560, buckets_ms={"ep_all_to_all": 100}, settings={"micro_batch_size": 2})
    comparison = compare(make_run(), [edit, make_run("worse", 640)])
    check_golden(GOLDEN / f"comparison.{suffix}", COMPARISON_RENDERERS[suffix](comparison))
