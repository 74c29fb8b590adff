"""How the run is laid out over ranks and nodes, completed from what is known, and what of it cannot be.

Dense layers divide the world into TP x CP x DP x PP, experts into ETP x EP x EDP x PP
(``megatron/core/parallel_state.py``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

from three_walls.model.config import RunConfig, as_size


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """Sizes of the run; None where nothing tells it."""

    world: int | None
    per_node: int | None
    """Ranks of one host."""
    tp: int | None
    pp: int | None
    cp: int | None
    ep: int | None
    etp: int | None
    """Unset means the tensor-parallel size."""

    @property
    def dp(self) -> int | None:
        """Dense data-parallel size; None where the world does not divide."""
        return _quotient(self.world, (self.tp, self.pp, self.cp))

    @property
    def edp(self) -> int | None:
        """Data-parallel size of the experts; None where the world does not divide."""
        return _quotient(self.world, (self.etp, self.ep, self.pp))

    @property
    def nodes(self) -> int | None:
        return -(-self.world // self.per_node) if self.world and self.per_node else None


def read_layout(config: RunConfig) -> ParallelLayout:
    """The layout that the merged configuration tells."""
    tp = config.size("tensor_model_parallel_size")
    pp, cp = config.size("pipeline_model_parallel_size"), config.size("context_parallel_size")
    world = (
        _variable(config, "WORLD_SIZE")
        or _stated(config, "world_size")
        or _variable(config, "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
    )
    dp = _stated(config, "data_parallel_size")
    if world is None and dp and tp and pp and cp:
        world = dp * tp * pp * cp
    per_node = _variable(config, "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
    if per_node is None and world is not None and _variable(config, "SLURM_NTASKS") == world:
        per_node = _variable(config, "SLURM_NTASKS_PER_NODE")
    etp = config.size("expert_tensor_parallel_size") or tp
    return ParallelLayout(world, per_node, tp, pp, cp, config.size("expert_model_parallel_size"), etp)


def find_contradictions(config: RunConfig, captured: Collection[int] = ()) -> tuple[str, ...]:
    """One sentence for each part of the layout that cannot be, in a fixed order. ``captured``: rank numbers."""
    layout = read_layout(config)
    return tuple(
        sentence
        for sentence in (
            _world_of_variables(config),
            _not_divisible("the world size", layout.world, "TP x PP x CP", (layout.tp, layout.pp, layout.cp)),
            _not_divisible("the world size", layout.world, "ETP x EP x PP", (layout.etp, layout.ep, layout.pp)),
            _stated_data_parallel(config, layout),
            _not_divisible("the number of experts", config.size("num_moe_experts"), "EP", (layout.ep,)),
            _batches(config, layout),
            _not_divisible("the world size", layout.world, "the ranks per node", (layout.per_node,))
            if layout.world and layout.per_node and layout.world > layout.per_node
            else _node_larger_than_world(layout),
            _nodes_of_scheduler(config, layout),
            _not_divisible("the sequence length", config.size("seq_length"), "2 x CP", (2, layout.cp))
            if layout.cp and layout.cp > 1
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
    if stated is None or layout.dp is None or stated == layout.dp:
        return None
    source = config.sizes["data_parallel_size"].source
    return f"the data-parallel size is {layout.dp} by the world and TP, PP, CP, but {stated} by the {source}"


def _batches(config: RunConfig, layout: ParallelLayout) -> str | None:
    micro = config.size("micro_batch_size")
    if config.get("rampup_batch_size"):
        return None
    return _not_divisible("the global batch size", config.size("global_batch_size"), "MBS x DP", (micro, layout.dp))


def _node_larger_than_world(layout: ParallelLayout) -> str | None:
    if layout.world is None or layout.per_node is None or layout.per_node <= layout.world:
        return None
    return f"a node holds {layout.per_node} ranks, the world only {layout.world}"


def _nodes_of_scheduler(config: RunConfig, layout: ParallelLayout) -> str | None:
    nodes = _variable(config, "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    if nodes is None or layout.nodes is None or layout.nodes <= nodes:
        return None  # a job may leave nodes free
    return f"{layout.world} ranks with {layout.per_node} a node need {layout.nodes} nodes, the job has {nodes}"


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
