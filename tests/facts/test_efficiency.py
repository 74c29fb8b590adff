"""Efficiency of whole traces: utilization, copies, the driver's memory, and the reason where something is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analyzed_samples import analyze_sample, reads_sample
from tests.facts.model_runs import wide, without
from tests.facts.views import measure, run_view
from tests.trace_builder import ADAM, GEMM, MEGATRON, TraceBuilder
from three_walls import analyze
from three_walls.facts import model_flops
from three_walls.report.report import Report
from three_walls.tables.hardware import GpuModel, find_gpu

pytestmark = pytest.mark.slow

H200 = find_gpu("NVIDIA H200")
MIB = 1 << 20
STEP = 1_000_000


def five_steps(gpu: str = "NVIDIA H200") -> TraceBuilder:
    """Steps of a GEMM, a copy of each size, and an update."""
    trace = TraceBuilder(gpus=[gpu])
    command = f"{MEGATRON} --vocab-size 512 --transformer-impl local"
    trace.launched_as(command, RANK="0", WORLD_SIZE="8", LOCAL_WORLD_SIZE="8")
    for step in range(5):
        at = 1_000 + step * STEP
        trace.kernel(GEMM, at + 1_000, at + 601_000, launched=at)
        trace.copy(1, at + 610_000, at + 710_000, launched=at + 10, size=4 * MIB)
        trace.copy(1, at + 720_000, at + 721_000, launched=at + 20, size=64)
        trace.kernel(ADAM, at + 800_000, at + 990_000, launched=at + 30)
    return trace


def capture_of(trace: TraceBuilder, tmp_path: Path) -> Report:
    return analyze(trace.write(tmp_path / "run.sqlite"))


def test_large_copies_are_held_against_the_link_and_small_ones_are_not(tmp_path: Path) -> None:
    report = capture_of(five_steps(), tmp_path)
    (row,) = report.copies
    assert (row.copy_class, row.calls, row.large_calls, row.bytes_moved) == ("copy_h2d_pinned", 2, 1, 4 * MIB + 64)
    assert row.bytes_per_s == pytest.approx(4 * MIB / 100e-6)
    assert row.limit_bytes_per_s == 64_000_000_000


def test_an_unknown_gpu_has_no_limits(tmp_path: Path) -> None:
    report = capture_of(five_steps("NVIDIA H20-3e"), tmp_path)
    assert report.copies[0].limit_bytes_per_s is None
    for name in ("peak_flops_per_s", "mfu_traced_fraction", "gemm_efficiency_fraction", "host_link_bytes_per_s"):
        assert report.facts.get(name).is_missing
    assert report.efficiency[0].achieved_flops_per_s is not None


def test_work_time_and_peak_make_the_utilization(tmp_path: Path) -> None:
    facts = capture_of(five_steps(), tmp_path).facts
    work, step_ns, peak = (facts.number(name) or 0 for name in ("flops_per_gpu_step", "step_ns", "peak_flops_per_s"))
    assert work == (facts.number("model_flops_per_step") or 0) // 8
    assert facts.number("mfu_traced_fraction") == pytest.approx(work * 1e9 / step_ns / peak)
    assert "log" in str(facts.get("mfu_fraction").missing_reason)


def test_the_logs_step_gives_the_utilization_of_unprofiled_steps() -> None:
    config = wide(fp8=None)
    run = run_view(config, H200)
    found = measure(model_flops, run=run, step_ns=300_000_000, unprofiled_step_ns=232_900_000)
    # The log has 162.4 TFLOP/s per GPU at 232.9 ms; the peak is 989.5.
    assert found["mfu_fraction"][0] == pytest.approx(162.4 / 989.5, rel=0.003)
    assert found["mfu_traced_fraction"][0] == pytest.approx(162.4 / 989.5 * 232.9 / 300, rel=0.003)


@pytest.mark.parametrize(
    ("missing", "gpu", "reason"),
    [("seq_length", H200, "seq_length"), ("fp8", H200, "fp8"), ("", None, "hardware.yaml")],
)
def test_a_missing_utilization_has_its_reason(missing: str, gpu: GpuModel | None, reason: str) -> None:
    config = without(wide(fp8=None), missing)
    value, why = measure(model_flops, run=run_view(config, gpu), step_ns=1, unprofiled_step_ns=1)["mfu_fraction"]
    assert value is None
    assert reason in str(why)


def test_the_drivers_peak_is_the_most_held_at_once(tmp_path: Path) -> None:
    trace, inside = five_steps(), 1_000 + 2 * STEP
    trace.allocation(0, 100)
    trace.allocation(0, 1_000, kind=1)
    trace.allocation(0, 5_000, process=1)
    trace.allocation(inside + 5_000, 50)
    trace.allocation(inside + 6_000, 30, freed=True)
    trace.allocation(inside + 7_000, 20)
    facts = capture_of(trace, tmp_path).facts
    assert facts.number("driver_peak_bytes") == 150
    assert facts.number("driver_growth_in_steps_bytes") == 40


def test_without_the_table_the_drivers_memory_is_unknown(tmp_path: Path) -> None:
    fact = capture_of(five_steps(), tmp_path).facts.get("driver_peak_bytes")
    assert fact.is_missing
    assert "--cuda-memory-usage=true" in str(fact.missing_reason)


def test_allocator_calls_inside_steps_are_counted_and_other_calls_are_not(tmp_path: Path) -> None:
    assert capture_of(five_steps(), tmp_path).facts.number("allocator_calls_in_steps_count") == 0


def test_an_allocator_that_retries_shows(tmp_path: Path) -> None:
    trace, inside = five_steps(), 1_000 + 2 * STEP
    for order, name in enumerate(("cudaFree_v3020", "cudaMalloc_v3020", "cudaMemcpyAsync_v3020")):
        trace.api(name, inside + 10_000 * order, inside + 10_000 * order + 5_000)
    assert capture_of(trace, tmp_path).facts.number("allocator_calls_in_steps_count") == 2


@reads_sample("wide-nvlink-deepep.sqlite.xz")
def test_a_real_run_counts_as_its_log_did_and_stays_below_the_peak() -> None:
    report = analyze_sample("wide-nvlink-deepep.sqlite.xz")
    # 236.2 ms at 160.1 TFLOP/s per GPU, four GPUs.
    assert report.facts.number("megatron_flops_per_step") == pytest.approx(4 * 160.1e12 * 0.2362, rel=0.005)
    for row in report.efficiency:
        assert row.fraction is not None
        assert 0.3 < row.fraction < 0.9
    assert report.facts.number("parameters_per_gpu_count") == 632_459_264
