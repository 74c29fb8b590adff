"""Bytes per token exchange, from the config."""

from __future__ import annotations

import pytest

from three_walls.facts.exchange_volume import exchange_bytes
from three_walls.model.config import ConfigData, ConfigValue, RunConfig

WIDE: dict[str, ConfigData] = {
    "seq_length": 4096,
    "micro_batch_size": 1,
    "hidden_size": 4096,
    "moe_router_topk": 4,
    "num_moe_experts": 8,
    "expert_model_parallel_size": 4,
    "tensor_model_parallel_size": 1,
    "context_parallel_size": 1,
    "bf16": True,
    "moe_token_dispatcher_type": "alltoall",
}


def config(**values: ConfigData) -> RunConfig:
    settings = {key: value for key, value in (WIDE | values).items() if value is not None}
    return RunConfig({key: ConfigValue(value, "test") for key, value in settings.items()})


@pytest.mark.parametrize(
    ("values", "sent"),
    [
        ({}, 4096 * 4 * 4096 * 2 * 3 // 4),
        ({"micro_batch_size": 2, "context_parallel_size": 2}, 4096 * 4 * 4096 * 2 * 3 // 4),
        ({"tensor_model_parallel_size": 2}, 2048 * 4 * 4096 * 2 * 3 // 4),
        ({"expert_model_parallel_size": 1}, 0),
        # A rank's two experts are both missed by 15 of 70 choices of four: 3 x 55/70 other ranks get a copy.
        ({"moe_token_dispatcher_type": "flex"}, round(4096 * 3 * 55 / 70 * 4096 * 2)),
        ({"bf16": False, "mixed_precision": "bf16_with_mxfp8_mixed"}, 4096 * 4 * 4096 * 2 * 3 // 4),
    ],
)
def test_a_rank_sends_what_is_not_for_itself(values: dict[str, ConfigData], sent: int) -> None:
    assert exchange_bytes(config(**values)) == (sent, None)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"seq_length": None, "hidden_size": None}, "does not say hidden_size, seq_length"),
        ({"bf16": None}, "bf16 or fp16"),
        ({"moe_expert_capacity_factor": 1.25}, "moe_expert_capacity_factor"),
        ({"moe_latent_size": 512}, "moe_latent_size"),
    ],
)
def test_what_the_config_does_not_say_is_not_guessed(values: dict[str, ConfigData], reason: str) -> None:
    sent, missing = exchange_bytes(config(**values))
    assert sent is None
    assert reason in str(missing)
