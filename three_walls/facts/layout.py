"""Facts that follow from the config and the machine: data-parallel size, micro-batches, how far a group reaches."""

from __future__ import annotations

from three_walls.facts.next_sizes import derive_next_sizes
from three_walls.inputs.config.parallel_layout import ParallelLayout, read_layout
from three_walls.model.config import NOT_SHOWN, RunConfig
from three_walls.model.fact import FactValue
from three_walls.tables.hardware import GpuModel

LARGEST_SERVER_GPUS = 8
"""HGX and DGX boards join at most so many GPUs by NVLink (tables/hardware.yaml has the rest)."""
_PRESET_BACKEND = "deepep"


def derive_layout(config: RunConfig, gpu: GpuModel | None) -> dict[str, tuple[FactValue, str | None]]:
    """Fact name -> (value, None) or (None, why it is missing)."""
    layout = read_layout(config)
    world, per_node, ep, dp = layout.world, layout.per_node, layout.ep, layout.dp
    facts: dict[str, tuple[FactValue, str | None]] = {
        "world_size": _or_missing(world, "neither WORLD_SIZE nor a log or config says it"),
        "nodes_count": _or_missing(layout.nodes, "needs WORLD_SIZE and LOCAL_WORLD_SIZE"),
        "ranks_per_nvlink_domain_count": _or_missing(
            _in_nvlink_domain(world, per_node, gpu), "needs WORLD_SIZE, LOCAL_WORLD_SIZE and a known GPU"
        ),
        "data_parallel_size": _or_missing(dp, "needs WORLD_SIZE and the parallel sizes"),
        "expert_data_parallel_size": _or_missing(layout.edp, "needs WORLD_SIZE and the expert-parallel sizes"),
        "experts_per_rank_count": _or_missing(
            _experts_per_rank(config, ep), "needs the experts and their parallel size"
        ),
        "tokens_per_expert_count": _or_missing(
            _tokens_per_expert(config, layout), "needs sequence, micro-batch, experts, top-k and the parallel sizes"
        ),
        "gpus_per_node": _or_missing(per_node, "LOCAL_WORLD_SIZE is not in the trace's environment"),
        "num_microbatches": _or_missing(
            _microbatches(config, dp), "needs micro and global batch size and the data-parallel size"
        ),
    }
    facts["pipeline_bubble_expected_fraction"] = _expected_bubble(config, layout.pp, _microbatches(config, dp))
    facts["ep_is_meant_to_overlap"] = _is_meant_to_overlap(config)
    facts["dp_spans_nodes"] = _or_missing(
        _dp_spans_nodes(config, layout), "needs WORLD_SIZE, LOCAL_WORLD_SIZE and the parallel sizes"
    )
    facts |= derive_next_sizes(config, world, _microbatches(config, dp))
    return facts | _describe_expert_group(config, layout, gpu)


def _describe_expert_group(
    config: RunConfig, layout: ParallelLayout, gpu: GpuModel | None
) -> dict[str, tuple[FactValue, str | None]]:
    """How far a group of ranks that share the experts reaches, and how it is told to its dispatcher."""
    world, per_node = layout.world, layout.per_node
    reach = layout.ep * layout.etp if layout.ep and layout.etp else None
    spans = None
    if reach is not None and reach == 1:
        spans = False
    elif reach is not None and per_node is not None:
        # Groups of consecutive ranks: one that is larger than a node reaches beyond it.
        spans = reach > per_node if world is None else min(reach, world) > per_node
    domain = None if gpu is None else gpu.nvlink_domain_gpus
    within = None if reach is None or domain is None else reach <= domain
    together = None if reach is None or domain is None else min(reach, domain)
    experts = config.whole_number("num_moe_experts")
    splits = experts % reach == 0 if experts and reach else None
    of_domain = "needs the expert-parallel size and a GPU of known NVLink domain"
    return {
        "ep_spans_nodes": _or_missing(spans, "needs the expert-parallel size and LOCAL_WORLD_SIZE"),
        "ep_within_nvlink_domain": _or_missing(within, of_domain),
        "ep_ranks_per_nvlink_domain_count": _or_missing(together, of_domain),
        "hybridep_topology": _hybridep_topology(config, together, gpu),
        "flex_backend_is_chosen": _is_chosen(config),
        "expert_shapes_are_static": _have_static_experts(config),
        "expert_group_ranks_count": _or_missing(reach, "needs the expert-parallel size"),
        "experts_split_over_group": _or_missing(splits, "needs the number of experts and the expert-parallel size"),
        "ep_internode_unique_copies_fraction": _unique_copies(config, reach, per_node, spans),
    }


def _have_static_experts(config: RunConfig) -> tuple[FactValue, str | None]:
    """A release that does not know the paged stash has none."""
    if config.get("moe_pad_expert_input_to_capacity") is True or config.get("moe_paged_stash") is True:
        return True, None
    if not config.knows("moe_pad_expert_input_to_capacity"):
        return None, "the config does not say moe_pad_expert_input_to_capacity"
    return False, None


def _is_chosen(config: RunConfig) -> tuple[FactValue, str | None]:
    """Both frameworks preset deepep, so that its being set says nothing: only a command line does, or another value."""
    found = config.values.get("moe_flex_dispatcher_backend")
    if found is None:
        return None, "the flex dispatcher's backend is not known"
    return found.value is not None and (found.value != _PRESET_BACKEND or found.source == "command line"), None


