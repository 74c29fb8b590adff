"""Models that Megatron-Bridge 0.6.2 converts, as recipes on mock data: MiniMax-M2, Ling-mini, Kimi-K2, ERNIE-4.5."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.mixed_precision import (
    MixedPrecisionConfig,
    bf16_mixed,
    bf16_with_fp8_current_scaling_mixed,
)


def _build(path: str, precision: Callable[[], MixedPrecisionConfig]) -> ConfigContainer:
    config = _pretrain_common()
    config.model = AutoBridge.from_hf_pretrained(path).to_megatron_provider(load_weights=False)
    config.model.moe_token_dispatcher_type = "alltoall"
    config.model.moe_grouped_gemm = True
    config.model.transformer_impl = "transformer_engine"
    config.model.attention_backend = None
    config.model.moe_shared_expert_overlap = False
    config.optimizer.use_precision_aware_optimizer = False
    config.ddp.data_parallel_sharding_strategy = "no_shard"
    config.mixed_precision = precision()
    return config


minimax_m2 = partial(_build, "MiniMaxAI/MiniMax-M2", bf16_mixed)
ling_mini = partial(_build, "inclusionAI/Ling-mini-2.0", bf16_mixed)
kimi_k2_current = partial(_build, "moonshotai/Kimi-K2-Instruct", bf16_with_fp8_current_scaling_mixed)
ernie_45 = partial(_build, "baidu/ERNIE-4.5-21B-A3B-PT", bf16_mixed)


def ernie_45_tuned() -> ConfigContainer:
    """With an object for what overlaps, as most recipes of Megatron-Bridge have it: overrides can change its fields."""
    config = ernie_45()
    config.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)
    return config
