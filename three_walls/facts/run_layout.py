"""How the run is laid out: world and group sizes, micro-batches, the GPU, hosts and NVLink domains that a group spans.

All of it follows from the config, the launch environment and the GPU model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Never, TypeVar

from three_walls.lib.declare import artifact, fact, flag
from three_walls.lib.measurement import GIVE_CONFIG, Measurement, known, known_or_missing, missing, unstated
from three_walls.megatron.parallel_layout import CompleteLayout, ParallelLayout, halve_microbatches
from three_walls.megatron.settings.run_config import NOT_SHOWN, RunConfig
from three_walls.step.step_view import RunView
from three_walls.tables.bridge_releases import core_of, release_number
from three_walls.tables.hardware import LARGEST_SERVER_GPUS, GpuModel
from three_walls.trace.identity import Rank

UNKNOWN_GPU = "the GPU is not in tables/hardware.yaml"
"""Why what follows from the GPU model is missing."""

_PRESET_BACKEND = "deepep"

T = TypeVar("T")

_NOT_RECORDED = "the trace does not record the GPU, or its ranks ran on different ones (TARGET_INFO_GPU)"


@artifact
def complete_layout(run: RunView) -> Measurement[CompleteLayout]:
    """The layout; missing where a size is not known."""
    return run.layout.complete()


@fact("count", "the number of micro-batches per step")
def num_microbatches(run: RunView) -> Measurement[int]:
    """Micro-batches per step and rank: GBS / (MBS x data-parallel size)."""
    return _known_or_needs(run.layout.microbatches, "micro and global batch size and the data-parallel size")


@fact("count", "the world size")
def world_size(run: RunView) -> Measurement[int]:
    """Ranks of the run: WORLD_SIZE, what its log or config states, or what the micro-batches of a step show."""
    return known_or_missing(run.layout.world, f"neither WORLD_SIZE nor a log or config states it {GIVE_CONFIG}")


@fact("count", "the number of ranks per host")
def ranks_per_host_count(run: RunView) -> Measurement[int]:
    """Ranks that share a host: LOCAL_WORLD_SIZE, or what the launcher or the traces show."""
    return _known_or_needs(run.layout.ranks_per_node, "LOCAL_WORLD_SIZE")


@fact("count", "the data-parallel size")
def data_parallel_size(run: RunView) -> Measurement[int]:
    """World size / (TP x PP x CP)."""
    return _known_or_needs(run.layout.data, "WORLD_SIZE and the parallel sizes")


@fact("ratio", "expert-parallel ranks per chosen expert")
def ranks_per_chosen_expert_ratio(run: RunView) -> Measurement[float]:
    """Ranks of an expert-parallel group over the experts that a token chooses: how many times as many copies of tokens
    the allgather dispatcher sends as the alltoall dispatcher, with balanced routing."""
    group, chosen = run.layout.expert_group, run.config.whole_number("moe_router_topk")
    if not chosen:
        return unstated("moe_router_topk")
    return _known_or_needs(None if group is None else group / chosen, "the expert-parallel size")


@flag(
    "whether the model may have experts",
    if_true="The model has experts, or nothing says that it has none",
    if_false="The model has no experts",
)
def may_have_experts(run: RunView) -> Measurement[bool]:
    """Whether nothing says that no layer has experts.

    It is known without a configuration, too, so that rules on what was measured of experts need none.
    """
    return known(not run.config.knows("num_moe_experts") or run.config.get("num_moe_experts") is not None)


@fact("count", "the number of experts per rank")
def experts_per_rank_count(run: RunView) -> Measurement[int]:
    """Experts of a layer on one rank: experts / EP."""
    experts, ranks = run.config.whole_number("num_moe_experts"), run.layout.expert
    per_rank = experts // ranks if experts and ranks and experts % ranks == 0 else None
    return _known_or_needs(per_rank, "the number of experts and their parallel size")


@flag(
    "whether expert-parallel groups span several nodes",
    if_true="Expert-parallel groups span several nodes",
    if_false="Each expert-parallel group fits in one node",
)
def ep_spans_nodes(run: RunView) -> Measurement[bool]:
    """Whether an expert-parallel group spans more than one host."""
    # The ranks of a group are consecutive, so one that is larger than a host spans several. Where the number of ranks
    # per host is not recorded, the hosts of the captured ranks show it.
    layout = run.layout
    group, per_node = layout.expert_group, layout.ranks_per_node
    if group == 1:
        return known(False)
    if group is not None and per_node is not None:
        return known((group if layout.world is None else min(group, layout.world)) > per_node)
    is_split = None if group is None else _is_split_between_hosts(run.ranks, group)
    return _known_or_needs(is_split, "the expert-parallel size and LOCAL_WORLD_SIZE")


@flag(
    "whether expert-parallel communication is set to overlap",
    if_true="Expert-parallel communication is set up to overlap with compute",
    if_false="Expert-parallel communication is not set up to overlap with compute",
)
def ep_is_meant_to_overlap(run: RunView) -> Measurement[bool]:
    """Whether expert communication runs on its own stream, concurrent with compute: EP overlap is on, or the dispatcher
    is flex."""
    keys = ("overlap_moe_expert_parallel_comm", "moe_token_dispatcher_type")
    overlap, dispatcher = (run.config.get(key) for key in keys)
    if overlap is True or dispatcher == "flex":
        return known(True)
    if not all(run.config.knows(key) for key in keys):
        return _needs("the dispatcher and whether expert-parallel overlap is on")
    return known(False)


@flag(
    "whether data-parallel groups span several nodes",
    if_true="Data-parallel groups span several nodes",
    if_false="Each data-parallel group fits in one node",
)
def dp_spans_nodes(run: RunView) -> Measurement[bool]:
    """Whether the ranks that hold the same pipeline stage are on more than one host."""
    return _known_or_needs(
        _dp_spans_nodes(run.config, run.layout), "WORLD_SIZE, LOCAL_WORLD_SIZE and the parallel sizes"
    )


@flag(
    "whether two optimizer instances divide the replicas",
    if_true="Two instances of the distributed optimizer divide the replicas",
    if_false="Two instances of the distributed optimizer do not divide the replicas",
)
def optimizer_instances_divide(run: RunView) -> Measurement[bool]:
    """Whether two instances of the distributed optimizer divide the ranks that hold the same parameters, outside of
    experts and in them."""
    return run.layout.complete().map(lambda whole: whole.dense_replicas % 2 == 0 and whole.expert_data % 2 == 0)


@flag(
    "whether expert-parallel groups fit NVLink domains",
    if_true="Each expert-parallel group fits in one NVLink domain",
    if_false="Expert-parallel groups span several NVLink domains",
)
def ep_within_nvlink_domain(run: RunView, ep_ranks_per_nvlink_domain_count: int) -> bool:
    """Whether an expert-parallel group fits into the GPU's NVLink domain."""
    return ep_ranks_per_nvlink_domain_count == run.layout.expert_group


