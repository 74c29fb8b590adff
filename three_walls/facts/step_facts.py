"""Times of the representative step that follow from its budget: what the device computes, copies, and waits for.

A time per step of any group is one of this step (``step/step_view.py``), unless its meaning states otherwise.
"""

from __future__ import annotations

import polars as pl

from three_walls.lib.fact import FactGroup, Measurements, Pool
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.step.intervals import DURATION
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import COMPUTE_CATEGORIES, IDLE_BUCKETS

HOST_LAUNCHES = ("api_calls", "launch_correlation", "inside_cuda_graphs")
"""What facts about the host need: launches, joined to what they launched, and none hidden in graphs."""

_DEVICE = ("cuda_graph_activity",)
"""What facts about an idle device need: graphs that run are recorded, node by node or as a whole."""

_HOST_IDLE = ("host_idle_ns", "host_recoverable_ns", "idle_ns")
_COMPUTE = Pool(part_of=("compute_busy_ns",))

facts = FactGroup()

STEP = facts.duration("step_ns", "the step length", "Length of the representative step.")
STEP_SPREAD = facts.fact(
    "step_spread_ratio",
    "ratio",
    "the longest-to-shortest step ratio",
    "Longest kept step over the shortest, all ranks.",
)
KERNEL_COUNT = facts.fact(
    "kernel_count", "count", "the number of kernels in the step", "Kernels that start in the step."
)
DEVICE_BUSY = facts.duration(
    "device_busy_ns",
    "GPU busy time per step",
    "Time per step in which anything runs on the GPU: a kernel, a copy, a memset or a CUDA graph.",
)
COMPUTE_BUSY = facts.duration(
    "compute_busy_ns",
    "GPU compute time per step",
    "Time per step in which a compute kernel runs.",
    "The sum of kernel durations: kernels of several streams overlap.",
    share="GPU compute",
)
IDLE = facts.duration(
    "idle_ns", "GPU idle time per step", "Time per step in which nothing runs on the GPU.", needs=_DEVICE
)
OFFLOAD_COPY_EXPOSED = facts.duration(
    "offload_copy_exposed_ns",
    "exposed host copy time per step",
    "Time per step in which copies between GPU and host run and nothing else does.",
    share="exposed copying between GPU and host",
    needs=("copies",),
    pool=Pool(part_of=("memory_recoverable_ns",)),
)
PAGEABLE_COPY_EXPOSED = facts.duration(
    "pageable_copy_exposed_ns",
    "exposed pageable copy time per step",
    "Time per step in which nothing runs but copies between the GPU and pageable host memory.",
    share="exposed copying of pageable memory",
    needs=("copies",),
    pool=Pool(part_of=("offload_copy_exposed_ns", "memory_recoverable_ns")),
)
LAUNCH_STARVED = facts.duration(
    "launch_starved_ns",
    "launch-starved time per step",
    "Time per step in which the GPU is idle, its next operation is not launched yet, and the launching thread is not "
    "in a synchronizing call.",
    share="launch-starved time",
    needs=HOST_LAUNCHES,
    pool=Pool(part_of=("launch_starved_recoverable_ns", *_HOST_IDLE), is_device_busy=False),
)
HOST_BLOCKED = facts.duration(
    "host_blocked_ns",
    "host-blocked time per step",
    "Time per step in which the GPU is idle, its next operation is not launched yet, and the launching thread is in a "
    "synchronizing call.",
    share="host-blocked time",
    needs=HOST_LAUNCHES,
    pool=Pool(part_of=_HOST_IDLE, is_device_busy=False),
)
HOST_IDLE = facts.duration(
    "host_idle_ns",
    "GPU time per step waiting for the host",
    "Time per step in which the GPU waits for the host: launch-starved and host-blocked time together.",
    needs=HOST_LAUNCHES,
)
IDLE_OTHER = facts.duration(
    "idle_other_ns",
    "unexplained GPU idle time per step",
    "Time per step in which the GPU is idle although the launch of its next operation has begun, or was not recorded.",
    share="unexplained GPU idle time",
    needs=_DEVICE,
)
CUDA_GRAPH = facts.fact(
    "cuda_graph_fraction",
    "fraction",
    "time in CUDA graphs without recorded kernels",
    "Fraction of the step in which CUDA graphs run whose kernels were not recorded.",
    whole="the step",
)
ATTENTION_UNFUSED = facts.duration(
    "attention_unfused_ns",
    "unfused attention time per step",
    "Time per step that the pointwise kernels of unfused attention take: softmax, masks, scales and copies of scores.",
    share="unfused attention",
    pool=Pool(part_of=("compute_recoverable_ns", "compute_busy_ns")),
)
ATTENTION_FELL_BACK = facts.flag(
    "attention_fell_back",
    "whether Transformer Engine fell back to unfused attention",
    "Whether unfused attention runs in Transformer Engine's layers although no setting is known to ask for it.",
    "Transformer Engine then chose the backend itself, because attention_backend is automatic unless it is set.",
    if_true="Transformer Engine chose unfused attention by itself",
    if_false="Transformer Engine did not choose unfused attention by itself",
)
ATTENTION = facts.duration(
    "attention_ns", "fused attention time per step", "Time per step that fused attention kernels take."
)
GEMM = facts.duration(
    "gemm_ns",
    "GEMM time per step",
    "Time per step that GEMMs take, grouped ones included.",
    share="GEMM work",
    pool=_COMPUTE,
)
PERMUTE = facts.duration(
    "permute_ns",
    "token permutation time per step",
    "Time per step that gathering, scattering and permuting tokens takes. Small lookups by the same kernels count too.",
    share="token permutation",
    pool=_COMPUTE,
)
ELEMENTWISE = facts.duration(
    "elementwise_ns",
    "pointwise kernel time per step",
    "Time per step that pointwise and reduction kernels take: activations, rotary embedding, loss, sums.",
    pool=_COMPUTE,
)
UNCLASSIFIED = facts.duration(
    "unclassified_ns",
    "unclassified kernel time per step",
    "Time per step that kernels of unknown kind take: no pattern matches their names.",
    share="time in kernels of unknown kind",
)


