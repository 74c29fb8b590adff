"""GEMMs by shape, against the peak of their kernels' number format."""

from __future__ import annotations

import polars as pl
import pytest

from tests.analyzed_samples import analyze_sample, reads_sample
from tests.facts.model_runs import toy
from tests.facts.views import run_view, step_view
from tests.step.test_operators import nest
from three_walls.facts.fact_rows import GemmShape
from three_walls.facts.gemm_shapes import NO_WEIGHTS, Weights, find_launched_gemms, name_weights, tabulate_gemms
from three_walls.megatron.model_shape import read_model_shape
from three_walls.tables.hardware import find_gpu

pytestmark = pytest.mark.slow

H200 = find_gpu("NVIDIA H200")
BF16_KERNEL, FP32_KERNEL, SILENT_KERNEL = 1, 2, 3
NAMES = {
    BF16_KERNEL: "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_TNT",
    FP32_KERNEL: "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n",
    SILENT_KERNEL: "some_gemm",
}
LAYER = "LinearWithGradAccumulationAndAsyncCommunication, seq = {}, op_id = 1, sizes = [[{}, 1, 1000], [2000, 1000]]"


def kernels(*rows: tuple[int, int, int, int], category: str = "gemm") -> pl.DataFrame:
    """Rows of (launch, start, end, name id), launched on thread 1."""
    found = [(0, "kernel", category, start, end, 1, launch, name) for launch, start, end, name in rows]
    columns = ["rank_index", "kind", "category", "start_ns", "end_ns", "launch_thread", "launch_start_ns", "name_id"]
    return pl.DataFrame(found, schema=columns, orient="row")


def tabulate(
    operations: pl.DataFrame, *ranges: tuple[str, int, int], weights: Weights = NO_WEIGHTS, precision: str | None = None
) -> tuple[tuple[GemmShape, ...], float | None]:
    operators = nest(*((text, start, end, 1) for text, start, end in ranges))
    step = step_view(operations, run=run_view(toy(), H200), names=NAMES)
    return tabulate_gemms(step, find_launched_gemms(step, operators), weights, precision)


def test_a_gemms_operations_over_its_kernels_time_against_the_peak() -> None:
    gemm = "aten::mm, op_id = 1, sizes = [[1000, 2000], [2000, 3000]]"  # 12e9 operations
    (found,), known = tabulate(kernels((5, 100, 30_100, BF16_KERNEL)), (gemm, 0, 10))
    assert (found.m, found.k, found.n, found.calls) == ((1000, 1000), (2000, 2000), (3000, 3000), 1)
    assert found.achieved_flops_per_s == pytest.approx(12e9 / 30e-6)
    assert found.fraction == pytest.approx(12e9 / 30e-6 / 989e12, rel=0.01)
    assert known == 1.0


def test_two_kernels_of_one_gemm_are_one_call() -> None:
    gemm = "aten::mm, op_id = 1, sizes = [[10, 20], [20, 30]]"
    (found,), _ = tabulate(kernels((5, 100, 160, BF16_KERNEL), (6, 160, 170, BF16_KERNEL)), (gemm, 0, 10))
    assert (found.calls, found.ns, found.flops) == (1, 70, 12_000)


def test_calls_of_one_weight_with_other_numbers_of_tokens_are_one_row() -> None:
    operations = kernels((5, 100, 200, BF16_KERNEL), (25, 300, 400, BF16_KERNEL))
    (found,), _ = tabulate(operations, (LAYER.format(1, 7), 0, 10), (LAYER.format(2, 9), 20, 30))
    assert (found.m, found.calls) == ((7, 9), 2)
    assert found.flops == 2 * (7 + 9) * 1000 * 2000


def test_kernels_outside_of_any_gemm_lower_the_known_share() -> None:
    gemm = "aten::mm, op_id = 1, sizes = [[10, 20], [20, 30]]"
    operations = kernels((5, 100, 175, BF16_KERNEL), (50, 200, 225, BF16_KERNEL))
    (found,), known = tabulate(operations, (gemm, 0, 10))
    assert (found.ns, known) == (75, 0.75)


