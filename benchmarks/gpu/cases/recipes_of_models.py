"""Models that Megatron-Bridge 0.6.2 knows, as recipes on mock data.

MiniMax-M2, Ling-mini, Kimi-K2, ERNIE-4.5, Hy3, Step-3.5-Flash and GLM-4.7-Flash by configurations of the model hub,
both of Sarvam by classes of Megatron-Bridge.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from megatron.bridge import AutoBridge
from megatron.bridge.models.sarvam.sarvam_provider import SarvamMLAModelProvider, SarvamMoEModelProvider
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.mixed_precision import (
    MixedPrecisionConfig,
    bf16_mixed,
    bf16_with_fp8_current_scaling_mixed,
)


def _build(provider: Callable[[], Any], precision: Callable[[], MixedPrecisionConfig] = bf16_mixed) -> ConfigContainer:
    config = _pretrain_common()
    config.model = provider()
    config.model.moe_token_dispatcher_type = "alltoall"
    config.model.moe_grouped_gemm = True
    config.model.transformer_impl = "transformer_engine"
    config.model.attention_backend = None
    config.model.moe_shared_expert_overlap = False
    config.optimizer.use_precision_aware_optimizer = False
    config.ddp.data_parallel_sharding_strategy = "no_shard"
    config.mixed_precision = precision()
    return config


def _from_hub(path: str) -> Callable[[], Any]:
    return lambda: AutoBridge.from_hf_pretrained(path).to_megatron_provider(load_weights=False)


minimax_m2 = partial(_build, _from_hub("MiniMaxAI/MiniMax-M2"))
ling_mini = partial(_build, _from_hub("inclusionAI/Ling-mini-2.0"))
kimi_k2_current = partial(_build, _from_hub("moonshotai/Kimi-K2-Instruct"), bf16_with_fp8_current_scaling_mixed)
ernie_45 = partial(_build, _from_hub("baidu/ERNIE-4.5-21B-A3B-PT"))
hy3 = partial(_build, _from_hub("tencent/Hy3-preview"))
step35 = partial(_build, _from_hub("stepfun-ai/Step-3.5-Flash"))
glm47_flash_current = partial(_build, _from_hub("zai-org/GLM-4.7-Flash"), bf16_with_fp8_current_scaling_mixed)
sarvam_30b = partial(_build, SarvamMoEModelProvider)
sarvam_105b = partial(_build, SarvamMLAModelProvider)


def ernie_45_tuned() -> ConfigContainer:
    """With an object for what overlaps, as most recipes of Megatron-Bridge have it: overrides can change its fields."""
    config = ernie_45()
    config.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)
    return config
