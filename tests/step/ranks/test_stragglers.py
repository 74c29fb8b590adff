"""A known late rank is named with the right cause, and no other rank is."""

from __future__ import annotations

from pathlib import Path

import pytest
from lockstep import ALL_REDUCE, EPOCH, MS, US, Behaviour, simulate
from trace_builder import ADAM, GEMM, MEGATRON, SEND_RECV, TraceBuilder

from tests.measured import measure

pytestmark = pytest.mark.slow

USUAL = Behaviour()


@pytest.mark.parametrize(
    ("odd", "cause", "words"),
    [
        (Behaviour(slow=1.3), "slow_compute", "took 1.30 times as long"),
        (Behaviour(tokens=2.0), "expert_imbalance", "between dispatch and combine"),
        (Behaviour(starved_ns=MS), "launch_starved", "idle with nothing launched"),
        (Behaviour(blocked_ns=MS), "host_blocked", "in a synchronizing call"),
    ],
)
def test_the_late_rank_is_named_with_its_cause(tmp_path: Path, odd: Behaviour, cause: str, words: str) -> None:
    run = simulate([USUAL, USUAL, odd, USUAL])
    report = measure(run.write(tmp_path))
    (straggler,) = report.stragglers
    assert straggler.rank == 2
    assert straggler.cause == cause, straggler.evidence
    assert words in straggler.evidence
    assert straggler.late_ns == run.truth.late[(2, 2)]
    assert {wait.awaited_rank for wait in report.waits if wait.rank != 2 and wait.wait_ns} == {2}


def test_more_tokens_in_a_persistent_gemm_are_no_slow_gpu(tmp_path: Path) -> None:
    # Its name and grid are those of its peers' GEMMs; only the activation's grid shows the tokens.
    ranks = [Behaviour(persistent=True), Behaviour(persistent=True, tokens=2.0), Behaviour(persistent=True)]
    (straggler,) = measure(simulate(ranks).write(tmp_path)).stragglers
    assert (straggler.rank, straggler.cause) == (1, "expert_imbalance"), straggler.evidence


def test_a_slow_gpu_with_other_tokens_is_still_slow(tmp_path: Path) -> None:
    ranks = [Behaviour(persistent=True), Behaviour(persistent=True, tokens=1.25, slow=1.4), Behaviour(persistent=True)]
    (straggler,) = measure(simulate(ranks).write(tmp_path)).stragglers
    assert (straggler.rank, straggler.cause) == (1, "slow_compute"), straggler.evidence


def test_every_wait_is_exact_and_waits_and_transfers_sum_to_the_calls(tmp_path: Path) -> None:
    run = simulate([USUAL, Behaviour(slow=1.2), Behaviour(tokens=1.5), USUAL])
    report = measure(run.write(tmp_path))
    assert len(report.waits) == 8
    for wait in report.waits:
        truth = run.truth.waits[(wait.rank, 2)][wait.communication_class]
        assert wait.resolved
        assert wait.wait_ns == truth
        assert wait.transfer_ns == run.truth.buckets[(wait.rank, 2)][wait.communication_class] - truth


def test_a_gpu_that_another_process_uses_is_distinguished_from_one_with_lower_clocks(tmp_path: Path) -> None:
    ranks = [USUAL, USUAL, Behaviour(shared=3.0), USUAL]
    (shared,) = measure(simulate(ranks, layers=6).write(tmp_path / "shared")).stragglers
    assert (shared.rank, shared.cause, shared.likely_reason) == (2, "slow_compute", "shared_gpu"), shared.evidence
    assert "Another process likely uses this GPU: repeated kernels take 2.00 times" in shared.evidence
    ranks = [USUAL, USUAL, Behaviour(slow=1.4), USUAL]
    (clocked,) = measure(simulate(ranks, layers=6).write(tmp_path / "clocks")).stragglers
    assert (clocked.rank, clocked.cause, clocked.likely_reason) == (2, "slow_compute", "lower_clocks")
    assert "as on a GPU with lower clocks" in clocked.evidence


