"""How the run is laid out: world and group sizes, micro-batches, the GPU, hosts and NVLink domains that a group spans.

All of it follows from the config, the launch environment and the GPU model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Never, TypeVar

from three_walls.lib.fact import FactGroup, Measurements
from three_walls.lib.measurement import GIVE_CONFIG, Measurement, known, known_or_missing, missing, unstated
from three_walls.megatron.parallel_layout import ParallelLayout
from three_walls.megatron.settings.run_config import NOT_SHOWN, RunConfig
from three_walls.step.step_view import RunView
from three_walls.tables.hardware import GpuModel
from three_walls.trace.identity import Rank

LARGEST_SERVER_GPUS = 8
"""The most GPUs that NVLink joins on an HGX or DGX board; in a larger domain it joins hosts (a rack)."""

UNKNOWN_GPU = "the GPU is not in tables/hardware.yaml"
"""Why what follows from the GPU model is missing."""

_PRESET_BACKEND = "deepep"

T = TypeVar("T")

facts = FactGroup()

NUM_MICROBATCHES = facts.fact(
    "num_microbatches",
    "count",
    "the number of micro-batches per step",
    "Micro-batches per step and rank: GBS / (MBS x data-parallel size).",
)
WORLD_SIZE = facts.fact(
    "world_size",
    "count",
    "the world size",
    "Ranks of the run: WORLD_SIZE, what its log or config states, or what the micro-batches of a step show.",
)
DATA_PARALLEL_SIZE = facts.fact("data_parallel_size", "count", "the data-parallel size", "World size / (TP x PP x CP).")
EXPERTS_PER_RANK = facts.fact(
    "experts_per_rank_count",
    "count",
    "the number of experts per rank",
    "Experts of a layer on one rank: experts / EP.",
)
EP_SPANS_NODES = facts.flag(
    "ep_spans_nodes",
    "whether expert-parallel groups span several nodes",
    "Whether an expert-parallel group spans more than one host.",
    if_true="Expert-parallel groups span several nodes",
    if_false="Each expert-parallel group fits in one node",
)
EP_IS_MEANT_TO_OVERLAP = facts.flag(
    "ep_is_meant_to_overlap",
    "whether expert-parallel communication is set to overlap",
    "Whether expert communication runs on its own stream, concurrent with compute: EP overlap is on, or the dispatcher "
    "is flex.",
    if_true="Expert-parallel communication is set up to overlap with compute",
    if_false="Expert-parallel communication is not set up to overlap with compute",
)
DP_SPANS_NODES = facts.flag(
    "dp_spans_nodes",
    "whether data-parallel groups span several nodes",
    "Whether the ranks that hold the same pipeline stage are on more than one host.",
    if_true="Data-parallel groups span several nodes",
    if_false="Each data-parallel group fits in one node",
)
EP_WITHIN_NVLINK_DOMAIN = facts.flag(
    "ep_within_nvlink_domain",
    "whether expert-parallel groups fit NVLink domains",
    "Whether an expert-parallel group fits into the GPU's NVLink domain.",
    if_true="Each expert-parallel group fits in one NVLink domain",
    if_false="Expert-parallel groups span several NVLink domains",
)
EP_RANKS_PER_NVLINK_DOMAIN = facts.fact(
    "ep_ranks_per_nvlink_domain_count",
    "count",
    "the number of expert-parallel ranks per NVLink domain",
    "Ranks of an expert-parallel group that fit into one NVLink domain of the GPU model.",
    "Where the ranks were placed: a job on parts of several racks has fewer of them together.",
)
EXPERT_SHAPES_ARE_STATIC = facts.flag(
    "expert_shapes_are_static",
    "whether experts process a fixed row count",
    "Whether experts work on a fixed number of rows: padded to their capacity, or with a paged stash.",
    if_true="Experts process a fixed number of rows",
    if_false="The number of rows that experts process changes from step to step",
)
FLEX_BACKEND_IS_CHOSEN = facts.flag(
    "flex_backend_is_chosen",
    "whether the run selects its flex backend",
    "Whether the run itself chose the backend of the flex dispatcher: on its command line, or another than the preset.",
    if_true="The run selects a backend of the flex dispatcher",
    if_false="The run does not select a backend of the flex dispatcher",
)
EXPERT_GROUP_RANKS = facts.fact(
    "expert_group_ranks_count",
    "count",
    "the number of ranks that share experts",
    "Ranks that share the experts of a layer: EP x ETP.",
)
EXPERTS_SPLIT_OVER_GROUP = facts.flag(
    "experts_split_over_group",
    "whether each rank can hold whole experts",
    "Whether the number of experts is a multiple of EP x ETP, so that each rank can hold whole experts.",
    if_true="Each rank of the expert group can hold whole experts",
    if_false="The number of experts is not a multiple of EP x ETP",
)
HYBRIDEP_TOPOLOGY = facts.fact(
    "hybridep_topology",
    "text",
    "the NVLink topology given to HybridEP",
    "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN, NVLINK_DOMAIN_SIZE and USE_MNNVL, compared with what the tuned "
    "launchers set on this GPU: as launched, different, or unset (some are not set).",
)
EP_INTERNODE_UNIQUE_COPIES = facts.fact(
    "ep_internode_unique_copies_fraction",
    "fraction",
    "the share of distinct token copies between nodes",
    "Fraction of the token copies between nodes that remain with one copy per destination node instead of one per "
    "chosen expert: N(1-(1-1/N)^k)/k for N nodes of an EP group and top-k, with uniform routing.",
)
PIPELINE_BUBBLE_EXPECTED = facts.fact(
    "pipeline_bubble_expected_fraction",
    "fraction",
    "the pipeline bubble of an even schedule",
    "Fraction of the step that an even 1F1B schedule leaves idle: (p-1) / (m*v + p-1) for p stages, m micro-batches, "
    "v virtual stages per rank.",
    "A measured time: uneven stages and exchanges add to it.",
    whole="the step",
)
OFFLOADS_TO_HOST = facts.flag(
    "offloads_to_host",
    "whether the run offloads to the host",
    "Whether activations, layers or optimizer state are set to be offloaded to host memory.",
    if_true="The run offloads activations or optimizer state to the host",
    if_false="The run offloads neither activations nor optimizer state to the host",
)
SMALLER_MICRO_BATCH = facts.fact(
    "smaller_micro_batch_size",
    "count",
    "the next smaller micro-batch size",
    "Largest proper divisor of the micro-batch size; missing where it is 1.",
)
LARGER_MICRO_BATCH = facts.fact(
    "larger_micro_batch_size",
    "count",
    "the next larger micro-batch size",
    "Twice the micro-batch size; missing where half as many micro-batches would not fill the pipeline.",
)
LARGER_EXPERT_PARALLEL = facts.fact(
    "larger_expert_parallel_size",
    "count",
    "the next larger expert-parallel size",
    "Twice the expert-parallel size; missing where experts or ranks cannot be split that way.",
)
SEQUENCE_PER_RANK = facts.fact(
    "sequence_per_rank_count",
    "count",
    "tokens of a sequence per rank",
    "Sequence length over the context-parallel size.",
)
LARGER_CONTEXT_PARALLEL = facts.fact(
    "larger_context_parallel_size",
    "count",
    "the next larger context-parallel size",
    "Twice the context-parallel size; missing where sequence or ranks cannot be split that way.",
)
# The GPU of the run, as recorded and as the hardware table has it.
GPU_NAME = facts.fact("gpu.name", "text", "the GPU model", "GPU model as the driver names it.")
GPU_SM = facts.fact("gpu.sm", "text", "the compute capability", "Compute capability, as sm_90.")
GPU_FAMILY = facts.fact(
    "gpu.family", "text", "the GPU family", "Row of the hardware table (H100, H200, B200, GB200, ...)."
)
GPU_NVLINK_DOMAIN = facts.fact(
    "gpu.nvlink_domain_gpus", "count", "the number of GPUs per NVLink domain", "GPUs joined by one NVLink domain."
)
GPU_MEMORY = facts.fact("gpu.memory_bytes", "bytes", "device memory per GPU", "Memory of one GPU.")
GPU_MEMORY_BANDWIDTH = facts.fact(
    "gpu.memory_bytes_per_s",
    "bytes_per_s",
    "the bandwidth of device memory",
    "Bandwidth of the memory of one GPU, from the hardware table.",
)


def measure_layout(run: RunView) -> Measurements:
    """Every fact of this group, each missing with its reason where an input is not known."""
    config, layout = run.config, run.layout
    return {
        WORLD_SIZE: known_or_missing(layout.world, f"neither WORLD_SIZE nor a log or config states it {GIVE_CONFIG}"),
        DATA_PARALLEL_SIZE: _known_or_needs(layout.data, "WORLD_SIZE and the parallel sizes"),
        EXPERTS_PER_RANK: _known_or_needs(
            _experts_per_rank(config, layout), "the number of experts and their parallel size"
        ),
        NUM_MICROBATCHES: _known_or_needs(
            layout.microbatches, "micro and global batch size and the data-parallel size"
        ),
        PIPELINE_BUBBLE_EXPECTED: _expected_bubble(config, layout),
        EP_IS_MEANT_TO_OVERLAP: _is_meant_to_overlap(config),
        DP_SPANS_NODES: _known_or_needs(
            _dp_spans_nodes(config, layout), "WORLD_SIZE, LOCAL_WORLD_SIZE and the parallel sizes"
        ),
        EXPERT_SHAPES_ARE_STATIC: _have_static_experts(config),
        OFFLOADS_TO_HOST: _offloads_to_host(config),
        FLEX_BACKEND_IS_CHOSEN: _is_flex_backend_chosen(config),
        **_measure_expert_group(run),
        SMALLER_MICRO_BATCH: _smaller_micro_batch(layout),
        LARGER_MICRO_BATCH: _larger_micro_batch(config, layout),
        LARGER_EXPERT_PARALLEL: _larger_expert_parallel(config, layout),
        SEQUENCE_PER_RANK: _sequence_per_rank(config, layout),
        LARGER_CONTEXT_PARALLEL: _larger_context_parallel(config, layout),
        **_measure_gpu(run),
    }


def _needs(inputs: str) -> Measurement[Never]:
    """Missing, because not all of ``inputs`` are known."""
    return missing(f"needs {inputs} {GIVE_CONFIG}")


def _known_or_needs(value: T | None, inputs: str) -> Measurement[T]:
    """The measurement ``value``; where it is None, missing for want of ``inputs``."""
    return known(value) if value is not None else _needs(inputs)


def _measure_gpu(run: RunView) -> Measurements:
    device, gpu = run.device, run.gpu
    not_recorded = "the trace does not record the GPU, or its ranks ran on different ones (TARGET_INFO_GPU)"
    return {
        GPU_NAME: known_or_missing(device.name if device else None, not_recorded),
        GPU_SM: known_or_missing((device.sm or None) if device else None, not_recorded),
        GPU_MEMORY: known_or_missing((device.memory_bytes or None) if device else None, not_recorded),
        GPU_FAMILY: known_or_missing(gpu.family if gpu else None, UNKNOWN_GPU),
        GPU_MEMORY_BANDWIDTH: known_or_missing(gpu.memory_bytes_per_s if gpu else None, UNKNOWN_GPU),
        GPU_NVLINK_DOMAIN: known_or_missing((gpu.nvlink_domain_gpus or None) if gpu else None, _why_no_domain(gpu)),
    }


def _why_no_domain(gpu: GpuModel | None) -> str:
    return f"how many {gpu.family} NVLink joins differs from board to board" if gpu else UNKNOWN_GPU


def ep_spans_nodes(run: RunView) -> Measurement[bool]:
    """Whether an expert-parallel group spans hosts: its ranks are consecutive, so a group larger than a host does.

    Where the number of ranks per host is not recorded, the hosts of the captured ranks show it.
    """
    layout = run.layout
    group, per_node = layout.expert_group, layout.ranks_per_node
    if group == 1:
        return known(False)
    if group is not None and per_node is not None:
        return known((group if layout.world is None else min(group, layout.world)) > per_node)
    is_split = None if group is None else _is_split_between_hosts(run.ranks, group)
    return _known_or_needs(is_split, "the expert-parallel size and LOCAL_WORLD_SIZE")


def _is_split_between_hosts(ranks: Sequence[Rank], size: int) -> bool | None:
    """Whether a group of ``size`` consecutive ranks is on several hosts; None where no group was captured whole."""
    hosts: dict[int, list[str]] = {}
    for rank in ranks:
        if rank.host and rank.rank_source == "environment":
            hosts.setdefault(rank.rank // size, []).append(rank.host)
    if any(len(set(names)) > 1 for names in hosts.values()):
        return True
    return False if any(len(names) == size for names in hosts.values()) else None


def ep_ranks_in_nvlink_domain(run: RunView) -> Measurement[int]:
    """Ranks of an expert-parallel group that fit into one NVLink domain."""
    group, domain = run.layout.expert_group, run.gpu.nvlink_domain_gpus if run.gpu else None
    if domain is None:
        return missing(_why_no_domain(run.gpu))
    return _known_or_needs(None if group is None else min(group, domain), "the expert-parallel size")


def _measure_expert_group(run: RunView) -> Measurements:
    """How far a group of ranks that share the experts reaches, and how HybridEP is configured for that."""
    config, layout = run.config, run.layout
    group, in_domain = layout.expert_group, ep_ranks_in_nvlink_domain(run)
    experts = config.whole_number("num_moe_experts")
    splits = experts % group == 0 if experts and group else None
    return {
        EP_SPANS_NODES: ep_spans_nodes(run),
        EP_WITHIN_NVLINK_DOMAIN: in_domain if in_domain.is_missing else known(in_domain.value == group),
        EP_RANKS_PER_NVLINK_DOMAIN: in_domain,
        HYBRIDEP_TOPOLOGY: _hybridep_topology(config, in_domain.value, run.gpu),
        EXPERT_GROUP_RANKS: _known_or_needs(group, "the expert-parallel size"),
        EXPERTS_SPLIT_OVER_GROUP: _known_or_needs(splits, "the number of experts and the expert-parallel size"),
        EP_INTERNODE_UNIQUE_COPIES: _unique_copies(run),
    }


def _have_static_experts(config: RunConfig) -> Measurement[bool]:
    """Whether experts work on a fixed number of rows. A release without the paged stash does not state that setting."""
    if config.get("moe_pad_expert_input_to_capacity") is True or config.get("moe_paged_stash") is True:
        return known(True)
    if not config.knows("moe_pad_expert_input_to_capacity"):
        return unstated("moe_pad_expert_input_to_capacity")
    return known(False)


def _offloads_to_host(config: RunConfig) -> Measurement[bool]:
    """True where one setting offloads, false where none of the three does."""
    settings = ("fine_grained_activation_offloading", "cpu_offloading_num_layers", "optimizer_cpu_offload")
    if any(config.get(name) for name in settings):
        return known(True)
    unknown = [name for name in settings if not config.knows(name)]
    return unstated(*unknown) if unknown else known(False)


def _is_flex_backend_chosen(config: RunConfig) -> Measurement[bool]:
    """Both frameworks preset deepep, so only a command line or another value shows that the run chose it."""
    backend = config.values.get("moe_flex_dispatcher_backend")
    if backend is None:
        return unstated("moe_flex_dispatcher_backend")
    is_chosen = backend.value != _PRESET_BACKEND or backend.source == "command line"
    return known(backend.value is not None and is_chosen)


def _hybridep_topology(config: RunConfig, ranks_in_domain: int | None, gpu: GpuModel | None) -> Measurement[str]:
    """Compares three variables with what Megatron-Bridge's launchers set (scripts/performance/utils/utils.py)."""
    domain = None if gpu is None else gpu.nvlink_domain_gpus
    if ranks_in_domain is None or domain is None or not config.environment_is_known:
        return _needs("the launch environment, the expert-parallel size and a known GPU")
    expected = {
        "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": ranks_in_domain,
        "NVLINK_DOMAIN_SIZE": domain,
        "USE_MNNVL": int(domain > LARGEST_SERVER_GPUS),
    }
    if any(name in config.withheld_environment for name in expected):
        return missing(f"one of its variables has a {NOT_SHOWN}")
    found = {name: config.environment[name].value for name in expected if name in config.environment}
    if any(str(value) != str(expected[name]) for name, value in found.items()):
        return known("different")
    return known("as launched" if len(found) == len(expected) else "unset")


