"""Unfused attention is recognized by its place between two GEMMs."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import ADAM, GEMM, POINTWISE, TraceBuilder

from three_walls import analyze

pytestmark = pytest.mark.slow

SOFTMAX = "void at::native::cunn_SoftMaxForwardReg<float, SoftMaxForwardEpilogue>"


def budget(tmp_path: Path, builder: TraceBuilder) -> dict[str, int]:
    for at in (1, 1001, 2001, 3001):
        builder.kernel(ADAM, at + 900, at + 950)
    return dict(analyze(builder.write(tmp_path / "trace.sqlite")).ranks[0].budget)


def attention(at: int, builder: TraceBuilder, softmax: str) -> None:
    builder.kernel(GEMM, at, at + 100)  # scores
    builder.kernel(POINTWISE, at + 100, at + 130)  # mask
    builder.kernel(softmax, at + 130, at + 170)
    builder.copy(8, at + 170, at + 190)  # a copy of the scores
    builder.kernel(GEMM, at + 190, at + 290)  # times values
    builder.kernel(POINTWISE, at + 290, at + 300)  # not of the attention


def test_mask_softmax_and_copies_between_the_gemms_are_unfused_attention(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in (1, 1001, 2001, 3001):
        attention(at, builder, SOFTMAX)
    owned = budget(tmp_path, builder)
    assert owned["attention_unfused"] == 30 + 40 + 20
    assert owned["elementwise"] == 10
    assert "copy_d2d" not in owned


def test_without_a_softmax_the_same_kernels_are_pointwise_work(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in (1, 1001, 2001, 3001):
        attention(at, builder, POINTWISE)
    owned = budget(tmp_path, builder)
    assert "attention_unfused" not in owned
    assert (owned["elementwise"], owned["copy_d2d"]) == (30 + 40 + 10, 20)


def test_a_long_stretch_contains_other_work_and_is_left_alone(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in (1, 1001, 2001, 3001):
        builder.kernel(GEMM, at, at + 100)
        builder.kernel(SOFTMAX, at + 100, at + 110)
        for order in range(30):
            builder.kernel(POINTWISE, at + 110 + order, at + 111 + order)
        builder.kernel(GEMM, at + 140, at + 240)
    owned = budget(tmp_path, builder)
    assert (owned["attention_unfused"], owned["elementwise"]) == (10, 30)


def test_another_stream_is_not_between_the_gemms(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in (1, 1001, 2001, 3001):
        attention(at, builder, SOFTMAX)
        builder.kernel(POINTWISE, at + 600, at + 650, stream=20)
    assert budget(tmp_path, builder)["elementwise"] == 10 + 50


NARROW_SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 6, false, false>"
TOP_K = "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>"


def test_a_narrow_softmax_is_attention_where_nothing_selects_experts(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in (1, 1001, 2001, 3001):
        attention(at, builder, NARROW_SOFTMAX)
    owned = budget(tmp_path, builder)
    assert owned["attention_unfused"] == 30 + 40 + 20
    assert "router" not in owned


def test_a_narrow_softmax_is_the_routers_where_experts_are_selected(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in (1, 1001, 2001, 3001):
        attention(at, builder, NARROW_SOFTMAX)
        builder.kernel(TOP_K, at + 300, at + 305)
    owned = budget(tmp_path, builder)
    assert owned["router"] == 40 + 5
    assert "attention_unfused" not in owned


def test_a_narrow_softmax_next_to_fused_attention_is_pointwise_work(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in (1, 1001, 2001, 3001):
        attention(at, builder, NARROW_SOFTMAX)
        builder.kernel("flash_fwd_kernel", at + 300, at + 305)
    owned = budget(tmp_path, builder)
    assert (owned["attention"], owned["elementwise"]) == (5, 30 + 40 + 10)
    assert "attention_unfused" not in owned


CONCATENATION = "void at::native::CatArrayBatchedCopy_vectorized<OpaqueType<2>>"


def test_a_concatenation_permutes_tokens_only_where_experts_are_selected(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in (1, 1001, 2001, 3001):
        builder.kernel(GEMM, at, at + 100)
        builder.kernel(CONCATENATION, at + 100, at + 120)
    dense = builder.write(tmp_path / "dense.sqlite")
    for at in (1, 1001, 2001, 3001):
        builder.kernel(TOP_K, at + 300, at + 305)
    moe = builder.write(tmp_path / "moe.sqlite")
    buckets = [{row.bucket for row in analyze(path).kernels} for path in (dense, moe)]
    assert [("elementwise" in found, "permute" in found) for found in buckets] == [(True, False), (False, True)]


FLASH = "flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128>>"
NORM = "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<bf16>"
COUNTS = "void at_cuda_detail::cub::DeviceHistogramSweepKernel<int>"


def in_order(tmp_path: Path, *kernels: str) -> dict[str, int]:
    """The budget of steps that run a top-k and then ``kernels``, 10 ns each, one after the other."""
    builder = TraceBuilder()
    for start in (1, 1001, 2001, 3001):
        for place, name in enumerate((TOP_K, *kernels)):
            builder.kernel(name, start + 10 * place, start + 10 * place + 10)
    return budget(tmp_path, builder)


def test_what_attention_joins_permutes_no_tokens(tmp_path: Path) -> None:
    forward = (NORM, GEMM, CONCATENATION, FLASH, CONCATENATION, GEMM, NORM)
    owned = in_order(tmp_path, *forward)
    assert (owned["elementwise"], "permute" in owned) == (20, False)


def test_what_the_experts_of_the_layers_around_join_permutes_tokens(tmp_path: Path) -> None:
    experts = (COUNTS, CONCATENATION, GEMM, CONCATENATION)
    owned = in_order(tmp_path, *experts, NORM, GEMM, FLASH, GEMM, NORM, *experts)
    assert (owned["permute"], "elementwise" in owned) == (40, False)


def test_backward_a_norm_lies_between_attention_and_the_experts_before_it(tmp_path: Path) -> None:
    latent = (FLASH, NORM, CONCATENATION, GEMM, NORM)
    owned = in_order(tmp_path, *latent, CONCATENATION, GEMM, COUNTS, NORM, GEMM, FLASH)
    assert (owned["elementwise"], owned["permute"]) == (10, 10)


def test_without_norms_the_place_of_a_concatenation_tells_nothing(tmp_path: Path) -> None:
    assert "elementwise" not in in_order(tmp_path, GEMM, CONCATENATION, FLASH)
