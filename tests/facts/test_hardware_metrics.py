"""What the hardware counters show of the step, its buckets and the modules of its layers."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest
from trace_builder import ADAM, ALL_GATHER, GEMM, POINTWISE, SEND_RECV, TraceBuilder

from tests.paths import MEASURED_BASES
from three_walls import analyze
from three_walls.report.report import Report
from three_walls.report.sections.efficiency import hardware
from three_walls.trace.trace_files import plain_sqlite

pytestmark = pytest.mark.slow

SM, TENSOR = "SMs Active [Throughput %]", "Tensor Active [Throughput %]"
NVLINK_IN, NVLINK_OUT = "NVLink RX Throughput [Throughput %]", "NVLink TX Throughput [Throughput %]"
PCIE_IN, PCIE_OUT = "PCIe RX Throughput [Throughput %]", "PCIe TX Throughput [Throughput %]"
READ, WRITE = "DRAM Read Bandwidth [Throughput %]", "DRAM Write Bandwidth [Throughput %]"
DISPATCH = "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)"
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


def test_facts_about_gemms_leave_out_samples_that_describe_something_else_too(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in range(1_000, 31_000, 10_000):
        builder.kernel(GEMM, at, at + 4_500).kernel(ADAM, at + 4_500, at + 10_000)
    builder.samples({TENSOR: [80, 80, 80, 80, 40, 0, 0, 0, 0, 0] * 4}, 1_000)
    report = analyze(builder.write(tmp_path / "t.sqlite"))
    assert report.facts.number("gemm_tensor_active_fraction") == pytest.approx(0.8)
    assert by_name(report, "bucket")["gemm"][1] < 1


def test_nothing_is_said_of_gemms_that_are_shorter_than_the_samples(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in range(1_000, 31_000, 1_000):
        builder.kernel(GEMM, at, at + 500).kernel(POINTWISE, at + 500, at + 900)
        if at % 10_000 == 0:
            builder.kernel(ADAM, at + 900, at + 1_000)
    report = analyze(builder.samples({TENSOR: [50] * 40}, 1_000).write(tmp_path / "t.sqlite"))
    assert "sampled too rarely" in str(report.facts.get("gemm_tensor_active_fraction").missing_reason)
    assert report.facts.number("tensor_active_fraction") == pytest.approx(0.5)


def exchanges(tmp_path: Path, metrics: dict[str, list[int]]) -> Report:
    """Three steps of 40 us, half of them a GEMM, a quarter an exchange of tokens that ten samples of 1 us cover."""
    builder = TraceBuilder()
    for at in range(1_000, 121_000, 40_000):
        builder.kernel(GEMM, at, at + 20_000).kernel(DISPATCH, at + 20_000, at + 30_000)
        builder.kernel(ADAM, at + 30_000, at + 40_000)
    sampled = {name: ([0] * 20 + values + [0] * 10) * 3 for name, values in metrics.items()}
    return analyze(builder.samples(sampled, 1_000).write(tmp_path / "t.sqlite"))


def test_an_exchange_that_waits_has_a_low_load_and_a_high_peak(tmp_path: Path) -> None:
    facts = exchanges(tmp_path, {NVLINK_OUT: [0] * 7 + [90, 90, 90], NVLINK_IN: [5] * 10, SM: [15] * 10}).facts
    assert facts.number("ep_nvlink_send_fraction") == pytest.approx(0.27)
    assert facts.number("ep_nvlink_peak_fraction") == pytest.approx(0.9)
    assert facts.number("ep_sm_active_fraction") == pytest.approx(0.15)
    assert facts.number("exposed_nvlink_send_fraction") == pytest.approx(0.27)
    assert facts.number("exposed_nvlink_peak_fraction") == pytest.approx(0.9)
    assert facts.get("exposed_pcie_peak_fraction").missing_reason == "these hardware counters were not sampled"


def test_an_exchange_over_pcie_leaves_nvlink_idle(tmp_path: Path) -> None:
    facts = exchanges(
        tmp_path, {NVLINK_OUT: [1] * 10, NVLINK_IN: [1] * 10, PCIE_OUT: [80] * 10, PCIE_IN: [70] * 10}
    ).facts
    assert facts.number("exposed_nvlink_peak_fraction") == pytest.approx(0.01)
    assert facts.number("exposed_pcie_peak_fraction") == pytest.approx(0.8)


def test_without_exchanges_nothing_is_said_of_them(tmp_path: Path) -> None:
    facts = steps(tmp_path, {NVLINK_OUT: [50] * 10}).facts
    assert facts.get("ep_nvlink_send_fraction").missing_reason == (
        "no sample of the hardware counters covers such time of the step"
    )


def overlapped(tmp_path: Path, beside: int, communicates: bool = True) -> Report:
    """Three steps of six GEMMs of 5 us, three of them beside communication, where the tensor pipes are ``beside``."""
    builder, at, values = TraceBuilder(), 1_000, []
    for _ in range(3):
        for is_beside in (False, True) * 3:
            builder.kernel(POINTWISE, at, at + 1_000).kernel(GEMM, at + 1_000, at + 6_000)
            if is_beside and communicates:
                builder.kernel(ALL_GATHER, at + 1_000, at + 6_000, stream=20)
            at, values = at + 6_000, [*values, 0, *[beside if is_beside else 80] * 5]
        builder.kernel(POINTWISE, at, at + 1_000).kernel(ADAM, at + 1_000, at + 2_000)
        at, values = at + 2_000, [*values, 0, 0]
    return analyze(builder.samples({TENSOR: values}, 1_000).write(tmp_path / "t.sqlite"))


@pytest.mark.parametrize(("beside", "ratio"), [(60, 0.75), (80, 1.0)])
def test_tensor_pipes_of_gemms_beside_communication_against_the_same_gemms_alone(
    tmp_path: Path, beside: int, ratio: float
) -> None:
    assert overlapped(tmp_path, beside).facts.number("overlapped_gemm_tensor_ratio") == pytest.approx(ratio)


def test_gemms_that_never_run_beside_communication_are_not_compared(tmp_path: Path) -> None:
    fact = overlapped(tmp_path, 60, communicates=False).facts.get("overlapped_gemm_tensor_ratio")
    assert "ran both alone and beside communication" in str(fact.missing_reason)


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


def test_the_same_samples_give_the_same_averages_to_the_last_digit() -> None:
    again = analyze(REAL / "rank0.sqlite.xz", config=REAL / "run_config.yaml")
    assert again.hardware == analyze_real().hardware


def test_a_real_dense_step_by_bucket() -> None:
    """GEMMs keep the tensor pipes busy, the exchange of gradients NVLink, the optimizer the memory, and idle none."""
    rows = {row.name: row for row in analyze_real().hardware if row.kind == "bucket"}
    assert (rows["gemm"].tensor_active or 0) > 0.85 > 0.6 > (rows["attention"].tensor_active or 0) > 0.4
    assert (rows["elementwise"].tensor_active or 1) < 0.1
    assert (rows["data_parallel"].nvlink_send or 0) > 0.4 > 0.1 > (rows["gemm"].nvlink_send or 1)
    assert (rows["data_parallel"].sm_active or 1) < 0.3 < 0.8 < (rows["elementwise"].sm_active or 0)
    assert (rows["optimizer"].memory_read or 0) + (rows["optimizer"].memory_write or 0) > 0.6
    assert (rows["launch_starved"].sm_active or 1) < 0.05
    facts = analyze_real().facts
    assert (facts.number("gemm_tensor_active_fraction") or 0) == pytest.approx(0.947, abs=0.001)
    assert (facts.number("gemm_memory_active_fraction") or 1) < 0.3
    assert (
        (facts.number("exposed_nvlink_peak_fraction") or 0)
        > 0.85
        > 0.65
        > (facts.number("exposed_nvlink_send_fraction") or 1)
    )
    assert (facts.number("exposed_pcie_peak_fraction") or 1) < 0.05


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