def _expected_bubble(config: RunConfig, layout: ParallelLayout) -> Measurement[float]:
    """(p-1) / (m*v + p-1) of the step. Source: Narayanan et al., SC'21 (arXiv 2104.04473), sections 2.2.1 and 2.2.2.

    There the bubble is (p-1) / (m*v) of the time without it, which is m*v / (m*v + p-1) of the step.
    """
    stages, microbatches = layout.pipeline, layout.microbatches
    if stages == 1:
        return missing("no pipeline: one stage")
    if not stages or not microbatches or not config.knows("virtual_pipeline_model_parallel_size"):
        return _needs("the pipeline stages (virtual ones too) and the micro-batches per step")
    return known((stages - 1) / (microbatches * layout.virtual + stages - 1))


def _is_meant_to_overlap(config: RunConfig) -> Measurement[bool]:
    keys = ("overlap_moe_expert_parallel_comm", "moe_token_dispatcher_type")
    overlap, dispatcher = (config.get(key) for key in keys)
    if overlap is True or dispatcher == "flex":
        return known(True)
    if not all(config.knows(key) for key in keys):
        return _needs("the dispatcher and whether expert-parallel overlap is on")
    return known(False)


def _dp_spans_nodes(config: RunConfig, layout: ParallelLayout) -> bool | None:
    """The ranks of a pipeline stage are consecutive, unless the mapping puts the stages within the replicas."""
    if layout.data == 1:
        return False
    if not layout.world or not layout.ranks_per_node or not layout.pipeline or layout.data is None:
        return None
    inside_replicas = config.get("use_tp_pp_dp_mapping") is True
    span = layout.world if inside_replicas else layout.world // layout.pipeline
    return span > layout.ranks_per_node


