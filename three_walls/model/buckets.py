"""What a nanosecond of a step can be spent on: categories, their groups, their precedence, the walls.

A *category* is what one device operation is (a kernel, a copy, a memset, a graph envelope). A *bucket*
is what owns a nanosecond of a step: every category is a bucket, and idle time adds a few more.
The order of :data:`BUCKETS` **is** the precedence: where several operations run at once, the first
bucket in the list owns the instant. Every number in a step budget follows from that one list.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Group(StrEnum):
    """Coarse kind of a bucket; exposure is communication that no compute bucket overlaps."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    COPY = "copy"
    GRAPH = "graph"
    IDLE = "idle"


class Wall(StrEnum):
    """Megatron Core's three walls of MoE training."""

    MEMORY = "memory"
    COMMUNICATION = "communication"
    COMPUTE_HOST = "compute_host"


class SubWall(StrEnum):
    """The two halves of the third wall."""

    COMPUTE = "compute"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Bucket:
    """One owner of time, with the sentence that defines it."""

    name: str
    group: Group
    definition: str


# Order of precedence. Compute first: a nanosecond in which a GEMM runs is a GEMM's, whatever else is
# running, so that what communication owns is exactly its exposed time.
BUCKETS: tuple[Bucket, ...] = (
    Bucket("grouped_gemm", Group.COMPUTE, "GEMMs of several experts in one kernel."),
    Bucket("gemm", Group.COMPUTE, "GEMMs (dense layers, experts one by one, router, logits)."),
    Bucket("attention", Group.COMPUTE, "Fused attention (flash, cuDNN SDPA) kernels."),
    Bucket(
        "attention_unfused",
        Group.COMPUTE,
        "What unfused attention runs between its two GEMMs: softmax, mask, scale, copies of scores.",
    ),
    Bucket("permute", Group.COMPUTE, "Sorting tokens by expert and back: gather, scatter, index, split, concatenate."),
    Bucket("router", Group.COMPUTE, "Choosing experts: top-k, sort, scan, small softmax, auxiliary losses."),
    Bucket("norm", Group.COMPUTE, "Layer and RMS normalisation."),
    Bucket("elementwise", Group.COMPUTE, "Activations, additions, casts, reductions and other pointwise kernels."),
    Bucket("quantize", Group.COMPUTE, "Casting to and from FP8/FP4, scales, transposes for them."),
    Bucket("optimizer", Group.COMPUTE, "Optimizer update, gradient norm and clipping kernels."),
    Bucket("unclassified", Group.COMPUTE, "Kernels whose name matches no pattern of tables/kernel-categories.yaml."),
    Bucket(
        "ep_all_to_all",
        Group.COMMUNICATION,
        "NCCL all-to-all of the MoE dispatcher (SendRecv or AllToAll kernels) while no compute kernel runs.",
    ),
    Bucket(
        "ep_dispatch_combine",
        Group.COMMUNICATION,
        "Kernels that carry tokens other than by NCCL all-to-all (DeepEP, HybridEP, NVSHMEM; the all-gather "
        "dispatcher) while no compute kernel runs.",
    ),
    Bucket(
        "ep_control",
        Group.COMMUNICATION,
        "Token counts, DeepEP/HybridEP notify, layout and barrier kernels: they carry no tokens, they wait for peers.",
    ),
    Bucket("pipeline_p2p", Group.COMMUNICATION, "Pipeline sends and receives while no compute kernel runs."),
    Bucket("context_ring", Group.COMMUNICATION, "Context-parallel ring exchange while no compute kernel runs."),
    Bucket(
        "send_recv_ambiguous",
        Group.COMMUNICATION,
        "NCCL SendRecv that neither the config nor the trace can assign to experts, pipeline or context.",
    ),
    Bucket(
        "tensor_parallel",
        Group.COMMUNICATION,
        "Collectives of tensor and sequence parallelism (activations) while no compute kernel runs.",
    ),
    Bucket(
        "data_parallel",
        Group.COMMUNICATION,
        "Collectives of data parallelism (parameters and gradients) while no compute kernel runs.",
    ),
    Bucket("all_gather", Group.COMMUNICATION, "NCCL all-gather of unknown owner while no compute kernel runs."),
    Bucket("reduce_scatter", Group.COMMUNICATION, "NCCL reduce-scatter of unknown owner while no compute kernel runs."),
    Bucket(
        "all_reduce",
        Group.COMMUNICATION,
        "NCCL all-reduce of unknown owner (norms, losses, barriers, or gradients) while no compute kernel runs.",
    ),
    Bucket("broadcast", Group.COMMUNICATION, "NCCL broadcast of unknown owner while no compute kernel runs."),
    Bucket("other_collective", Group.COMMUNICATION, "Other NCCL communication while no compute kernel runs."),
    Bucket("copy_d2d", Group.COPY, "Copies inside the device's memory while nothing of the above runs."),
    Bucket("copy_p2p", Group.COPY, "Copies between devices while nothing of the above runs."),
    Bucket("copy_h2d_pinned", Group.COPY, "Copies from pinned host memory while nothing of the above runs."),
    Bucket("copy_h2d_pageable", Group.COPY, "Copies from pageable host memory (effectively synchronous)."),
    Bucket("copy_d2h_pinned", Group.COPY, "Copies to pinned host memory while nothing of the above runs."),
    Bucket("copy_d2h_pageable", Group.COPY, "Copies to pageable host memory (effectively synchronous)."),
    Bucket("copy_other", Group.COPY, "Host, unified-memory or unknown copies while nothing of the above runs."),
    Bucket("memset", Group.COPY, "Memory fills while nothing of the above runs."),
    Bucket(
        "cuda_graph",
        Group.GRAPH,
        "Inside a CUDA graph recorded whole: what ran there is unknown (recapture with --cuda-graph-trace=node).",
    ),
    Bucket("profiler", Group.IDLE, "Nothing on the device while the profiler flushed or allocated its buffers."),
    Bucket(
        "host_blocked",
        Group.IDLE,
        "Nothing on the device, the next operation not launched yet, its thread inside a synchronizing CUDA call.",
    ),
    Bucket(
        "launch_starved",
        Group.IDLE,
        "Nothing on the device and the next operation not launched yet: the host was late.",
    ),
    Bucket(
        "idle_other",
        Group.IDLE,
        "Nothing on the device though the next operation was already launched or its launch is not recorded.",
    ),
)

BUCKET_BY_NAME: dict[str, Bucket] = {bucket.name: bucket for bucket in BUCKETS}

CATEGORIES: tuple[str, ...] = tuple(b.name for b in BUCKETS if b.group is not Group.IDLE)
"""Categories an operation can have, in order of precedence."""

IDLE_BUCKETS: tuple[str, ...] = tuple(b.name for b in BUCKETS if b.group is Group.IDLE)
"""Buckets that only idle time can have, in order of precedence."""


def categories_of(group: Group) -> tuple[str, ...]:
    """Names of the buckets of ``group``, in order of precedence."""
    return tuple(b.name for b in BUCKETS if b.group is group)


COMPUTE_CATEGORIES = categories_of(Group.COMPUTE)
COMMUNICATION_CATEGORIES = categories_of(Group.COMMUNICATION)

SEND_RECV = "send_recv"
"""What the kernel table calls an NCCL SendRecv before it is known whose it is; never a bucket."""

EP_CATEGORIES = ("ep_all_to_all", "ep_dispatch_combine", "ep_control")
"""Communication of expert parallelism."""

GEMM_CATEGORIES = ("gemm", "grouped_gemm")
"""Kernels that multiply matrices."""
