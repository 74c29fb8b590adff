"""The verdict: which wall, by how much, and when to abstain."""

from __future__ import annotations

import pytest

from tests.advice.builders import MS, sheet_of
from three_walls.advice.decide_verdict import decide_verdict
from three_walls.advice.verdict_rows import Verdict
from three_walls.lib.plain_data import ConfigData
from three_walls.step.step_rows import Straggler
from three_walls.tables.buckets import SubWall, Wall


def judged(without: tuple[str, ...] = (), /, **values: ConfigData) -> Verdict:
    """The verdict on a step of 1000 ms in which no wall has anything to give back, changed by ``values``."""
    base: dict[str, ConfigData] = {
        "step_ns": 1000 * MS,
        "memory_recoverable_ns": 0,
        "communication_recoverable_ns": 0,
        "compute_recoverable_ns": 0,
        "host_recoverable_ns": 0,
        "wait_exposed_fraction": 0.0,
        "cuda_graph_fraction": 0.0,
        "unclassified_fraction": 0.0,
        "compute_busy_fraction": 0.5,
    }
    return decide_verdict(sheet_of({name: value for name, value in (base | values).items() if name not in without}))


def test_the_wall_with_the_most_recoverable_time_is_named() -> None:
    verdict = judged(communication_recoverable_ns=300 * MS, host_recoverable_ns=100 * MS)
    assert (verdict.wall, verdict.sub_wall, verdict.abstained) == (Wall.COMMUNICATION, None, False)
    assert (verdict.runner_up_wall, verdict.runner_up_sub_wall) == (Wall.COMPUTE_HOST, SubWall.HOST)
    assert verdict.margin_fraction == pytest.approx(0.2)
    assert verdict.reason == (
        "Communication changes can save up to 300.0 ms (30.0% of the 1,000.0 ms step); "
        "next is the host with 100.0 ms (10.0%)."
    )
    assert verdict.recoverable_ns == {
        "memory": 0,
        "communication": 300 * MS,
        "compute_host.compute": 0,
        "compute_host.host": 100 * MS,
    }


def test_transfer_that_is_a_lower_bound_decides_nothing_that_it_could_overturn() -> None:
    measured: dict[str, ConfigData] = {
        "ep_transfer_is_lower_bound": True,
        "ep_wait_exposed_ns": 250 * MS,
        "wait_exposed_fraction": 0.25,
        "communication_recoverable_ns": 50 * MS,
    }
    verdict = judged(**measured, host_recoverable_ns=200 * MS)
    assert verdict.abstained
    assert "between 50.0 ms and 300.0 ms of the 1,000.0 ms step, host changes up to 200.0 ms" in verdict.reason
    larger = judged(**measured, host_recoverable_ns=290 * MS)
    assert larger.sub_wall is SubWall.HOST
    assert "up to 25.0% of the traced step waits for other ranks" in larger.reason
    known = judged(**{**measured, "ep_transfer_is_lower_bound": False}, host_recoverable_ns=200 * MS)
    assert known.sub_wall is SubWall.HOST


@pytest.mark.parametrize(("spread", "captured", "is_named"), [(1.9, 1, True), (1.1, 1, False), (1.9, 2, False)])
def test_a_rank_alone_on_a_shared_gpu_is_named_in_place_of_a_wall(spread: float, captured: int, is_named: bool) -> None:
    spreads: dict[str, ConfigData] = {"kernel_spread_ratio": spread, "kernel_spread_rank": 2}
    verdict = judged(**spreads, ranks_captured_count=captured, compute_recoverable_ns=300 * MS)
    assert verdict.abstained is is_named
    assert ("The GPU of rank 2, the only one captured, is slow by itself" in verdict.reason) is is_named


def test_both_halves_of_the_third_wall_count_together() -> None:
    verdict = judged(
        communication_recoverable_ns=200 * MS, compute_recoverable_ns=140 * MS, host_recoverable_ns=110 * MS
    )
    assert (verdict.wall, verdict.sub_wall) == (Wall.COMPUTE_HOST, SubWall.COMPUTE)
    assert (verdict.runner_up_wall, verdict.runner_up_sub_wall) == (Wall.COMMUNICATION, None)
    assert verdict.reason == (
        "Compute and host changes can save up to 250.0 ms (25.0% of the 1,000.0 ms step: compute 140.0 ms, host "
        "110.0 ms); next is communication with 200.0 ms (20.0%)."
    )


