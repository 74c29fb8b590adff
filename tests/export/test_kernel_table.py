"""The kernel table of a small step, computed by head. Times are in us."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analyzed_samples import analyze_sample, reads_sample
from tests.trace_builder import ADAM, GEMM, POINTWISE, TraceBuilder
from three_walls import analyze
from three_walls.export.kernel_table import LONGEST_OF_BUCKET, shorten_name
from three_walls.export.step_detail_rows import KernelRow
from three_walls.step.operators import generalize

US = 1_000


def build(kernels: int = 0) -> TraceBuilder:
    """Five steps of 1,000 us: GEMMs of 100 and 300 us with different grids, an addition in an operator, a copy.

    ``kernels``: further additions of other names, 1 us each; the launches of the last ones are not recorded.
    """
    builder = TraceBuilder()
    for number in range(5):
        at = (1 + number) * 1_000 * US
        builder.nvtx(f"training_step_{number}", at, at + 1_000 * US)
        builder.kernel(GEMM, at + 100 * US, at + 200 * US, launched=at + 90 * US, grid=4)
        builder.kernel(GEMM, at + 200 * US, at + 500 * US, launched=at + 91 * US, grid=8)
        builder.nvtx("aten::add, seq = 4, op_id = 7", at + 92 * US, at + 96 * US)
        builder.kernel(POINTWISE, at + 500 * US, at + 510 * US, launched=at + 93 * US)
        builder.copy(1, at + 520 * US, at + 540 * US, launched=at + 97 * US)
        for order in range(kernels):
            start = at + (550 + order) * US
            name = POINTWISE.replace("CUDAFunctor_add<float>", f"Functor_{'abcdefghijklmnop'[order]}<float>")
            builder.kernel(name, start, start + (1 if order else 2) * US - 500)
        builder.kernel(ADAM, at + 900 * US, at + 1_000 * US, launched=at + 890 * US)
    return builder


def tabulate(folder: Path, builder: TraceBuilder) -> tuple[KernelRow, ...]:
    return analyze(builder.write(folder / "rank0.sqlite")).kernels


def test_a_row_has_count_total_mean_and_spread_of_a_kernel(tmp_path: Path) -> None:
    gemm = next(row for row in tabulate(tmp_path, build()) if row.bucket == "gemm")
    assert (gemm.name, gemm.calls, gemm.ns, gemm.mean_ns) == (GEMM, 2, 400 * US, 200 * US)
    assert (gemm.fastest_ns, gemm.p95_ns, gemm.slowest_ns) == (100 * US, 300 * US, 300 * US)
    assert (gemm.variants, gemm.launch_ns, gemm.fraction_of_peak) == (2, 2, None)


def test_a_row_names_the_operator_that_launched_it_and_a_copy_is_no_kernel(tmp_path: Path) -> None:
    rows = {row.bucket: row for row in tabulate(tmp_path, build())}
    assert [(place.operator, place.calls) for place in rows["elementwise"].places] == [("aten::add", 1)]
    copy = rows["copy_h2d_pinned"]
    assert (copy.name, copy.full_name, copy.grid, copy.block) == ("copies", "", None, None)
    assert [place.operator for place in copy.places] == [""]


def test_the_rest_of_a_bucket_is_one_row_and_rows_sum_to_the_kernel_time(tmp_path: Path) -> None:
    rows = [row for row in tabulate(tmp_path, build(kernels=16)) if row.bucket == "elementwise"]
    assert [row.is_rest for row in rows] == [False] * (len(rows) - 1) + [True]
    assert len(rows) == LONGEST_OF_BUCKET + 1
    assert sum(row.calls for row in rows) == 17
    assert sum(row.ns for row in rows) == 10 * US + 1_500 + 15 * 500
    assert rows[-1].kernels == 17 - LONGEST_OF_BUCKET
    assert rows[-1].launch_ns is None  # not recorded, which is not zero


@pytest.mark.parametrize(
    ("full_name", "short_name"),
    [
        (GEMM, GEMM),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_SendRecv"),
        (
            "void at::native::elementwise_kernel<(int)128, (int)4, void at::native::gpu_kernel_impl_nocast<at::native::"
            "CUDAFunctor_add<float>>(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)",
            "elementwise_kernel<gpu_kernel_impl_nocast<CUDAFunctor_add<float>>>",
        ),
        ("void (anonymous namespace)::softmax<float>(float*)", "softmax<float>"),
        (")))(((", ")))"),
        ("", ""),
    ],
)
def test_a_short_name_lacks_namespaces_parameters_and_lambdas(full_name: str, short_name: str) -> None:
    assert shorten_name(full_name) == short_name


@pytest.mark.parametrize(
    ("name", "general"),
    [
        ("decoder.layers.13.mlp.experts", "decoder.layers.*.mlp.experts"),
        ("training_step_8", "training_step_*"),
        ("layer13 forward", "layer* forward"),
        ("MulBackward0", "MulBackward0"),
        ("bf16 matmul", "bf16 matmul"),
        ("load /home/brunhild/data.bin", "load <path>"),
    ],
)
def test_a_range_loses_the_number_of_its_layer_and_keeps_that_of_its_function(name: str, general: str) -> None:
    assert generalize(name) == general


@pytest.mark.slow
@reads_sample("wide-nvlink-alltoall.sqlite")
def test_a_real_step_names_its_kernels_their_places_and_the_host_work() -> None:
    report = analyze_sample("wide-nvlink-alltoall.sqlite")
    gemms = [row for row in report.kernels if row.bucket == "gemm"]
    assert {place.module for row in gemms for place in row.places} >= {"attention", "experts", "router"}
    assert all(0 < row.fraction_of_peak < 1 for row in gemms if row.fraction_of_peak is not None)
    assert gemms[0].fraction_of_peak
    assert all(sum(place.ns for place in row.places) <= row.ns for row in report.kernels)
    rank = report.representative_rank
    assert rank is not None
    starved = [gap for gap in rank.gap_causes if gap.cause == "starved_nothing_visible"]
    assert sum(row.starved_ns for row in report.host_work) == sum(gap.ns for gap in starved if gap.detail)
    assert "experts forward, most in aten::mm" in {gap.detail for gap in starved}
