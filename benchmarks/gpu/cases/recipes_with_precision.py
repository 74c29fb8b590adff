"""Recipes of Megatron-Bridge whose precision is an object: overrides can change one field of it."""

from __future__ import annotations

from megatron.bridge.recipes.llama.h100 import llama3
from megatron.bridge.recipes.qwen.h100 import qwen3_moe
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.mixed_precision import bf16_mixed


def llama3_8b() -> ConfigContainer:
    config = llama3.llama3_8b_pretrain_2gpu_h100_bf16_config()
    config.mixed_precision = bf16_mixed()
    return config


def qwen3_30b_a3b() -> ConfigContainer:
    config = qwen3_moe.qwen3_30b_a3b_pretrain_8gpu_h100_bf16_config()
    config.mixed_precision = bf16_mixed()
    return config
