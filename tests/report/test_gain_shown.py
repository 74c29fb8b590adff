"""What a plan's entry gains, in all three forms: a likely time, an upper bound of it, or freed memory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from tests.report.rendered import print_plain
from tests.report.sample_diagnosis import MS
from three_walls.model.finding import Gain
from three_walls.model.report import Report
from three_walls.report.html_report import render_html
from three_walls.report.json_report import render_json, report_schema

UPPER_BOUND = Gain(0, None, 12_340_000, "upper_bound", "At most the exposed transfer.")
FREES_MEMORY = Gain(None, None, None, "frees_memory", "It saves the state.", cost_fraction=0.015)


@pytest.fixture
def planned(report: Report) -> Report:
    """The sample report with an upper bound as its first entry; the second frees memory."""
    first, second = report.plan
    return replace(report, plan=(replace(first, gain_ns=UPPER_BOUND), replace(second, gain_ns=FREES_MEMORY)))


def test_the_text_states_what_is_known(planned: Report) -> None:
    text = print_plain(planned)
    assert "     gain up to 12.3 ms; step after it 551-640 ms; basis upper bound\n" in text
    assert "     gain frees memory; cost about 1.5% of the step" in text


def test_the_page_shows_an_upper_bound_without_a_likely_value_and_freed_memory_with_its_cost(planned: Report) -> None:
    page = render_html(planned)
    bound, freed = page.split('<div class="gain">')[1:3]
    assert '<span class="label">Gain</span><b>up to 12.3 ms</b>' in bound
    assert '<span class="label">Likely</span>' not in bound
    assert 'class="span"' in bound
    assert 'class="tick"' not in bound
    assert '<span class="label">Gain</span><b>frees memory</b>' in freed
    assert '<span class="label">Cost</span><b>about 1.5% of the step</b>' in freed
    assert '<span class="label">Likely</span>' not in freed
    assert 'class="span"' not in freed


def test_the_json_keeps_what_is_not_known_null(planned: Report) -> None:
    loaded: dict[str, Any] = json.loads(render_json(planned))
    jsonschema.validate(loaded, report_schema())
    bound, freed = (step["gain_ns"] for step in loaded["plan"])
    assert [bound[name] for name in ("low", "likely", "high", "basis")] == [0, None, 12_340_000, "upper_bound"]
    assert [freed[name] for name in ("low", "likely", "high", "basis")] == [None, None, None, "frees_memory"]
    assert [freed[name] for name in ("cost_fraction", "cost_is_estimated")] == [0.015, False]
    assert bound["cost_fraction"] is None


def test_an_upper_bound_below_a_microsecond_is_no_zero(report: Report) -> None:
    tiny = replace(report, plan=(replace(report.plan[0], gain_ns=replace(UPPER_BOUND, high=MS // 10_000)),))
    assert "up to &lt;0.001 ms" in render_html(tiny)
