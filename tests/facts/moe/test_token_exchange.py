"""Bytes of a token exchange, from the configuration, and the link that bounds it."""

from __future__ import annotations

import pytest

from tests.facts.views import run_view
from three_walls.facts.moe.token_exchange import exchange_bytes, link_bytes_per_s
from three_walls.model.config import ConfigData, ConfigValue, RunConfig
from three_walls.model.fact import known
from three_walls.tables.hardware import GpuModel, find_gpu


def gpu(name: str) -> GpuModel:
    found = find_gpu(name)
    assert found is not None
    return found


H200 = gpu("NVIDIA H200")


def link(ep: int, per_node: int | None = 8, model: GpuModel | None = H200, **more: object) -> tuple[float | None, str]:
    values = {
        "expert_model_parallel_size": ep,
        "tensor_model_parallel_size": 1,
        "moe_token_dispatcher_type": "alltoall",
        **more,
    }
    environment = {} if per_node is None else {"LOCAL_WORLD_SIZE": str(per_node), "WORLD_SIZE": str(max(ep, per_node))}
    config = RunConfig(
        {key: ConfigValue(value, "test") for key, value in values.items()},  # type: ignore[arg-type]
        {key: ConfigValue(value, "test") for key, value in environment.items()},
    )
    found = link_bytes_per_s(run_view(config, model))
    return found.value, found.missing_reason or ""


def test_inside_one_server_it_is_nvlink_in_one_direction() -> None:
    assert link(8) == (450e9, "")


def test_across_servers_the_network_carries_what_leaves_the_server() -> None:
    """Of 15 other ranks 8 are in the other server: 50 GB/s there let the whole exchange run at 50 x 15 / 8."""
    assert link(16) == (50e9 * 15 / 8, "")


def test_four_ranks_a_server_reach_the_network_sooner() -> None:
    """A group of 8 would fit one server, but its ranks are on two."""
    assert link(8, per_node=4) == (50e9 * 7 / 4, "")


def test_a_rack_is_one_domain_however_many_hosts() -> None:
    assert link(16, per_node=4, model=gpu("NVIDIA GB200")) == (900e9, "")


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (link(16, model=None), "GPU is not in tables/hardware.yaml"),
        (link(16, model=H200.model_copy(update={"nic_bytes_per_s_one_way": None})), "network of a H200 server"),
        (link(16, moe_token_dispatcher_type="flex"), "alltoall dispatcher only"),
        (link(16, expert_tensor_parallel_size=2), "expert tensor parallelism 1"),
    ],
)
def test_what_is_not_known_has_no_limit_but_a_reason(found: tuple[float | None, str], reason: str) -> None:
    limit, why_not = found
    assert limit is None
    assert reason in why_not


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
    assert exchange_bytes(config(**values)) == known(sent)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"seq_length": None, "hidden_size": None}, "does not state hidden_size, seq_length"),
        ({"bf16": None}, "bf16 or fp16"),
        ({"moe_expert_capacity_factor": 1.25}, "moe_expert_capacity_factor"),
        ({"moe_latent_size": 512}, "moe_latent_size"),
    ],
)
def test_what_the_config_does_not_say_is_not_guessed(values: dict[str, ConfigData], reason: str) -> None:
    found = exchange_bytes(config(**values))
    assert found.value is None
    assert reason in str(found.missing_reason)
