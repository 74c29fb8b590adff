"""Phases of a step under pipeline parallelism, and the bubble in each, on a pipeline small enough to draw.

Two stages, four micro-batches; forward 2 ms (attention, then a product), backward 4 ms (a product, then attention),
every exchange 0.1 ms after the second rank came. One step, from its start, in ms:

    stage 0   F 0-2   x 2-2.1   F 2.1-4.1   x 4.1-8.2  B 8.2-12.2  F 12.2-14.2  x  B 14.3-18.3  F 18.3-20.3  x
    stage 1   x 0-2.1           F 2.1-4.1  B 4.1-8.1 x F 8.2-10.2  B 10.2-14.2  x  F 14.3-16.3  B 16.3-20.3  x
    stage 0   B 20.4-24.4             x 24.4-26.5    B 26.5-30.5   all-reduce 30.5-30.7   update 30.7-31.2
    stage 1   F 20.4-22.4  B 22.4-26.4  x 26.4-26.5  all-reduce    26.5-30.7              update 30.7-31.2
"""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from lockstep import MS, Behaviour, simulate
from pipeline_model import PipelineRun, simulate_pipeline
from trace_builder import GEMM

from tests.analyzed_samples import analyze_sample, reads_sample
from three_walls import analyze
from three_walls.facts.fact_rows import PipelinePhase
from three_walls.facts.pipeline_schedule import bubble_beyond_schedule_ns, find_phases
from three_walls.report.report import Report

pytestmark = pytest.mark.slow

STEP_MS = 31.2

DISPATCH = "void deep_ep::intranode::dispatch<8, 768>(int4*)"


def shown(report: Report, rank: int) -> list[tuple[str, float, float, float | None]]:
    """Phase, length, exposed exchanges and bubble, in ms."""
    return [
        (
            phase.phase,
            phase.ns / MS,
            phase.p2p_exposed_ns / MS,
            None if phase.bubble_ns is None else phase.bubble_ns / MS,
        )
        for phase in report.pipeline_phases
        if phase.rank == rank
    ]


def phase(report: Report, rank: int, name: str) -> PipelinePhase:
    (found,) = [phase for phase in report.pipeline_phases if (phase.rank, phase.phase) == (rank, name)]
    return found


def test_the_phases_of_a_toy_pipeline_are_those_of_its_drawing(tmp_path: Path) -> None:
    report = analyze(simulate_pipeline(2, 4).write(tmp_path))
    assert [(phase.rank, phase.stage) for phase in report.pipeline_phases] == [(0, 0)] * 4 + [(1, 1)] * 4
    # Attention of the first backward pass begins at 10.2, that of the last forward pass ends at 19.3.
    assert shown(report, 0) == [
        ("warm-up", 10.2, 4.2, 4.0),
        ("steady", 9.1, 0.1, 0.0),
        ("cool-down", 11.2, 2.2, 2.0),
        ("update", 0.7, 0.0, 0.0),
    ]
    # From 6.1 to 21.4; its passes are over at 26.5, those of stage 0 four ms later.
    assert shown(report, 1) == [
        ("warm-up", 6.1, 2.1, 2.0),
        ("steady", 15.3, 0.3, 0.0),
        ("cool-down", 5.1, 0.1, 0.0),
        ("update", 4.7, 0.0, 4.0),
    ]
    assert all(phase.note == "" for phase in report.pipeline_phases)


def test_the_facts_stand_beside_what_an_even_schedule_leaves(tmp_path: Path) -> None:
    # One forward and one backward pass per stage but one: 6 ms of 31.2; 1 / (4 + 1) of a step without anything else.
    facts = analyze(simulate_pipeline(2, 4).write(tmp_path)).facts
    assert facts.number("pipeline_bubble_ns") == 6 * MS
    assert facts.number("pipeline_bubble_fraction") == pytest.approx(6 / STEP_MS)
    assert facts.number("pipeline_edges_exposed_ns") in (0.4 * MS, 0.2 * MS)  # what the first or last stage transfers
    assert facts.number("pipeline_exposed_ns") in (0.5 * MS, 0.3 * MS), "the steady phase transfers 0.1 ms more"
    assert facts.number("pipeline_bubble_expected_fraction") == pytest.approx(0.2)


