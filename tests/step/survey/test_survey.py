"""A surveyed run is compared as one whose ranks are all read in full."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lockstep import MS, Behaviour, simulate

from three_walls.pipeline import analyze, export_step
from three_walls.report.html_report import render_html
from three_walls.report.json_report import render_json
from three_walls.report.markdown_report import render_markdown
from three_walls.report.report import Report
from three_walls.report.sections.verdict import describe_run
from three_walls.report.sections.waits import ranks
from three_walls.step.survey import rank_survey
from three_walls.trace import read_inputs
from three_walls.trace.run_request import RunRequest

pytestmark = pytest.mark.slow

RANKS = 16
SLOW, IMBALANCED = 4, 14


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Sixteen ranks on two hosts whose clocks differ: one computes slowly, one gets more tokens."""
    behaviours = [
        Behaviour(
            slow=1.3 if rank == SLOW else 1.0,
            tokens=2.0 if rank == IMBALANCED else 1.0,
            host=f"node{rank // 8}",
            clock_ahead_ns=15 * MS * (rank // 8),
        )
        for rank in range(RANKS)
    ]
    return simulate(behaviours, steps=4, group=8, layers=4).write(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def in_full(run: list[Path]) -> Report:
    return analyze(run)


@pytest.fixture
def few_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Surveys runs of more than 4 ranks, 3 in a task."""
    survey_few(monkeypatch)


def survey_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_inputs, "MOST_RANKS_IN_FULL", 4)
    monkeypatch.setattr(rank_survey, "MOST_RANKS_PER_TASK", 3)


@pytest.fixture(scope="module")
def surveyed(run: list[Path]) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        survey_few(patch)
        return analyze(run)


def test_a_survey_finds_the_stragglers_waits_and_wall_of_the_whole_run(surveyed: Report, in_full: Report) -> None:
    assert surveyed.survey is not None
    assert surveyed.survey.ranks_count == RANKS
    assert len(surveyed.survey.in_full) < RANKS
    assert {SLOW, IMBALANCED} <= set(surveyed.survey.in_full)
    assert in_full.stragglers
    assert [replace(each, evidence="") for each in surveyed.stragglers] == [
        replace(each, evidence="") for each in in_full.stragglers
    ]
    numbers = set(surveyed.survey.in_full)
    assert surveyed.waits == tuple(wait for wait in in_full.waits if wait.rank in numbers)
    assert surveyed.ranks == tuple(rank for rank in in_full.ranks if rank.rank in numbers)
    assert surveyed.budget == in_full.budget
    assert surveyed.budget_of == in_full.budget_of
    assert surveyed.alignment == in_full.alignment
    assert surveyed.verdict.wall == in_full.verdict.wall
    assert surveyed.verdict.culprit == in_full.verdict.culprit
    assert surveyed.inputs == in_full.inputs


def test_a_survey_measures_the_facts_that_compare_ranks_from_all_of_them(surveyed: Report, in_full: Report) -> None:
    for name in (
        "ranks_captured_count",
        "straggler_late_ns",
        "straggler_cause",
        "culprit_rank",
        "culprit_cost_ns",
        "kernel_spread_ratio",
        "kernel_spread_rank",
        "capture_start_skew_ns",
        "step_spread_ratio",
        "wait_exposed_ns",
    ):
        assert surveyed.facts.facts[name] == in_full.facts.facts[name], name


def test_every_rank_has_a_row_whose_times_sum_to_its_step(surveyed: Report, in_full: Report) -> None:
    survey = surveyed.survey
    assert survey is not None
    lengths = {
        rank.rank: next(step.end_ns - step.start_ns for step in rank.steps if step.index == rank.median_index)
        for rank in in_full.ranks
    }
    assert {row.rank: row.step_ns for row in survey.ranks} == lengths
    for row in survey.ranks:
        assert row.compute_ns + row.communication_ns + row.idle_ns + row.other_ns == row.step_ns
        assert 0 <= row.wait_ns <= row.communication_ns
    assert [group.ranks_count for group in survey.groups if group.kind == "host"] == [8, 8]
    compute = next(spread for spread in survey.spreads if spread.quantity == "compute")
    assert compute.most_rank == IMBALANCED  # which computes 2 of 6 parts twice


def test_a_run_of_few_ranks_is_not_surveyed(in_full: Report) -> None:
    assert in_full.survey is None
    assert len(in_full.ranks) == RANKS


@pytest.mark.usefixtures("few_in_full")
def test_a_rank_of_a_survey_that_cannot_be_read_costs_itself_alone(run: list[Path], tmp_path: Path) -> None:
    damaged = tmp_path / "rank3.sqlite"
    damaged.write_bytes(run[3].read_bytes()[:4096])
    surveyed = analyze([*run[:3], damaged, *run[4:]])
    assert surveyed.survey is not None
    assert surveyed.survey.ranks_count == RANKS - 1
    assert [lost.input_name for lost in surveyed.survey.lost] == ["rank3.sqlite"]
    assert [warning.code for warning in surveyed.warnings if "rank3.sqlite" in warning.message] == ["trace-unreadable"]
    assert str(tmp_path) not in render_json(surveyed)
    assert 3 not in {row.rank for row in surveyed.survey.ranks}


def test_the_report_shows_all_ranks_and_which_were_read_in_full(surveyed: Report) -> None:
    assert surveyed.survey is not None
    page, markdown = render_html(surveyed), render_markdown(surveyed, is_full=True)
    for text in (page, markdown):
        assert f"16 ranks were surveyed, {len(surveyed.survey.in_full)} of them read in full." in text
        assert "late by " in text
    assert "16 ranks" in describe_run(surveyed)
    assert surveyed.ranks_count == 16


def test_the_report_of_few_ranks_has_no_such_section(in_full: Report) -> None:
    assert ranks(in_full) is None


@pytest.mark.usefixtures("few_in_full")
def test_a_rank_that_was_not_read_in_full_can_be_exported(run: list[Path], surveyed: Report) -> None:
    survey = surveyed.survey
    assert survey is not None
    other = min(set(range(RANKS)) - set(survey.in_full))
    assert [rank.rank for rank in export_step(RunRequest(tuple(run)), (other,)).ranks] == [other]
