"""Times of the representative step that follow from the partition: what the device computes, copies, and waits for.

Unless its definition states otherwise a time of any group is one of this step (``facts/step_view.py``).
"""

from __future__ import annotations

import polars as pl

from three_walls.facts.step_view import StepView
from three_walls.model.buckets import COMPUTE_CATEGORIES, IDLE_BUCKETS
from three_walls.model.fact import FactGroup, Measurement, Measurements, Pool, known, missing

HOST_LAUNCHES = ("api_calls", "launch_correlation", "inside_cuda_graphs")
"""What every statement about the host needs: launches, joined to what they launched, and none hidden in graphs."""

_DEVICE = ("cuda_graph_activity",)
"""What every statement about an idle device needs: graphs that run are recorded, node by node or as a whole."""

_HOST_IDLE = ("host_idle_ns", "host_recoverable_ns", "idle_ns")
_COMPUTE = Pool(part_of=("compute_busy_ns",))

facts = FactGroup("The step")

STEP = facts.duration("step_ns", "Length of the representative step.")
STEP_SPREAD = facts.fact("step_spread_ratio", "ratio", "Longest over shortest kept step, all ranks.")
KERNEL_COUNT = facts.fact("kernel_count", "count", "Kernels that ran in the step.")
DEVICE_BUSY = facts.duration(
    "device_busy_ns", "Union of everything on the device: kernels, copies, memsets, graph envelopes."
)
COMPUTE_BUSY = facts.duration(
    "compute_busy_ns",
    "Union of the compute kernels.",
    "The sum of their durations.",
    share="Fraction of the step in which some compute kernel runs.",
)
IDLE = facts.duration("idle_ns", "Nothing runs on the device: step - device busy.", needs=_DEVICE)
OFFLOAD_COPY_EXPOSED = facts.duration(
    "offload_copy_exposed_ns",
    "Host-to-device and device-to-host copies while nothing else runs.",
    share="Fraction of the step in exposed host copies.",
    needs=("copies",),
    pool=Pool(part_of=("memory_recoverable_ns",)),
)
LAUNCH_STARVED = facts.duration(
    "launch_starved_ns",
    "Device idle, next operation not launched, its thread not in a synchronizing call.",
    share="Fraction of the step that is launch-starved.",
    needs=HOST_LAUNCHES,
    pool=Pool(part_of=("launch_starved_recoverable_ns", *_HOST_IDLE), is_device_busy=False),
)
HOST_BLOCKED = facts.duration(
    "host_blocked_ns",
    "Device idle, next operation not launched, its thread in a synchronizing call.",
    share="Fraction of the step that is host-blocked.",
    needs=HOST_LAUNCHES,
    pool=Pool(part_of=_HOST_IDLE, is_device_busy=False),
)
HOST_IDLE = facts.duration(
    "host_idle_ns",
    "Launch-starved plus host-blocked: the device waited for the host.",
    share="Fraction of the step in which the device waited for the host.",
    needs=HOST_LAUNCHES,
)
IDLE_OTHER = facts.duration(
    "idle_other_ns",
    "Device idle after the next operation's launch began, or with no launch recorded.",
    share="Fraction of the step that is idle for no known reason.",
    needs=_DEVICE,
)
CUDA_GRAPH = facts.duration(
    "cuda_graph_ns",
    "Inside CUDA-graph envelopes whose kernels were not recorded.",
    share="Fraction of the step inside CUDA graphs whose kernels were not recorded.",
)
ATTENTION_UNFUSED = facts.duration(
    "attention_unfused_ns",
    "Softmax, masks, scales and copies of scores of unfused attention.",
    share="Fraction of the step in the pointwise work of unfused attention.",
    pool=Pool(part_of=("compute_recoverable_ns", "compute_busy_ns")),
)
ATTENTION = facts.duration("attention_ns", "Fused attention kernels.")
GEMM = facts.duration("gemm_ns", "GEMMs, grouped or not.", share="Fraction of the step in GEMMs.", pool=_COMPUTE)
PERMUTE = facts.duration(
    "permute_ns",
    "Gathering, scattering and permuting tokens; includes small lookups by the same kernels.",
    share="Fraction of the step in permuting tokens.",
    pool=_COMPUTE,
)
ELEMENTWISE = facts.duration(
    "elementwise_ns",
    "Pointwise and reduction kernels: activations, rotary embedding, loss, sums.",
    share="Fraction of the step in pointwise kernels.",
    pool=_COMPUTE,
)
UNCLASSIFIED = facts.duration(
    "unclassified_ns",
    "Kernels that match no pattern.",
    share="Fraction of the step in kernels that match no pattern.",
)


def measure_step(step: StepView) -> Measurements:
    """Every fact of this group but the spread of all steps. What the trace cannot support is withheld later."""
    idle_ns = step.owned_ns(*IDLE_BUCKETS)
    copies = ("copy_h2d_pinned", "copy_h2d_pageable", "copy_d2h_pinned", "copy_d2h_pageable")
    return {
        STEP: known(step.step_ns),
        KERNEL_COUNT: known(step.kernels.height),
        DEVICE_BUSY: known(step.step_ns - idle_ns),
        COMPUTE_BUSY: known(step.union_ns(COMPUTE_CATEGORIES)),
        IDLE: known(idle_ns),
        OFFLOAD_COPY_EXPOSED: known(step.owned_ns(*copies)),
        LAUNCH_STARVED: known(step.owned_ns("launch_starved")),
        HOST_BLOCKED: known(step.owned_ns("host_blocked")),
        HOST_IDLE: known(step.owned_ns("launch_starved", "host_blocked")),
        IDLE_OTHER: known(step.owned_ns("idle_other")),
        CUDA_GRAPH: known(step.owned_ns("cuda_graph")),
        ATTENTION_UNFUSED: known(step.owned_ns("attention_unfused")),
        ATTENTION: known(step.owned_ns("attention")),
        GEMM: known(step.owned_ns("gemm", "grouped_gemm")),
        PERMUTE: known(step.owned_ns("permute")),
        ELEMENTWISE: known(step.owned_ns("elementwise")),
        UNCLASSIFIED: known(step.owned_ns("unclassified")),
    }


def measure_spread(steps: pl.DataFrame) -> Measurement[float]:
    """Longest over shortest kept step of ``steps`` (``timeline/steps.py``: STEPS)."""
    lengths = steps.filter("kept").select(ns=pl.col("end_ns") - pl.col("start_ns"))["ns"].sort()
    if lengths.len() < 2:
        return missing("needs two kept steps")
    shortest, longest = int(lengths[0]), int(lengths[-1])
    return known(longest / shortest) if shortest else missing("a kept step has no length")