def test_a_late_host_says_nothing_of_its_gpu(tmp_path: Path) -> None:
    (straggler,) = measure(simulate([USUAL, Behaviour(starved_ns=MS), USUAL], layers=6).write(tmp_path)).stragglers
    assert (straggler.cause, straggler.likely_reason) == ("launch_starved", "")


def test_healthy_ranks_are_no_stragglers(tmp_path: Path) -> None:
    jitter = [Behaviour(slow=1 + 0.01 * order) for order in range(4)]
    report = measure(simulate(jitter).write(tmp_path))
    assert report.stragglers == ()


def test_ranks_that_are_late_in_turn_are_no_stragglers(tmp_path: Path) -> None:
    # Each is last in one part of the step: both are late by the same amount, so neither is by more than its peers.
    late_in_attention, late_in_experts = Behaviour(starved_ns=500 * US), Behaviour(tokens=1.5)
    report = measure(simulate([late_in_attention, late_in_experts]).write(tmp_path))
    assert report.stragglers == ()


def test_the_late_rank_of_an_incomplete_group_is_named_and_waits_stay_estimates(tmp_path: Path) -> None:
    run = simulate([USUAL, USUAL, Behaviour(slow=1.5), USUAL], world=8, group=8)
    report = measure(run.write(tmp_path))
    assert [(straggler.rank, straggler.cause) for straggler in report.stragglers] == [(2, "slow_compute")]
    assert report.waits
    assert not any(wait.resolved or wait.awaited_rank is not None for wait in report.waits)
    assert all("4 of 8 ranks of the group were captured" in wait.note for wait in report.waits)


def test_the_late_rank_is_named_without_the_size_of_the_world(tmp_path: Path) -> None:
    run = simulate([USUAL, Behaviour(slow=1.5)])
    for builder in run.builders:
        builder.metadata = [(name, value) for name, value in builder.metadata if "WORLD_SIZE" not in value]
    report = measure(run.write(tmp_path))
    assert [(straggler.rank, straggler.cause) for straggler in report.stragglers] == [(1, "slow_compute")]
    assert all("size of their group is not known" in wait.note for wait in report.waits)


@pytest.mark.parametrize("left_out", range(4))
def test_the_late_rank_is_named_whichever_peer_is_missing(tmp_path: Path, left_out: int) -> None:
    paths = simulate([USUAL, USUAL, Behaviour(slow=1.5), USUAL]).write(tmp_path)
    report = measure([path for rank, path in enumerate(paths) if rank != left_out])
    assert [straggler.rank for straggler in report.stragglers] == ([] if left_out == 2 else [2])


def test_a_rank_that_waits_for_a_later_missing_one_is_not_blamed(tmp_path: Path) -> None:
    ranks = [USUAL, Behaviour(slow=1.5), USUAL]
    assert measure(simulate([*ranks, Behaviour(slow=2.5)]).write(tmp_path / "missing")[:3]).stragglers == ()
    healthy = simulate([*ranks, USUAL]).write(tmp_path / "healthy")
    assert [straggler.rank for straggler in measure(healthy[:3]).stragglers] == [1]


def test_the_facts_take_the_measured_split(tmp_path: Path) -> None:
    run = simulate([USUAL, Behaviour(slow=1.5)])
    report = measure(run.write(tmp_path))
    assert report.budget_of.startswith("rank 0, ")
    assert report.facts.number("ep_wait_exposed_ns") == run.truth.waits[(0, 2)]["ep_all_to_all"]
    assert report.facts.number("ep_transfer_exposed_ns") == 6 * run.transfer_ns
    assert report.facts.number("collective_transfer_exposed_ns") == 2 * run.transfer_ns


