"""Times of the representative step that follow from its budget: what the device computes, copies, and waits for.

A time per step of any module is one of this step (``step/step_view.py``), unless its meaning states otherwise.
"""

from __future__ import annotations

from three_walls.lib.declare import duration, fact, flag
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.step.attribute_steps import Attribution
from three_walls.step.intervals import DURATION
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import COMPUTE_CATEGORIES, HOST_COPIES, IDLE_BUCKETS

HOST_LAUNCHES = ("api_calls", "launch_correlation", "inside_cuda_graphs")
"""What facts about the host need: launches, joined to what they launched, and none hidden in graphs."""

HOST_IDLE = ("launch_starved", "host_blocked")

_DEVICE = ("cuda_graph_activity",)
"""What facts about an idle device need: graphs that run are recorded, node by node or as a whole."""


@duration("the step length")
def step_ns(step: StepView) -> int:
    """Length of the representative step."""
    return step.step_ns


@duration("the step length without pauses")
def unpaused_step_ns(step: StepView) -> int:
    """Length of the representative step less the time in which the GPU is idle because the host pauses: what fractions
    of the step are of."""
    return step.unpaused_ns


@fact("ratio", "the longest-to-shortest step ratio")
def step_spread_ratio(attribution: Attribution) -> Measurement[float]:
    """Longest kept step over the shortest, all ranks."""
    lengths = attribution.steps.filter("kept").select(ns=DURATION)["ns"].sort()
    if lengths.len() < 2:
        return missing("fewer than two steps were kept (capture four steps or more)")
    shortest, longest = int(lengths[0]), int(lengths[-1])
    return known(longest / shortest) if shortest else missing("a kept step has no length")


@fact("count", "the number of kernels in the step")
def kernel_count(step: StepView) -> int:
    """Kernels that start in the step."""
    return step.kernels.height


@duration("GPU busy time per step")
def device_busy_ns(step: StepView) -> int:
    """Time per step in which anything runs on the GPU: a kernel, a copy, a memset or a CUDA graph."""
    return step.step_ns - step.owned_ns(*IDLE_BUCKETS)


@duration("GPU compute time per step", share="GPU compute")
def compute_busy_ns(step: StepView) -> int:
    """Time per step in which a compute kernel runs.

    Not the same as: The sum of kernel durations: kernels of several streams overlap.
    """
    return step.union_ns(COMPUTE_CATEGORIES)


@duration("GPU idle time per step", needs=_DEVICE)
def idle_ns(step: StepView) -> int:
    """Time per step in which nothing runs on the GPU."""
    return step.owned_ns(*IDLE_BUCKETS)


@duration(
    "exposed host copy time per step",
    share="exposed copying between GPU and host",
    needs=("copies",),
)
def offload_copy_exposed_ns(step: StepView) -> int:
    """Time per step in which copies between GPU and host run and nothing else does."""
    return step.owned_ns(*HOST_COPIES)


@duration(
    "exposed pageable copy time per step",
    share="exposed copying of pageable memory",
    needs=("copies",),
)
def pageable_copy_exposed_ns(step: StepView) -> int:
    """Time per step in which nothing runs but copies between the GPU and pageable host memory."""
    return step.owned_ns("copy_h2d_pageable", "copy_d2h_pageable")


@duration(
    "launch-starved time per step",
    share="launch-starved time",
    needs=HOST_LAUNCHES,
)
def launch_starved_ns(step: StepView) -> int:
    """Time per step in which the GPU is idle, its next operation is not launched yet, and the launching thread is not
    in a synchronizing call."""
    return step.owned_ns("launch_starved")


@duration(
    "host-blocked time per step",
    share="host-blocked time",
    needs=HOST_LAUNCHES,
)
def host_blocked_ns(step: StepView) -> int:
    """Time per step in which the GPU is idle, its next operation is not launched yet, and the launching thread is in a
    synchronizing call."""
    return step.owned_ns("host_blocked")


@duration("GPU time per step waiting for the host", needs=HOST_LAUNCHES)
def host_idle_ns(step: StepView) -> int:
    """Time per step in which the GPU waits for the host: launch-starved and host-blocked time together."""
    return step.owned_ns(*HOST_IDLE)


@duration("unexplained GPU idle time per step", share="unexplained GPU idle time", needs=_DEVICE)
def idle_other_ns(step: StepView) -> int:
    """Time per step in which the GPU is idle although the launch of its next operation has begun, or was not
    recorded."""
    return step.owned_ns("idle_other")


@fact("fraction", "time in CUDA graphs without recorded kernels", whole="the step")
def cuda_graph_fraction(step: StepView) -> Measurement[float]:
    """Fraction of the step in which CUDA graphs run whose kernels were not recorded."""
    graph_ns = step.owned_ns("cuda_graph")
    return known(graph_ns / step.unpaused_ns) if step.unpaused_ns else missing("the step length is zero")


@duration(
    "unfused attention time per step",
    share="unfused attention",
)
def attention_unfused_ns(step: StepView) -> int:
    """Time per step that the pointwise kernels of unfused attention take: softmax, masks, scales and copies of
    scores."""
    return step.owned_ns("attention_unfused")


@flag(
    "whether Transformer Engine fell back to unfused attention",
    if_true="Transformer Engine chose unfused attention by itself",
    if_false="Transformer Engine did not choose unfused attention by itself",
)
def attention_fell_back(step: StepView, attention_choice_is_automatic: bool) -> bool:
    """Whether unfused attention runs in Transformer Engine's layers although no setting is known to ask for it.

    Not the same as: Transformer Engine then chose the backend itself, because attention_backend is automatic unless it
    is set.
    """
    return attention_choice_is_automatic and step.owned_ns("attention_unfused") > 0


@duration("fused attention time per step")
def attention_ns(step: StepView) -> int:
    """Time per step that fused attention kernels take."""
    return step.owned_ns("attention")


@duration("GEMM time per step", share="GEMM work")
def gemm_ns(step: StepView) -> int:
    """Time per step that GEMMs take, grouped ones included."""
    return step.owned_ns("gemm", "grouped_gemm")


@duration("normalization time per step", share="time in normalization")
def norm_ns(step: StepView) -> int:
    """Time per step that layer and RMS normalization take."""
    return step.owned_ns("norm")


@duration("token permutation time per step", share="token permutation")
def permute_ns(step: StepView) -> int:
    """Time per step that gathering, scattering and permuting tokens takes. Small lookups by the same kernels count
    too."""
    return step.owned_ns("permute")


@duration("pointwise kernel time per step")
def elementwise_ns(step: StepView) -> int:
    """Time per step that pointwise and reduction kernels take: activations, rotary embedding, loss, sums."""
    return step.owned_ns("elementwise")


@duration("unclassified kernel time per step", share="time in kernels of unknown kind")
def unclassified_ns(step: StepView) -> int:
    """Time per step that kernels of unknown kind take: no pattern matches their names."""
    return step.owned_ns("unclassified")