@pytest.mark.parametrize(("stages", "micro_batches"), [(4, 8), (3, 6)])
def test_every_stage_of_an_even_pipeline_has_the_same_bubble(tmp_path: Path, stages: int, micro_batches: int) -> None:
    # Every stage is idle for (p - 1) forward and backward passes; exchanges on the way to the others add to that.
    report = analyze(simulate_pipeline(stages, micro_batches).write(tmp_path))
    for rank in range(stages):
        bubble_ms = sum(phase[3] or 0 for phase in shown(report, rank))
        assert bubble_ms == pytest.approx(6 * (stages - 1), abs=0.1 * 2 * micro_batches)


def test_without_a_pipeline_there_are_no_phases(tmp_path: Path) -> None:
    report = analyze(simulate([Behaviour(), Behaviour()]).write(tmp_path))
    assert report.pipeline_phases == ()
    assert "no pipeline" in str(report.facts.get("pipeline_bubble_ns").missing_reason)
    assert "no pipeline" in str(report.facts.get("pipeline_bubble_expected_fraction").missing_reason)


def test_replays_are_no_forward_passes(tmp_path: Path) -> None:
    # Each backward pass is preceded by 1 ms of attention run again: it is part of warm-up before the first one, and
    # of cool-down after the last forward pass.
    def replay(run: PipelineRun) -> None:
        run.replays = True

    report = analyze(simulate_pipeline(2, 4, odd=replay).write(tmp_path))
    # Stage 1: forward 2.1-4.1, replay 4.1-5.1, product 5.1-7.1, attention's backward from 7.1.
    assert phase(report, 1, "warm-up").ns == pytest.approx(7.1 * MS)
    # Its last micro-batch: forward (1 ms attention first), replay, backward, exchange: 1 + 1 + 4 + 0.1 after attention.
    assert phase(report, 1, "cool-down").ns == pytest.approx(6.1 * MS)


def test_waiting_for_tokens_is_no_bubble(tmp_path: Path) -> None:
    run = simulate_pipeline(2, 4)
    opened = MS + round(STEP_MS * MS)
    run.builders[0].kernel(DISPATCH, opened + 5 * MS, opened + 6 * MS, stream=50, launched=opened + 4 * MS)
    found = phase(analyze(run.write(tmp_path)), 0, "warm-up")
    assert (found.p2p_exposed_ns, found.bubble_ns, found.ep_exposed_ns) == (4_200_000, 3_000_000, 1_000_000)


def test_passes_that_cannot_be_told_give_one_whole_step_with_the_reason(tmp_path: Path) -> None:
    def without_backward(run: PipelineRun) -> None:
        run.backward_attention = GEMM

    report = analyze(simulate_pipeline(2, 4, odd=without_backward).write(tmp_path))
    assert shown(report, 0) == [("step", STEP_MS, 6.5, None)]
    assert "backward pass" in report.pipeline_phases[0].note
    assert "backward pass" in str(report.facts.get("pipeline_bubble_ns").missing_reason)


def test_one_stage_alone_cannot_tell_waiting_from_transfer(tmp_path: Path) -> None:
    report = analyze(simulate_pipeline(2, 4).write(tmp_path)[:1])
    assert [(name, ms) for name, ms, _, _ in shown(report, 0)] == [
        ("warm-up", 10.2),
        ("steady", 9.1),
        ("cool-down", 11.2),
        ("update", 0.7),
    ]
    assert all(phase.bubble_ns is None and phase.note for phase in report.pipeline_phases)
    assert report.facts.get("pipeline_bubble_ns").is_missing
    assert report.facts.get("pipeline_edges_exposed_ns").is_missing
    assert report.facts.number("pipeline_bubble_expected_fraction") == pytest.approx(0.2)


