"""How much of a step CUDA graphs launch, what they leave out, what hidden graphs hide, and the optimizer's gaps."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from trace_builder import ADAM, GEMM, POINTWISE, TraceBuilder

from tests.analyzed_samples import analyze_sample, reads_sample
from tests.facts.views import step_view
from three_walls import analyze
from three_walls.facts.cuda_graphs import optimizer_launch_starved_ns
from three_walls.facts.fact_rows import GraphCoverage, OutsideGraphs
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.report.report import Report
from three_walls.step.intervals import mask_of
from three_walls.step.ownership import LABELS

pytestmark = pytest.mark.slow

BEGINS = (1, 1001, 2001, 3001)

HOST_FACTS = ("launch_starved_ns", "host_blocked_ns", "host_idle_ns", "host_recoverable_ns")


def capture_of(tmp_path: Path, builder: TraceBuilder, without: tuple[str, ...] = ()) -> Report:
    return analyze(builder.write(tmp_path / "trace.sqlite", without=without))


def steps(envelope: bool, nodes: bool) -> TraceBuilder:
    """Each step: a graph of two GEMMs and a pointwise kernel, then a pointwise kernel and the update."""
    builder = TraceBuilder()
    for at in BEGINS:
        if envelope:
            builder.graph(at, at + 700, launched=max(at - 5, 0))
        if nodes:
            builder.kernel(GEMM, at, at + 300, node=1).kernel(GEMM, at + 300, at + 600, node=2)
            builder.kernel(POINTWISE, at + 600, at + 700, node=3)
        builder.kernel(POINTWISE, at + 750, at + 800, launched=at + 2)
        builder.kernel(ADAM, at + 900, at + 1000, launched=at + 4)
    return builder


OUTSIDE = (OutsideGraphs("elementwise", 1, 1), OutsideGraphs("optimizer", 1, 1))


def test_nodes_give_the_share_inside_and_what_fell_out(tmp_path: Path) -> None:
    report = capture_of(tmp_path, steps(envelope=False, nodes=True))
    assert report.graph_coverage == GraphCoverage(3, 2, 0, 0.6, "", OUTSIDE)
    assert report.facts.number("graph_kernel_fraction") == 0.6


def test_a_graph_recorded_whole_has_no_share(tmp_path: Path) -> None:
    report = capture_of(tmp_path, steps(envelope=True, nodes=False))
    coverage = report.graph_coverage
    assert coverage is not None
    assert (coverage.kernels_inside, coverage.kernels_outside, coverage.whole_graphs) == (0, 2, 1)
    assert coverage.fraction is None
    assert "--cuda-graph-trace=node" in coverage.reason
    assert coverage.outside == OUTSIDE
    assert report.ranks[0].budget["cuda_graph"] == 700
    assert report.facts.get("graph_kernel_fraction").is_missing


def test_nodes_and_their_envelope_are_not_counted_twice(tmp_path: Path) -> None:
    both = capture_of(tmp_path, steps(envelope=True, nodes=True))
    assert both.graph_coverage == GraphCoverage(3, 2, 0, 0.6, "", OUTSIDE)
    budget = both.ranks[0].budget
    assert (budget["gemm"], budget["elementwise"], budget.get("cuda_graph", 0)) == (600, 150, 0)
    assert sum(budget.values()) == 1000


def test_one_graph_by_its_nodes_and_another_whole_gives_no_share(tmp_path: Path) -> None:
    builder = steps(envelope=True, nodes=True)
    for at in BEGINS:
        builder.graph(at + 810, at + 890, launched=at + 3)
    coverage = capture_of(tmp_path, builder).graph_coverage
    assert coverage is not None
    assert (coverage.kernels_inside, coverage.whole_graphs, coverage.fraction) == (3, 1, None)


def test_without_graphs_there_is_no_coverage(tmp_path: Path) -> None:
    report = capture_of(tmp_path, TraceBuilder().steps(4))
    assert report.graph_coverage is None
    assert report.facts.number("graph_kernel_fraction") == 0


def test_launch_calls_that_were_not_recorded_have_no_host_time(tmp_path: Path) -> None:
    report = capture_of(tmp_path, steps(envelope=False, nodes=True), without=("CUPTI_ACTIVITY_KIND_RUNTIME",))
    assert report.graph_coverage is not None
    assert {row.host_ns for row in report.graph_coverage.outside} == {None}


def hidden() -> TraceBuilder:
    """Graphs are launched; an old exporter wrote neither their envelopes nor their kernels."""
    builder = TraceBuilder().steps(4)
    for at in BEGINS:
        builder.api("cudaGraphLaunch_v10000", at + 610, at + 611)
    return builder


def test_hidden_graphs_forbid_claims_about_an_idle_device(tmp_path: Path) -> None:
    report = capture_of(tmp_path, hidden())
    for name in ("idle_ns", "idle_other_ns", "idle_other_fraction", *HOST_FACTS):
        assert report.facts.get(name).is_missing, name
        assert "neither their envelopes nor their kernels" in str(report.facts.get(name).missing_reason)
    assert report.graph_coverage is not None
    assert report.graph_coverage.fraction is None
    assert report.verdict.abstained


def test_an_envelope_shows_when_the_device_was_idle_but_not_what_the_host_did(tmp_path: Path) -> None:
    report = capture_of(tmp_path, steps(envelope=True, nodes=False))
    assert report.facts.number("idle_ns") == 150
    for name in HOST_FACTS:
        assert "recorded whole" in str(report.facts.get(name).missing_reason)


@pytest.mark.parametrize("name", HOST_FACTS)
def test_with_every_node_recorded_the_host_can_be_judged(tmp_path: Path, name: str) -> None:
    assert not capture_of(tmp_path, steps(envelope=True, nodes=True)).facts.get(name).is_missing


@reads_sample("cuda-graph-envelopes.sqlite.xz")
def test_a_real_capture_of_whole_graphs_has_no_share() -> None:
    """The update's 59 kernels run outside; what the graphs run is not in the trace."""
    coverage = analyze_sample("cuda-graph-envelopes.sqlite.xz").graph_coverage
    assert coverage is not None
    assert coverage.fraction is None
    assert coverage.whole_graphs >= 1
    assert [(row.category, row.calls) for row in coverage.outside] == [("optimizer", 59)]


