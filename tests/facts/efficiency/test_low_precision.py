"""What casts move against the GEMMs that they are for, counted on paper for a model of two layers."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from tests.facts import views
from tests.facts.model_runs import toy, without
from tests.facts.views import run_view, step_view
from three_walls.facts import low_precision
from three_walls.lib.fact import FactValue
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.lib.plain_data import ConfigData
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.tables.hardware import GpuModel, find_gpu

H200 = find_gpu("NVIDIA H200")
assert H200 is not None
ROUND = replace(H200, memory_bytes_per_s=1000, bf16_dense_flops=30_000)


NAMES = {
    1: "transformer_engine::detail::multi_padding_kernel",
    2: "multi_unpadding_kernel<4>",
    3: "padding_of_others",
    4: "nvjet_sm90_qqtst_128x128_128x6_1x2_h_bz_TNT",
    5: "nvjet_sm90_tst_128x128_64x6_1x2_h_bz_TNT",
}
KERNELS = pl.DataFrame(
    {
        "kind": ["kernel"] * 5,
        "category": ["quantize", "quantize", "elementwise", "gemm", "gemm"],
        "name_id": [1, 2, 3, 4, 5],
        "start_ns": [0, 10, 20, 100, 200],
        "end_ns": [3, 14, 90, 120, 290],
    },
)
UPDATE = pl.DataFrame(
    {
        "part": ["optimizer", "loss", None, "expert"],
        "category": ["optimizer", "elementwise", "quantize", "quantize"],
        "module": ["outside", "outside", "outside", "experts"],
        "direction": [None, "forward", None, "forward"],
        "start_ns": [0, 20, 200, 300],
        "end_ns": [14, 90, 280, 305],
    }
)


def measure(
    config: RunConfig,
    gpu: GpuModel | None = ROUND,
    efficiency: float | None = 0.5,
    update: pl.DataFrame = UPDATE,
    kernels: pl.DataFrame = KERNELS,
) -> dict[str, FactValue]:
    reached: Measurement[FactValue] = missing("no GEMM ran") if efficiency is None else known(efficiency)
    run = run_view(config, gpu)
    given = {"labelled_step": update, "quantize_ns": known(14), "gemm_efficiency_fraction": reached}
    found = views.measure(low_precision, run=run, step=step_view(kernels, run=run, names=NAMES), **given)
    return {name: reason if value is None else value for name, (value, reason) in found.items()}


def test_inputs_are_read_once_for_the_gemms_of_both_directions() -> None:
    """Per token and layer: projections read 8 + 16 and 8 + 8 values, each of two experts 8 + 12 and 6 + 8.

    4 sequences of 16 tokens, and the weights once: 8 x 16 + 8 x 8 of projections, 3 x 8 x 6 of each of four experts.
    """
    values = 2 * 64 * (24 + 16 + 2 * (20 + 14)) + 2 * (192 + 4 * 144)
    flops = 3 * 2 * 64 * 2 * (192 + 2 * 144)
    assert measure(toy())["linear_inputs_read_fraction"] == pytest.approx((2 * values / 1000) / (flops / 15_000))


def test_more_tokens_for_the_same_weights_leave_less_to_read() -> None:
    few, many = (measure(toy(global_batch_size=size))["linear_inputs_read_fraction"] for size in (4, 64))
    assert isinstance(few, float) and isinstance(many, float) and many < few


def test_small_experts_read_more_for_what_they_multiply() -> None:
    small, large = (measure(toy(moe_ffn_hidden_size=size))["linear_inputs_read_fraction"] for size in (4, 64))
    assert isinstance(small, float) and isinstance(large, float) and large < small


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (measure(toy(), gpu=None), "hardware"),
        (measure(toy(), efficiency=None), "no GEMM ran"),
        (measure(without(toy(), "hidden_size")), "hidden_size"),
    ],
)
def test_without_sizes_a_gpu_or_gemms_it_is_not_known(found: dict[str, FactValue], reason: str) -> None:
    assert reason in str(found["linear_inputs_read_fraction"])


@pytest.mark.parametrize(("layers", "share"), [(1, 0.0), (2, 0.0), (4, 0.5)])
def test_the_first_and_the_last_layer_are_no_inner_ones(layers: ConfigData, share: float) -> None:
    assert measure(toy(num_layers=layers))["inner_layers_fraction"] == share


def test_a_model_without_inner_layers_has_no_ratio_to_them() -> None:
    assert measure(toy(num_layers=4))["layers_per_inner_layer_ratio"] == 2
    assert measure(toy(num_layers=2))["layers_per_inner_layer_ratio"] == "the model has no inner layer"


def test_updated_weights_are_cast_by_the_rank_whose_optimizer_holds_them() -> None:
    """Two layers with 192 weights of projections and four experts of 144; 0.07 ns each, against an update of 14 ns."""
    assert measure(toy())["weight_casts_ratio"] == pytest.approx(0.07 * 2 * (192 + 4 * 144) / 14)
    sharded = measure(toy(2, use_distributed_optimizer=True, expert_model_parallel_size=2))
    assert sharded["weight_casts_ratio"] == pytest.approx(0.07 * 2 * (192 / 2 + 4 * 144 / 2) / 14)


@pytest.mark.parametrize(("recipe", "bytes_each"), [("delayed", 4), ("tensorwise", 6)])
def test_what_is_cast_after_the_update_would_be_cast_whole_in_the_forward_pass(recipe: str, bytes_each: int) -> None:
    """80 ns after the update. All 2 x (192 + 4 x 144) weights of the rank, at 0.7 of 1000 bytes a second."""
    found = measure(toy(fp8_recipe=recipe))
    assert found["updated_weight_casts_ns"] == 80
    assert found["weight_recasts_ratio"] == pytest.approx(1e9 * bytes_each * 2 * (192 + 4 * 144) / 700 / 80)


def test_without_casts_after_the_update_there_is_nothing_to_compare() -> None:
    found = measure(toy(), update=UPDATE.filter(pl.col("category") != "quantize"))
    assert found["updated_weight_casts_ns"] == 0
    assert "no cast" in str(found["weight_recasts_ratio"])


def test_weights_of_the_first_and_the_last_layer_may_stay_as_they_are() -> None:
    found = measure(toy(num_layers=4))
    assert found["inner_weight_casts_ratio"] == pytest.approx(0.5 * float(str(found["weight_casts_ratio"])))


def test_without_an_optimizer_no_casts_are_counted_against_it() -> None:
    assert "optimizer" in str(measure(toy(), update=UPDATE.clear())["weight_casts_ratio"])


def test_padding_of_tokens_is_told_by_the_names_of_its_kernels() -> None:
    assert measure(toy())["token_padding_ns"] == 3 + 4


def test_casts_are_compared_with_the_gemms_that_run_in_fp8_alone() -> None:
    assert measure(toy())["casts_to_fp8_gemms_ratio"] == 14 / 20


def test_without_gemms_in_fp8_no_casts_are_compared() -> None:
    in_bf16 = KERNELS.filter(pl.col("name_id") != 4)
    assert "known to run in FP8" in str(measure(toy(), kernels=in_bf16)["casts_to_fp8_gemms_ratio"])
