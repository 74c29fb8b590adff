"""How a run is laid out over its GPUs: the sizes of its parallel groups, its hosts, pipeline stages and their layers.

Dense layers divide the world into TP x CP x DP x PP, experts into ETP x EP x EDP x PP
(``megatron/core/parallel_state.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from math import prod

from three_walls.lib.measurement import GIVE_CONFIG, Measurement, known, missing
from three_walls.lib.plain_data import as_size
from three_walls.megatron.settings.run_config import RunConfig

_KEYS = {
    "tensor": "tensor_model_parallel_size",
    "pipeline": "pipeline_model_parallel_size",
    "context": "context_parallel_size",
    "expert": "expert_model_parallel_size",
    "micro_batch": "micro_batch_size",
    "global_batch": "global_batch_size",
}
UNEVEN_STAGES = (
    "pipeline_model_parallel_layout",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
)
"""Settings that give pipeline stages other numbers of layers than num_layers / stages."""


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """Sizes of the run. None where neither the configuration nor the environment nor the log states the size."""

    world: int | None
    ranks_per_node: int | None
    tensor: int | None
    pipeline: int | None
    virtual: int
    """Layer chunks per pipeline stage; 1 where the schedule is not interleaved or not known."""
    context: int | None
    expert: int | None
    expert_tensor: int | None
    """The tensor-parallel size where the setting is unset."""
    micro_batch: int | None
    global_batch: int | None

    @property
    def data(self) -> int | None:
        """Data-parallel size of dense layers; None where the world size is not divisible by TP x PP x CP."""
        return _quotient(self.world, (self.tensor, self.pipeline, self.context))

    @property
    def expert_data(self) -> int | None:
        """Data-parallel size of the experts; None where the world size is not divisible by ETP x EP x PP."""
        return _quotient(self.world, (self.expert_tensor, self.expert, self.pipeline))

    @property
    def expert_group(self) -> int | None:
        """Ranks that share the experts of a layer: EP x ETP."""
        return self.expert * self.expert_tensor if self.expert and self.expert_tensor else None

    @property
    def nodes(self) -> int | None:
        return -(-self.world // self.ranks_per_node) if self.world and self.ranks_per_node else None

    @property
    def microbatches(self) -> int | None:
        """Micro-batches per step and replica; None where the global batch size is not divisible by MBS x DP."""
        if not self.global_batch or not self.micro_batch or not self.data:
            return None
        count, rest = divmod(self.global_batch, self.micro_batch * self.data)
        return count if rest == 0 else None

    def complete(self) -> Measurement[CompleteLayout]:
        """The layout with every size known; missing where a size is unknown or the sizes contradict each other."""
        unknown = sorted(key for name, key in _KEYS.items() if not getattr(self, name))
        if unknown:
            return missing(f"the config does not state {', '.join(unknown)}")
        if self.world is None:
            return missing("neither WORLD_SIZE nor the log nor the config states the number of GPUs")
        if not self.data or not self.expert_data:
            return missing(f"{self.world} GPUs do not divide by the parallel sizes")
        if self.microbatches is None:
            return missing(
                f"global_batch_size {self.global_batch} does not divide by micro_batch_size x {self.data} replicas"
            )
        return known(CompleteLayout(**{field.name: getattr(self, field.name) for field in fields(self)}))


@dataclass(frozen=True, slots=True)
class CompleteLayout(ParallelLayout):
    """A layout without contradictions of which every size but the ranks per host is known."""

    world: int
    ranks_per_node: int | None
    tensor: int
    pipeline: int
    virtual: int
    context: int
    expert: int
    expert_tensor: int
    micro_batch: int
    global_batch: int

    @property
    def data(self) -> int:
        return self.world // (self.tensor * self.pipeline * self.context)

    @property
    def expert_data(self) -> int:
        """GPUs that hold the same experts."""
        return self.world // (self.pipeline * self.expert * self.expert_tensor)

    @property
    def dense_replicas(self) -> int:
        """GPUs that hold the same parameters outside of experts; the distributed optimizer shards over them."""
        return self.data * self.context

    @property
    def microbatches(self) -> int:
        return self.global_batch // (self.micro_batch * self.data)

    def stage_of(self, rank: int) -> int:
        """Pipeline stage of global ``rank`` in Megatron's default order of groups (tp-cp-ep-dp-pp)."""
        return rank * self.pipeline // self.world

    def layers_by_stage(self, config: RunConfig, layers: int) -> tuple[tuple[int, ...], ...] | None:
        """Layer numbers (from 0) of each stage; None where the stages have different numbers of layers.

        Interleaved chunks are dealt out in turn: with p stages, chunk c of the layers is on stage c mod p.
        """
        if self.pipeline == 1:
            return (tuple(range(layers)),)
        chunks = self.pipeline * self.virtual
        if layers % chunks or has_uneven_stages(config):
            return None
        size = layers // chunks
        return tuple(
            tuple(layer for layer in range(layers) if layer // size % self.pipeline == stage)
            for stage in range(self.pipeline)
        )


def layers_of_stage(config: RunConfig) -> int | None:
    """Layers of each pipeline stage, without those of multi-token prediction; None where stages differ, are cut into
    chunks, or are not known."""
    layers, stages = config.whole_number("num_layers"), config.size(_KEYS["pipeline"])
    if not layers or not stages or config.get("virtual_pipeline_model_parallel_size") or has_uneven_stages(config):
        return None
    return None if layers % stages or config.get("hybrid_override_pattern") else layers // stages


def has_uneven_stages(config: RunConfig) -> bool:
    """Whether a setting gives pipeline stages different numbers of layers."""
    return any(config.get(key) for key in UNEVEN_STAGES)


def halve_microbatches(config: RunConfig, layout: ParallelLayout) -> Measurement[int]:
    """Half as many micro-batches per step: a pipeline needs at least p (virtual: a multiple of p)."""
    size, count, stages = layout.micro_batch, layout.microbatches, layout.pipeline
    if size is None or count is None or stages is None:
        return missing(f"needs micro and global batch size, the parallel sizes and WORLD_SIZE {GIVE_CONFIG}")
    if count % 2:
        return missing(f"{count} micro-batches per step cannot be halved")
    halved = count // 2
    is_interleaved = config.size("virtual_pipeline_model_parallel_size") is not None
    if halved < stages or (is_interleaved and halved % stages):
        return missing(f"{halved} micro-batches would not keep {stages} pipeline stages busy")
    return known(halved)


def read_layout(config: RunConfig) -> ParallelLayout:
    """The layout that the merged configuration and the launch environment state."""
    tensor, pipeline, context = (config.size(_KEYS[name]) for name in ("tensor", "pipeline", "context"))
    world = (
        _variable(config, "WORLD_SIZE")
        or _stated(config, "world_size")
        or _variable(config, "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
    )
    data = _stated(config, "data_parallel_size")
    if world is None and data and tensor and pipeline and context:
        world = data * tensor * pipeline * context
    ranks_per_node = _variable(config, "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
    if ranks_per_node is None and world is not None and _variable(config, "SLURM_NTASKS") == world:
        ranks_per_node = _variable(config, "SLURM_NTASKS_PER_NODE")
    return ParallelLayout(
        world=world,
        ranks_per_node=ranks_per_node,
        tensor=tensor,
        pipeline=pipeline,
        virtual=config.size("virtual_pipeline_model_parallel_size") or 1,
        context=context,
        expert=config.size(_KEYS["expert"]),
        expert_tensor=config.size("expert_tensor_parallel_size") or tensor,
        micro_batch=config.size(_KEYS["micro_batch"]),
        global_batch=config.size(_KEYS["global_batch"]),
    )


def find_contradictions(config: RunConfig, captured: Collection[int] = ()) -> tuple[str, ...]:
    """One sentence for each contradiction of the layout, in a fixed order. ``captured``: rank numbers."""
    return tuple(_contradictions(config, read_layout(config), captured))


def _contradictions(config: RunConfig, layout: ParallelLayout, captured: Collection[int]) -> Iterator[str]:
    world, per_node = layout.world, layout.ranks_per_node
    launched, stated = _variable(config, "WORLD_SIZE"), _stated(config, "world_size")
    if launched is not None and stated is not None and launched != stated:
        source = config.sizes["world_size"].source
        yield f"WORLD_SIZE is {launched}, but by the {source} the world has {stated} ranks: are they of one run?"
    yield from _not_divisible("the world size", world, "TP x PP x CP", layout.tensor, layout.pipeline, layout.context)
    experts = (layout.expert_tensor, layout.expert, layout.pipeline)
    yield from _not_divisible("the world size", world, "ETP x EP x PP", *experts)
    stated = _stated(config, "data_parallel_size")
    if stated is not None and layout.data is not None and stated != layout.data:
        by_source = f"by the {config.sizes['data_parallel_size'].source} it is {stated}"
        yield f"the world size and TP, PP, CP give a data-parallel size of {layout.data}, but {by_source}"
    yield from _not_divisible("the number of experts", config.size("num_moe_experts"), "EP", layout.expert)
    if not config.get("rampup_batch_size"):
        batches = (layout.micro_batch, layout.data)
        yield from _not_divisible("the global batch size", layout.global_batch, "MBS x DP", *batches)
    if world is not None and per_node is not None and per_node > world:
        yield f"a node has {per_node} ranks, but the world only {world}"
    else:
        yield from _not_divisible("the world size", world, "the ranks per node", per_node)
    nodes = _variable(config, "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    if nodes is not None and layout.nodes is not None and layout.nodes > nodes:  # a job may leave nodes free
        yield f"{world} ranks, {per_node} on each node, need {layout.nodes} nodes, but the job has {nodes}"
    if layout.context is not None and layout.context > 1:
        yield from _not_divisible("the sequence length", config.size("seq_length"), "2 x CP", 2, layout.context)
    if world is not None and captured and max(captured) >= world:
        yield f"rank {max(captured)} was captured, but the world has {world} ranks"


def _not_divisible(name: str, size: int | None, divisor: str, *factors: int | None) -> Iterator[str]:
    """A sentence if ``size`` is not divisible by the product of ``factors``, all of which are known."""
    known_factors = [factor for factor in factors if factor is not None]
    if size is not None and len(known_factors) == len(factors) and size % prod(known_factors):
        yield f"{name} ({size}) is not divisible by {divisor} ({' x '.join(map(str, known_factors))})"


def _quotient(world: int | None, sizes: tuple[int | None, ...]) -> int | None:
    known_sizes = [size for size in sizes if size]
    if world is None or len(known_sizes) != len(sizes) or world % prod(known_sizes):
        return None
    return world // prod(known_sizes)


def _stated(config: RunConfig, name: str) -> int | None:
    value = config.sizes.get(name)
    return None if value is None else as_size(value.value)


def _variable(config: RunConfig, *names: str) -> int | None:
    for name in names:
        value = config.environment.get(name)
        text = "" if value is None else str(value.value)
        if text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0:
            return int(text)
    return None
