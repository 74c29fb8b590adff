"""Markdown and CSV hold the tables of every section, and escape every name of the run."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

from tests.report.test_html_report import spoil
from three_walls.report.csv_report import render_csv
from three_walls.report.markdown_report import render_markdown
from three_walls.report.report import Report


def test_markdown_of_hostile_names_stays_text(report: Report) -> None:
    for is_full in (False, True):
        text = render_markdown(spoil(report), is_full=is_full)
        outside = "".join(text.split("```")[::2])
        assert "<script" not in outside
        assert "<img" not in outside
    rows = [line for line in text.splitlines() if "alert(1)" in line and line.startswith("| ")]
    assert rows
    code = replace(report, overrides=replace(report.overrides, bridge=("```\n# no heading",)))
    assert render_markdown(code).count("```") % 2 == 0


def test_markdown_escapes_only_what_it_would_interpret(report: Report) -> None:
    names = {
        "micro_batch_size 1 -> 2": "micro_batch_size 1 -> 2",
        "> quoted": "&#62; quoted",
        "_fast_ _": "\\_fast\\_ \\_",
        "a_b_": "a_b\\_",
        "<b>": "&#60;b>",
        "a|b": "a&#124;b",
    }
    for name, written in names.items():
        step = replace(report.plan[0], finding=replace(report.plan[0].finding, reason=name))
        assert f"\n{written}\n" in render_markdown(replace(report, plan=(step,)))


def read(report: Report, name: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(render_csv(report)[name])))


def test_csv_holds_numbers_in_the_units_of_the_json(report: Report) -> None:
    head, first, *rest = read(report, "budget")
    assert head == ["Bucket", "Group", "Time [ns]", "Share [fraction]", "What it counts"]
    assert first[:4] == ["ep_all_to_all", "communication", "150000000", "0.234375"]
    assert sum(int(row[2]) for row in (first, *rest)) == report.verdict.step_ns


def test_csv_keeps_a_name_from_being_run_as_a_formula(report: Report) -> None:
    warning = replace(report.warnings[0], message="=HYPERLINK(1)")
    assert read(replace(report, warnings=(warning,)), "warnings")[1][1] == "'=HYPERLINK(1)"
    assert read(spoil(report), "unclassified")[1][0].startswith("<script>alert(1)</script>")
