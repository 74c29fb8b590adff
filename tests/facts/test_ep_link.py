"""The link that bounds a token exchange."""

from __future__ import annotations

import pytest

from three_walls.facts.ep_link import ep_link_bytes_per_s
from three_walls.facts.layout import derive_layout
from three_walls.model.config import ConfigValue, RunConfig
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
    found, reason = ep_link_bytes_per_s(config, model, derive_layout(config, model))
    return found, reason or ""


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
        (link(16, model=None), "GPU is not known"),
        (link(16, model=H200.model_copy(update={"nic_bytes_per_s_one_way": None})), "network of a H200 server"),
        (link(16, moe_token_dispatcher_type="flex"), "alltoall dispatcher only"),
        (link(16, expert_tensor_parallel_size=2), "expert tensor parallelism 1"),
    ],
)
def test_what_is_not_known_has_no_limit_but_a_reason(found: tuple[float | None, str], reason: str) -> None:
    limit, why_not = found
    assert limit is None
    assert reason in why_not
