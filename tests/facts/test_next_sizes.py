"""The next smaller or larger micro-batch and expert-parallel size."""

from __future__ import annotations

import pytest

from three_walls.facts.next_sizes import Known, derive_next_sizes
from three_walls.model.config import ConfigValue, RunConfig


def sizes(world: int | None = 16, micro_batches: int | None = 8, **values: int) -> dict[str, Known]:
    run = {
        "micro_batch_size": 4,
        "num_moe_experts": 64,
        "expert_model_parallel_size": 4,
        "expert_tensor_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
    } | values
    config = RunConfig({key: ConfigValue(value, "test") for key, value in run.items() if value}, {})
    return derive_next_sizes(config, world, micro_batches)


@pytest.mark.parametrize(("size", "smaller"), [(16, 8), (2, 1), (3, 1), (9, 3)])
def test_the_smaller_micro_batch_is_the_largest_proper_divisor(size: int, smaller: int) -> None:
    assert sizes(micro_batch_size=size)["smaller_micro_batch_size"] == (smaller, None)


def test_one_sequence_cannot_be_split() -> None:
    assert sizes(micro_batch_size=1)["smaller_micro_batch_size"][0] is None


def test_a_micro_batch_doubles_where_there_are_two_to_join() -> None:
    assert sizes()["larger_micro_batch_size"] == (8, None)
    assert sizes(micro_batches=1)["larger_micro_batch_size"][0] is None
    assert sizes(micro_batches=None)["larger_micro_batch_size"][0] is None


def test_joined_micro_batches_still_fill_the_pipeline() -> None:
    assert sizes(pipeline_model_parallel_size=4)["larger_micro_batch_size"] == (8, None)
    assert sizes(pipeline_model_parallel_size=8)["larger_micro_batch_size"][0] is None
    virtual = {"pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 2}
    assert sizes(micro_batches=12, **virtual)["larger_micro_batch_size"][0] is None
    assert sizes(micro_batches=16, **virtual)["larger_micro_batch_size"] == (8, None)


def test_expert_groups_double_where_experts_and_ranks_allow() -> None:
    assert sizes()["larger_expert_parallel_size"] == (8, None)
    assert sizes(num_moe_experts=4)["larger_expert_parallel_size"][0] is None
    assert sizes(world=4)["larger_expert_parallel_size"][0] is None
    assert sizes(world=None)["larger_expert_parallel_size"][0] is None
    assert sizes(pipeline_model_parallel_size=4)["larger_expert_parallel_size"][0] is None
