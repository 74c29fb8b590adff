"""What every format shows of three reports, as golden files: the form of a report is reviewed by their diff.

``eight-ranks`` fills nearly every section, ``unusual`` the rest, with the forms that values seldom take (an upper
bound, a gain that may cost time, an entry that needs another, what is unknown), and ``no-steps`` next to none.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.golden import check_golden
from tests.report.rendered import print_plain
from tests.report.sample_report import CASES, case_file, load_case
from three_walls.model.report import Report
from three_walls.report.csv_report import render_csv
from three_walls.report.html_report import render_html
from three_walls.report.json_report import render_json
from three_walls.report.markdown_report import render_markdown
from three_walls.report.overrides_file import render_entries, render_overrides

GOLDEN = Path(__file__).parent / "golden"


def _join(files: dict[str, str]) -> str:
    return "".join(f"=== {name}\n{text}" for name, text in files.items())


def _body(report: Report) -> str:
    """The page without its scripts and styles, which are files of their own."""
    return re.sub(r"(<(script|style)\b[^>]*>).*?(?=</\2>)", r"\1", render_html(report), flags=re.DOTALL)


RENDERERS = {
    "txt": print_plain,
    "short.txt": lambda report: print_plain(report, is_full=False),
    "md": render_markdown,
    "short.md": lambda report: render_markdown(report, is_full=False),
    "csv": lambda report: _join(render_csv(report)),
    "html": _body,
    "overrides.txt": lambda report: _join({"overrides.txt": render_overrides(report)} | render_entries(report)),
}


@pytest.mark.parametrize("suffix", RENDERERS)
@pytest.mark.parametrize("case", CASES)
def test_a_report_looks_as_it_did(case: str, suffix: str) -> None:
    check_golden(GOLDEN / f"{case}.{suffix}", RENDERERS[suffix](load_case(case)))


@pytest.mark.parametrize("case", CASES)
def test_report_json_reads_back_and_is_written_the_same(case: str) -> None:
    check_golden(case_file(case), render_json(load_case(case)))
