"""The peak of memory with other settings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.facts.memory.test_estimate import TOY_DENSE, TOY_EXPERTS
from tests.facts.model_runs import toy
from tests.facts.views import run_view
from three_walls.facts.after_settings import find_facts_after
from three_walls.lib.declare import Artifacts
from three_walls.lib.fact import FactValue
from three_walls.lib.measurement import known, missing
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.trace.identity import Gpu

CONSTANT = 18 * (TOY_DENSE + TOY_EXPERTS)
"""Parameters, gradients and optimizer state."""
ALL_LAYERS = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def peak_after(config: RunConfig, **settings: FactValue) -> FactValue:
    """In bytes, of a run whose log prints 500 bytes beyond what stays with any micro-batch."""
    measured = Artifacts({
        "run": replace(run_view(config), device=Gpu("H200", "sm_90", 1_000_000)),
        "step": missing("no step"),
        "any_step": missing("no step"),
        "log_peak_memory_bytes": known(CONSTANT + 500),
        "log_memory_iterations_count": known(2),
        "log_reserved_memory_bytes": missing("not printed"),
        "log_allocator_retries_count": missing("not printed"),
    })  # fmt: skip
    values = {f"config.{name}": value for name, value in settings.items()}
    fraction = find_facts_after(measured, values)["memory_peak_fraction"].value
    return round(fraction * 1_000_000) if isinstance(fraction, float) else fraction


@pytest.mark.parametrize("times", [2, 4, 8])
def test_in_fp8_a_larger_micro_batch_takes_at_most_as_many_times_what_does_not_stay(times: int) -> None:
    config = toy(global_batch_size=8, micro_batch_size=1, fp8="hybrid", fp8_recipe="blockwise")
    assert peak_after(config, micro_batch_size=times) == CONSTANT + times * 500
    assert peak_after(config, micro_batch_size=times, apply_rope_fusion=True) == CONSTANT + times * 500


def test_in_bf16_the_peak_grows_by_the_estimated_activations() -> None:
    config = toy(global_batch_size=8, micro_batch_size=1)
    assert peak_after(config, micro_batch_size=1) == CONSTANT + 500
    grown = peak_after(config, micro_batch_size=2)
    assert isinstance(grown, int)
    assert grown != CONSTANT + 1000


def test_in_fp8_the_peak_is_unknown_where_something_else_changes_it() -> None:
    config = toy(global_batch_size=8, micro_batch_size=2, fp8="hybrid", fp8_recipe="blockwise", **ALL_LAYERS)
    assert peak_after(config, micro_batch_size=4) == CONSTANT + 1000
    assert peak_after(config, micro_batch_size=4, recompute_granularity=None) is None
    assert peak_after(config, micro_batch_size=4, fp8=None) is None
    assert peak_after(config, micro_batch_size=1) is None
