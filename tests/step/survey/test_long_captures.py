"""Of long captures of many ranks the same steps are attributed on all ranks, and only these are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.lockstep import MS, Behaviour, Run, simulate
from tests.measured import measure
from tests.step.ranks.test_attributed_steps import STEP_NS
from tests.step.ranks.test_capture_start import cut
from tests.step.ranks.test_steps_to_read import analyze_whole, make_long, marked_steps
from three_walls import analyze
from three_walls.report.report import Report
from three_walls.step.build_timeline import Timeline
from three_walls.step.survey import rank_survey
from three_walls.trace import read_inputs

pytestmark = pytest.mark.slow

RANKS, STEPS, SLOW = 6, 20, 4


@pytest.fixture
def survey_few(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Surveys runs of more than 2 ranks, and makes those of more operations long; gives how many a task reads."""

    def prepare(operations: int) -> list[int]:
        heights: list[int] = []
        monkeypatch.setattr(read_inputs, "MOST_RANKS_IN_FULL", 2)
        monkeypatch.setattr(rank_survey, "MOST_RANKS_PER_TASK", 4)
        make_long(monkeypatch, operations)
        build: Callable[..., Timeline] = rank_survey.build_timeline

        def build_timeline(*arguments: object) -> Timeline:
            timeline = build(*arguments)
            heights.append(timeline.operations.height)
            return timeline

        monkeypatch.setattr(rank_survey, "build_timeline", build_timeline)
        return heights

    return prepare


def make_run(starts: Sequence[float] = (), hosts: int = 2) -> Run:
    """Each rank captured from that step on. The clock of the second host is 2 ms ahead of the first one's."""
    places = [rank * hosts // RANKS for rank in range(RANKS)]
    behaviours = [
        Behaviour(slow=1.3 if rank == SLOW else 1.0, host=f"node{place}", clock_ahead_ns=2 * MS * place)
        for rank, place in enumerate(places)
    ]
    run = simulate(behaviours, steps=STEPS, group=2)
    return cut(run, starts) if starts else run


def kept(report: Report) -> list[list[int]]:
    return [[step.index for step in rank.steps if step.kept] for rank in report.ranks]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "starts",
    [pytest.param((), marks=pytest.mark.exhaustive), (0.3, 0.6, 0.1, 0.8, 0.2, 0.5)],
    ids=["together", "within the same step"],
)
def test_the_same_steps_of_all_ranks_are_attributed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survey_few: Callable[[int], list[int]], starts: Sequence[float]
) -> None:
    directory, heights = make_run(starts).write(tmp_path), survey_few(100)
    report = analyze(directory)
    some = sum(heights)
    heights.clear()
    whole = analyze_whole(monkeypatch, directory)
    assert some < 0.8 * sum(heights)
    assert report.survey is not None and whole.survey is not None
    assert report.survey.ranks_count == RANKS
    numbers = kept(report)
    assert len(numbers[0]) in (4, 5) and all(of_rank == numbers[0] for of_rank in numbers)
    assert [len(rank.steps) for rank in report.ranks] == [len(rank.steps) for rank in whole.ranks]
    assert report.step.note.startswith("left out of a long capture: of 18 steps")
    assert [(each.rank, each.cause) for each in report.stragglers] == [(SLOW, "slow_compute")]
    assert [(each.rank, each.late_ns) for each in report.stragglers] == [
        (each.rank, each.late_ns) for each in whole.stragglers
    ]
    assert report.verdict.wall == whole.verdict.wall
    for row in report.survey.ranks:
        assert row.compute_ns + row.communication_ns + row.idle_ns + row.other_ns == row.step_ns


@pytest.mark.exhaustive
def test_steps_of_captures_that_begin_in_different_steps_are_found_by_when_they_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survey_few: Callable[[int], list[int]]
) -> None:
    directory = make_run((0.3, 2.6, 0.1, 0.8, 1.2, 0.5), hosts=1).write(tmp_path)
    heights = survey_few(100)
    report = analyze(directory)
    some = sum(heights)
    heights.clear()
    whole = analyze_whole(monkeypatch, directory)
    assert some < 0.8 * sum(heights)
    # Steps 17 and 18; steps 1 and 2 ran before the last capture began.
    assert kept(report) == [[17, 18]] * len(report.ranks)
    assert [(each.rank, each.late_ns) for each in report.stragglers] == [(SLOW, whole.stragglers[0].late_ns)]


def test_a_capture_whose_steps_run_far_from_their_ranges_is_surveyed_whole(
    tmp_path: Path, survey_few: Callable[[int], list[int]]
) -> None:
    for rank in range(3):
        marked_steps(rank, late=8 * STEP_NS if rank == 2 else 0).write(tmp_path / f"rank{rank}.sqlite")
    heights = survey_few(20)
    report = analyze(tmp_path)
    assert report.survey is not None and report.survey.ranks_count == 3
    assert heights[0] < heights[1] == 3 * 2 * STEPS


def test_captures_of_which_the_first_is_not_long_are_read_whole(
    tmp_path: Path, survey_few: Callable[[int], list[int]]
) -> None:
    survey_few(100_000)
    report = measure(make_run().write(tmp_path))
    assert report.step.left_out == 0
    assert [len(of_rank) for of_rank in kept(report)] == [STEPS - 2] * len(report.ranks)