def phases_of(order: str) -> tuple[list[tuple[str, int, int]], str]:
    """Of a step [0, 1000): F and B are passes of 10 ns every 100 ns from 100 on, X an exchange of 50 ns, R a gradient
    reduction."""
    kinds = {
        "F": ("attention", "forward"),
        "B": ("attention", "backward"),
        "X": ("pipeline_p2p", None),
        "R": ("reduce_scatter", None),
    }
    rows = [
        (100 * place, 100 * place + (50 if kind == "X" else 10), 7, None, *kinds[kind])
        for place, kind in enumerate(order, start=1)
    ]
    numbers = dict.fromkeys(("start_ns", "end_ns", "stream", "launch_thread"), pl.Int64)
    names = {**numbers, "category": pl.String, "phase": pl.String}
    operations = pl.DataFrame(rows, schema=names, orient="row")
    return find_phases(operations, (0, 1000))


def test_an_interleaved_schedule_has_the_same_phases() -> None:
    assert phases_of("FFFBFBBB") == (
        [("warm-up", 0, 400), ("steady", 400, 510), ("cool-down", 510, 810), ("update", 810, 1000)],
        "",
    )


def test_one_micro_batch_has_no_steady_phase() -> None:
    assert phases_of("FFBB")[0][:3] == [("warm-up", 0, 300), ("steady", 300, 300), ("cool-down", 300, 410)]


def test_the_last_gradient_sent_belongs_to_the_passes_and_an_early_reduction_does_not_end_them() -> None:
    assert phases_of("FBFBRXR")[0][2:] == [("cool-down", 310, 700), ("update", 700, 1000)]


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ("", "no attention kernel"),
        ("FFF", "of a backward pass"),
        ("BFFB", "does not begin with a forward"),
        ("FBF", "does not begin with a forward and end with a backward"),
        ("FFFBF", "cannot be distinguished from forward passes"),
    ],
)
def test_what_the_passes_do_not_tell_stays_whole(order: str, reason: str) -> None:
    phases, why = phases_of(order)
    assert phases == [("step", 0, 1000)]
    assert reason in why


@reads_sample("two-pipeline-stages")
def test_a_real_pipeline_of_two_stages_idles_about_as_much_as_its_schedule_leaves() -> None:
    # One of 4 + 1 micro-batch times. The first stage also holds the embedding and the last the logits: not even.
    report = analyze_sample("two-pipeline-stages")
    steps = {rank.rank: sum(rank.budget.values()) for rank in report.ranks}
    assert report.facts.number("pipeline_bubble_expected_fraction") == pytest.approx(0.2)
    for rank in range(4):
        phases = [phase for phase in report.pipeline_phases if phase.rank == rank]
        assert [phase.phase for phase in phases] == ["warm-up", "steady", "cool-down", "update"]
        assert sum(phase.ns for phase in phases) == steps[rank]
        assert 0.15 < sum(phase.bubble_ns or 0 for phase in phases) / steps[rank] < 0.25
        assert {phase.stage for phase in phases} == {rank // 2}
    found = [wait for wait in report.waits if wait.communication_class == "pipeline_p2p"]
    assert all(wait.resolved for wait in found)
    # What moves is 32 MiB a call (4096 x 4096 in bf16): a tenth of a millisecond on NVLink. The rest is waiting.
    assert all(wait.transfer_ns is not None and wait.transfer_ns < MS for wait in found)


@pytest.mark.parametrize(("bubble_ms", "beyond_ms"), [(30, 10), (20, 0), (15, 0)])
def test_what_the_schedule_explains_is_no_imbalance(bubble_ms: int, beyond_ms: int) -> None:
    # two stages, four micro-batches: 1/5 of a step of 100 ms is bubble anyway
    assert bubble_beyond_schedule_ns(bubble_ms * MS, 0.2, 100 * MS) == beyond_ms * MS
