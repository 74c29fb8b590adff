"""Settings that kernels and NVTX ranges show where no command line or configuration states them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.facts.model_runs import TOY
from tests.trace_builder import ADAM, GEMM, MEGATRON_RANGE, TraceBuilder
from three_walls import analyze
from three_walls.report.report import Report

pytestmark = pytest.mark.slow

MS = 1_000_000
SOFTMAX = "void transformer_engine::scaled_masked_softmax_warp_forward<__nv_bfloat16, __nv_bfloat16, float, (int)12>"
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>"
NORM = "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<transformer_engine::normalization::Kernel>(X)"
TE_ADAM = "void multi_tensor_apply_kernel<T<4>, transformer_engine::multi_tensor_adam::AdamFunctor>"


def report_of(path: Path, *kernels: str, ranges: tuple[str, ...] = (), **settings: str) -> Report:
    """Five Megatron steps of 100 ms: one expert's GEMM on each of four streams, then 10 ms of each of ``kernels``."""
    builder = TraceBuilder().launched_as("train.py", RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    for step in range(5):
        at = step * 100 * MS + 1
        for text in (MEGATRON_RANGE, *ranges):
            builder.nvtx(text, at, at + MS)
        for stream in (7, 8, 9, 10):
            builder.kernel(GEMM, at, at + 40 * MS, stream=stream, launched=at)
        for place, name in enumerate(kernels):
            begin = at + (40 + 10 * place) * MS
            builder.kernel(name, begin, begin + 10 * MS, launched=at)
        builder.kernel(ADAM, at + 80 * MS, at + 100 * MS, launched=at)
    file = path / f"{len(list(path.iterdir()))}.sqlite"
    return analyze(builder.write(file), settings=[f"{key}={value}" for key, value in settings.items()])


def outcome(report: Report, rule: str) -> str:
    return next(finding.outcome.value for finding in report.findings if finding.rule == rule)


def test_kernels_of_its_layers_show_transformer_engine_and_its_optimizer_does_not(tmp_path: Path) -> None:
    shown = report_of(tmp_path, NORM).facts.get("config.transformer_impl")
    assert shown.value == "transformer_engine"
    assert report_of(tmp_path, TE_ADAM).facts.get("config.transformer_impl").is_missing


def test_the_range_of_a_grouped_linear_layer_shows_that_experts_are_grouped(tmp_path: Path) -> None:
    """Transformer Engine runs one cuBLAS GEMM per expert, over several streams: no kernel is a grouped GEMM."""
    expert = {"num_moe_experts": "8", "expert_model_parallel_size": "1"}
    grouped = report_of(tmp_path, ranges=("nvte_multi_tensor_gemm",), **expert)
    assert grouped.facts.get("config.moe_grouped_gemm").value is True
    assert outcome(grouped, "grouped-gemm") == "not_needed"
    assert report_of(tmp_path, **expert).facts.get("config.moe_grouped_gemm").is_missing
    stated = report_of(tmp_path, moe_grouped_gemm="true", **expert)
    assert outcome(stated, "grouped-gemm") == "not_needed"


def test_automatic_choice_that_fell_back_is_a_finding_and_no_edit(tmp_path: Path) -> None:
    report = report_of(tmp_path, NORM, SOFTMAX)
    assert outcome(report, "unfused-attention-fallback") == "found"
    assert outcome(report, "fused-attention") == "not_needed"
    (advice,) = [finding.advice for finding in report.findings if finding.rule == "unfused-attention-fallback"]
    assert "NVTE_DEBUG=1" in advice


def test_unfused_attention_that_a_setting_asks_for_is_an_edit(tmp_path: Path) -> None:
    report = report_of(tmp_path, NORM, SOFTMAX, attention_backend="unfused")
    assert outcome(report, "unfused-attention-fallback") == "not_applicable"
    assert report.facts.get("attention_fell_back").value is False


def test_memory_and_efficiency_count_the_attention_that_ran(tmp_path: Path) -> None:
    """Transformer Engine's automatic choice is fused where it can be: after a fall-back the scores are kept too."""
    model = {key: str(value) for key, value in TOY.items() if key != "attention_backend"}

    def estimate(*kernels: str, **settings: str) -> tuple[float | None, list[int]]:
        report = report_of(tmp_path, NORM, *kernels, **model, **settings)
        flops = [row.flops for row in report.efficiency if row.role == "GEMMs"]
        return report.facts.number("memory_activations_bytes"), flops

    fell_back, asked_for, fused = estimate(SOFTMAX), estimate(SOFTMAX, attention_backend="unfused"), estimate(FLASH)
    assert fell_back == asked_for
    assert fell_back[0] != fused[0]
    assert fell_back[1] > fused[1] > [0]
    assert estimate(SOFTMAX, FLASH) == fused
