"""Hardware counters as Nsight Systems samples them."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from trace_builder import GEMM, TraceBuilder

from tests.paths import REPOSITORY
from three_walls.tables.gpu_metrics import gpu_counters
from three_walls.trace.hardware_samples import read_gpu_samples
from three_walls.trace.schemas import GPU_SAMPLES

SM, TENSOR = "SMs Active [Throughput %]", "Tensor Active [Throughput %]"
REAL = REPOSITORY / "benchmarks/traces/dense-metrics/rank0.sqlite.xz"


def read(tmp_path: Path, builder: TraceBuilder, begin: int = 0, until: int = 10_000) -> pl.DataFrame:
    path = builder.kernel(GEMM, 1, 2).write(tmp_path / "trace.sqlite")
    return read_gpu_samples(path, begin, until)


def test_every_counter_of_the_table_is_a_column() -> None:
    assert [*gpu_counters()] == [name for name in GPU_SAMPLES if name not in ("gpu", "start_ns", "end_ns")]


def test_a_sample_lasts_until_the_next_one(tmp_path: Path) -> None:
    samples = read(tmp_path, TraceBuilder().samples({SM: [10, 100, 0]}))
    assert samples.select("start_ns", "end_ns", "sm_active").rows() == [
        (0, 1000, 0.1),
        (1000, 2000, 1.0),
        (2000, 3000, 0.0),
    ]
    assert samples["tensor_active"].null_count() == 3


def test_a_sample_before_a_hole_lasts_as_long_as_the_others(tmp_path: Path) -> None:
    builder = TraceBuilder().samples({SM: [10] * 4}).samples({SM: [20]}, begin=9_000)
    assert read(tmp_path, builder)["end_ns"].to_list() == [1000, 2000, 3000, 4000, 10_000]


def test_only_what_overlaps_the_time_is_read(tmp_path: Path) -> None:
    samples = read(tmp_path, TraceBuilder().samples({SM: [10, 20, 30, 40]}), begin=1500, until=2500)
    assert samples["sm_active"].to_list() == [0.2, 0.3]


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"SM Active": [50, 50]}, 0.5),
        ({"sm__cycles_active.avg.pct_of_peak_sustained_elapsed": [50, 50]}, 0.5),
        ({"SMs Active [Avg]": [50, 50]}, None),  # another unit
        ({SM: [120, 120]}, None),  # no percentage
        ({SM: [-1, -1]}, None),
    ],
)
def test_counters_by_their_spellings_and_units(
    tmp_path: Path, metrics: dict[str, list[int]], expected: float | None
) -> None:
    samples = read(tmp_path, TraceBuilder().samples({TENSOR: [1, 1], **metrics}))
    assert samples["sm_active"].to_list() == [expected, expected]


@pytest.mark.parametrize(("missing_part", "expected"), [(0, 0.4), (1, None)])
def test_the_parts_of_a_link_are_added_up_if_all_were_recorded(
    tmp_path: Path, missing_part: int, expected: float | None
) -> None:
    parts = [f"NVLink RX {of} {what} Data" for of in ("Requests", "Responses") for what in ("Protocol", "User")]
    metrics = {f"{name} [Throughput %]": [10, 10] for name in parts[missing_part:]}
    samples = read(tmp_path, TraceBuilder().samples({SM: [1, 1]} | metrics))
    assert samples["nvlink_receive"].to_list() == [expected, expected]


def test_samples_of_several_gpus_are_apart(tmp_path: Path) -> None:
    builder = TraceBuilder().samples({SM: [10, 20]}).samples({SM: [30, 40]}, begin=500, gpu=3)
    assert read(tmp_path, builder).select("gpu", "end_ns").rows() == [(0, 1000), (0, 2000), (3, 1500), (3, 2500)]


def test_a_capture_without_counters_has_no_samples(tmp_path: Path) -> None:
    assert read(tmp_path, TraceBuilder()).is_empty()


def test_tensor_pipes_of_a_real_capture_are_active_while_gemms_run() -> None:
    """300 to 500 ms after the capture began, mostly GEMMs run: samples of 100 us without a hole."""
    samples = read_gpu_samples(REAL, 300_000_000, 500_000_000)
    assert samples.height == pytest.approx(2_001, abs=1)
    assert (samples["end_ns"][:-1] == samples["start_ns"][1:]).all()
    assert samples["tensor_active"].mean() == pytest.approx(0.5, abs=0.15)
    assert not sum(samples.null_count().row(0))
