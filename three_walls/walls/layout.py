"""Facts that follow from the config and the machine: data-parallel size, micro-batches, how far a group reaches."""

from __future__ import annotations

from three_walls.knowledge.hardware import GpuModel
from three_walls.vocabulary.config import RunConfig
from three_walls.vocabulary.facts import FactValue


def derive_layout(config: RunConfig, gpu: GpuModel | None) -> dict[str, tuple[FactValue, str | None]]:
    """Fact name -> (value, None) or (None, why it is missing)."""
    world = _environment_number(config, "WORLD_SIZE", "SLURM_NTASKS")
    per_node = _environment_number(config, "LOCAL_WORLD_SIZE")
    tp, pp, cp = (_size(config, key) for key in ("tensor", "pipeline", "context"))
    ep = _size(config, "expert")
    etp = _number(config, "expert_tensor_parallel_size") or tp
    dp = world // (tp * pp * cp) if world and tp and pp and cp else None
    facts: dict[str, tuple[FactValue, str | None]] = {
        "data_parallel_size": _or_missing(dp, "needs WORLD_SIZE and the parallel sizes"),
        "gpus_per_node": _or_missing(per_node, "LOCAL_WORLD_SIZE is not in the trace's environment"),
        "num_microbatches": _or_missing(
            _microbatches(config, dp), "needs micro and global batch size and the data-parallel size"
        ),
    }
    reach = ep * etp if ep and etp else None
    spans = None
    if reach is not None and reach == 1:
        spans = False
    elif reach is not None and per_node is not None:
        # Groups of consecutive ranks: one that is larger than a node reaches beyond it.
        spans = reach > per_node if world is None else min(reach, world) > per_node
    facts["ep_spans_nodes"] = _or_missing(spans, "needs the expert-parallel size and LOCAL_WORLD_SIZE")
    facts["ep_is_meant_to_overlap"] = _meant_to_overlap(config)
    facts["dp_spans_nodes"] = _or_missing(
        _dp_spans_nodes(config, world, per_node, pp, dp), "needs WORLD_SIZE, LOCAL_WORLD_SIZE and the parallel sizes"
    )
    within = None if reach is None or gpu is None else reach <= gpu.nvlink_domain_gpus
    facts["ep_within_nvlink_domain"] = _or_missing(within, "needs the expert-parallel size and a known GPU")
    facts["pipeline_bubble_expected_fraction"] = _expected_bubble(config, pp, _microbatches(config, dp))
    facts["ep_internode_unique_copies_fraction"] = _unique_copies(config, reach, per_node, spans)
    return facts


def _expected_bubble(config: RunConfig, stages: int | None, micro_batches: int | None) -> tuple[FactValue, str | None]:
    """(p-1) / (m*v + p-1) of the step. Source: Narayanan et al., SC'21 (arXiv 2104.04473), sections 2.2.1 and 2.2.2.

    There the bubble is (p-1) / (m*v) of the time without it, which is m*v / (m*v + p-1) of the step.
    """
    if stages == 1:
        return None, "no pipeline: one stage"
    if not stages or not micro_batches or not config.knows("virtual_pipeline_model_parallel_size"):
        return None, "needs the pipeline stages (virtual ones too) and the micro-batches per step"
    virtual = _number(config, "virtual_pipeline_model_parallel_size") or 1
    return (stages - 1) / (micro_batches * virtual + stages - 1), None


def _meant_to_overlap(config: RunConfig) -> tuple[FactValue, str | None]:
    keys = ("overlap_moe_expert_parallel_comm", "moe_token_dispatcher_type")
    overlap, dispatcher = (config.get(key) for key in keys)
    if overlap is True or dispatcher == "flex":
        return True, None
    if not all(config.knows(key) for key in keys):
        return None, "needs the dispatcher and whether expert-parallel overlap is on"
    return False, None


def _dp_spans_nodes(
    config: RunConfig, world: int | None, per_node: int | None, stages: int | None, dp: int | None
) -> bool | None:
    """The ranks of a pipeline stage are consecutive, unless the mapping puts the stages within the replicas."""
    if dp == 1:
        return False
    if not world or not per_node or not stages or dp is None:
        return None
    reach = world if config.get("use_tp_pp_dp_mapping") is True else world // stages
    return reach > per_node


def _unique_copies(
    config: RunConfig, reach: int | None, per_node: int | None, spans: bool | None
) -> tuple[FactValue, str | None]:
    top_k = _number(config, "moe_router_topk")
    if spans is False:
        return None, "the expert-parallel group stays inside one node"
    if spans is None or reach is None or per_node is None or not top_k:
        return None, "needs the expert-parallel size, LOCAL_WORLD_SIZE and top-k"
    nodes = -(-reach // per_node)
    return nodes * (1 - (1 - 1 / nodes) ** top_k) / top_k, None


def _microbatches(config: RunConfig, dp: int | None) -> int | None:
    micro, global_ = _number(config, "micro_batch_size"), _number(config, "global_batch_size")
    if not micro or not global_ or not dp:
        return None
    count, rest = divmod(global_, micro * dp)
    return count if rest == 0 else None


def _size(config: RunConfig, name: str) -> int | None:
    return _number(config, f"{name}_model_parallel_size" if name != "context" else "context_parallel_size")


def _number(config: RunConfig, key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _environment_number(config: RunConfig, *variables: str) -> int | None:
    for variable in variables:
        found = config.environment.get(variable)
        if found is not None and str(found.value).isdigit():
            return int(str(found.value))
    return None


def _or_missing(value: FactValue, because: str) -> tuple[FactValue, str | None]:
    return (None, because) if value is None else (value, None)