@fact("count", "the number of expert-parallel ranks per NVLink domain")
def ep_ranks_per_nvlink_domain_count(run: RunView) -> Measurement[int]:
    """Ranks of an expert-parallel group that fit into one NVLink domain of the GPU model.

    Not the same as: Where the ranks were placed: a job on parts of several racks has fewer of them together.
    """
    group, domain = run.layout.expert_group, run.gpu.nvlink_domain_gpus if run.gpu else None
    if domain is None:
        return missing(_why_no_domain(run.gpu))
    return _known_or_needs(None if group is None else min(group, domain), "the expert-parallel size")


@flag(
    "whether tensor-parallel groups fit NVLink domains",
    if_true="Each tensor-parallel group fits in one NVLink domain",
    if_false="Tensor-parallel groups span several NVLink domains",
)
def tp_within_nvlink_domain(run: RunView) -> Measurement[bool]:
    """Whether a tensor-parallel group fits into the GPUs of a host, or of a rack, that NVLink joins."""
    return _fits_domain(run, run.layout.tensor)


@flag(
    "whether context-parallel groups fit NVLink domains",
    if_true="Each context-parallel group fits in one NVLink domain",
    if_false="Context-parallel groups span several NVLink domains",
)
def cp_within_nvlink_domain(run: RunView) -> Measurement[bool]:
    """Whether a context-parallel group, of which each rank has a tensor-parallel group of its own, fits into the GPUs
    of a host, or of a rack, that NVLink joins."""
    tensor, context = run.layout.tensor, run.layout.context
    return _fits_domain(run, tensor * context if tensor and context else None)


