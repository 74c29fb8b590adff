"""Models that Megatron-Bridge 0.6.2 knows, as recipes on mock data.

MiniMax-M2, Ling-mini, Kimi-K2, ERNIE-4.5, Hy3, Step-3.5-Flash, GLM-4.5 and 4.7-Flash, DeepSeek-V2, Qwen3-32B, 235B
and Coder-480B by configurations of the model hub, both of Sarvam by classes of Megatron-Bridge, MiniMax-M3's text,
MiMo-V2-Flash, Nemotron-4-15B, Ling-lite and Phi-3.5-MoE by such classes with the shapes of their configurations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from megatron.bridge import AutoBridge
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.models.mimo_v2_flash.mimo_v2_flash_provider import MiMoV2FlashModelProvider
from megatron.bridge.models.minimax_m3.minimax_m3_bridge import (
    MiniMaxM3ModelProvider,
    minimax_m3_block_spec,
    quick_gelu,
)
from megatron.bridge.models.sarvam.sarvam_provider import SarvamMLAModelProvider, SarvamMoEModelProvider
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.mixed_precision import (
    MixedPrecisionConfig,
    bf16_mixed,
    bf16_with_fp8_current_scaling_mixed,
    bf16_with_fp8_subchannel_scaling_mixed,
)
from megatron.core.activations import squared_relu
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from torch.nn.functional import silu


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


def _minimax_m3() -> MiniMaxM3ModelProvider:
    return MiniMaxM3ModelProvider(
        transformer_layer_spec=partial(minimax_m3_block_spec, use_transformer_engine=True),
        num_layers=60,
        hidden_size=6144,
        ffn_hidden_size=12288,
        num_attention_heads=64,
        num_query_groups=4,
        kv_channels=128,
        qk_layernorm=True,
        normalization="RMSNorm",
        layernorm_zero_centered_gamma=True,
        layernorm_epsilon=1e-6,
        position_embedding_type="rope",
        rotary_percent=0.5,
        rotary_base=5_000_000,
        gated_linear_unit=True,
        activation_func=quick_gelu,
        activation_func_clamp_value=7.0,
        glu_linear_offset=1.0,
        bias_activation_fusion=False,
        bias_dropout_fusion=True,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        share_embeddings_and_output_weights=False,
        persist_layer_norm=True,
        num_moe_experts=128,
        moe_router_topk=4,
        moe_ffn_hidden_size=3072,
        moe_shared_expert_intermediate_size=3072,
        moe_layer_freq=[0, 0, 0] + [1] * 57,
        moe_router_pre_softmax=False,
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        moe_router_dtype="fp32",
        moe_router_load_balancing_type="aux_loss",
        moe_aux_loss_coeff=0.001,
        moe_router_topk_scaling_factor=2.0,
        bf16=True,
        seq_length=4096,
        vocab_size=200064,
    )


def _mimo_v2_flash() -> MiMoV2FlashModelProvider:
    return MiMoV2FlashModelProvider(
        num_layers=48,
        hidden_size=4096,
        ffn_hidden_size=16384,
        num_attention_heads=64,
        num_query_groups=4,
        full_attn_num_query_groups=4,
        swa_num_query_groups=8,
        kv_channels=192,
        v_head_dim=128,
        rotary_percent=0.334,
        hybrid_attention_pattern=([0] + [1] * 5) * 8,
        window_size=128,
        layernorm_epsilon=1e-5,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        num_moe_experts=256,
        moe_router_topk=8,
        moe_ffn_hidden_size=2048,
        moe_layer_freq=[0] + [1] * 47,
        moe_router_pre_softmax=True,
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        moe_router_dtype="fp32",
        moe_router_load_balancing_type="none",
        bf16=True,
        seq_length=4096,
        vocab_size=152576,
        mtp_num_layers=None,
    )


def _nemotron_4() -> GPTModelProvider:
    return GPTModelProvider(
        num_layers=32,
        hidden_size=6144,
        ffn_hidden_size=24576,
        num_attention_heads=48,
        num_query_groups=8,
        kv_channels=128,
        normalization="LayerNorm",
        layernorm_zero_centered_gamma=True,
        activation_func=squared_relu,
        gated_linear_unit=False,
        bias_activation_fusion=False,
        position_embedding_type="rope",
        rotary_percent=0.5,
        rotary_base=10_000,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        persist_layer_norm=True,
        share_embeddings_and_output_weights=False,
        bf16=True,
        seq_length=4096,
        vocab_size=256000,
    )


def _make_gated_experts(layers: int, vocabulary: int, **shape: Any) -> GPTModelProvider:
    return GPTModelProvider(
        **shape,
        transformer_layer_spec=partial(get_gpt_decoder_block_spec, use_transformer_engine=True),
        num_layers=layers,
        vocab_size=vocabulary,
        moe_layer_freq=[1] * layers,
        activation_func=silu,
        gated_linear_unit=True,
        bias_activation_fusion=True,
        bias_dropout_fusion=True,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        position_embedding_type="rope",
        persist_layer_norm=True,
        share_embeddings_and_output_weights=False,
        moe_router_dtype="fp32",
        moe_router_load_balancing_type="aux_loss",
        moe_aux_loss_coeff=0.001,
        moe_router_pre_softmax=False,
        moe_router_score_function="softmax",
        bf16=True,
        seq_length=4096,
    )


def _ling_lite() -> GPTModelProvider:
    return _make_gated_experts(
        28,
        126464,
        normalization="RMSNorm",
        layernorm_epsilon=1e-6,
        hidden_size=2048,
        ffn_hidden_size=5632,
        num_attention_heads=16,
        num_query_groups=4,
        kv_channels=128,
        rotary_base=600_000,
        num_moe_experts=64,
        moe_router_topk=6,
        moe_ffn_hidden_size=1408,
        moe_shared_expert_intermediate_size=2816,
    )


def _phi35_moe() -> GPTModelProvider:
    return _make_gated_experts(
        32,
        32064,
        normalization="LayerNorm",
        layernorm_epsilon=1e-5,
        hidden_size=4096,
        ffn_hidden_size=6400,
        num_attention_heads=32,
        num_query_groups=8,
        kv_channels=128,
        add_qkv_bias=True,
        rotary_base=10_000,
        num_moe_experts=16,
        moe_router_topk=2,
        moe_ffn_hidden_size=6400,
    )


minimax_m2 = partial(_build, _from_hub("MiniMaxAI/MiniMax-M2"))
ling_mini = partial(_build, _from_hub("inclusionAI/Ling-mini-2.0"))
kimi_k2_current = partial(_build, _from_hub("moonshotai/Kimi-K2-Instruct"), bf16_with_fp8_current_scaling_mixed)
ernie_45 = partial(_build, _from_hub("baidu/ERNIE-4.5-21B-A3B-PT"))
hy3 = partial(_build, _from_hub("tencent/Hy3-preview"))
step35 = partial(_build, _from_hub("stepfun-ai/Step-3.5-Flash"))
glm47_flash_current = partial(_build, _from_hub("zai-org/GLM-4.7-Flash"), bf16_with_fp8_current_scaling_mixed)
deepseek_v2 = partial(_build, _from_hub("deepseek-ai/DeepSeek-V2"))
glm45_355b = partial(_build, _from_hub("zai-org/GLM-4.5"))
qwen3_32b = partial(_build, _from_hub("Qwen/Qwen3-32B"))
qwen3_coder_blockwise = partial(
    _build, _from_hub("Qwen/Qwen3-Coder-480B-A35B-Instruct"), bf16_with_fp8_subchannel_scaling_mixed
)
qwen3_235b = partial(_build, _from_hub("Qwen/Qwen3-235B-A22B"))
sarvam_30b = partial(_build, SarvamMoEModelProvider)
sarvam_105b = partial(_build, SarvamMLAModelProvider)
minimax_m3 = partial(_build, _minimax_m3)
mimo_v2_flash = partial(_build, _mimo_v2_flash)
nemotron_4_current = partial(_build, _nemotron_4, bf16_with_fp8_current_scaling_mixed)
ling_lite = partial(_build, _ling_lite)
phi35_moe_current = partial(_build, _phi35_moe, bf16_with_fp8_current_scaling_mixed)


def ernie_45_tuned() -> ConfigContainer:
    """With an object for what overlaps, as most recipes of Megatron-Bridge have it: overrides can change its fields."""
    config = ernie_45()
    config.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)
    return config