def test_other_kernels_are_no_part_of_a_gemm() -> None:
    gemm = "aten::mm, op_id = 1, sizes = [[10, 20], [20, 30]]"
    assert tabulate(kernels((5, 100, 175, BF16_KERNEL), category="elementwise"), (gemm, 0, 10)) == ((), None)


def test_a_format_without_a_known_peak_has_no_share() -> None:
    gemm = "aten::mm, op_id = 1, sizes = [[10, 20], [20, 30]]"
    (found,), _ = tabulate(kernels((5, 100, 175, FP32_KERNEL)), (gemm, 0, 10), precision="bf16")
    assert (found.precision, found.peak_flops_per_s, found.fraction) == ("fp32", None, None)


@pytest.mark.parametrize(("precision", "known"), [("fp8", True), (None, False)])
def test_where_the_kernels_name_has_no_format_the_configs_counts(precision: str | None, known: bool) -> None:
    gemm = "aten::mm, op_id = 1, sizes = [[10, 20], [20, 30]]"
    (found,), _ = tabulate(kernels((5, 100, 175, SILENT_KERNEL)), (gemm, 0, 10), precision=precision)
    assert (found.precision, found.fraction is not None) == (precision, known)


def test_a_weight_is_named_by_its_size_and_by_the_tokens_where_two_have_the_same() -> None:
    weights = Weights({(2000, 1000): ("attention output",)}, {(2000, 1000): ("expert input",)}, tokens=7)
    operations = kernels((5, 100, 200, BF16_KERNEL), (25, 300, 410, BF16_KERNEL))
    found, _ = tabulate(operations, (LAYER.format(1, 7), 0, 10), (LAYER.format(2, 9), 20, 30), weights=weights)
    assert [row.role for row in found] == ["expert input", "attention output or expert input"]


def test_a_weight_that_the_model_does_not_have_has_no_name() -> None:
    (found,), _ = tabulate(kernels((5, 100, 200, BF16_KERNEL)), (LAYER.format(1, 7), 0, 10))
    assert found.role is None


def test_the_weights_of_a_model_under_tensor_parallelism() -> None:
    shape = read_model_shape(toy(tensor_model_parallel_size=2)).value  # hidden 8, 4 experts of 6, vocabulary 32
    assert shape is not None
    named = name_weights(shape, tensor=2, expert_tensor=1, tokens=16)
    assert named.role_of(((8 + 4 + 4) // 2, 8), 16) == "query, key and value"
    assert named.role_of((8, 8 // 2), 16) == "attention output"
    assert named.role_of((2 * 6, 8), 5) == "expert input"
    assert named.role_of((8, 6), 5) == "expert output"
    assert named.role_of((32 // 2, 8), 16) == "logits"
    assert named.role_of((4, 8), 16) == "router"
    assert named.role_of((4, 8), 5) is None  # the router sees every token


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=reads_sample(name))
        for name in ("wide-nvlink-alltoall.sqlite", "wide-nvlink-deepep.sqlite.xz")
    ],
)
def test_on_a_real_trace_shapes_and_config_count_the_same_operations(name: str) -> None:
    """The config's count takes routing to be balanced; the operators saw it: 8 experts on 4 ranks, within a percent."""
    report = analyze_sample(name)
    gemms = next(row for row in report.efficiency if row.role == "GEMMs")
    assert sum(row.flops for row in report.gemm_shapes) == pytest.approx(gemms.flops, rel=0.01)
    assert report.facts.number("gemm_shapes_known_fraction") == 1.0
    busiest = max(report.gemm_shapes, key=lambda row: row.ns)
    assert busiest.role == "expert input"
    assert all(row.fraction is None or 0.3 < row.fraction < 0.95 for row in report.gemm_shapes)