@fact("count", "the number of ranks per NVLink domain")
def nvlink_domain_ranks_count(run: RunView) -> Measurement[int]:
    """Ranks of the run that one NVLink domain joins: those of a host, or of a rack."""
    return _known_or_needs(gpus_of_domain(run), "LOCAL_WORLD_SIZE and a known GPU")


@flag(
    "whether experts process a fixed row count",
    if_true="Experts process a fixed number of rows",
    if_false="The number of rows that experts process changes from step to step",
)
def expert_shapes_are_static(run: RunView) -> Measurement[bool]:
    """Whether experts work on a fixed number of rows: padded to their capacity, or with a budget of tokens per rank."""
    # A release without the budget does not state that setting.
    config = run.config
    has_budget = config.get("moe_expert_rank_capacity_factor") is not None
    if config.get("moe_pad_expert_input_to_capacity") is True or has_budget:
        return known(True)
    if not config.knows("moe_pad_expert_input_to_capacity"):
        return unstated("moe_pad_expert_input_to_capacity")
    return known(False)


@flag(
    "whether the experts' sizes suit CUTLASS",
    if_true="The experts' inner dimensions are multiples of 128",
    if_false="An inner dimension of the experts' GEMMs is no multiple of 128",
)
def expert_sizes_suit_cutlass(run: RunView) -> Measurement[bool]:
    """Whether the hidden size and an expert's width on a rank are multiples of 128, as CUTLASS's grouped GEMM needs."""
    hidden, width = run.config.whole_number("hidden_size"), run.config.whole_number("moe_ffn_hidden_size")
    split = run.config.whole_number("expert_tensor_parallel_size")
    if not hidden or not width or not split:
        return _needs("the hidden size, the experts' width and the expert-tensor-parallel size")
    return known(hidden % 128 == 0 and width % (128 * split) == 0)


@flag(
    "whether the run selects its flex backend",
    if_true="The run selects a backend of the flex dispatcher",
    if_false="The run does not select a backend of the flex dispatcher",
)
def flex_backend_is_chosen(run: RunView) -> Measurement[bool]:
    """Whether the run itself chose the backend of the flex dispatcher: on its command line, or another than the
    preset.

    Not the same as: A choice in a recipe or a script: a saved configuration does not tell deepep there from the preset.
    """
    # Both frameworks preset deepep, so only a command line or another value shows that the run chose it.
    backend = run.config.values.get("moe_flex_dispatcher_backend")
    if backend is None:
        return unstated("moe_flex_dispatcher_backend")
    is_chosen = backend.value != _PRESET_BACKEND or backend.is_stated_by("command line")
    return known(backend.value is not None and is_chosen)


@fact("count", "the number of ranks that share experts")
def expert_group_ranks_count(run: RunView) -> Measurement[int]:
    """Ranks that share the experts of a layer: EP x ETP."""
    return _known_or_needs(run.layout.expert_group, "the expert-parallel size")


@flag(
    "whether each rank can hold whole experts",
    if_true="Each rank of the expert group can hold whole experts",
    if_false="The number of experts is not a multiple of EP x ETP",
)
def experts_split_over_group(run: RunView) -> Measurement[bool]:
    """Whether the number of experts is a multiple of EP x ETP, so that each rank can hold whole experts."""
    experts, group = run.config.whole_number("num_moe_experts"), run.layout.expert_group
    splits = experts % group == 0 if experts and group else None
    return _known_or_needs(splits, "the number of experts and the expert-parallel size")