def test_the_larger_half_of_the_third_wall_is_named_first() -> None:
    verdict = judged(compute_recoverable_ns=100 * MS, host_recoverable_ns=200 * MS, memory_recoverable_ns=MS)
    assert "Compute and host changes" in verdict.reason
    assert ": host 200.0 ms, compute 100.0 ms); next is memory" in verdict.reason


def test_one_half_of_the_third_wall_is_named_alone_where_the_other_has_nothing() -> None:
    verdict = judged(host_recoverable_ns=200 * MS)
    assert verdict.reason == (
        "Host changes can save up to 200.0 ms (20.0% of the 1,000.0 ms step); the other walls have nothing to save."
    )
    assert verdict.runner_up_wall is None
    assert verdict.margin_fraction == pytest.approx(0.2)
    assert judged(host_recoverable_ns=200 * MS, memory_recoverable_ns=40_000).runner_up_wall is None


def test_both_halves_of_the_third_wall_are_named_behind_another() -> None:
    verdict = judged(communication_recoverable_ns=300 * MS, compute_recoverable_ns=50 * MS, host_recoverable_ns=60 * MS)
    assert verdict.reason.endswith("next are compute and the host together with 110.0 ms (11.0%).")


def test_memory_is_a_wall_like_the_others() -> None:
    assert judged(memory_recoverable_ns=200 * MS).wall is Wall.MEMORY


def test_waiting_for_peers_is_mentioned_next_to_a_wall() -> None:
    verdict = judged(communication_recoverable_ns=100 * MS, wait_exposed_fraction=0.4)
    assert verdict.wall is Wall.COMMUNICATION
    assert "40.0% of the traced step waits for other ranks" in verdict.reason


@pytest.mark.parametrize(("world", "is_missing"), [(8, True), (4, False)])
def test_the_rank_that_others_wait_for_may_be_a_missing_one(world: int, is_missing: bool) -> None:
    ranks = {"ranks_captured_count": 4, "world_size": world}
    verdict = judged(("culprit_rank",), communication_recoverable_ns=100 * MS, wait_exposed_fraction=0.4, **ranks)
    assert (f"4 of {world} were captured: look among the missing ranks" in verdict.reason) == is_missing


def test_walls_that_are_too_close_are_not_decided_between() -> None:
    close = judged(communication_recoverable_ns=200 * MS, host_recoverable_ns=181 * MS)
    assert (close.wall, close.abstained, close.runner_up_wall) == (None, True, None)
    assert close.reason == (
        "Communication (200.0 ms, 20.0%) and the host (181.0 ms, 18.1%) are too close to decide which of them "
        "limits the run."
    )
    assert close.recoverable_ns["communication"] == 200 * MS
    assert not judged(communication_recoverable_ns=200 * MS, host_recoverable_ns=180 * MS).abstained


def test_waiting_is_mentioned_where_the_walls_are_too_close_too() -> None:
    close = judged(communication_recoverable_ns=200 * MS, host_recoverable_ns=181 * MS, wait_exposed_fraction=0.4)
    assert "40.0% of the traced step waits for other ranks" in close.reason


def test_a_step_that_is_mostly_compute_is_reported_as_such() -> None:
    verdict = judged(compute_busy_fraction=0.9, memory_recoverable_ns=99 * MS)
    assert (verdict.wall, verdict.sub_wall) == (Wall.COMPUTE_HOST, SubWall.COMPUTE)
    assert verdict.reason.startswith("The 1,000.0 ms traced step is mostly compute (90.0%)")
    assert (verdict.runner_up_wall, verdict.margin_fraction) == (None, None)


def test_a_tenth_of_the_step_is_enough_for_a_wall() -> None:
    assert judged(compute_busy_fraction=0.9, memory_recoverable_ns=100 * MS).wall is Wall.MEMORY


