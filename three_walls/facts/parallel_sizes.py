"""How a run is cut up over its GPUs: sizes of the groups, and which layers a pipeline stage holds."""

from __future__ import annotations

from dataclasses import dataclass

from three_walls.inputs.config.parallel_layout import read_layout
from three_walls.model.config import RunConfig

_UNEVEN_STAGES = (
    "pipeline_model_parallel_layout",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
)
"""Settings with which stages do not run num_layers / stages each."""


@dataclass(frozen=True, slots=True)
class ParallelSizes:
    """Group sizes; ``virtual`` is the number of layer chunks per stage (1: not interleaved)."""

    world: int
    tensor: int
    pipeline: int
    virtual: int
    context: int
    expert: int
    expert_tensor: int
    microbatches: int
    """Micro-batches per step and data-parallel replica."""

    @property
    def data(self) -> int:
        return self.world // (self.tensor * self.pipeline * self.context)

    @property
    def dense_replicas(self) -> int:
        """GPUs that hold the same parameters outside experts: the distributed optimizer shards over them."""
        return self.data * self.context

    @property
    def expert_replicas(self) -> int:
        """GPUs that hold the same experts."""
        return self.world // (self.pipeline * self.expert * self.expert_tensor)

    def stage_of(self, rank: int) -> int:
        """Pipeline stage of global ``rank`` in Megatron's default order of groups (tp-cp-ep-dp-pp)."""
        return rank * self.pipeline // self.world


def read_parallel_sizes(config: RunConfig) -> tuple[ParallelSizes | None, str | None]:
    """(sizes, None), or (None, what the config or the environment does not say)."""
    keys = {
        "tensor": "tensor_model_parallel_size",
        "pipeline": "pipeline_model_parallel_size",
        "context": "context_parallel_size",
        "expert": "expert_model_parallel_size",
    }
    found = {name: config.whole_number(key) for name, key in keys.items()}
    unknown = sorted(keys[name] for name, size in found.items() if not size)
    micro, batch = config.whole_number("micro_batch_size"), config.whole_number("global_batch_size")
    unknown += [key for key, size in (("micro_batch_size", micro), ("global_batch_size", batch)) if not size]
    if unknown:
        return None, f"the config does not say {', '.join(unknown)}"
    world = read_layout(config).world
    if world is None:
        return None, "neither WORLD_SIZE nor a log or config says how many GPUs there are"
    sizes = {name: size or 1 for name, size in found.items()}
    etp = config.whole_number("expert_tensor_parallel_size") or sizes["tensor"]
    replicas, rest = divmod(world, sizes["tensor"] * sizes["pipeline"] * sizes["context"])
    if rest or not replicas or world % (sizes["pipeline"] * sizes["expert"] * etp):
        return None, f"{world} GPUs do not divide by the parallel sizes"
    microbatches, rest = divmod(batch or 0, (micro or 1) * replicas)
    if rest:
        return None, f"global_batch_size {batch} does not divide by micro_batch_size x {replicas} replicas"
    virtual = config.whole_number("virtual_pipeline_model_parallel_size") or 1
    return ParallelSizes(world, virtual=virtual, expert_tensor=etp, microbatches=microbatches, **sizes), None


def has_uneven_stages(config: RunConfig) -> bool:
    """Whether a setting gives pipeline stages different numbers of layers."""
    return any(config.get(key) for key in _UNEVEN_STAGES)


def layers_by_stage(config: RunConfig, sizes: ParallelSizes, layers: int) -> tuple[tuple[int, ...], ...] | None:
    """Layer numbers (from 0) of each stage; None where the config cuts the pipeline unevenly.

    Interleaved chunks go round: of p stages with v chunks each, chunk c of the layers is on stage c mod p.
    """
    if sizes.pipeline == 1:
        return (tuple(range(layers)),)
    chunks = sizes.pipeline * sizes.virtual
    if layers % chunks or has_uneven_stages(config):
        return None
    size = layers // chunks
    return tuple(
        tuple(layer for layer in range(layers) if layer // size % sizes.pipeline == stage)
        for stage in range(sizes.pipeline)
    )
