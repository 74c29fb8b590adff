"""A replay is trusted only where the capture holds what it needs; else it states what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.analyzed_samples import analyze_sample, reads_sample
from tests.trace_builder import ADAM, GEMM, TraceBuilder
from three_walls import analyze
from three_walls.replay import replay_steps
from three_walls.replay.step_graph import StepGraph
from three_walls.step.build_timeline import Timeline
from three_walls.step.intervals import DURATION
from three_walls.step.ranks.matched_ranks import MatchedRanks

pytestmark = pytest.mark.slow

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"


def reason_of(path: Path) -> str | None:
    report = analyze(path)
    assert report.replay is not None
    reason = report.replay.predictor.missing_reason
    assert (report.facts.get("replay_error_fraction").missing_reason or "") == reason
    assert report.budget  # the budget stays
    return reason


def test_without_recorded_calls_nothing_is_predicted(tmp_path: Path) -> None:
    path = (
        TraceBuilder()
        .steps(4, length=10_000_000)
        .write(tmp_path / "t.sqlite", without=("CUPTI_ACTIVITY_KIND_RUNTIME",))
    )
    assert "launches of 100.0% of the operations were not recorded" in (reason_of(path) or "")


def test_one_of_two_ranks_without_recorded_calls_costs_no_host_time(tmp_path: Path) -> None:
    for rank, without in enumerate(((), ("CUPTI_ACTIVITY_KIND_RUNTIME",))):
        path = tmp_path / "profiles" / f"rank{rank}.sqlite"
        path.parent.mkdir(exist_ok=True)
        TraceBuilder(device=rank).steps(4, length=10_000_000).write(path, without=without)
    report = analyze(tmp_path / "profiles")
    assert [rank.rank for rank in report.ranks] == [0, 1]
    assert report.budget


def test_of_a_step_shorter_than_any_real_one_nothing_is_predicted(tmp_path: Path) -> None:
    path = TraceBuilder().steps(4, length=1000).write(tmp_path / "t.sqlite")
    assert reason_of(path) == "the step takes only 0.001 ms"


def test_inside_graphs_recorded_as_a_whole_nothing_is_predicted() -> None:
    assert "recorded as a whole" in (reason_of(SAMPLES / "cuda-graph-envelopes.sqlite.xz") or "")


@pytest.mark.parametrize(("launched_us", "reason"), [(-5, ""), (5, "start before their launch call begins")])
def test_launches_that_begin_after_their_kernels_show_that_clocks_differ(
    tmp_path: Path, launched_us: int, reason: str
) -> None:
    builder = TraceBuilder()
    for order in range(4):
        at = 10_000 + order * 10_000_000
        builder.kernel(GEMM, at, at + 6_000_000, launched=at + 1000 * launched_us)
        builder.kernel(ADAM, at + 8_000_000, at + 10_000_000, launched=at + 8_000_000 + 1000 * launched_us)
    withheld = reason_of(builder.write(tmp_path / "t.sqlite")) or ""
    assert reason in withheld
    assert bool(reason) == bool(withheld)


@reads_sample("wide-nvlink-alltoall.sqlite")
def test_the_predicted_unprofiled_step_is_near_the_one_of_the_log() -> None:
    report = analyze_sample("wide-nvlink-alltoall.sqlite", "wide-nvlink-alltoall.train.log.xz")
    assert abs(report.facts.number("predicted_step_error_fraction") or 1) < 0.05
    assert report.replay is not None
    assert report.replay.predictor.step_ns.likely_ns == report.facts.number("unprofiled_step_ns")
    changed = report.replay.with_edits(scales={"host": 0.5})
    assert changed.step is not None
    assert changed.after is not None
    assert changed.after.likely_ns < changed.step.likely_ns


@pytest.mark.parametrize(("steps_count", "built_count"), [(7, 5), (40, 6)])
def test_of_many_steps_six_are_replayed_from_the_shortest_to_the_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_count: int, built_count: int
) -> None:
    lengths: list[int] = []
    build = replay_steps.build_graphs

    def counted(
        timeline: Timeline, matched: MatchedRanks, steps: Sequence[pl.DataFrame], *others: Any
    ) -> Iterator[StepGraph]:
        lengths.extend(length for windows in steps for length in windows.select(DURATION).to_series())
        return build(timeline, matched, steps, *others)

    monkeypatch.setattr(replay_steps, "build_graphs", counted)
    builder, at = TraceBuilder(), 10_000
    for order in range(steps_count):
        length = 10_000_000 + 1000 * (order * 7 % steps_count)
        builder.kernel(GEMM, at, at + 6_000_000, launched=at - 5_000)
        builder.kernel(ADAM, at + 8_000_000, at + length, launched=at + 7_995_000)
        at += length
    report = analyze(builder.write(tmp_path / "t.sqlite"))
    assert report.facts.number("replay_error_fraction") is not None
    assert len(lengths) == built_count
    assert [min(lengths), max(lengths)] == [report.step.min_ns, report.step.max_ns]
