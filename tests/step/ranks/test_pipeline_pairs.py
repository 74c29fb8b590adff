"""Pipeline exchanges of neighbouring stages are paired by their order, or else by when they end."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from pipeline_model import EXCHANGE_STREAM, PipelineRun, simulate_pipeline
from trace_builder import SEND_RECV, merge

from tests.measured import measure
from three_walls.report.report import Report
from three_walls.step.ranks.pipeline_pairs import NEXT, PREVIOUS, list_exchanges
from three_walls.step.step_rows import Wait

pytestmark = pytest.mark.slow

STEP = 1


def exchanges(report: Report) -> list[Wait]:
    return [wait for wait in report.waits if wait.communication_class == "pipeline_p2p"]


def test_the_order_of_a_middle_stage_is_megatrons() -> None:
    # Stage 1 of 3, two micro-batches: one forward pass ahead, one round, one backward pass.
    ahead, last_in, only_round, back = [PREVIOUS, NEXT], [PREVIOUS], [NEXT, PREVIOUS], [NEXT, PREVIOUS]
    assert list_exchanges(1, 3, 2) == ahead + last_in + only_round + back
    # A call that sends and receives is two when it is not batched: here only the round's with the next stage.
    assert list_exchanges(1, 3, 2, batched=False) == ahead + last_in + [NEXT, NEXT, PREVIOUS] + back


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (4, 2), (5, 4), (3, 1), (8, 32)])
def test_neighbours_make_equally_many_exchanges_with_each_other(stages: int, micro_batches: int, batched: bool) -> None:
    orders = [list_exchanges(stage, stages, micro_batches, batched=batched) for stage in range(stages)]
    for before, after in pairwise(orders):
        assert before.count(NEXT) == after.count(PREVIOUS) > 0
    assert PREVIOUS not in orders[0]
    assert NEXT not in orders[-1]


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (4, 2), (3, 5)])
def test_every_exchange_of_a_1f1b_pipeline_is_split_exactly(tmp_path: Path, stages: int, micro_batches: int) -> None:
    run = simulate_pipeline(stages, micro_batches)
    report = measure(run.write(tmp_path))
    found = exchanges(report)
    assert [wait.rank for wait in found] == list(range(stages))
    assert all(wait.resolved for wait in found)
    assert [wait.wait_ns for wait in found] == [run.truth[(rank, STEP)] for rank in range(stages)]
    assert [wait.transfer_ns for wait in found] == [
        run.transfer_ns * len(list_exchanges(rank, stages, micro_batches)) for rank in range(stages)
    ]


def test_with_two_stages_each_waits_for_the_other(tmp_path: Path) -> None:
    found = exchanges(measure(simulate_pipeline(2, 4).write(tmp_path)))
    assert [wait.awaited_rank for wait in found] == [1, 0]


def by_neighbour(run: PipelineRun) -> None:
    run.streams_by_neighbour = True


def without_order(run: PipelineRun) -> None:
    run.exchange_first = True


@pytest.mark.parametrize("odd", [by_neighbour, without_order])
def test_several_streams_or_another_schedule_make_no_difference(tmp_path: Path, odd: object) -> None:
    assert callable(odd)
    run = simulate_pipeline(4, 8, odd=odd)
    found = exchanges(measure(run.write(tmp_path)))
    assert all(wait.resolved for wait in found)
    assert [wait.wait_ns for wait in found] == [run.truth[(rank, STEP)] for rank in range(4)]


def test_exchanges_that_fit_neither_order_nor_time_are_not_paired(tmp_path: Path) -> None:
    run = simulate_pipeline(4, 8, odd=without_order)
    for order, builder in enumerate(run.builders):
        for row in builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
            if row["streamId"] == EXCHANGE_STREAM:
                row["end"] -= 200_000 * order
                row["start"] = min(row["start"], row["end"] - 1)
    found = exchanges(measure(run.write(tmp_path)))
    assert not any(wait.resolved or wait.awaited_rank is not None for wait in found)
    assert all("do not follow the 1F1B schedule" in wait.note for wait in found[1:3])


def test_a_missing_neighbour_is_the_reason(tmp_path: Path) -> None:
    run = simulate_pipeline(4, 8)
    found = exchanges(measure(run.write(tmp_path)[::3]))
    assert [wait.rank for wait in found] == [0, 3]
    assert not any(wait.resolved for wait in found)
    assert all("the neighbouring stage was not captured" in wait.note for wait in found)


def test_pairs_whose_ends_lie_apart_are_not_resolved(tmp_path: Path) -> None:
    run = simulate_pipeline(2, 4)
    for row in run.builders[1].rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
        if row["streamId"] == EXCHANGE_STREAM:
            row["end"] += 500_000
    found = exchanges(measure(run.write(tmp_path)))
    assert not any(wait.resolved for wait in found)


def test_an_exchange_too_many_is_left_over_and_the_others_are_paired_by_time(tmp_path: Path) -> None:
    run = simulate_pipeline(2, 4)
    inside = run.now[0] * 3 // 8  # the middle of the second of four steps
    run.builders[0].kernel(SEND_RECV, inside, inside + 50_000, stream=EXCHANGE_STREAM)
    found = exchanges(measure(run.write(tmp_path)))
    assert [wait.wait_ns for wait in found] == [run.truth[(rank, STEP)] for rank in range(2)]
    assert [wait.transfer_ns for wait in found] == [5 * run.transfer_ns + 50_000, 5 * run.transfer_ns]


def test_stages_of_a_healthy_pipeline_are_no_stragglers(tmp_path: Path) -> None:
    # Under 1F1B the first stage is the last to come to the gradients' all-reduce, every time.
    assert measure(simulate_pipeline(4, 8).write(tmp_path)).stragglers == ()


def test_a_stage_with_more_layers_is_no_straggler_but_it_is_waited_for(tmp_path: Path) -> None:
    def longer(run: PipelineRun) -> None:
        run.extra_layers_on = 2

    report = measure(simulate_pipeline(4, 8, odd=longer).write(tmp_path))
    assert report.stragglers == ()
    assert {wait.awaited_rank for wait in exchanges(report) if wait.rank in (1, 3)} == {2}


def test_processes_numbered_in_the_order_found_have_no_stage(tmp_path: Path) -> None:
    run = simulate_pipeline(4, 8)
    report = measure(merge(tmp_path / "all.sqlite", *run.builders))
    assert "rank-not-in-trace" in {warning.code for warning in report.warnings}
    assert {phase.stage for phase in report.pipeline_phases} == {None}
    assert not any(wait.resolved for wait in exchanges(report))
    apart = measure(simulate_pipeline(4, 8).write(tmp_path / "apart"))
    assert {phase.stage for phase in apart.pipeline_phases} == {0, 1, 2, 3}
