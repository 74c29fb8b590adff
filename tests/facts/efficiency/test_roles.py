"""Operations that a rank runs, over the time and against the peak."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.facts.model_runs import run_config, toy, without
from three_walls.facts.fact_rows import MoePart
from three_walls.facts.gemm_efficiency import ExecutedFlops, count_executed, tabulate_roles
from three_walls.lib.measurement import known
from three_walls.lib.plain_data import ConfigData
from three_walls.megatron.count_flops import count_forward, precision_of
from three_walls.megatron.model_shape import read_model_shape
from three_walls.megatron.parallel_layout import read_layout
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.tables.hardware import find_gpu

H200, A100 = find_gpu("NVIDIA H200"), find_gpu("NVIDIA A100-SXM4-80GB")
TOKENS = 4 * 16
EXECUTED = ExecutedFlops(experts=600, other_gemms=400, fused_attention=50)
FORCED = toy(fp8=None, moe_router_force_load_balancing=True)


def executed(config: RunConfig, rank: int = 0) -> ExecutedFlops:
    shape, layout = read_model_shape(config).value, read_layout(config).complete()
    assert shape is not None
    assert layout.value is not None, layout.missing_reason
    flops = count_executed(shape, layout.value, config, rank)
    assert flops.value is not None, flops.missing_reason
    return flops.value


def toy_executed(world: int = 1, rank: int = 0, **values: ConfigData) -> ExecutedFlops:
    return executed(toy(world, **values), rank)


def forward_of_toy() -> dict[str, int]:
    shape = read_model_shape(toy()).value
    assert shape is not None
    found = count_forward(shape)
    return {name: getattr(found, name) * TOKENS for name in ("experts", "attention", "router", "logits", "projections")}


def test_a_rank_runs_three_times_the_forward_pass_of_its_share() -> None:
    per_forward = forward_of_toy()
    assert toy_executed() == ExecutedFlops(
        experts=3 * per_forward["experts"],
        other_gemms=3 * (per_forward["projections"] + per_forward["router"] + per_forward["logits"]),
        fused_attention=3 * per_forward["attention"],
    )
    assert toy_executed(4).experts == 3 * per_forward["experts"] // 4


def test_unfused_attention_is_two_gemms_without_a_mask() -> None:
    per_forward, found = forward_of_toy(), toy_executed(attention_backend="unfused")
    assert found.fused_attention == 0
    assert found.other_gemms == toy_executed().other_gemms + 3 * 2 * per_forward["attention"]


def test_full_recompute_runs_the_layers_again_but_not_the_logits() -> None:
    per_forward = forward_of_toy()
    found = toy_executed(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
    assert found.experts == 4 * per_forward["experts"]
    assert found.other_gemms == 4 * (per_forward["projections"] + per_forward["router"]) + 3 * per_forward["logits"]


def test_block_recompute_runs_its_layers_again_only() -> None:
    per_forward = forward_of_toy()
    found = toy_executed(recompute_granularity="full", recompute_method="block", recompute_num_layers=1)
    assert found.experts == 3 * per_forward["experts"] + per_forward["experts"] // 2


def test_selective_recompute_runs_its_modules_again() -> None:
    per_forward, plain = forward_of_toy(), toy_executed()
    found = toy_executed(recompute_granularity="selective", recompute_modules=("core_attn",))
    assert found.fused_attention == plain.fused_attention + per_forward["attention"]
    assert found.gemms == plain.gemms
    found = toy_executed(recompute_granularity="selective", recompute_modules=("moe_act", "layernorm"))
    assert found == plain


def test_the_stages_share_the_work_and_only_the_last_has_logits() -> None:
    first, last = (toy_executed(2, rank, pipeline_model_parallel_size=2) for rank in (0, 1))
    assert last.other_gemms - first.other_gemms == 3 * forward_of_toy()["logits"]
    assert first.gemms + last.gemms == toy_executed().gemms


def part(layer: int | None, direction: str, ns: int, name: str = "expert_gemm") -> MoePart:
    return MoePart(layer, direction, name, ns, 0, 1)


def test_rates_are_operations_over_time_against_the_peak_of_the_precision() -> None:
    parts = (part(0, "forward", 2), part(1, "forward", 2), part(None, "backward", 8), part(0, "forward", 9, "router"))
    rows = tabulate_roles(EXECUTED, {"gemm": 15, "grouped_gemm": 5, "attention": 10}, parts, FORCED, H200)
    assert [(row.role, row.flops, row.ns) for row in rows] == [
        ("GEMMs", 1000, 20),
        ("expert GEMMs", 600, 12),
        ("other GEMMs", 400, 8),
        ("fused attention", 50, 10),
    ]
    assert [row.achieved_flops_per_s for row in rows] == [50e9, 50e9, 50e9, 5e9]
    assert [row.peak_flops_per_s for row in rows] == [989_500_000_000_000] * 4
    assert rows[0].fraction == pytest.approx(50e9 / 989.5e12)


def test_a_note_states_that_routing_is_taken_to_be_balanced_unless_it_is_forced() -> None:
    (row,) = tabulate_roles(EXECUTED, {"gemm": 10}, (), toy(fp8=None), H200)
    assert "taken to be balanced" in row.note
    assert tabulate_roles(EXECUTED, {"gemm": 10}, (), FORCED, H200)[0].note == ""


@pytest.mark.parametrize(
    "key", ["overlap_moe_expert_parallel_comm", "moe_shared_expert_overlap", "delay_wgrad_compute"]
)
def test_gemms_that_run_concurrently_are_not_distinguished(key: str) -> None:
    rows = tabulate_roles(EXECUTED, {"gemm": 20}, (part(0, "forward", 4),), toy(fp8=None, **{key: True}), H200)
    assert [row.role for row in rows] == ["GEMMs"]


def test_an_unknown_peak_leaves_the_rate_without_a_fraction() -> None:
    for config, gpu in ((FORCED, None), (toy(fp8="hybrid"), A100)):
        (row,) = tabulate_roles(EXECUTED, {"gemm": 10}, (), config, gpu)
        assert row.achieved_flops_per_s == 100e9
        assert row.fraction is None


@pytest.mark.parametrize(
    ("values", "precision"),
    [({"fp8": None}, "bf16"), ({"fp8": "hybrid"}, "fp8"), ({"fp4": "e2m1"}, "nvfp4")],
)
def test_the_precision_is_that_of_most_gemms(values: dict[str, ConfigData], precision: str) -> None:
    assert precision_of(toy(**values)) == known(precision)


def test_a_precision_that_is_not_stated_is_not_guessed() -> None:
    assert precision_of(toy()).is_missing
    assert precision_of(without(run_config({"fp8": None}, 1))).is_missing


def test_gemms_above_the_peak_have_no_efficiency_but_fewer_tokens_than_was_taken_to_be() -> None:
    peak = H200.bf16_dense_flops if H200 else 0
    budget, second = {"gemm": 1_000_000_000}, EXECUTED.gemms
    at_peak, above = (
        tabulate_roles(
            replace(EXECUTED, experts=round(share * peak) - second + EXECUTED.experts), budget, (), FORCED, H200
        )[0]
        for share in (1.0, 1.01)
    )
    assert at_peak.fraction == pytest.approx(1.0)
    assert (above.fraction, above.peak_flops_per_s) == (None, peak)
    assert "so this rank computes fewer tokens" in above.note