def test_a_lean_step_has_no_wall_but_computing_and_only_if_it_computes() -> None:
    lean = {"communication_recoverable_ns": 70 * MS, "host_recoverable_ns": 10 * MS}
    assert judged(compute_busy_fraction=0.93, **lean).sub_wall is SubWall.COMPUTE
    assert judged(compute_busy_fraction=0.80, **lean).sub_wall is SubWall.COMPUTE
    assert judged(compute_busy_fraction=0.79, **lean).abstained


@pytest.mark.parametrize(
    ("values", "without", "reason"),
    [
        ({}, ("step_ns",), "The step length is unknown"),
        ({"cuda_graph_fraction": 0.1}, (), "Capture again with --cuda-graph-trace=node"),
        ({"unclassified_fraction": 0.25}, (), "kernels of unknown kind"),
        ({}, ("host_recoverable_ns",), "these are unknown: recoverable host time"),
        ({"wait_exposed_fraction": 0.5}, (), "50.0% of the traced step waits for other ranks"),
        ({"wait_exposed_fraction": 0.49}, (), "49.0% of the traced step waits for other ranks"),
        ({"idle_other_fraction": 0.33}, (), "idle for 33.0% of the traced step although"),
        ({}, (), "only 50.0% of it is compute"),
        ({}, ("compute_busy_fraction",), "how much of the step is compute is unknown"),
    ],
)
def test_each_reason_to_abstain(values: dict[str, ConfigData], without: tuple[str, ...], reason: str) -> None:
    verdict = judged(without, **values)
    assert verdict.abstained
    assert (verdict.wall, verdict.sub_wall, verdict.runner_up_wall, verdict.margin_fraction) == (None, None, None, None)
    assert reason in verdict.reason


def test_graphs_and_unclassified_kernels_below_their_limits_do_not_matter() -> None:
    verdict = judged(cuda_graph_fraction=0.099, unclassified_fraction=0.249, memory_recoverable_ns=100 * MS)
    assert verdict.wall is Wall.MEMORY


SLOW_RANK: dict[str, ConfigData] = {
    "culprit_rank": 2,
    "culprit_cause": "slow_compute",
    "culprit_cost_ns": 400 * MS,
    "wait_exposed_ns": 500 * MS,
    "ep_wait_exposed_ns": 300 * MS,
    "collective_wait_exposed_ns": 200 * MS,
    "wait_exposed_fraction": 0.5,
    "compute_busy_ns": 500 * MS,
}


def test_with_a_rank_to_fix_first_the_wall_is_judged_for_the_step_without_its_delay() -> None:
    verdict = judged(**SLOW_RANK, compute_recoverable_ns=90 * MS)
    assert verdict.culprit is not None
    assert (verdict.culprit.rank, verdict.culprit.cause) == (2, "slow_compute")
    assert (verdict.culprit.cost_ns, verdict.culprit.step_without_it_ns) == (400 * MS, 600 * MS)
    assert verdict.step_ns == 1000 * MS
    assert (verdict.wall, verdict.sub_wall) == (Wall.COMPUTE_HOST, SubWall.COMPUTE)  # 9% of the step, 15% without
    assert "(15.0% of the 600.0 ms step)" in verdict.reason


def test_waiting_for_others_than_the_rank_to_fix_still_counts() -> None:
    verdict = judged(**{**SLOW_RANK, "wait_exposed_ns": 800 * MS, "ep_wait_exposed_ns": 600 * MS})
    assert verdict.abstained
    assert "66.7% of the traced step waits for other ranks" in verdict.reason


def test_the_evidence_against_the_rank_to_fix_first_is_that_of_the_straggler() -> None:
    straggler = Straggler(2, 400 * MS, "slow_compute", "it was slow", 400 * MS, "shared_gpu")
    facts = sheet_of({"step_ns": 1000 * MS, **SLOW_RANK})
    culprit = decide_verdict(facts, stragglers=[Straggler(1, 1, "late_stage", "another"), straggler]).culprit
    assert culprit is not None
    assert (culprit.evidence, culprit.likely_reason) == ("it was slow", "shared_gpu")


def test_without_a_rank_to_fix_first_there_is_no_culprit() -> None:
    assert judged(communication_recoverable_ns=300 * MS, culprit_cost_ns=0).culprit is None
