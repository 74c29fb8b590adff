"""Facts that follow from the config and the machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.facts.views import measure, run_view
from three_walls.facts import run_layout
from three_walls.lib.fact import FactValue
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.tables.hardware import GpuModel, find_gpu
from three_walls.trace.identity import Rank

H200 = find_gpu("NVIDIA H200")


def derive_layout(config: RunConfig, gpu: GpuModel | None) -> dict[str, tuple[FactValue, str | None]]:
    return measure(run_layout, run=run_view(config, gpu))


def config(world: int = 64, per_node: int = 8, **values: int) -> RunConfig:
    sizes = {
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "context_parallel_size": 1,
        "expert_model_parallel_size": 8,
        "expert_tensor_parallel_size": 1,
        "moe_router_topk": 8,
        "micro_batch_size": 1,
        "global_batch_size": 256,
    } | values
    environment = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(per_node)}
    return RunConfig(
        {key: ConfigValue(value, "test") for key, value in sizes.items()},
        {key: ConfigValue(value, "test") for key, value in environment.items()},
    )


def test_data_parallel_size_and_micro_batches_follow_from_the_sizes() -> None:
    facts = derive_layout(config(tensor_model_parallel_size=2, pipeline_model_parallel_size=4), H200)
    assert facts["data_parallel_size"] == (8, None)
    assert facts["num_microbatches"] == (32, None)
    assert facts["ranks_per_host_count"] == (8, None)


@pytest.mark.parametrize(("ep", "divide"), [(32, True), (64, False), (48, None)])
def test_optimizer_instances_divide_the_replicas_of_experts_too(ep: int, divide: bool | None) -> None:
    assert derive_layout(config(expert_model_parallel_size=ep), H200)["optimizer_instances_divide"][0] is divide


@pytest.mark.parametrize(("ep", "spans"), [(8, False), (16, True)])
def test_an_expert_group_larger_than_a_node_spans_nodes(ep: int, spans: bool) -> None:
    assert derive_layout(config(expert_model_parallel_size=ep), H200)["ep_spans_nodes"] == (spans, None)


@pytest.mark.parametrize(
    ("hosts", "spans"),
    [
        (["a"] * 4, False),
        (["a", "a", "b", "b"], True),
        (["a"] * 3, None),  # the group was not captured whole
        ([None] * 4, None),
    ],
)
def test_captured_ranks_show_whether_a_group_spans_hosts_where_no_variable_does(
    hosts: list[str | None], spans: bool | None
) -> None:
    run = run_view(replace(config(expert_model_parallel_size=4), environment={}), H200)
    ranks = tuple(Rank(n, n, "environment", n, 0, host, None, "") for n, host in enumerate(hosts))
    value, reason = measure(run_layout, run=replace(run, ranks=ranks))["ep_spans_nodes"]
    assert value is spans
    assert (reason is None) is (spans is not None)


def test_expert_tensor_parallelism_widens_the_group() -> None:
    facts = derive_layout(config(expert_model_parallel_size=8, expert_tensor_parallel_size=2), H200)
    assert facts["ep_spans_nodes"] == (True, None)
    assert facts["ep_within_nvlink_domain"] == (False, None)


def test_one_copy_per_node_instead_of_one_per_expert() -> None:
    # 2 nodes, top-8: 2 x (1 - 1/2^8) / 8 of the copies cross.
    value, _ = derive_layout(config(expert_model_parallel_size=16), H200)["ep_internode_unique_copies_fraction"]
    assert value == pytest.approx(2 * (1 - 0.5**8) / 8)


@pytest.mark.parametrize(("ep", "together"), [(4, 4), (16, 8)])
def test_an_nvlink_domain_holds_as_much_of_the_group_as_fits(ep: int, together: int) -> None:
    facts = derive_layout(config(expert_model_parallel_size=ep), H200)
    assert facts["ep_ranks_per_nvlink_domain_count"] == (together, None)
    assert facts["expert_group_ranks_count"] == (ep, None)


@pytest.mark.parametrize(
    ("tensor", "context", "per_node", "gpu", "fits"),
    [
        (8, 1, 8, "NVIDIA H200", (True, True)),
        (16, 1, 8, "NVIDIA H200", (False, False)),
        (2, 8, 8, "NVIDIA H200", (True, False)),  # each of the context-parallel ranks has a tensor-parallel group
        (8, 1, 4, "NVIDIA H200", (False, False)),
        (8, 2, 4, "NVIDIA GB200", (True, True)),  # a rack of many hosts
    ],
)
def test_tensor_and_context_parallel_groups_fit_nvlink_or_not(
    tensor: int, context: int, per_node: int, gpu: str, fits: tuple[bool, bool]
) -> None:
    sizes = {"tensor_model_parallel_size": tensor, "context_parallel_size": context}
    facts = derive_layout(config(per_node=per_node, **sizes), find_gpu(gpu))
    assert (facts["tp_within_nvlink_domain"][0], facts["cp_within_nvlink_domain"][0]) == fits


@pytest.mark.parametrize(("experts", "splits"), [(64, True), (60, False)])
def test_experts_split_evenly_over_their_group_or_not(experts: int, splits: bool) -> None:
    facts = derive_layout(config(num_moe_experts=experts, expert_tensor_parallel_size=2), H200)
    assert facts["experts_split_over_group"] == (splits, None)  # 8 x 2 ranks


@pytest.mark.parametrize(
    ("variables", "state"),
    [
        ({}, "unset"),
        ({"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": "8"}, "unset"),
        ({"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": "16"}, "different"),
        ({"USE_MNNVL": "1"}, "different"),
        ({"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": "8", "NVLINK_DOMAIN_SIZE": "8", "USE_MNNVL": "0"}, "as launched"),
    ],
)
def test_what_hybridep_is_told_is_set_beside_what_launchers_tell_it(variables: dict[str, str], state: str) -> None:
    run = config(expert_model_parallel_size=16)
    added = {name: ConfigValue(value, "test") for name, value in variables.items()}
    facts = derive_layout(replace(run, environment={**run.environment, **added}), H200)
    assert facts["hybridep_topology"] == (state, None)


def test_a_rack_is_told_as_one_nvlink_domain() -> None:
    run = config(expert_model_parallel_size=64, per_node=4)
    variables = {"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": "64", "NVLINK_DOMAIN_SIZE": "72", "USE_MNNVL": "1"}
    added = {name: ConfigValue(value, "test") for name, value in variables.items()}
    facts = derive_layout(replace(run, environment={**run.environment, **added}), find_gpu("NVIDIA GB200"))
    assert facts["hybridep_topology"] == ("as launched", None)


@pytest.mark.parametrize(
    ("backend", "source", "representative"),
    [
        ("deepep", "Megatron-LM default", False),
        ("deepep", "command line", True),
        ("hybridep", "log", True),
        (None, "log", False),
    ],
)
def test_the_preset_backend_was_not_chosen(backend: str | None, source: str, representative: bool) -> None:
    run = RunConfig({"moe_flex_dispatcher_backend": ConfigValue(backend, source)})
    assert derive_layout(run, H200)["flex_backend_is_chosen"] == (representative, None)


@pytest.mark.parametrize(
    ("confirmed_by", "is_chosen"), [(("command line",), True), (("log config",), False), ((), False)]
)
def test_a_saved_backend_was_chosen_where_the_command_line_gives_it_too(
    confirmed_by: tuple[str, ...], is_chosen: bool
) -> None:
    run = RunConfig({"moe_flex_dispatcher_backend": ConfigValue("deepep", "config file", confirmed_by)})
    assert derive_layout(run, H200)["flex_backend_is_chosen"] == (is_chosen, None)


@pytest.mark.parametrize(("padded", "budget", "static"), [(True, None, True), (False, 1.5, True), (False, None, False)])
def test_experts_have_static_shapes_when_padded_or_with_a_budget_of_tokens(
    padded: bool, budget: float | None, static: bool
) -> None:
    known = {"moe_pad_expert_input_to_capacity": padded, "moe_expert_rank_capacity_factor": budget}
    run = RunConfig({key: ConfigValue(value, "test") for key, value in known.items()})
    assert derive_layout(run, H200)["expert_shapes_are_static"] == (static, None)


@pytest.mark.parametrize(
    ("core", "bridge", "release"),
    [("0.16.1", None, 16), (None, "0.5", 18), ("0.19.2", "0.3.1", 19), (None, "main", 20)],
)
def test_the_release_of_megatron_core_is_the_log_s_or_that_of_megatron_bridge(
    core: str | None, bridge: str | None, release: int
) -> None:
    run = RunConfig(bridge_version=bridge, megatron_core_version=core)
    assert derive_layout(run, H200)["megatron_core_release"] == (release, None)


@pytest.mark.parametrize(
    ("hidden", "width", "split", "suits"),
    [(2048, 768, 1, True), (2048, 768, 2, True), (2048, 768, 4, False), (2048, 1408, 1, True), (2880, 768, 1, False)],
)
def test_cutlass_takes_experts_whose_sizes_on_a_rank_are_multiples_of_128(
    hidden: int, width: int, split: int, suits: bool
) -> None:
    run = config(hidden_size=hidden, moe_ffn_hidden_size=width, expert_tensor_parallel_size=split)
    assert derive_layout(run, H200)["expert_sizes_suit_cutlass"] == (suits, None)


@pytest.mark.parametrize(("sequence", "exceeds"), [(4096, True), (2048, False)])
def test_a_sequence_is_compared_with_the_hidden_size(sequence: int, exceeds: bool) -> None:
    facts = derive_layout(config(seq_length=sequence, hidden_size=2048, context_parallel_size=2), H200)
    assert facts["sequence_exceeds_hidden_size"] == (exceeds, None)


@pytest.mark.parametrize(("experts", "may_have"), [(None, False), (8, True)])
def test_a_model_without_experts_is_known_as_such(experts: int | None, may_have: bool) -> None:
    assert derive_layout(config(num_moe_experts=experts), H200)["may_have_experts"] == (may_have, None)


def test_what_is_not_known_is_missing_with_its_reason() -> None:
    facts = derive_layout(RunConfig(), None)
    assert facts.pop("may_have_experts") == (True, None)
    assert all(value is None and reason for value, reason in facts.values())


@pytest.mark.parametrize(("stages", "spans"), [(8, False), (4, True)])
def test_replicas_of_a_stage_span_nodes_when_they_are_more_than_a_node_holds(stages: int, spans: bool) -> None:
    # 64 ranks: with 8 stages, 8 consecutive ranks hold one stage, as many as a node has.
    facts = derive_layout(config(pipeline_model_parallel_size=stages), H200)
    assert facts["dp_spans_nodes"] == (spans, None)


def test_with_stages_inside_the_replicas_these_span_the_whole_run() -> None:
    facts = derive_layout(config(pipeline_model_parallel_size=8, use_tp_pp_dp_mapping=True), H200)
    assert facts["dp_spans_nodes"] == (True, None)


def test_a_single_replica_spans_nothing() -> None:
    facts = derive_layout(config(pipeline_model_parallel_size=64), H200)
    assert facts["dp_spans_nodes"] == (False, None)


@pytest.mark.parametrize(
    ("overlap", "dispatcher", "meant"), [(True, "alltoall", True), (False, "flex", True), (False, "alltoall", False)]
)
def test_the_overlap_and_the_flex_dispatcher_are_meant_to_run_beside_computing(
    overlap: bool, dispatcher: str, meant: bool
) -> None:
    known = RunConfig(
        {
            "overlap_moe_expert_parallel_comm": ConfigValue(overlap, "test"),
            "moe_token_dispatcher_type": ConfigValue(dispatcher, "test"),
        },
        {},
    )
    assert derive_layout(known, None)["ep_is_meant_to_overlap"] == (meant, None)


def test_the_layout_is_completed_for_experts_and_nodes() -> None:
    facts = derive_layout(config(world=64, num_moe_experts=128, seq_length=4096, tensor_model_parallel_size=2), H200)
    assert facts["world_size"] == (64, None)
    assert facts["experts_per_rank_count"] == (16, None)


def test_a_world_that_does_not_divide_has_no_data_parallel_size() -> None:
    value, reason = derive_layout(config(tensor_model_parallel_size=3), H200)["data_parallel_size"]
    assert value is None and reason


def sizes(
    world: int | None = 16, micro_batches: int | None = 8, **values: int
) -> dict[str, tuple[FactValue, str | None]]:
    run = {
        "micro_batch_size": 4,
        "num_moe_experts": 64,
        "tensor_model_parallel_size": 1,
        "context_parallel_size": 1,
        "expert_model_parallel_size": 4,
        "expert_tensor_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
    } | values
    if world and micro_batches:
        replicas = world // run["pipeline_model_parallel_size"]
        run["global_batch_size"] = run["micro_batch_size"] * replicas * micro_batches
    environment = {"WORLD_SIZE": ConfigValue(str(world), "test")} if world else {}
    return derive_layout(RunConfig({key: ConfigValue(value, "test") for key, value in run.items()}, environment), H200)


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


def test_context_parallelism_doubles_where_sequence_and_ranks_allow_it() -> None:
    found = derive_layout(config(world=64, seq_length=32_768, context_parallel_size=2), H200)
    assert found["sequence_per_rank_count"] == (16_384, None)
    assert found["larger_context_parallel_size"] == (4, None)


def test_a_rank_dispatches_its_slice_of_the_sequences_of_a_micro_batch() -> None:
    sizes = {"seq_length": 32_768, "micro_batch_size": 3}
    assert derive_layout(config(**sizes), H200)["dispatched_tokens_count"] == (98_304, None)
    split = {**sizes, "context_parallel_size": 2, "tensor_model_parallel_size": 4}
    assert derive_layout(config(**split), H200)["dispatched_tokens_count"] == (12_288, None)
    assert derive_layout(config(), H200)["dispatched_tokens_count"][0] is None


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"seq_length": 4098}, "a sequence of 4098 tokens cannot be split over 2 ranks"),
        ({"seq_length": 4096, "world": 8, "tensor_model_parallel_size": 8}, "1 data-parallel ranks cannot be halved"),
    ],
)
def test_context_parallelism_does_not_double_beyond_that(sizes: dict[str, int], reason: str) -> None:
    assert derive_layout(config(**sizes), H200)["larger_context_parallel_size"] == (None, reason)
