"""Recipes of Megatron-Bridge whose precision is an object: overrides can change one field of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from megatron.bridge.recipes.deepseek.h100 import deepseek_v3
from megatron.bridge.recipes.gpt.h100 import gpt3_175b
from megatron.bridge.recipes.llama.h100 import llama3
from megatron.bridge.recipes.qwen.h100 import qwen2, qwen3_moe
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.mixed_precision import (
    MixedPrecisionConfig,
    bf16_mixed,
    bf16_with_fp8_current_scaling_mixed,
    bf16_with_fp8_delayed_scaling_mixed,
)


def _build(recipe: Callable[[], ConfigContainer], precision: Callable[[], MixedPrecisionConfig]) -> ConfigContainer:
    config = recipe()
    config.mixed_precision = precision()
    return config


llama3_8b = partial(_build, llama3.llama3_8b_pretrain_2gpu_h100_bf16_config, bf16_mixed)
llama3_8b_current = partial(
    _build, llama3.llama3_8b_pretrain_2gpu_h100_bf16_config, bf16_with_fp8_current_scaling_mixed
)
qwen3_30b_a3b = partial(_build, qwen3_moe.qwen3_30b_a3b_pretrain_8gpu_h100_bf16_config, bf16_mixed)
qwen25_1p5b_current = partial(
    _build, qwen2.qwen25_1p5b_pretrain_1gpu_h100_bf16_config, bf16_with_fp8_current_scaling_mixed
)
deepseek_v3_current = partial(
    _build, deepseek_v3.deepseek_v3_pretrain_1024gpu_h100_bf16_config, bf16_with_fp8_current_scaling_mixed
)
gpt3_175b_delayed = partial(
    _build, gpt3_175b.gpt3_175b_pretrain_32gpu_h100_bf16_config, bf16_with_fp8_delayed_scaling_mixed
)
