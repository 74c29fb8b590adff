"""Half the tensor-parallel size: where it is possible, what a GPU then holds, and what replicas exchange."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.facts import views
from tests.facts.model_runs import toy
from tests.facts.views import run_view, step_view
from three_walls.facts import half_tensor_parallel
from three_walls.lib.fact import FactValue
from three_walls.lib.measurement import known, missing
from three_walls.lib.plain_data import ConfigData
from three_walls.megatron.stage_memory import estimate_stages
from three_walls.trace.identity import Gpu

DEVICE_BYTES, PEAK_BYTES, UPDATE_NS = 1_000_000, 100_000, 500
DENSE = 2 * (192 + 32 + 16) + 2 * 256 + 8
"""Parameters outside of experts without tensor parallelism."""


def measure(rate: float | None = 1e9, world: int = 2, **values: ConfigData) -> dict[str, tuple[FactValue, str | None]]:
    sizes: dict[str, ConfigData] = {"tensor_model_parallel_size": 2, "sequence_parallel": True, **values}
    run = replace(run_view(toy(world, **sizes)), device=Gpu("H200", "sm_90", DEVICE_BYTES))
    return views.measure(
        half_tensor_parallel,
        run=run,
        step=replace(step_view(run=run), budget_ns={"optimizer": UPDATE_NS}),
        memory_peak_bytes=known(PEAK_BYTES),
        ep_fastest_bytes_per_s=missing("no exchange") if rate is None else known(rate),
        dp_fastest_bytes_per_s=missing("none"),
        tp_fastest_bytes_per_s=missing("none"),
    )


def test_tensor_parallelism_is_halved_where_its_micro_batches_can_be_spread() -> None:
    assert measure()["half_tensor_parallel_size"] == (1, None)
    assert measure(global_batch_size=3)["half_tensor_parallel_size"][0] is None
    assert measure(world=1, tensor_model_parallel_size=1)["half_tensor_parallel_size"][0] is None


def test_the_peak_changes_by_what_the_estimates_differ_by() -> None:
    totals = []
    for size in (1, 2):
        found = estimate_stages(toy(2, tensor_model_parallel_size=size, sequence_parallel=size > 1)).value
        assert found is not None
        totals.append(found[0].total)
    expected = (PEAK_BYTES + totals[0] - totals[1]) / DEVICE_BYTES
    assert measure()["memory_peak_half_tensor_parallel_ratio"] == (pytest.approx(expected), None)


def test_two_replicas_exchange_half_of_their_gradients_and_parameters_each() -> None:
    sent_ns = DENSE * (4 + 2) / 2  # at a byte per ns
    found = measure()["half_tensor_parallel_exchange_ratio"]
    assert found == (pytest.approx(sent_ns / UPDATE_NS), None)
    assert measure(rate=None)["half_tensor_parallel_exchange_ratio"][0] is None
    assert measure(world=4)["half_tensor_parallel_exchange_ratio"] == (0.0, None)
