"""Recompute seen in the trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import ADAM, GEMM, MEGATRON, TraceBuilder

from three_walls import analyze
from three_walls.vocabulary.facts import FactSheet

FORWARD = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>"
BACKWARD = "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128>>"
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"


def facts(tmp_path: Path, order: str, flags: str) -> FactSheet:
    """Three steps of 1000 ns; ``order``: F and B, an attention pass each, every 50 ns."""
    builder = TraceBuilder()
    if flags:
        builder.launched_as(f"{MEGATRON} {flags}", RANK="0", WORLD_SIZE="1")
    for first in (1, 1001, 2001):
        builder.kernel(GEMM, first, first + 10)
        for place, direction in enumerate(order):
            at = first + 20 + 50 * place
            builder.kernel(FORWARD if direction == "F" else BACKWARD, at, at + 20)
        builder.kernel(ADAM, first + 990, first + 1000)
    return analyze(builder.write(tmp_path / "trace.sqlite")).facts


def test_with_full_recompute_each_replay_costs_a_forward_layer(tmp_path: Path) -> None:
    found = facts(tmp_path, "FFFF" + "FB" * 4, FULL)
    assert found.number("attention_forward_per_backward_ratio") == 2
    assert found.number("recompute_ns") == 4 * 50
    assert found.number("recompute_fraction") == pytest.approx(0.2)


def test_without_recompute_the_cost_is_zero_not_missing(tmp_path: Path) -> None:
    found = facts(tmp_path, "FFFFBBBB", "--recompute-granularity selective")
    assert found.number("attention_forward_per_backward_ratio") == 1
    assert found.number("recompute_ns") == 0


@pytest.mark.parametrize("flags", ["", "--recompute-granularity selective"])
def test_a_replay_of_unknown_extent_has_no_price(tmp_path: Path, flags: str) -> None:
    found = facts(tmp_path, "FFFF" + "FB" * 4, flags)
    assert found.get("recompute_ns").is_missing
    assert "8 times forward and 4 backward" in str(found.get("recompute_ns").because_missing)


def test_a_model_without_attention_kernels_says_so(tmp_path: Path) -> None:
    found = facts(tmp_path, "", "")
    assert found.get("recompute_ns").because_missing == "no attention kernel with a known direction was recorded"
