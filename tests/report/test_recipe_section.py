"""The known-good recipe in text, JSON and HTML: context, marked as such."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from rich.console import Console

from three_walls.model.report import Report
from three_walls.report.html_report import render_html
from three_walls.report.json_report import render_json
from three_walls.report.text_report import print_report


def text_of(report: Report) -> str:
    console = Console(file=io.StringIO(), force_terminal=False)
    print_report(report, console)
    return console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO above


def test_text_shows_the_first_eight_differences_and_calls_it_context(report: Report) -> None:
    text = text_of(report)
    part = text[text.index("KNOWN-GOOD RECIPE") :]
    assert "context, not a promise" in part
    assert "None is a measured gain here" in " ".join(part.split())
    assert report.known_good_recipe is not None
    keys = [one.key for one in report.known_good_recipe.differences]
    assert [key in part for key in keys[:9]] == [True] * 8 + [False]
    assert "1 more in report.json; 20 settings alike, 2 unknown in the run" in part


def test_the_page_marks_benchmark_settings_and_what_the_plan_edits(page: str) -> None:
    section = page[page.index('<section id="recipe">') :].split("</section>")[0]
    assert "Context for the plan, not a promise" in section
    assert "benchmarks only: not for a production run" in section
    assert section.count(">in the plan<") == 1
    assert page.index('id="plan"') < page.index('id="recipe"') < page.index('id="communication"')


def test_without_a_recipe_the_reason_is_shown(report: Report) -> None:
    none = replace(report, known_good_recipe=None, no_recipe_reason="no recipe is near: a <b>reason</b>")
    assert "none: no recipe is near" in text_of(none)
    assert "None: no recipe is near: a &lt;b&gt;reason" in render_html(none)
    loaded = json.loads(render_json(none))
    assert (loaded["known_good_recipe"], loaded["no_recipe_reason"]) == (None, none.no_recipe_reason)


def test_json_keeps_marks_and_unset_apart(report: Report) -> None:
    loaded = json.loads(render_json(report))
    first, *_, last = loaded["known_good_recipe"]["differences"]
    assert first == {
        "key": "moe_token_dispatcher_type",
        "kind": "config",
        "run": "alltoall",
        "recipe": "flex",
        "in_plan": True,
        "mark": None,
    }
    assert (last["run"], last["mark"]) == (None, "benchmark setting")
    assert loaded["no_recipe_reason"] is None
