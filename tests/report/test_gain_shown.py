"""What a plan's entry gains, in all three forms: a likely time, an upper bound of it, or freed memory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from tests.report.rendered import print_plain
from tests.report.sample_diagnosis import MS
from three_walls.model.finding import FirstTrial, Gain
from three_walls.model.report import Report
from three_walls.report.formats import describe_gain
from three_walls.report.html_report import render_html
from three_walls.report.json_report import render_json, report_schema
from three_walls.report.markdown_report import render_markdown

UPPER_BOUND = Gain(0, None, 12_340_000, "upper_bound", "At most the exposed transfer.")
FREES_MEMORY = Gain(None, None, None, "frees_memory", "It saves the state.", cost_fraction=0.015)


@pytest.fixture
def planned(report: Report) -> Report:
    """The sample report with an upper bound as its first entry; the second frees memory."""
    first, second = report.plan
    return replace(report, plan=(replace(first, gain_ns=UPPER_BOUND), replace(second, gain_ns=FREES_MEMORY)))


def test_the_text_states_what_is_known(planned: Report) -> None:
    text = print_plain(planned)
    assert "     gain up to 12.3 ms; step after it 523-612 ms; basis upper bound\n" in text
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


MAY_COST = Gain(-3 * MS, 20 * MS, 40 * MS, "replayed", "By replaying the step.")


@pytest.fixture
def risky(report: Report) -> Report:
    """The sample report with a first entry that may cost time."""
    first, second = report.plan
    trial = FirstTrial(
        rule=first.rule,
        title=first.finding.title,
        basis="replayed",
        saved_low_fraction=-0.005,
        saved_high_fraction=0.06,
        unprofiled_step_ns=600 * MS,
        unprofiled_step_after_low_ns=564 * MS,
        unprofiled_step_after_high_ns=603 * MS,
        cost_fraction=None,
        cost_is_estimated=False,
        must_show="The kernels are gone.",
    )
    return replace(report, plan=(replace(first, gain_ns=MAY_COST), second), first_trial=trial)


def test_an_entry_that_may_cost_time_states_it_everywhere(risky: Report) -> None:
    for text in (print_plain(risky), render_markdown(risky), render_html(risky)):
        assert "It may cost up to 3.0 ms: measure the step before and after." in text
        assert "A gain with a negative low end may cost time." in " ".join(text.split())
    text = " ".join(print_plain(risky).split())
    assert "gain -3 to 40 ms; likely 20 ms" in text
    assert "should fall from 600 ms to 564-603 ms (by up to 6.0%, or it rises by up to 0.5%)" in text


def test_a_loss_below_the_precision_of_the_range_is_none() -> None:
    gain = Gain(-40_000, 4 * MS, 60 * MS, "replayed")
    assert describe_gain(gain) == "gain 0-60 ms, likely 4 ms (replayed)"
    assert describe_gain(replace(gain, low=-MS)) == "gain -1 to 60 ms, likely 4 ms, may cost up to 1.0 ms (replayed)"


def test_an_entry_that_costs_nothing_at_worst_does_not(report: Report) -> None:
    assert all((step.gain_ns.low or 0) >= 0 for step in report.plan)
    for text in (print_plain(report), render_markdown(report), render_html(report)):
        assert "may cost up to" not in text
        assert "negative low end" not in text


def test_the_bar_of_a_loss_begins_at_zero_and_the_json_keeps_the_number(risky: Report) -> None:
    loaded: dict[str, Any] = json.loads(render_json(risky))
    jsonschema.validate(loaded, report_schema())
    assert loaded["plan"][0]["gain_ns"]["low"] == -3 * MS
    page = render_html(risky).split('<div class="gain">')[1]
    assert "left:-" not in page.replace(" ", "")