def _hybridep_topology(config: RunConfig, together: int | None, gpu: GpuModel | None) -> tuple[FactValue, str | None]:
    """Compares three variables with what Megatron-Bridge's launchers set (scripts/performance/utils/utils.py)."""
    domain = None if gpu is None else gpu.nvlink_domain_gpus
    if together is None or domain is None or not config.environment_is_known:
        return None, "needs the environment, the expert-parallel size and a known GPU"
    wanted = {
        "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": together,
        "NVLINK_DOMAIN_SIZE": domain,
        "USE_MNNVL": int(domain > LARGEST_SERVER_GPUS),
    }
    if any(name in config.withheld_environment for name in wanted):
        return None, f"one of its variables has a {NOT_SHOWN}"
    found = {name: config.environment[name].value for name in wanted if name in config.environment}
    if any(str(value) != str(wanted[name]) for name, value in found.items()):
        return "different", None
    return ("as launched" if len(found) == len(wanted) else "unset"), None


def _expected_bubble(config: RunConfig, stages: int | None, micro_batches: int | None) -> tuple[FactValue, str | None]:
    """(p-1) / (m*v + p-1) of the step. Source: Narayanan et al., SC'21 (arXiv 2104.04473), sections 2.2.1 and 2.2.2.

    There the bubble is (p-1) / (m*v) of the time without it, which is m*v / (m*v + p-1) of the step.
    """
    if stages == 1:
        return None, "no pipeline: one stage"
    if not stages or not micro_batches or not config.knows("virtual_pipeline_model_parallel_size"):
        return None, "needs the pipeline stages (virtual ones too) and the micro-batches per step"
    virtual = config.whole_number("virtual_pipeline_model_parallel_size") or 1
    return (stages - 1) / (micro_batches * virtual + stages - 1), None


def _is_meant_to_overlap(config: RunConfig) -> tuple[FactValue, str | None]:
    keys = ("overlap_moe_expert_parallel_comm", "moe_token_dispatcher_type")
    overlap, dispatcher = (config.get(key) for key in keys)
    if overlap is True or dispatcher == "flex":
        return True, None
    if not all(config.knows(key) for key in keys):
        return None, "needs the dispatcher and whether expert-parallel overlap is on"
    return False, None


def _dp_spans_nodes(config: RunConfig, layout: ParallelLayout) -> bool | None:
    """The ranks of a pipeline stage are consecutive, unless the mapping puts the stages within the replicas."""
    if layout.dp == 1:
        return False
    if not layout.world or not layout.per_node or not layout.pp or layout.dp is None:
        return None
    inside_replicas = config.get("use_tp_pp_dp_mapping") is True
    reach = layout.world if inside_replicas else layout.world // layout.pp
    return reach > layout.per_node


def _in_nvlink_domain(world: int | None, per_node: int | None, gpu: GpuModel | None) -> int | None:
    if world is None or per_node is None or gpu is None or gpu.nvlink_domain_gpus is None:
        return None
    # Larger than a server is a rack whose NVLink joins hosts; in a server only its own GPUs are joined.
    is_rack = gpu.nvlink_domain_gpus > LARGEST_SERVER_GPUS
    return min(world, gpu.nvlink_domain_gpus, world if is_rack else per_node)


def _experts_per_rank(config: RunConfig, ep: int | None) -> int | None:
    experts = config.whole_number("num_moe_experts")
    return experts // ep if experts and ep and experts % ep == 0 else None


def _tokens_per_expert(config: RunConfig, layout: ParallelLayout) -> float | None:
    """Tokens of the ETP x EP ranks that share the experts, times top-k, over the experts.

    A rank holds sequence x micro-batch / CP / TP tokens: with tensor parallelism MoE layers need sequence parallelism.
    """
    keys = ("seq_length", "micro_batch_size", "moe_router_topk", "num_moe_experts")
    sequence, micro, top_k, experts = (config.whole_number(key) for key in keys)
    if not (sequence and micro and top_k and experts):
        return None
    if not (layout.ep and layout.etp and layout.cp and layout.tp):
        return None
    tokens = sequence * micro / (layout.cp * layout.tp) * layout.ep * layout.etp
    return tokens * top_k / experts


def _unique_copies(
    config: RunConfig, reach: int | None, per_node: int | None, spans: bool | None
) -> tuple[FactValue, str | None]:
    top_k = config.whole_number("moe_router_topk")
    if spans is False:
        return None, "the expert-parallel group stays inside one node"
    if spans is None or reach is None or per_node is None or not top_k:
        return None, "needs the expert-parallel size, LOCAL_WORLD_SIZE and top-k"
    nodes = -(-reach // per_node)
    return nodes * (1 - (1 - 1 / nodes) ** top_k) / top_k, None


def _microbatches(config: RunConfig, dp: int | None) -> int | None:
    micro, global_ = config.whole_number("micro_batch_size"), config.whole_number("global_batch_size")
    if not micro or not global_ or not dp:
        return None
    count, rest = divmod(global_, micro * dp)
    return count if rest == 0 else None


def _or_missing(value: FactValue, reason: str) -> tuple[FactValue, str | None]:
    return (None, reason) if value is None else (value, None)