STARVED = mask_of(["launch_starved"], LABELS)


def optimizer_starved(kernels: list[tuple[str, int, int]], slices: list[tuple[int, int, int]]) -> Measurement[int]:
    """``kernels``: category, start, end. ``slices``: start, end, active."""
    times = {"start_ns": pl.Int64, "end_ns": pl.Int64}
    operations = pl.DataFrame(kernels, schema={"category": pl.String, **times}, orient="row")
    return optimizer_launch_starved_ns(
        step_view(operations, pl.DataFrame(slices, schema={**times, "active": pl.Int64}, orient="row"))
    )


def test_only_starved_time_between_the_first_and_the_last_optimizer_kernel_counts() -> None:
    kernels = [("gemm", 0, 100), ("optimizer", 200, 210), ("optimizer", 260, 270)]
    slices = [(100, 200, STARVED), (210, 250, STARVED), (250, 260, 0), (270, 300, STARVED)]
    assert optimizer_starved(kernels, slices) == known(40)


def test_an_optimizer_kernel_before_the_backward_pass_opens_no_phase() -> None:
    kernels = [("optimizer", 10, 20), ("gemm", 50, 100), ("optimizer", 200, 210), ("optimizer", 220, 230)]
    slices = [(20, 50, STARVED), (100, 200, STARVED), (210, 220, STARVED)]
    assert optimizer_starved(kernels, slices) == known(10)


def test_a_step_without_optimizer_kernels_has_no_such_time_and_states_why() -> None:
    starved = optimizer_starved([("gemm", 0, 100)], [(100, 200, STARVED)])
    assert starved == missing("no optimizer kernel follows the step's last GEMM")
