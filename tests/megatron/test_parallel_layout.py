"""The parallel layout, completed, and what of it cannot be."""

from __future__ import annotations

import pytest

from three_walls.megatron.parallel_layout import find_contradictions, read_layout
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig

SIZES = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 2,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 8,
    "expert_tensor_parallel_size": 1,
    "num_moe_experts": 64,
    "micro_batch_size": 1,
    "global_batch_size": 64,
    "seq_length": 4096,
}


def config(
    values: dict[str, object] | None = None,
    environment: dict[str, str] | None = None,
    sizes: dict[str, int] | None = None,
) -> RunConfig:
    world = {"WORLD_SIZE": "32", "LOCAL_WORLD_SIZE": "8"} if environment is None else environment
    return RunConfig(
        {key: ConfigValue(value, "test") for key, value in (SIZES | (values or {})).items()},  # type: ignore[arg-type]
        {key: ConfigValue(value, "environment") for key, value in world.items()},
        sizes={key: ConfigValue(value, "log arguments") for key, value in (sizes or {}).items()},
    )


def test_a_layout_is_completed() -> None:
    layout = read_layout(config())
    assert (layout.world, layout.nodes, layout.data, layout.expert_data) == (32, 4, 16, 2)
    assert find_contradictions(config(), range(32)) == ()


def test_an_unset_expert_tensor_size_is_the_tensor_size() -> None:
    assert (
        read_layout(config({"expert_tensor_parallel_size": None, "tensor_model_parallel_size": 2})).expert_tensor == 2
    )


@pytest.mark.parametrize(
    ("environment", "sizes", "world"),
    [
        ({}, {"world_size": 16}, 16),
        ({}, {"data_parallel_size": 4}, 8),  # x PP 2
        ({"SLURM_NTASKS": "2"}, {"world_size": 16}, 16),  # one task a node, torchrun below
        ({"SLURM_NTASKS": "16"}, {}, 16),
        ({"OMPI_COMM_WORLD_SIZE": "16"}, {}, 16),
        ({"WORLD_SIZE": "x"}, {}, None),
    ],
)
def test_the_world_is_read_where_it_is_said(environment: dict[str, str], sizes: dict[str, int], world: int) -> None:
    assert read_layout(config(environment=environment, sizes=sizes)).world == world


def test_ranks_per_node_of_the_scheduler_count_only_where_its_tasks_are_the_ranks() -> None:
    ranks = {"SLURM_NTASKS": "16", "SLURM_NTASKS_PER_NODE": "8"}
    assert read_layout(config(environment=ranks)).ranks_per_node == 8
    assert read_layout(config(environment=ranks | {"WORLD_SIZE": "32"})).ranks_per_node is None


@pytest.mark.parametrize(
    ("values", "environment", "sizes", "captured", "sentence"),
    [
        (
            {"tensor_model_parallel_size": 3},
            None,
            {},
            (),
            "the world size (32) is not divisible by TP x PP x CP (3 x 2 x 1)",
        ),
        (
            {"expert_model_parallel_size": 32},
            None,
            {},
            (),
            "the world size (32) is not divisible by ETP x EP x PP (1 x 32 x 2)",
        ),
        ({"num_moe_experts": 60}, None, {}, (), "the number of experts (60) is not divisible by EP (8)"),
        ({"global_batch_size": 24}, None, {}, (), "the global batch size (24) is not divisible by MBS x DP (1 x 16)"),
        (
            {"context_parallel_size": 4, "seq_length": 4100},
            None,
            {},
            (),
            "the sequence length (4100) is not divisible by 2 x CP (2 x 4)",
        ),
        (
            {},
            {"WORLD_SIZE": "32", "LOCAL_WORLD_SIZE": "6"},
            {},
            (),
            "the world size (32) is not divisible by the ranks per node (6)",
        ),
        ({}, {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "32"}, {}, (), "a node has 32 ranks, but the world only 16"),
        (
            {},
            {"WORLD_SIZE": "32", "LOCAL_WORLD_SIZE": "8", "SLURM_NNODES": "2"},
            {},
            (),
            "32 ranks, 8 on each node, need 4 nodes, but the job has 2",
        ),
        (
            {},
            None,
            {"world_size": 16},
            (),
            "WORLD_SIZE is 32, but by the log arguments the world has 16 ranks: are they of one run?",
        ),
        (
            {},
            None,
            {"data_parallel_size": 8},
            (),
            "the world size and TP, PP, CP give a data-parallel size of 16, but by the log arguments it is 8",
        ),
        ({}, None, {}, (0, 40), "rank 40 was captured, but the world has 32 ranks"),
    ],
)
def test_a_layout_that_cannot_be_is_one_sentence(
    values: dict[str, object],
    environment: dict[str, str] | None,
    sizes: dict[str, int],
    captured: tuple[int, ...],
    sentence: str,
) -> None:
    assert find_contradictions(config(values, environment, sizes), captured) == (sentence,)


def test_a_batch_that_ramps_up_is_no_contradiction() -> None:
    assert find_contradictions(config({"global_batch_size": 24, "rampup_batch_size": (8, 8, 100)})) == ()


def test_an_empty_configuration_has_no_layout_and_no_contradiction() -> None:
    assert read_layout(RunConfig()).world is None
    assert find_contradictions(RunConfig(), (0, 1)) == ()