def test_a_rank_that_waited_for_an_earlier_stage_is_a_late_stage(tmp_path: Path) -> None:
    # Two of four ranks, but all of the first stage's data-parallel group.
    paths = []
    for rank, received_ns in ((0, 2 * MS), (1, 42 * MS)):
        builder = TraceBuilder(session_start_ns=EPOCH).launched_as(
            MEGATRON + " --pipeline-model-parallel-size 2", RANK=str(rank), WORLD_SIZE="4", LOCAL_WORLD_SIZE="4"
        )
        for step in range(4):
            first = MS + step * 100 * MS
            builder.kernel(GEMM, first, first + 20 * MS)
            builder.kernel(SEND_RECV, first + 20 * MS, first + 20 * MS + received_ns, stream=20)
            builder.kernel(GEMM, first + 20 * MS + received_ns, first + 50 * MS + received_ns)
            builder.kernel(ALL_REDUCE, first + 50 * MS + received_ns, first + 95 * MS, stream=30)
            builder.kernel(ADAM, first + 95 * MS, first + 100 * MS)
        paths.append(builder.write(tmp_path / f"rank{rank}.sqlite"))
    (straggler,) = measure(paths).stragglers
    assert (straggler.rank, straggler.cause, straggler.late_ns) == (1, "late_stage", 40 * MS)


@pytest.mark.parametrize(
    ("stage_is_late", "cause", "words"),
    [(True, "late_stage", "waited there for rank 3, of another stage"), (False, "unknown", "at most")],
)
def test_only_waiting_makes_a_late_stage_where_both_ends_were_captured(
    tmp_path: Path, stage_is_late: bool, cause: str, words: str
) -> None:
    # Rank 1's exchange takes 42 ms: rank 3 arrived 40 ms late, or it arrived in time and the link was slow.
    paths = []
    for rank in range(4):
        builder = TraceBuilder(session_start_ns=EPOCH).launched_as(
            MEGATRON + " --pipeline-model-parallel-size 2", RANK=str(rank), WORLD_SIZE="4", LOCAL_WORLD_SIZE="4"
        )
        received_ns = 42 * MS if rank in (1, 3) else 2 * MS
        for step in range(4):
            first = MS + step * 100 * MS
            arrived = first + 20 * MS + (40 * MS if rank == 3 and stage_is_late else 0)
            ended = first + 20 * MS + received_ns
            builder.kernel(GEMM, first, arrived)
            builder.kernel(SEND_RECV, arrived, ended, stream=20)
            builder.kernel(GEMM, ended, ended + 30 * MS)
            reduced = first + (95 + rank // 2) * MS  # each stage has a group of its own
            builder.kernel(ALL_REDUCE, ended + 30 * MS, reduced, stream=30)
            builder.kernel(ADAM, reduced, first + 100 * MS)
        paths.append(builder.write(tmp_path / f"rank{rank}.sqlite"))
    report = measure(paths)
    (late,) = [straggler for straggler in report.stragglers if straggler.rank == 1]
    assert (late.cause, late.late_ns) == (cause, 40 * MS), late.evidence
    assert words in late.evidence
    (exchange,) = [wait for wait in report.waits if (wait.communication_class, wait.rank) == ("pipeline_p2p", 1)]
    assert exchange.resolved
    assert exchange.wait_ns == (40 * MS if stage_is_late else 0)


@pytest.mark.parametrize(("late_steps", "is_late"), [([2], False), ([1, 2], True)])
def test_a_rank_that_is_late_in_one_of_two_kept_steps_is_no_straggler(
    tmp_path: Path, late_steps: list[int], is_late: bool
) -> None:
    run = simulate([USUAL, USUAL], steps=0)
    for step in range(4):
        run.behaviours = [USUAL, Behaviour(starved_ns=MS) if step in late_steps else USUAL]
        run.run_step()
    report = measure(run.write(tmp_path))
    assert {each.rank for each in report.stragglers} == ({1} if is_late else set())
    assert report.stragglers == () or report.stragglers[0].late_ns == run.truth.late[(1, 2)]
