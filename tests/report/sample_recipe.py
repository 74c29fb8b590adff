"""A tuned recipe for the sample report: nine differences, the first in the plan, the last a benchmark setting."""

from __future__ import annotations

from three_walls.model.report import BENCHMARK_SETTING, KnownGoodRecipe, RecipeDifference

_KNOBS = ("apply_rope_fusion", "manual_gc", "moe_grouped_gemm", "moe_permute_fusion", "moe_router_fusion")

RECIPE = KnownGoodRecipe(
    name="qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config",
    model="qwen3_30b_a3b",
    gpu="H100",
    gpus=16,
    precision="bf16",
    distance_note="no recipe for H200: H100 is of its generation; a model of the same shape; bf16 in both",
    source="bridge:src/megatron/bridge/perf_recipes/qwen/h100/qwen3_moe.py:35",
    differences=(
        RecipeDifference("moe_token_dispatcher_type", "config", "alltoall", "flex", in_plan=True),
        *(RecipeDifference(key, "config", False, True, in_plan=False) for key in _KNOBS),
        RecipeDifference("recompute_modules", "config", ("moe_act",), None, in_plan=False),
        RecipeDifference("CUDA_DEVICE_MAX_CONNECTIONS", "env", "1", "32", in_plan=False),
        RecipeDifference("moe_router_force_load_balancing", "config", None, True, False, BENCHMARK_SETTING),
    ),
    same_count=20,
    unknown_count=2,
)