@fact("text", "the NVLink topology given to HybridEP")
def hybridep_topology(run: RunView, ep_ranks_per_nvlink_domain_count: Measurement[int]) -> Measurement[str]:
    """NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN, NVLINK_DOMAIN_SIZE and USE_MNNVL, compared with what the tuned
    launchers set on this GPU: as launched, different, or unset (some are not set)."""
    # As Megatron-Bridge's launchers set them (scripts/performance/utils/utils.py).
    config, ranks_in_domain = run.config, ep_ranks_per_nvlink_domain_count.value
    domain = run.gpu.nvlink_domain_gpus if run.gpu else None
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


@fact("fraction", "the share of distinct token copies between nodes")
def ep_internode_unique_copies_fraction(run: RunView, ep_spans_nodes: Measurement[bool]) -> Measurement[float]:
    """Fraction of the token copies between nodes that remain with one copy per destination node instead of one per
    chosen expert: N(1-(1-1/N)^k)/k for N nodes of an EP group and top-k, with uniform routing."""
    layout, top_k, spans = run.layout, run.config.whole_number("moe_router_topk"), ep_spans_nodes.value
    if spans is False:
        return missing("the expert-parallel group stays inside one node")
    if spans is None or layout.expert_group is None or layout.ranks_per_node is None or not top_k:
        return _needs("the expert-parallel size, LOCAL_WORLD_SIZE and top-k")
    nodes = -(-layout.expert_group // layout.ranks_per_node)
    return known(nodes * (1 - (1 - 1 / nodes) ** top_k) / top_k)


@fact("fraction", "the pipeline bubble of an even schedule", whole="the step")
def pipeline_bubble_expected_fraction(run: RunView) -> Measurement[float]:
    """Fraction of the step that an even 1F1B schedule leaves idle: (p-1) / (m*v + p-1) for p stages, m micro-batches, v
    virtual stages per rank.

    Not the same as: A measured time: uneven stages and exchanges add to it.
    """
    # Source: Narayanan et al., SC'21 (arXiv 2104.04473), sections 2.2.1 and 2.2.2. There the bubble is (p-1) / (m*v) of
    # the time without it, which is m*v / (m*v + p-1) of the step.
    config, layout = run.config, run.layout
    stages, microbatches = layout.pipeline, layout.microbatches
    if stages == 1:
        return missing("no pipeline: one stage")
    if not stages or not microbatches or not config.knows("virtual_pipeline_model_parallel_size"):
        return _needs("the pipeline stages (virtual ones too) and the micro-batches per step")
    return known((stages - 1) / (microbatches * layout.virtual + stages - 1))


@flag(
    "whether the run offloads to the host",
    if_true="The run offloads activations or optimizer state to the host",
    if_false="The run offloads neither activations nor optimizer state to the host",
)
def offloads_to_host(run: RunView) -> Measurement[bool]:
    """Whether activations, layers or optimizer state are set to be offloaded to host memory."""
    config = run.config
    settings = ("fine_grained_activation_offloading", "cpu_offloading_num_layers", "optimizer_cpu_offload")
    if any(config.get(name) for name in settings):
        return known(True)
    unknown = [name for name in settings if not config.knows(name)]
    return unstated(*unknown) if unknown else known(False)


@fact("count", "the next smaller micro-batch size")
def smaller_micro_batch_size(run: RunView) -> Measurement[int]:
    """Largest proper divisor of the micro-batch size; missing where it is 1."""
    # The largest proper divisor divides whatever global batch the old size divides.
    size = run.layout.micro_batch
    if size is None:
        return unstated("micro_batch_size")
    if size == 1:
        return missing("a micro-batch of one sequence has no smaller one")
    return known(next(size // factor for factor in range(2, size + 1) if size % factor == 0))


@fact("count", "the next larger micro-batch size")
def larger_micro_batch_size(run: RunView) -> Measurement[int]:
    """Twice the micro-batch size; missing where half as many micro-batches would not fill the pipeline."""
    size = run.layout.micro_batch or 0
    return halve_microbatches(run.config, run.layout).map(lambda _: 2 * size)


@fact("count", "the next larger expert-parallel size")
def larger_expert_parallel_size(run: RunView) -> Measurement[int]:
    """Twice the expert-parallel size; missing where experts or ranks cannot be split that way."""
    # It divides the experts, and stages x expert tensor x expert parallel divides the world.
    config, layout = run.config, run.layout
    size, experts, stages = layout.expert, config.size("num_moe_experts"), layout.pipeline
    if size is None or experts is None or stages is None or layout.expert_tensor is None or layout.world is None:
        return _needs("the number of experts, the parallel sizes and WORLD_SIZE")
    if experts % (2 * size):
        return missing(f"{experts} experts cannot be split over {2 * size} ranks")
    if layout.world % (stages * layout.expert_tensor * 2 * size):
        return missing(f"{layout.world} ranks cannot hold expert groups of {2 * size}")
    return known(2 * size)


@fact("count", "tokens of a sequence per rank")
def sequence_per_rank_count(run: RunView) -> Measurement[int]:
    """Sequence length over the context-parallel size."""
    config, layout = run.config, run.layout
    sequence = config.size("seq_length")
    if sequence is None or layout.context is None:
        return _needs("the sequence length and the context-parallel size")
    return known(sequence // layout.context)


@fact("count", "the tokens that a rank dispatches")
def dispatched_tokens_count(run: RunView) -> Measurement[int]:
    """Tokens of a micro-batch that a rank routes to experts: sequence length x micro-batch size / (CP x TP)."""
    layout, sequence = run.layout, run.config.size("seq_length")
    # With tensor parallelism MoE layers need sequence parallelism: each rank routes its slice of the sequence.
    if sequence is None or layout.micro_batch is None or layout.context is None or layout.tensor is None:
        return _needs("the sequence length, the micro-batch size and the sizes of tensor and context parallelism")
    return known(sequence * layout.micro_batch // (layout.context * layout.tensor))


@flag(
    "whether sequences are longer than the hidden size",
    if_true="Sequences have more tokens than the hidden size has elements",
    if_false="Sequences have no more tokens than the hidden size has elements",
)
def sequence_exceeds_hidden_size(run: RunView) -> Measurement[bool]:
    """Whether a sequence, on all ranks that share it, has more tokens than the hidden size has elements."""
    sequence, hidden = run.config.size("seq_length"), run.config.size("hidden_size")
    if sequence is None or hidden is None:
        return _needs("the sequence length and the hidden size")
    return known(sequence > hidden)


@fact("count", "the next larger context-parallel size")
def larger_context_parallel_size(run: RunView) -> Measurement[int]:
    """Twice the context-parallel size; missing where sequence or ranks cannot be split that way."""
    # Two parts per rank divide the sequence, and the data-parallel ranks can be halved.
    config, layout = run.config, run.layout
    size, sequence, data = layout.context, config.size("seq_length"), layout.data
    if size is None or sequence is None or data is None:
        return _needs("the sequence length, the parallel sizes and WORLD_SIZE")
    if sequence % (4 * size):
        return missing(f"a sequence of {sequence} tokens cannot be split over {2 * size} ranks")
    if data % 2:
        return missing(f"{data} data-parallel ranks cannot be halved")
    return known(2 * size)


@fact("count", "the release of Megatron Core")
def megatron_core_release(run: RunView) -> Measurement[int]:
    """Release of Megatron Core as 1000 x its first number plus its second (18 for 0.18): what the arguments in the log
    show, or what the run's Megatron-Bridge comes with."""
    version = core_of(run.config.megatron_core_version, run.config.bridge_version)
    if version is None:
        return missing(f"nothing shows the release of Megatron Core or Megatron-Bridge {GIVE_CONFIG}")
    major, minor = release_number(version)
    return known(1000 * major + minor)


@fact("text", "the GPU model", name="gpu.name")
def gpu_name(run: RunView) -> Measurement[str]:
    """GPU model as the driver names it."""
    return known_or_missing(run.device.name if run.device else None, _NOT_RECORDED)


@fact("text", "the compute capability", name="gpu.sm")
def gpu_sm(run: RunView) -> Measurement[str]:
    """Compute capability, as sm_90."""
    return known_or_missing((run.device.sm or None) if run.device else None, _NOT_RECORDED)


@fact("text", "the GPU family", name="gpu.family")
def gpu_family(run: RunView) -> Measurement[str]:
    """Row of the hardware table (H100, H200, B200, GB200, ...)."""
    return known_or_missing(run.gpu.family if run.gpu else None, UNKNOWN_GPU)


@fact("count", "the number of GPUs per NVLink domain", name="gpu.nvlink_domain_gpus")
def gpu_nvlink_domain_gpus(run: RunView) -> Measurement[int]:
    """GPUs joined by one NVLink domain."""
    return known_or_missing((run.gpu.nvlink_domain_gpus or None) if run.gpu else None, _why_no_domain(run.gpu))


@fact("bytes", "device memory per GPU", name="gpu.memory_bytes")
def gpu_memory_bytes(run: RunView) -> Measurement[int]:
    """Memory of one GPU."""
    return known_or_missing((run.device.memory_bytes or None) if run.device else None, _NOT_RECORDED)


@fact("bytes_per_s", "the bandwidth of device memory", name="gpu.memory_bytes_per_s")
def gpu_memory_bytes_per_s(run: RunView) -> Measurement[int]:
    """Bandwidth of the memory of one GPU, from the hardware table."""
    return known_or_missing(run.gpu.memory_bytes_per_s if run.gpu else None, UNKNOWN_GPU)


def gpus_of_domain(run: RunView) -> int | None:
    """Ranks of the run that one NVLink domain joins: of a host, or of a rack; None where that is not known."""
    domain, per_node = run.gpu.nvlink_domain_gpus if run.gpu else None, run.layout.ranks_per_node
    return min(domain, per_node) if domain and per_node and domain <= LARGEST_SERVER_GPUS else domain


def is_in_domain(run: RunView, group: int | None) -> bool | None:
    """Whether ``group`` consecutive ranks are in one NVLink domain; None where that is not known."""
    domain = gpus_of_domain(run)
    return None if domain is None or group is None else group <= domain


def _fits_domain(run: RunView, group: int | None) -> Measurement[bool]:
    return _known_or_needs(is_in_domain(run, group), "the parallel sizes, LOCAL_WORLD_SIZE and a known GPU")


def _needs(inputs: str) -> Measurement[Never]:
    """Missing, because not all of ``inputs`` are known."""
    return missing(f"needs {inputs} {GIVE_CONFIG}")


def _known_or_needs(value: T | None, inputs: str) -> Measurement[T]:
    """The measurement ``value``; where it is None, missing for want of ``inputs``."""
    return known(value) if value is not None else _needs(inputs)


def _why_no_domain(gpu: GpuModel | None) -> str:
    return f"how many {gpu.family} NVLink joins differs from board to board" if gpu else UNKNOWN_GPU


def _is_split_between_hosts(ranks: Sequence[Rank], size: int) -> bool | None:
    """Whether a group of ``size`` consecutive ranks is on several hosts; None where no group was captured whole."""
    hosts: dict[int, list[str]] = {}
    for rank in ranks:
        if rank.host and rank.rank_source == "environment":
            hosts.setdefault(rank.rank // size, []).append(rank.host)
    if any(len(set(names)) > 1 for names in hosts.values()):
        return True
    return False if any(len(names) == size for names in hosts.values()) else None


def _dp_spans_nodes(config: RunConfig, layout: ParallelLayout) -> bool | None:
    """The ranks of a pipeline stage are consecutive, unless the mapping puts the stages within the replicas."""
    if layout.data == 1:
        return False
    if not layout.world or not layout.ranks_per_node or not layout.pipeline or layout.data is None:
        return None
    inside_replicas = config.get("use_tp_pp_dp_mapping") is True
    span = layout.world if inside_replicas else layout.world // layout.pipeline
    return span > layout.ranks_per_node
