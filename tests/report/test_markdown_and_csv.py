"""Markdown and CSV hold the tables of every section, and escape every name of the run."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

from tests.report.sample_report import without_plan
from tests.report.test_html_report import spoil
from three_walls.model.finding import FirstTrial
from three_walls.model.report import Report
from three_walls.report.csv_report import render_csv
from three_walls.report.markdown_report import render_markdown


def test_markdown_has_every_section_and_the_rows_of_its_tables(report: Report) -> None:
    lines = render_markdown(report).splitlines()
    assert lines[0] == "# Communication-bound: exposed expert all-to-all"
    for title in (
        "Where the traced step goes (640 ms)",
        "The plan",
        "Overrides to apply",
        "MoE layers",
        "Facts",
        "How to read this",
    ):
        assert f"## {title}" in lines
    assert any(line.startswith("| ep\\_all\\_to\\_all | communication | 150 ms | 23.4% |") for line in lines)
    assert "--cuda-graph-scope attn moe_router moe_preprocess" in lines
    assert render_markdown(report) == render_markdown(report)


def test_short_markdown_is_a_comment_with_the_overrides_of_each_entry(report: Report) -> None:
    first = report.plan[0]
    trial = FirstTrial(first.rule, first.finding.title, "modelled", None, None, None, None, None, None, False, "x")
    text = render_markdown(replace(report, first_trial=trial), is_full=False)
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("## ")] == [
        "## The plan",
        "## Where the traced step goes (640 ms)",
        "## Warnings",
    ]
    assert len(text) < len(render_markdown(report)) / 4
    assert f"First trial: entry 1, {first.finding.title}." in text
    assert "<a" not in text and "](#" not in text  # a ticket has no anchors
    block = text[text.index("### 1. ") : text.index("### 2. ")]
    assert block.split("```")[1].split() == [
        "--moe-token-dispatcher-type", "flex", "--moe-flex-dispatcher-backend", "deepep", "--moe-router-dtype", "fp32"
    ]  # fmt: skip
    assert "- [ ] deep\\_ep imports in the training container" in block  # to be ticked off in the ticket
    assert "First trial" not in render_markdown(without_plan(report), is_full=False)


def test_full_markdown_names_the_first_trial(report: Report) -> None:
    first = report.plan[0]
    trial = FirstTrial(first.rule, first.finding.title, "modelled", None, None, None, None, None, None, False, "x")
    text = render_markdown(replace(report, first_trial=trial))
    assert f"**What to change first**\n\n1. {first.finding.title}: " in text


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


def read(report: Report, name: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(render_csv(report)[name])))


def test_csv_holds_numbers_in_the_units_of_the_json(report: Report) -> None:
    head, first, *rest = read(report, "budget")
    assert head == ["Bucket", "Group", "Time [ns]", "Share [fraction]", "What it counts"]
    assert first[:4] == ["ep_all_to_all", "communication", "150000000", "0.234375"]
    assert sum(int(row[2]) for row in (first, *rest)) == report.verdict.step_ns


def test_csv_has_a_field_for_every_rank_and_leaves_the_unknown_empty(report: Report) -> None:
    rows = read(report, "waits_of_ranks")
    assert rows[0] == ["Class", "Rank", "Wait [ns]", "Transfer [ns]", "Late rank", "Split", "How"]
    unknown = [row for row in rows if row[0] == "all_reduce"]
    assert {(row[2], row[3], row[5]) for row in unknown} == {("", "", "unknown")}
    assert len(rows) == 1 + len(report.waits)


def test_csv_keeps_a_name_from_being_run_as_a_formula(report: Report) -> None:
    warning = replace(report.warnings[0], message="=HYPERLINK(1)")
    assert read(replace(report, warnings=(warning,)), "warnings")[1][1] == "'=HYPERLINK(1)"
    assert read(spoil(report), "unclassified")[1][0].startswith("<script>alert(1)</script>")
