"""Recompute seen in the trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import ADAM, GEMM, MEGATRON, SEND_RECV, TraceBuilder

from tests.analyzed_samples import analyze_sample, reads_sample
from tests.facts.moe_model import (
    BACKWARD,
    FORWARD,
    LAYER_NS,
    POINTWISE,
    SOFTMAX,
    SOFTMAX_BACKWARD,
    Model,
    command,
)
from three_walls import analyze
from three_walls.lib.fact import FactSheet

pytestmark = pytest.mark.slow

FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"


def facts(tmp_path: Path, order: str, flags: str) -> FactSheet:
    """Three steps of 1000 ns; ``order``: F and B, an attention pass each, every 50 ns; no GEMMs around them."""
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


def facts_of(model: Model, tmp_path: Path, launched: str = "") -> FactSheet:
    if launched:
        model.builder.launched_as(launched, RANK="0", WORLD_SIZE="4", LOCAL_WORLD_SIZE="4")
    return analyze(model.builder.write(tmp_path / "trace.sqlite")).facts


def test_without_recompute_the_cost_is_zero_not_missing(tmp_path: Path) -> None:
    found = facts(tmp_path, "FFFFBBBB", "--recompute-granularity selective")
    assert found.number("attention_forward_per_backward_ratio") == 1
    assert found.number("recompute_ns") == 0


@pytest.mark.parametrize("flags", ["", FULL])
def test_a_replay_of_unknown_extent_has_no_price(tmp_path: Path, flags: str) -> None:
    found = facts(tmp_path, "FFFF" + "FB" * 4, flags)
    assert found.get("recompute_ns").is_missing
    assert "8 times forward and 4 backward" in str(found.get("recompute_ns").missing_reason)


def test_a_model_without_attention_kernels_has_no_price_but_a_reason(tmp_path: Path) -> None:
    found = facts(tmp_path, "", "")
    assert found.get("recompute_ns").missing_reason == "no attention kernel with a known direction was recorded"


@pytest.mark.parametrize("launched", ["", command(more=FULL), command(more="--recompute-granularity selective")])
def test_full_recompute_is_measured_whatever_the_config_states(tmp_path: Path, launched: str) -> None:
    model = Model()
    for _ in range(3):
        model.micro_batch(replayed=True).micro_batch(replayed=True).update()
    assert facts_of(model, tmp_path, launched).number("recompute_ns") == 2 * 2 * LAYER_NS


def test_a_replay_ends_where_its_backward_begins_idle_time_in_it_counts(tmp_path: Path) -> None:
    model = Model()
    for _ in range(3):
        model.forward().forward().head()
        for _ in range(2):
            model.idle(7).forward().idle(3).backward()
        model.update()
    assert facts_of(model, tmp_path).number("recompute_ns") == 2 * (LAYER_NS + 3)


def test_layers_replayed_in_chunks(tmp_path: Path) -> None:
    model = Model()
    for _ in range(3):
        model.forward().forward().forward().forward().head()
        for _ in range(2):
            model.forward().forward().backward().backward()
        model.update()
    assert facts_of(model, tmp_path).number("recompute_ns") == 4 * LAYER_NS


def test_only_some_layers_replayed(tmp_path: Path) -> None:
    model = Model()
    for _ in range(3):
        for _ in range(2):
            model.forward().forward().forward().forward().head().backward().backward()
            model.forward().backward().forward().backward()
        model.update()
    assert facts_of(model, tmp_path).number("recompute_ns") == 2 * 2 * LAYER_NS


def test_fused_attention_replayed_alone_costs_itself(tmp_path: Path) -> None:
    model = Model()
    for _ in range(3):
        for _ in range(3):
            model.run((POINTWISE, 10), (GEMM, 10), (FORWARD, 10), *[(GEMM, 10)] * 3)
        for _ in range(3):
            model.run(*[(GEMM, 10)] * 6, (FORWARD, 10), (BACKWARD, 10), (GEMM, 10), (GEMM, 10))
        model.update()
    assert facts_of(model, tmp_path).number("recompute_ns") == 3 * 10


def test_unfused_attention_replayed_alone_costs_its_gemms_too(tmp_path: Path) -> None:
    model = Model()
    for _ in range(3):
        for _ in range(3):
            model.run(*[(GEMM, 10)] * 2, (SOFTMAX, 30), *[(GEMM, 10)] * 4)
        for _ in range(3):
            model.run(*[(GEMM, 10)] * 7, (SOFTMAX, 30), (GEMM, 10))  # ends with the replay's second GEMM
            model.run((GEMM, 10), (GEMM, 10), (SOFTMAX_BACKWARD, 10), *[(GEMM, 10)] * 4)
        model.update()
    assert facts_of(model, tmp_path).number("recompute_ns") == 3 * (10 + 30 + 10)


def test_two_micro_batches_that_overlap_replay_nothing(tmp_path: Path) -> None:
    model = Model()
    for _ in range(3):
        model.forward().forward()
        for _ in range(2):
            model.forward().backward()
        model.backward().backward().update()
    assert facts_of(model, tmp_path).number("recompute_ns") == 0


def test_an_expert_layer_replayed_without_its_attention_has_no_price_but_a_reason(tmp_path: Path) -> None:
    model = Model()
    for _ in range(3):
        for _ in range(3):
            model.run((GEMM, 10), (FORWARD, 10), (SEND_RECV, 30), *[(GEMM, 10)] * 4, (SEND_RECV, 30))
        for _ in range(3):
            model.run((SEND_RECV, 30), *[(GEMM, 10)] * 4, (SEND_RECV, 30))
            model.run((SEND_RECV, 30), *[(GEMM, 10)] * 8, (SEND_RECV, 30), (BACKWARD, 10), (GEMM, 10), (GEMM, 10))
        model.update()
    found = facts_of(model, tmp_path).get("recompute_ns")
    assert "14 GEMMs, a forward layer 5" in str(found.missing_reason)


@reads_sample("qwen-full-recompute.sqlite.xz")
def test_a_real_run_with_full_recompute() -> None:
    """Kernel by kernel: 12 replays of 29 to 59 ms; forward layers, an average of 45 ms apart, wait more."""
    found = analyze_sample("qwen-full-recompute.sqlite.xz").facts
    assert found.number("recompute_ns") == 420_681_453
