"""How much concurrent communication slows GEMMs."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import ADAM, ALL_GATHER, GEMM, POINTWISE, TraceBuilder

from tests.analyzed_samples import analyze_sample, reads_sample
from three_walls import analyze
from three_walls.facts.fact_rows import OverlapSlowdown
from three_walls.report.report import Report

pytestmark = pytest.mark.slow


def steps(
    tmp_path: Path,
    alone: list[int],
    concurrent: list[int],
    share: float = 1.0,
    grid: int = 132,
    after: str = POINTWISE,
    without: tuple[str, ...] = (),
) -> Report:
    """Three steps: GEMMs of these lengths ``alone`` and ``concurrent`` with communication for ``share`` of their time.

    ``grid`` and ``after``: the grid of the concurrent GEMMs and the kernel that follows them.
    """
    builder = TraceBuilder()
    at = 1
    for _ in range(3):
        for is_concurrent, length in [(False, ns) for ns in alone] + [(True, ns) for ns in concurrent]:
            builder.kernel(POINTWISE, at, at + 10)
            builder.kernel(GEMM, at + 10, at + 10 + length, grid=grid if is_concurrent else 132)
            if is_concurrent:
                builder.kernel(ALL_GATHER, at + 10, at + 10 + round(share * length), stream=20)
            builder.kernel(after if is_concurrent else POINTWISE, at + 10 + length, at + 20 + length)
            at += 1000
        builder.kernel(ADAM, at, at + 10)
        at += 10
    return analyze(builder.write(tmp_path / "trace.sqlite", without=without))


def test_the_difference_of_the_medians_times_the_concurrent_calls(tmp_path: Path) -> None:
    report = steps(tmp_path, [100, 102, 101], [130, 120, 140, 160])
    row = OverlapSlowdown(GEMM, "132x1x1", 3, 4, 101, 130, (130 - 101) * 4)
    assert report.overlap_slowdown == (row,)
    assert report.facts.number("overlap_slowdown_ns") == 116


def test_a_gemm_that_is_faster_with_communication_has_no_slowdown(tmp_path: Path) -> None:
    assert steps(tmp_path, [100, 100, 100], [90, 90, 90]).facts.number("overlap_slowdown_ns") == 0


@pytest.mark.parametrize(
    "different",
    [
        {"concurrent": [130, 130]},  # too few
        {"share": 0.4},  # not concurrent for half of their time
        {"grid": 66},
        {"after": GEMM},  # another place in the layer
        {"alone": [100, 101, 300, 301]},  # of several sizes
    ],
)
def test_products_that_are_not_the_same_are_not_compared(tmp_path: Path, different: dict[str, object]) -> None:
    report = steps(tmp_path, **({"alone": [100, 101, 102], "concurrent": [130, 130, 130]} | different))  # type: ignore[arg-type]
    assert report.overlap_slowdown == ()
    assert "3 times alone and 3 times concurrent" in str(report.facts.get("overlap_slowdown_ns").missing_reason)


def test_without_grids_nothing_is_compared(tmp_path: Path) -> None:
    report = steps(tmp_path, [100] * 3, [130] * 3, without=("CUPTI_ACTIVITY_KIND_KERNEL.gridX",))
    assert report.overlap_slowdown == ()


@reads_sample("wide-slowlink-ep-overlap.sqlite.xz")
def test_a_real_run_with_exchanges_through_host_memory() -> None:
    """GEMMs of the same place take 3 to 27% longer during an exchange; persistent kernels share one grid."""
    rows = analyze_sample("wide-slowlink-ep-overlap.sqlite.xz").overlap_slowdown
    costly = [row for row in rows if row.slowdown_ns > 10_000]
    assert len(costly) >= 5
    assert all(1.02 < row.concurrent_ns / row.alone_ns < 1.3 for row in costly)
    assert [row.slowdown_ns for row in rows] == sorted((row.slowdown_ns for row in rows), reverse=True)
    assert sum(row.slowdown_ns for row in rows) == pytest.approx(0.9e6, rel=0.1)


@reads_sample("wide-nvlink-alltoall.sqlite")
def test_a_real_run_that_overlaps_nothing_has_no_tax() -> None:
    report = analyze_sample("wide-nvlink-alltoall.sqlite")
    assert report.overlap_slowdown == ()
    assert report.facts.get("overlap_slowdown_ns").is_missing
