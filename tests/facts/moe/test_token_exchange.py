"""Bytes of a token exchange, from the configuration, and the link that bounds it."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from tests.facts.views import run_view, step_view
from three_walls.facts.token_exchange import (
    ExchangeRates,
    TokenRates,
    ep_deduplicated_transfer_fraction,
    ep_link_bytes_per_s,
    exchange_bytes,
    measure_rates,
)
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.lib.plain_data import ConfigData
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.tables.hardware import GpuModel, find_gpu


def gpu(name: str) -> GpuModel:
    found = find_gpu(name)
    assert found is not None
    return found


H200 = gpu("NVIDIA H200")


def link(
    ep: int, per_node: int | None = 8, model: GpuModel | None = H200, adapters: str = "none", **more: object
) -> tuple[float | None, str]:
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
    found = ep_link_bytes_per_s(step_view(run=run_view(config, model)), adapters)
    return found.value, found.missing_reason or ""


def test_inside_one_server_it_is_nvlink_in_one_direction() -> None:
    assert link(8) == (450e9, "")


def test_across_servers_the_network_carries_what_leaves_the_server() -> None:
    """Of 15 other ranks 8 are in the other server: 50 GB/s there let the whole exchange run at 50 x 15 / 8."""
    assert link(16) == (50e9 * 15 / 8, "")
    assert link(16, adapters="ConnectX") == link(16)


def test_four_ranks_a_server_reach_the_network_sooner() -> None:
    """A group of 8 would fit one server, but its ranks are on two."""
    assert link(8, per_node=4) == (50e9 * 7 / 4, "")


def test_a_rack_is_one_domain_however_many_hosts() -> None:
    assert link(16, per_node=4, model=gpu("NVIDIA GB200")) == (900e9, "")


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (link(16, model=None), "GPU is not in tables/hardware.yaml"),
        (link(16, model=replace(H200, nic_bytes_per_s_one_way=None)), "network of a H200 server"),
        (link(16, adapters="EFA"), "what EFA adapters carry"),
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


MODEL = {
    "seq_length": 100,
    "micro_batch_size": 1,
    "hidden_size": 10,
    "moe_router_topk": 2,
    "num_moe_experts": 8,
    "context_parallel_size": 1,
    "tensor_model_parallel_size": 1,
    "expert_model_parallel_size": 4,
    "bf16": True,
    "moe_token_dispatcher_type": "alltoall",
}
MODEL_SENT = 100 * 2 * 10 * 2 * 3 // 4
"""Bytes of an exchange of MODEL."""


def model(**more: ConfigData) -> RunConfig:
    return RunConfig({key: ConfigValue(value, "test") for key, value in {**MODEL, **more}.items()})


def exchanges(dispatch: list[int], combine: list[int]) -> pl.DataFrame:
    """One exchange per duration, one after the other."""
    rows = [("dispatch", duration) for duration in dispatch] + [("combine", duration) for duration in combine]
    return pl.DataFrame(
        [
            {
                "pass": place,
                "direction": "forward",
                "part": part,
                "start_ns": 10_000 * place,
                "end_ns": 10_000 * place + duration,
            }
            for place, (part, duration) in enumerate(rows)
        ]
    )


def arrivals(calls: pl.DataFrame, transfer: list[int], *, resolved: bool) -> pl.DataFrame:
    return calls.select("start_ns", "end_ns", transfer_ns=pl.Series(transfer), resolved=pl.lit(resolved))


NOBODY = pl.DataFrame(
    schema={"start_ns": pl.Int64, "end_ns": pl.Int64, "transfer_ns": pl.Int64, "resolved": pl.Boolean}
)
"""The arrivals of a rank that was captured alone."""


def token_rates(rates: ExchangeRates) -> TokenRates:
    assert rates.measured.value is not None
    return rates.measured.value


def test_bandwidth_is_what_transfers_after_the_last_arrival() -> None:
    calls = exchanges([400, 900, 500, 2000] * 2, [100, 3000, 800, 700] * 2)
    rates = measure_rates(calls, arrivals(calls, [100] * 8 + [100, 200, 200, 100] * 2, resolved=True), model())
    assert token_rates(rates).achieved_bytes_per_s == pytest.approx(MODEL_SENT * 1e9 / 125)
    assert token_rates(rates).includes_waiting is False
    assert rates.by_kind == {"dispatch": 10 * MODEL_SENT * 1e6, "combine": pytest.approx(MODEL_SENT * 1e9 / 150)}
    assert token_rates(rates).fastest_bytes_per_s == 10 * MODEL_SENT * 1e6
    assert token_rates(rates).spread_ratio == 1


def test_from_one_rank_it_is_a_lower_bound_by_the_fastest_call() -> None:
    """Every dispatch waited; a combine that did not shows what the same kernel and link can do."""
    rates = measure_rates(exchanges([400, 900, 500, 2000] * 2, [100, 3000, 800, 700] * 2), NOBODY, model())
    assert token_rates(rates).achieved_bytes_per_s == 10 * MODEL_SENT * 1e6
    assert token_rates(rates).includes_waiting is True
    assert set(rates.by_kind.values()) == {10 * MODEL_SENT * 1e6}
    assert token_rates(rates).spread_ratio == 7.5


def test_of_a_group_captured_in_part_the_shortest_participant_bounds_a_transfer() -> None:
    calls = exchanges([400, 900, 500, 2000], [200, 3000, 800, 700])
    rates = measure_rates(calls, arrivals(calls, [400, 100, 500, 800, 200, 300, 300, 300], resolved=False), model())
    assert token_rates(rates).achieved_bytes_per_s == 10 * MODEL_SENT * 1e6
    assert token_rates(rates).includes_waiting is True


def test_deepeps_kernels_keep_a_bandwidth_each() -> None:
    rates = measure_rates(
        exchanges([400] * 8, [100] * 8),
        NOBODY,
        model(moe_token_dispatcher_type="flex"),
    )
    assert rates.by_kind["combine"] == 4 * rates.by_kind["dispatch"]


def test_too_few_exchanges_give_no_bandwidth() -> None:
    rates = measure_rates(exchanges([100], [100]), NOBODY, model())
    assert rates.measured.missing_reason == "the step has fewer than 8 token exchanges"


def test_an_exchange_of_probabilities_that_always_waits_carries_no_tokens() -> None:
    """Backward it comes before the tokens and waits for the peers: it takes longer than they do."""
    rows = []
    for number in range(8):
        for direction, part, position, duration in (
            ("forward", "dispatch", 0, 200),
            ("forward", "dispatch", 1, 5),
            ("forward", "combine", 2, 200),
            ("backward", "combine", 0, 200),
            ("backward", "dispatch", 1, 4000),
            ("backward", "dispatch", 2, 100),
        ):
            start = 100_000 * number + 10_000 * (position + 4 * (direction == "backward"))
            row = {"pass": number, "direction": direction, "part": part}
            rows.append({**row, "start_ns": start, "end_ns": start + duration})
    rates = measure_rates(pl.DataFrame(rows), NOBODY, model())
    assert token_rates(rates).fastest_bytes_per_s == 10 * MODEL_SENT * 1e6
    assert token_rates(rates).spread_ratio == 2


def deduplicated(per_node: int = 8, rate: float | None = 225e9, **more: ConfigData) -> tuple[float | None, str]:
    environment = {"LOCAL_WORLD_SIZE": str(per_node), "WORLD_SIZE": "8"}
    run = replace(config(**more), environment={key: ConfigValue(value, "test") for key, value in environment.items()})
    achieved: Measurement[float] = missing("nothing is sent") if rate is None else known(rate)
    step = step_view(run=run_view(run, H200))
    link_rate = ep_link_bytes_per_s(step, "none").value
    assert link_rate is not None
    found = ep_deduplicated_transfer_fraction(step, link_rate, achieved)
    return found.value, found.missing_reason or ""


def test_inside_a_host_a_token_needs_one_copy_for_each_rank() -> None:
    """A rank's two experts are both missed by 15 of 70 choices of four, and half of NVLink's bandwidth is used."""
    left, _ = deduplicated()
    assert left == pytest.approx((3 * 55 / 70) / 3 * 0.5)


def test_with_one_expert_on_each_rank_no_copy_is_saved() -> None:
    left, _ = deduplicated(num_moe_experts=4, moe_router_topk=2)
    assert left == pytest.approx(0.5)


def test_a_run_that_sends_one_copy_for_each_rank_saves_none() -> None:
    left, _ = deduplicated(moe_token_dispatcher_type="flex")
    assert left == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (deduplicated(per_node=2), "extends beyond one NVLink domain"),
        (deduplicated(rate=None), "nothing is sent"),
        (deduplicated(moe_token_dispatcher_type="allgather"), "the copies that dispatcher allgather sends"),
        (deduplicated(moe_router_topk=None), "top-k"),
    ],
)
def test_across_hosts_and_without_sizes_it_is_not_known(found: tuple[float | None, str], reason: str) -> None:
    assert found[0] is None
    assert reason in found[1]