def _experts_per_rank(config: RunConfig, layout: ParallelLayout) -> int | None:
    experts = config.whole_number("num_moe_experts")
    return experts // layout.expert if experts and layout.expert and experts % layout.expert == 0 else None


def _unique_copies(run: RunView) -> Measurement[float]:
    layout, top_k, spans = run.layout, run.config.whole_number("moe_router_topk"), ep_spans_nodes(run).value
    if spans is False:
        return missing("the expert-parallel group stays inside one node")
    if spans is None or layout.expert_group is None or layout.ranks_per_node is None or not top_k:
        return _needs("the expert-parallel size, LOCAL_WORLD_SIZE and top-k")
    nodes = -(-layout.expert_group // layout.ranks_per_node)
    return known(nodes * (1 - (1 - 1 / nodes) ** top_k) / top_k)


def _smaller_micro_batch(layout: ParallelLayout) -> Measurement[int]:
    """The largest proper divisor: it divides whatever global batch the old size divides."""
    size = layout.micro_batch
    if size is None:
        return unstated("micro_batch_size")
    if size == 1:
        return missing("a micro-batch of one sequence has no smaller one")
    return known(next(size // factor for factor in range(2, size + 1) if size % factor == 0))


def _larger_micro_batch(config: RunConfig, layout: ParallelLayout) -> Measurement[int]:
    """Twice the size at half as many micro-batches."""
    halved = halve_microbatches(config, layout)
    return known(2 * layout.micro_batch) if halved.value and layout.micro_batch else missing(str(halved.missing_reason))


def halve_microbatches(config: RunConfig, layout: ParallelLayout) -> Measurement[int]:
    """Half as many micro-batches per step: a pipeline needs at least p (virtual: a multiple of p)."""
    size, count, stages = layout.micro_batch, layout.microbatches, layout.pipeline
    if size is None or count is None or stages is None:
        return _needs("micro and global batch size, the parallel sizes and WORLD_SIZE")
    if count % 2:
        return missing(f"{count} micro-batches per step cannot be halved")
    halved = count // 2
    is_interleaved = config.size("virtual_pipeline_model_parallel_size") is not None
    if halved < stages or (is_interleaved and halved % stages):
        return missing(f"{halved} micro-batches would not keep {stages} pipeline stages busy")
    return known(halved)


def _larger_expert_parallel(config: RunConfig, layout: ParallelLayout) -> Measurement[int]:
    """Twice the size, where it divides the experts, and stages x expert tensor x expert parallel divides the world."""
    size, experts, stages = layout.expert, config.size("num_moe_experts"), layout.pipeline
    if size is None or experts is None or stages is None or layout.expert_tensor is None or layout.world is None:
        return _needs("the number of experts, the parallel sizes and WORLD_SIZE")
    if experts % (2 * size):
        return missing(f"{experts} experts cannot be split over {2 * size} ranks")
    if layout.world % (stages * layout.expert_tensor * 2 * size):
        return missing(f"{layout.world} ranks cannot hold expert groups of {2 * size}")
    return known(2 * size)


def _sequence_per_rank(config: RunConfig, layout: ParallelLayout) -> Measurement[int]:
    sequence = config.size("seq_length")
    if sequence is None or layout.context is None:
        return _needs("the sequence length and the context-parallel size")
    return known(sequence // layout.context)


def _larger_context_parallel(config: RunConfig, layout: ParallelLayout) -> Measurement[int]:
    """Twice the size, where two parts per rank divide the sequence, and the data-parallel ranks can be halved."""
    size, sequence, data = layout.context, config.size("seq_length"), layout.data
    if size is None or sequence is None or data is None:
        return _needs("the sequence length, the parallel sizes and WORLD_SIZE")
    if sequence % (4 * size):
        return missing(f"a sequence of {sequence} tokens cannot be split over {2 * size} ranks")
    if data % 2:
        return missing(f"{data} data-parallel ranks cannot be halved")
    return known(2 * size)
