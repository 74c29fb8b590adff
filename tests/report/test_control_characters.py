"""No control character of the run reaches a terminal, a page or a file: each is spelled out."""

from __future__ import annotations

import io
import json
import unicodedata
from dataclasses import replace

import pytest
from rich.console import Console

from tests.report.test_html_report import spoil
from three_walls.lib.text import escape_in_json
from three_walls.report.csv_report import render_csv
from three_walls.report.html_report import render_html
from three_walls.report.json_report import load_report, render_json
from three_walls.report.markdown_report import render_markdown
from three_walls.report.overrides_file import render_overrides
from three_walls.report.report import Report
from three_walls.report.terminal_report import print_report

ATTACK = "kernel\x1b]0;title\x07\x1b[2J\x9b31m\x7f\u202egnp\u2066\u2028\u2029\u200b\x00\x08\x85end"
DANGEROUS = {"Cc", "Cf", "Cs", "Zl", "Zp", "Co"}


@pytest.fixture(scope="module")
def hostile(report: Report) -> Report:
    overrides = replace(
        report.overrides,
        bridge=(ATTACK,),
        notes=(ATTACK,),
        env={"NCCL_DEBUG": ATTACK},
        megatron_lm=(f"--x {ATTACK}",),
        bridge_version=ATTACK,
    )
    return replace(spoil(report, ATTACK), overrides=overrides)


def dangerous(text: str) -> set[str]:
    """Characters of ``text`` that could steer what shows it; line feeds are wanted."""
    return {letter for letter in set(text) - {"\n"} if unicodedata.category(letter) in DANGEROUS}


def terminal(report: Report, *, is_terminal: bool) -> str:
    page = io.StringIO()
    console = Console(file=page, force_terminal=is_terminal, color_system=None, width=100, legacy_windows=False)
    print_report(report, console, is_full=True)
    return page.getvalue()


def test_the_characters_are_dangerous_before_they_are_written() -> None:
    assert len(dangerous(ATTACK)) == 12


@pytest.mark.slow
def test_the_page_spells_them_out(hostile: Report) -> None:
    page = render_html(hostile)
    assert dangerous(page) == set()
    assert "kernel\\x1b]0;title\\x07" in page


def test_markdown_spells_them_out(hostile: Report) -> None:
    text = render_markdown(hostile)
    assert dangerous(text) == set()
    assert "x1b" in text


def test_csv_spells_them_out(hostile: Report) -> None:
    text = "".join(render_csv(hostile).values())
    assert dangerous(text) == set()
    assert "kernel\\x1b]0;title\\x07" in text


@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_terminal_spells_them_out(hostile: Report, is_terminal: bool) -> None:
    text = terminal(hostile, is_terminal=is_terminal)
    assert dangerous(text) == set()
    assert "\\x1b" in text


def test_overrides_spell_them_out(hostile: Report) -> None:
    text = render_overrides(hostile)
    assert dangerous(text) == set()
    assert all(line.startswith(("#", "export ", "--", "'", '"')) for line in text.splitlines() if line)


def test_json_escapes_them_and_reads_them_back(hostile: Report, tmp_path: pytest.TempPathFactory) -> None:
    text = render_json(hostile)
    assert dangerous(text) == set()
    assert json.loads(text)["overrides"]["notes"] == [ATTACK]
    path = tmp_path / "report.json"  # type: ignore[operator]
    path.write_text(text, encoding="utf-8")
    assert load_report(path).warnings[0].message == ATTACK


@pytest.mark.parametrize("text", ["caf\u00e9 \u65e5\u672c", "\U0001f600", 'quote " and \\ back'])
def test_json_keeps_letters_of_any_script_as_they_are(text: str) -> None:
    document = json.dumps([text], ensure_ascii=False)
    assert escape_in_json(document) == document


@pytest.mark.parametrize("text", ["\U000e0041", "\udcff", "\x7f", "\u202e"])
def test_json_reads_back_what_it_escaped(text: str) -> None:
    escaped = escape_in_json(json.dumps([text], ensure_ascii=False))
    assert escaped.isascii()
    assert json.loads(escaped) == [text]


@pytest.mark.parametrize("text", ["=cmd", " =cmd", "+1", "-1+2", "@x", "\t=cmd", "\r=cmd", "\uff1dcmd"])
def test_csv_never_begins_a_field_like_a_formula(report: Report, text: str) -> None:
    odd = replace(report, warnings=(replace(report.warnings[0], message=text),))
    field = render_csv(odd)["warnings"].splitlines()[1].partition(",")[2]
    assert field.startswith(("'", "\\"))
