"""What the hardware counters show of the step, its buckets and the modules of its layers."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest
from trace_builder import ADAM, GEMM, SEND_RECV, TraceBuilder

from tests.paths import MEASURED_BASES
from three_walls import analyze
from three_walls.report.report import Report
from three_walls.report.sections.hardware import hardware
from three_walls.trace.trace_files import plain_sqlite

pytestmark = pytest.mark.slow

SM, TENSOR = "SMs Active [Throughput %]", "Tensor Active [Throughput %]"
READ, WRITE = "DRAM Read Bandwidth [Throughput %]", "DRAM Write Bandwidth [Throughput %]"
REAL = MEASURED_BASES / "dense-metrics"


def steps(tmp_path: Path, metrics: dict[str, list[int]], gpu: int = 0, device: int = 0, visible: str = "") -> Report:
    """Three steps of 10 us: a GEMM for 4 us, communication for 3, the optimizer for 2. Samples last 1 us each."""
    builder = TraceBuilder(device=device).launched_as(
        "train.py", **({"CUDA_VISIBLE_DEVICES": visible} if visible else {})
    )
    for at in range(1_000, 31_000, 10_000):
        builder.kernel(GEMM, at, at + 4_000)
        builder.kernel(SEND_RECV, at + 4_000, at + 7_000)
        builder.kernel(ADAM, at + 8_000, at + 10_000)
    builder.samples({name: values * 4 for name, values in metrics.items()}, begin=1_000, gpu=gpu)
    return analyze(builder.write(tmp_path / "trace.sqlite"))


def by_name(report: Report, kind: str) -> dict[str, tuple[int, float, float | None]]:
    return {row.name: (row.ns, row.alone_fraction, row.sm_active) for row in report.hardware if row.kind == kind}


def test_every_bucket_has_the_average_of_its_time(tmp_path: Path) -> None:
    report = steps(tmp_path, {SM: [90, 90, 100, 100, 10, 10, 10, 0, 70, 70]})
    buckets = by_name(report, "bucket")
    assert buckets["gemm"] == (4_000, 1.0, pytest.approx(0.95))
    assert buckets["optimizer"] == (2_000, 1.0, pytest.approx(0.7))
    assert buckets["idle_other"] == (1_000, 1.0, 0.0)
    (step,) = by_name(report, "step").values()
    assert step == (10_000, 1.0, pytest.approx(0.55))
    assert report.facts.number("sm_active_fraction") == pytest.approx(0.55)
    assert report.facts.get("tensor_active_fraction").missing_reason == (
        "the hardware counters of tensor pipes were not sampled"
    )


def test_a_sample_of_several_buckets_counts_for_each_and_is_of_none_alone(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in range(1_000, 31_000, 10_000):
        builder.kernel(GEMM, at, at + 4_500).kernel(ADAM, at + 4_500, at + 10_000)
    report = analyze(
        builder.samples({SM: [20, 20, 20, 20, 100, 60, 60, 60, 60, 60] * 4}, 1_000).write(tmp_path / "t.sqlite")
    )
    gemm, optimizer = by_name(report, "bucket")["gemm"], by_name(report, "bucket")["optimizer"]
    assert gemm == (4_500, pytest.approx(4_000 / 4_500), pytest.approx((4 * 20 + 0.5 * 100) / 450))
    assert optimizer == (5_500, pytest.approx(5_000 / 5_500), pytest.approx((5 * 60 + 0.5 * 100) / 550))


def test_reads_and_writes_of_memory_are_one_fact(tmp_path: Path) -> None:
    report = steps(tmp_path, {READ: [50] * 4 + [0] * 6, WRITE: [20] * 4 + [0] * 6})
    assert report.facts.number("memory_active_fraction") == pytest.approx(0.28)
    assert report.facts.number("gemm_memory_active_fraction") == pytest.approx(0.7)


@pytest.mark.parametrize(("gpu", "device", "visible"), [(2, 2, ""), (5, 1, "4,5"), (0, 0, "0")])
def test_the_samples_of_the_gpu_that_the_rank_runs_on(tmp_path: Path, gpu: int, device: int, visible: str) -> None:
    assert steps(tmp_path, {SM: [50] * 10}, gpu, device, visible).facts.number("sm_active_fraction") == 0.5


@pytest.mark.parametrize(
    ("gpu", "device", "visible", "reason"),
    [
        (0, 1, "", "the counters of GPU 0 were sampled, and the rank runs on GPU 1"),
        (1, 1, "4,5", "the counters of GPU 1 were sampled, and the rank runs on GPU 5"),
        (0, 0, "GPU-7795749e", "CUDA_VISIBLE_DEVICES does not state"),
    ],
)
def test_samples_of_another_gpu_are_not_taken(tmp_path: Path, gpu: int, device: int, visible: str, reason: str) -> None:
    report = steps(tmp_path, {SM: [50] * 10}, gpu, device, visible)
    assert report.hardware == ()
    assert str(report.facts.get("sm_active_fraction").missing_reason).startswith(reason)
    section = hardware(report)
    assert section is not None and reason in section.empty


def test_a_capture_without_counters_states_how_to_record_them(tmp_path: Path) -> None:
    report = steps(tmp_path, {})
    assert report.hardware == ()
    assert "--gpu-metrics-devices" in str(report.facts.get("sm_active_fraction").missing_reason)
    assert hardware(report) is None


@cache
def analyze_real() -> Report:
    return analyze(REAL / "rank0.sqlite.xz", config=REAL / "run_config.yaml")


def test_a_real_dense_step_by_bucket() -> None:
    """GEMMs keep the tensor pipes busy, the exchange of gradients NVLink, the optimizer the memory, and idle none."""
    rows = {row.name: row for row in analyze_real().hardware if row.kind == "bucket"}
    assert (rows["gemm"].tensor_active or 0) > 0.85 > 0.6 > (rows["attention"].tensor_active or 0) > 0.4
    assert (rows["elementwise"].tensor_active or 1) < 0.1
    assert (rows["data_parallel"].nvlink_send or 0) > 0.4 > 0.1 > (rows["gemm"].nvlink_send or 1)
    assert (rows["data_parallel"].sm_active or 1) < 0.3 < 0.8 < (rows["elementwise"].sm_active or 0)
    assert (rows["optimizer"].memory_read or 0) + (rows["optimizer"].memory_write or 0) > 0.6
    assert (rows["launch_starved"].sm_active or 1) < 0.05
    assert analyze_real().facts.number("gemm_tensor_active_fraction") == rows["gemm"].tensor_active
    assert (analyze_real().facts.number("exposed_nvlink_send_fraction") or 0) > 0.4


def test_a_real_dense_step_by_module() -> None:
    """The modules that the layers of a dense model have, and idle time: together the step."""
    rows = {row.name: row for row in analyze_real().hardware if row.kind == "module"}
    assert [*rows] == ["attention", "mlp", "outside", "idle"]
    assert (rows["mlp"].tensor_active or 0) > (rows["attention"].tensor_active or 0) > 0.4
    assert sum(row.ns for row in rows.values()) == analyze_real().hardware[0].ns == analyze_real().verdict.step_ns


def test_the_average_of_a_real_step_is_that_of_its_samples() -> None:
    """The fact against SQL: about 2,400 samples of 100 us."""
    report = analyze_real()
    (index,) = {step.index for rank in report.ranks for step in rank.steps if f"step {step.index}:" in report.budget_of}
    (step,) = (step for rank in report.ranks for step in rank.steps if step.index == index)
    with plain_sqlite(REAL / "rank0.sqlite.xz") as path, closing(sqlite3.connect(path)) as database:
        (average,) = database.execute(
            "SELECT AVG(value) FROM GPU_METRICS JOIN TARGET_INFO_GPU_METRICS USING (typeId, metricId) "
            "WHERE metricName = ? AND timestamp >= ? AND timestamp < ?",
            (TENSOR, step.start_ns, step.end_ns),
        ).fetchone()
    assert report.facts.number("tensor_active_fraction") == pytest.approx(average / 100, rel=0.002)
