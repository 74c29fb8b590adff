"""The number of GPUs of a run that neither its launcher nor its log nor its configuration states, counted."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import polars as pl

from three_walls.megatron.parallel_layout import has_uneven_stages, read_layout
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.step.build_timeline import Timeline, take_rank
from three_walls.tables.model_parts import BACKWARD

COUNTED = "derived: from the micro-batches of a step"

_OTHER_ATTENTION = ("mtp_num_layers", "experimental_attention_variant", "hybrid_layer_pattern", "rampup_batch_size")
"""Settings with which the passes of attention are not one per layer and micro-batch, or the batch is another one."""


def add_counted_world(config: RunConfig, timeline: Timeline) -> RunConfig:
    """``config`` with ``world_size`` among its sizes, if nothing states it and all kept steps of all ranks show it."""
    if read_layout(config).world is not None:
        return config
    world = _count_world(config, timeline)
    if world is None:
        return config
    return replace(config, sizes=MappingProxyType({**config.sizes, "world_size": ConfigValue(world, COUNTED)}))


def _count_world(config: RunConfig, timeline: Timeline) -> int | None:
    """TP x PP x DP, where DP is the global batch size / (micro-batch size x micro-batches).

    The micro-batches are the backward passes of attention per layer of a stage; recompute does not change them. With
    context parallelism a pass runs several kernels, and how many is not known.
    """
    layout, layers = read_layout(config), config.size("num_layers")
    sizes = (layout.tensor, layout.pipeline, layout.micro_batch, layout.global_batch, layers)
    if not all(sizes) or layout.context != 1 or has_uneven_stages(config):
        return None
    if any(config.get(key) for key in _OTHER_ATTENTION):
        return None
    tensor, pipeline, micro_batch, global_batch, layers = (size or 0 for size in sizes)
    passes = _backward_passes(timeline)
    if len(passes) != 1 or layers % pipeline:
        return None
    microbatches, rest = divmod(passes.pop(), layers // pipeline)
    if rest or not microbatches or global_batch % (micro_batch * microbatches):
        return None
    return tensor * pipeline * (global_batch // (micro_batch * microbatches))


def _backward_passes(timeline: Timeline) -> set[int]:
    """The different numbers of backward passes of attention in the kept steps of all ranks."""
    counts = set()
    for rank_index, start, end in timeline.steps.filter("kept").select("rank_index", "start_ns", "end_ns").rows():
        operations = take_rank(timeline.operations, rank_index)
        first, after = (operations["start_ns"].search_sorted(at, "left") for at in (start, end))
        counts.add(int((operations["phase"][first:after].cast(pl.String) == BACKWARD).sum()))
    return counts
