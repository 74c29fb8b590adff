"""Configs of small models whose operations and bytes can be counted on paper."""

from __future__ import annotations

from three_walls.lib.plain_data import ConfigData
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig

# Two layers of hidden 8: 4 heads of 2 channels in 2 groups, 4 experts of 6 (gated), 2 of them per token.
TOY: dict[str, ConfigData] = {
    "num_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 4,
    "kv_channels": 2,
    "group_query_attention": True,
    "num_query_groups": 2,
    "seq_length": 16,
    "padded_vocab_size": 32,
    "swiglu": True,
    "normalization": "RMSNorm",
    "add_bias_linear": False,
    "num_moe_experts": 4,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 6,
    "ffn_hidden_size": 10,
    "untie_embeddings_and_output_weights": True,
    "bf16": True,
    "grad_reduce_in_fp32": True,
    "optimizer": "adam",
    "use_distributed_optimizer": False,
    "attention_backend": "fused",
    "micro_batch_size": 1,
    "global_batch_size": 4,
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "expert_tensor_parallel_size": 1,
}

# The shape of the shared captures "wide-nvlink-alltoall": what Megatron's own log prints for it is known.
WIDE: dict[str, ConfigData] = TOY | {
    "num_layers": 4,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "kv_channels": 128,
    "num_query_groups": 8,
    "seq_length": 4096,
    "padded_vocab_size": 32128,
    "num_moe_experts": 8,
    "moe_router_topk": 4,
    "moe_ffn_hidden_size": 2048,
    "ffn_hidden_size": 2048,
    "use_distributed_optimizer": True,
    "attention_backend": "unfused",
    "global_batch_size": 8,
    "expert_model_parallel_size": 4,
}


def toy(world: int = 1, **values: ConfigData) -> RunConfig:
    """The toy model on ``world`` GPUs; a value of None leaves the setting unset but known."""
    return run_config(TOY | values, world)


def wide(world: int = 4, **values: ConfigData) -> RunConfig:
    return run_config(WIDE | values, world)


def without(config: RunConfig, *keys: str) -> RunConfig:
    """``config`` that does not state ``keys``."""
    return RunConfig({key: value for key, value in config.values.items() if key not in keys}, config.environment)


def run_config(values: dict[str, ConfigData], world: int) -> RunConfig:
    return RunConfig(
        {key: ConfigValue(value, "test") for key, value in values.items()},
        {"WORLD_SIZE": ConfigValue(str(world), "test")},
    )
