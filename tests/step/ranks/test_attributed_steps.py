"""Of a long capture only some steps are attributed: the same of all ranks, to the same budgets as otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.measured import measure
from tests.step.test_run_in_parts import STEPS, attribute, busy_steps
from tests.trace_builder import ADAM, GEMM, TraceBuilder
from three_walls import analyze
from three_walls.report.report import Report
from three_walls.report.sections.verdict import count_complete
from three_walls.step import selected_steps
from three_walls.step.ranks import attributed_steps, steps_to_read

pytestmark = pytest.mark.slow

STEP_NS = 1_000


def attribute_few(monkeypatch: pytest.MonkeyPatch, operations: int, fewest: int = 4) -> None:
    """Makes every capture of more than ``operations`` a long one, of which two stretches are attributed."""
    for module in (attributed_steps, steps_to_read):
        monkeypatch.setattr(module, "MOST_ATTRIBUTED_OPERATIONS", operations)
    monkeypatch.setattr(attributed_steps, "FEWEST_ATTRIBUTED_STEPS", fewest)
    monkeypatch.setattr(attributed_steps, "ATTRIBUTED_STRETCHES", 2)
    monkeypatch.setattr(attributed_steps, "LONGEST_ATTRIBUTED_STEPS", 1)
    monkeypatch.setattr(selected_steps, "LARGEST_MARGIN", 60)


def equal_steps(count: int, long: int | None = None) -> TraceBuilder:
    """``count`` steps of a GEMM and an update, the ``long`` one with a pause between them."""
    builder, at = TraceBuilder(), 1
    for step in range(count):
        waits = 300 if step == long else 0
        builder.kernel(GEMM, at, at + 800, launched=max(at - 5, 0))
        builder.kernel(ADAM, at + 800 + waits, at + STEP_NS + waits, launched=at + 790 + waits)
        at += STEP_NS + waits
    return builder


def attributed(report: Report, rank: int = 0) -> list[int]:
    return [step.index for step in report.ranks[rank].steps if step.budget]


def test_stretches_from_the_first_to_the_last_step_and_the_longest_are_attributed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = equal_steps(20, long=7).write(tmp_path / "t.sqlite")
    attribute_few(monkeypatch, operations=8)
    report = analyze(path)
    assert attributed(report) == [1, 2, 7, 17, 18]
    assert (report.step.kept, report.step.max_ns, len(report.ranks[0].steps)) == (5, STEP_NS + 300, 20)
    assert report.step.left_out == 13
    assert count_complete(report) == "18 of 20 steps complete, 5 of them analyzed"
    assert report.step.note == (
        "left out of a long capture: of 18 steps 5 are attributed, in 2 stretches from all over the capture, and the 1 "
        "longest"
    )
    left_out = [step.index for step in report.step.dropped if step.reason == report.step.note]
    assert left_out == [*range(3, 7), *range(8, 17)]
    assert report.ranks[0].median_index in attributed(report)


def test_the_median_of_the_attributed_steps_is_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    attribute_few(monkeypatch, operations=8)
    drifting = np.array([900, 900, 1_100, 1_000, 1_000, 1_200, 1_000, 1_000, 1_000, 1_000, 900, 900])
    # Stretches from the first step to the last one would be of 900 ns each.
    assert attributed_steps._choose_places(drifting, 4).tolist() == [0, 1, 5, 8, 9]
    even = np.full(12, 1_000)
    assert attributed_steps._choose_places(even, 4).tolist() == [0, 1, 10, 11]


def test_all_steps_of_an_ordinary_capture_are_attributed(tmp_path: Path) -> None:
    report = analyze(equal_steps(20).write(tmp_path / "t.sqlite"))
    assert attributed(report) == list(range(20))
    assert (report.step.note, report.step.left_out) == ("", 0)
    assert count_complete(report) == "18 of 20 steps complete"


def test_all_steps_are_attributed_where_leaving_some_out_saves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attribute_few(monkeypatch, operations=8, fewest=10)
    assert attributed(measure(equal_steps(20).write(tmp_path / "t.sqlite"))) == list(range(20))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (4, 6))])
def test_a_step_has_the_budget_and_the_gaps_that_it_has_among_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    path = busy_steps(seed).write(tmp_path / "t.sqlite")
    whole = attribute(path)
    attribute_few(monkeypatch, operations=80)
    some = attribute(path)
    assert 4 <= some.steps.height < STEPS // 2
    for all_rows, rows in (
        (whole.budget, some.budget),
        (whole.exposure, some.exposure),
        (whole.compute_gaps.sums, some.compute_gaps.sums),
    ):
        of_steps = all_rows.join(some.steps, on=["rank_index", "step"], how="semi", maintain_order="left")
        assert of_steps.equals(rows)
        assert rows.height


def test_the_same_steps_of_all_ranks_are_attributed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(2):
        busy_steps(rank, rank).write(tmp_path / f"rank{rank}.sqlite")
    attribute_few(monkeypatch, operations=160)
    report = measure(tmp_path)
    assert attributed(report, 0) == attributed(report, 1)
    assert 4 <= len(attributed(report)) < STEPS // 2
