"""How the run is laid out over its GPUs: sizes of the parallel groups, hosts, pipeline stages and their layers.

Dense layers divide the world into TP x CP x DP x PP, experts into ETP x EP x EDP x PP
(``megatron/core/parallel_state.py``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

from three_walls.model.config import RunConfig, as_size
from three_walls.model.fact import Measurement, known, missing

_KEYS = {
    "tensor": "tensor_model_parallel_size",
    "pipeline": "pipeline_model_parallel_size",
    "context": "context_parallel_size",
    "expert": "expert_model_parallel_size",
    "micro_batch": "micro_batch_size",
    "global_batch": "global_batch_size",
}
_UNEVEN_STAGES = (
    "pipeline_model_parallel_layout",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
)
"""Settings with which stages do not run num_layers / stages each."""


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """Sizes of the run; None where the configuration, the environment and the log leave it open."""

    world: int | None
    ranks_per_node: int | None
    tensor: int | None
    pipeline: int | None
    virtual: int
    """Layer chunks per pipeline stage; 1 where the schedule is not interleaved, or that is not known."""
    context: int | None
    expert: int | None
    expert_tensor: int | None
    """Unset means the tensor-parallel size."""
    micro_batch: int | None
    global_batch: int | None

    @property
    def data(self) -> int | None:
        """Dense data-parallel size; None where the world does not divide."""
        return _quotient(self.world, (self.tensor, self.pipeline, self.context))

    @property
    def expert_data(self) -> int | None:
        """Data-parallel size of the experts; None where the world does not divide."""
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
        """Micro-batches per step and data-parallel replica; None where the global batch does not divide."""
        if not self.global_batch or not self.micro_batch or not self.data:
            return None
        count, rest = divmod(self.global_batch, self.micro_batch * self.data)
        return count if rest == 0 else None

    def complete(self) -> Measurement[CompleteLayout]:
        """The same with every size known; missing where one is not, or the world or the batch does not divide."""
        unknown = sorted(key for name, key in _KEYS.items() if not getattr(self, name))
        if unknown:
            return missing(f"the config does not say {', '.join(unknown)}")
        if self.world is None:
            return missing("neither WORLD_SIZE nor a log or config says how many GPUs there are")
        if not self.data or not self.expert_data:
            return missing(f"{self.world} GPUs do not divide by the parallel sizes")
        if self.microbatches is None:
            return missing(
                f"global_batch_size {self.global_batch} does not divide by micro_batch_size x {self.data} replicas"
            )
        return known(
            CompleteLayout(
                self.world,
                self.ranks_per_node,
                self.tensor or 1,
                self.pipeline or 1,
                self.virtual,
                self.context or 1,
                self.expert or 1,
                self.expert_tensor or 1,
                self.micro_batch or 1,
                self.global_batch or 1,
            )
        )


@dataclass(frozen=True, slots=True)
class CompleteLayout(ParallelLayout):
    """A layout of which every size is known (but for the ranks of a host), and which divides."""

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
        """GPUs that hold the same parameters outside experts: the distributed optimizer shards over them."""
        return self.data * self.context

    @property
    def microbatches(self) -> int:
        return self.global_batch // (self.micro_batch * self.data)

    def stage_of(self, rank: int) -> int:
        """Pipeline stage of global ``rank`` in Megatron's default order of groups (tp-cp-ep-dp-pp)."""
        return rank * self.pipeline // self.world

    def layers_by_stage(self, config: RunConfig, layers: int) -> tuple[tuple[int, ...], ...] | None:
        """Layer numbers (from 0) of each stage; None where the configuration cuts the pipeline unevenly.

        Interleaved chunks go round: of p stages with v chunks each, chunk c of the layers is on stage c mod p.
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


def has_uneven_stages(config: RunConfig) -> bool:
    """Whether a setting gives pipeline stages different numbers of layers."""
    return any(config.get(key) for key in _UNEVEN_STAGES)


def read_layout(config: RunConfig) -> ParallelLayout:
    """The layout of the merged configuration and the launch environment."""
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
    """One sentence for each part of the layout that cannot be, in a fixed order. ``captured``: rank numbers."""
    layout = read_layout(config)
    return tuple(
        sentence
        for sentence in (
            _world_of_variables(config),
            _not_divisible(
                "the world size", layout.world, "TP x PP x CP", (layout.tensor, layout.pipeline, layout.context)
            ),
            _not_divisible(
                "the world size", layout.world, "ETP x EP x PP", (layout.expert_tensor, layout.expert, layout.pipeline)
            ),
            _stated_data_parallel(config, layout),
            _not_divisible("the number of experts", config.size("num_moe_experts"), "EP", (layout.expert,)),
            _batches(config, layout),
            _not_divisible("the world size", layout.world, "the ranks per node", (layout.ranks_per_node,))
            if layout.world and layout.ranks_per_node and layout.world > layout.ranks_per_node
            else _node_larger_than_world(layout),
            _nodes_of_scheduler(config, layout),
            _not_divisible("the sequence length", config.size("seq_length"), "2 x CP", (2, layout.context))
            if layout.context and layout.context > 1
            else None,
            _ranks_beyond_world(layout, captured),
        )
        if sentence is not None
    )


def _not_divisible(what: str, size: int | None, by: str, sizes: tuple[int | None, ...]) -> str | None:
    known = [one for one in sizes if one is not None]
    if size is None or len(known) != len(sizes) or size % prod(known) == 0:
        return None
    return f"{what} ({size}) is not divisible by {by} ({' x '.join(map(str, known))})"


def _world_of_variables(config: RunConfig) -> str | None:
    environment, stated = _variable(config, "WORLD_SIZE"), _stated(config, "world_size")
    if environment is None or stated is None or environment == stated:
        return None
    source = config.sizes["world_size"].source
    return f"WORLD_SIZE is {environment}, but the world has {stated} ranks by the {source}: are they of one run?"


def _stated_data_parallel(config: RunConfig, layout: ParallelLayout) -> str | None:
    stated = _stated(config, "data_parallel_size")
    if stated is None or layout.data is None or stated == layout.data:
        return None
    source = config.sizes["data_parallel_size"].source
    return f"the data-parallel size is {layout.data} by the world and TP, PP, CP, but {stated} by the {source}"


def _batches(config: RunConfig, layout: ParallelLayout) -> str | None:
    micro = config.size("micro_batch_size")
    if config.get("rampup_batch_size"):
        return None
    return _not_divisible("the global batch size", config.size("global_batch_size"), "MBS x DP", (micro, layout.data))


def _node_larger_than_world(layout: ParallelLayout) -> str | None:
    if layout.world is None or layout.ranks_per_node is None or layout.ranks_per_node <= layout.world:
        return None
    return f"a node holds {layout.ranks_per_node} ranks, the world only {layout.world}"


def _nodes_of_scheduler(config: RunConfig, layout: ParallelLayout) -> str | None:
    nodes = _variable(config, "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    if nodes is None or layout.nodes is None or layout.nodes <= nodes:
        return None  # a job may leave nodes free
    return f"{layout.world} ranks with {layout.ranks_per_node} a node need {layout.nodes} nodes, the job has {nodes}"


def _ranks_beyond_world(layout: ParallelLayout, captured: Collection[int]) -> str | None:
    if layout.world is None or not captured or max(captured) < layout.world:
        return None
    return f"rank {max(captured)} was captured, but the world has {layout.world} ranks"


def _quotient(world: int | None, sizes: tuple[int | None, ...]) -> int | None:
    known = [size for size in sizes if size]
    if world is None or len(known) != len(sizes) or world % prod(known):
        return None
    return world // prod(known)


def _stated(config: RunConfig, name: str) -> int | None:
    found = config.sizes.get(name)
    return None if found is None else as_size(found.value)


def _variable(config: RunConfig, *names: str) -> int | None:
    for name in names:
        found = config.environment.get(name)
        text = "" if found is None else str(found.value)
        if text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0:
            return int(text)
    return None
