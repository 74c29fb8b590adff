"""Figures are valid plotly, agree with the tables and have a colour for everything."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import pytest

from tests.report.sample_report import BUDGET_MS, without_plan
from three_walls.attribution.compute_gaps import Cause
from three_walls.model.buckets import BUCKETS, Group
from three_walls.model.report import Report
from three_walls.report.palette import BUCKET_COLOURS, GROUP_COLOURS
from three_walls.report.section import Chart, nested_blocks
from three_walls.report.sections import make_sections
from three_walls.report.sections.gaps import CAUSES, colour_causes, label_cause


def draw_figures(report: Report) -> dict[str, Any]:
    blocks = (block for section in make_sections(report) for block in nested_blocks(section.blocks))
    return {block.name: block.figure for block in blocks if isinstance(block, Chart)}


@pytest.mark.parametrize("name", ["budget", "gaps", "ranks", "plan", "communication"])
def test_plotly_accepts_the_figure(report: Report, name: str) -> None:
    go.Figure(draw_figures(report)[name])


def test_every_bucket_has_a_colour_of_its_own() -> None:
    assert list(BUCKET_COLOURS) == [bucket.name for bucket in BUCKETS]
    assert len(set(BUCKET_COLOURS.values())) == len(BUCKETS)


def test_every_group_has_a_colour() -> None:
    assert set(GROUP_COLOURS) == set(Group)


def test_the_budget_bar_holds_the_whole_step(report: Report) -> None:
    traces = draw_figures(report)["budget"]["data"]
    assert {t["name"]: t["x"] for t in traces} == {name: [float(ms)] for name, ms in BUDGET_MS.items() if ms}


def test_the_bar_of_gaps_holds_all_time_without_a_compute_kernel(report: Report) -> None:
    segments = {t["name"]: t["x"] for t in draw_figures(report)["gaps"]["data"]}
    assert segments["waiting for an operation"] == [187.0]
    assert sum(x for (x,) in segments.values()) == 237.0


def test_every_cause_has_a_meaning_and_a_colour_of_its_own() -> None:
    assert set(CAUSES) == set(Cause)
    assert (
        len({look.colour for look in CAUSES.values()}) == len({look.label for look in CAUSES.values()}) == len(CAUSES)
    )


def test_a_cause_that_is_not_listed_is_shown_by_its_name() -> None:
    colours = colour_causes(["blocking", *(f"cause {number}" for number in range(20))])
    assert len(set(colours.values())) > 5
    assert colours["cause 18"] == colours["cause 19"]
    assert label_cause("cause 1") == "cause 1"


def test_exposed_and_hidden_stack_to_busy(report: Report) -> None:
    exposed, hidden = draw_figures(report)["communication"]["data"]
    assert (exposed["y"][0], exposed["x"][0], hidden["x"][0]) == ("ep_all_to_all", 150.0, 21.0)


def test_the_plan_starts_at_the_step_as_measured(report: Report) -> None:
    certain, open_part = draw_figures(report)["plan"]["data"]
    assert certain["x"] == [640.0, 551.0, 520.0]
    assert open_part["x"] == [0.0, 89.0, 112.0]


def test_figures_without_numbers_are_left_out(report: Report, abstained: Report) -> None:
    assert draw_figures(abstained) == {}
    assert "plan" not in draw_figures(without_plan(report))
