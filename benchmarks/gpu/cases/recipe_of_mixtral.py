"""Mixtral-8x7B, of which Megatron-Bridge 0.6.2 has no recipe: Mistral's layers, 2 of 8 experts, softmax over these."""

from megatron.bridge.models.mistral.mistral_provider import MistralModelProvider
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.training.config import ConfigContainer


def mixtral_8x7b() -> ConfigContainer:
    config = _pretrain_common()
    config.model = MistralModelProvider(
        moe_ffn_hidden_size=14336,
        num_moe_experts=8,
        moe_router_topk=2,
        moe_router_pre_softmax=False,
        moe_router_load_balancing_type="aux_loss",
        moe_aux_loss_coeff=0.02,
        moe_router_dtype="fp32",
        moe_grouped_gemm=True,
        moe_token_dispatcher_type="alltoall",
        transformer_impl="transformer_engine",
        attention_backend=None,
    )
    config.optimizer.use_precision_aware_optimizer = False
    return config