def _has_fallen_back(step: StepView) -> bool:
    """:data:`ATTENTION_FELL_BACK`. Layers of Transformer Engine are known by their kernels where no setting is."""
    config = step.config
    is_chosen_by_layer = config.get("transformer_impl") == "transformer_engine"
    switch = config.environment.get("NVTE_FUSED_ATTN")
    is_asked_for = config.get("attention_backend") in ("unfused", "local") or (
        switch is not None and str(switch.value) == "0"
    )
    return is_chosen_by_layer and not is_asked_for and step.owned_ns("attention_unfused") > 0


def measure_step(step: StepView) -> Measurements:
    """Every fact of this group but the spread of all steps. What the trace cannot give is withheld in measure.py."""
    idle_ns = step.owned_ns(*IDLE_BUCKETS)
    copies = ("copy_h2d_pinned", "copy_h2d_pageable", "copy_d2h_pinned", "copy_d2h_pageable")
    return {
        STEP: known(step.step_ns),
        KERNEL_COUNT: known(step.kernels.height),
        DEVICE_BUSY: known(step.step_ns - idle_ns),
        COMPUTE_BUSY: known(step.union_ns(COMPUTE_CATEGORIES)),
        IDLE: known(idle_ns),
        OFFLOAD_COPY_EXPOSED: known(step.owned_ns(*copies)),
        PAGEABLE_COPY_EXPOSED: known(step.owned_ns("copy_h2d_pageable", "copy_d2h_pageable")),
        LAUNCH_STARVED: known(step.owned_ns("launch_starved")),
        HOST_BLOCKED: known(step.owned_ns("host_blocked")),
        HOST_IDLE: known(step.owned_ns("launch_starved", "host_blocked")),
        IDLE_OTHER: known(step.owned_ns("idle_other")),
        CUDA_GRAPH: known(step.owned_ns("cuda_graph") / step.step_ns)
        if step.step_ns
        else missing(f"{STEP.label} is zero"),
        ATTENTION_UNFUSED: known(step.owned_ns("attention_unfused")),
        ATTENTION_FELL_BACK: known(_has_fallen_back(step)),
        ATTENTION: known(step.owned_ns("attention")),
        GEMM: known(step.owned_ns("gemm", "grouped_gemm")),
        PERMUTE: known(step.owned_ns("permute")),
        ELEMENTWISE: known(step.owned_ns("elementwise")),
        UNCLASSIFIED: known(step.owned_ns("unclassified")),
    }


def measure_spread(steps: pl.DataFrame) -> Measurement[float]:
    """Longest over shortest kept step of ``steps`` (``step/find_steps.py``: STEPS)."""
    lengths = steps.filter("kept").select(ns=DURATION)["ns"].sort()
    if lengths.len() < 2:
        return missing("fewer than two steps were kept (capture four steps or more)")
    shortest, longest = int(lengths[0]), int(lengths[-1])
    return known(longest / shortest) if shortest else missing("a kept step has no length")
