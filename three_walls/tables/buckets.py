"""What a nanosecond of a step can be spent on: the buckets in order of precedence, their groups, and the walls.

A *category* is what one device operation is (a kernel, a copy, a memset, a graph envelope). A *bucket* is what owns a
nanosecond of a step: every category is a bucket, and idle time adds a few more. The order of :data:`BUCKETS` **is** the
precedence: where several operations run at once, the first bucket in the list owns the instant. Every number in a step
budget follows from this list.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Group(StrEnum):
    """Kind of a bucket. Communication is exposed while no bucket of ``COMPUTE`` is active."""

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
    """An owner of time."""

    name: str
    """Its id, in ``report.json``, in facts and in ``tables/kernel-names/``."""
    title: str
    """What a reader sees: lower case, so that it also fits into a sentence."""
    group: Group
    definition: str
    """What it counts, as a sentence."""


# Order of precedence. Compute comes first: a nanosecond in which a GEMM runs belongs to the GEMM whatever else runs, so
# what communication owns is exactly its exposed time.
BUCKETS: tuple[Bucket, ...] = (
    Bucket("grouped_gemm", "grouped GEMM", Group.COMPUTE, "GEMMs of several experts in one kernel."),
    Bucket("gemm", "GEMM", Group.COMPUTE, "GEMMs (dense layers, experts one by one, router, logits)."),
    Bucket("attention", "fused attention", Group.COMPUTE, "Fused attention (flash, cuDNN SDPA) kernels."),
    Bucket(
        "attention_unfused",
        "unfused attention",
        Group.COMPUTE,
        "What unfused attention runs between its two GEMMs: softmax, mask, scale, copies of the scores.",
    ),
    Bucket(
        "linear_attention",
        "linear attention",
        Group.COMPUTE,
        "Token mixers other than softmax attention: state space (Mamba), gated delta net, KDA, with their short "
        "convolutions and gates.",
    ),
    Bucket(
        "permute",
        "token permutation",
        Group.COMPUTE,
        "Moving tokens into expert order and back: gather, scatter, index, split, concatenate.",
    ),
    Bucket("router", "router", Group.COMPUTE, "Choosing experts: top-k, sort, scan, small softmax, auxiliary losses."),
    Bucket("norm", "normalization", Group.COMPUTE, "Layer and RMS normalization."),
    Bucket(
        "elementwise",
        "elementwise kernels",
        Group.COMPUTE,
        "Activations, additions, casts, reductions and other pointwise kernels.",
    ),
    Bucket(
        "quantize",
        "FP8/FP4 quantization",
        Group.COMPUTE,
        "Casts to and from FP8/FP4, with the scales and transposes that they need.",
    ),
    Bucket("optimizer", "optimizer", Group.COMPUTE, "Optimizer update, gradient norm and clipping kernels."),
    Bucket(
        "unclassified",
        "unclassified kernels",
        Group.COMPUTE,
        "Kernels whose name matches no pattern (tables/kernel-names, --kernel-names).",
    ),
    Bucket(
        "ep_all_to_all",
        "expert all-to-all",
        Group.COMMUNICATION,
        "NCCL all-to-all of the MoE dispatcher (SendRecv or AllToAll kernels) while no compute kernel runs.",
    ),
    Bucket(
        "ep_dispatch_combine",
        "expert dispatch and combine",
        Group.COMMUNICATION,
        "Kernels that carry tokens other than by NCCL all-to-all (DeepEP, HybridEP, NVSHMEM; the all-gather "
        "dispatcher) while no compute kernel runs.",
    ),
    Bucket(
        "ep_control",
        "expert-parallel control",
        Group.COMMUNICATION,
        "Token counts, DeepEP/HybridEP notify, layout and barrier kernels: they carry no tokens, they wait for peers.",
    ),
    Bucket(
        "pipeline_p2p",
        "pipeline send/receive",
        Group.COMMUNICATION,
        "Pipeline sends and receives while no compute kernel runs.",
    ),
    Bucket(
        "context_ring",
        "context-parallel ring",
        Group.COMMUNICATION,
        "Context-parallel ring exchange while no compute kernel runs.",
    ),
    Bucket(
        "send_recv_ambiguous",
        "send/receive of unknown owner",
        Group.COMMUNICATION,
        "NCCL SendRecv that neither the config nor the trace can assign to experts, pipeline or context.",
    ),
    Bucket(
        "tensor_parallel",
        "tensor-parallel collectives",
        Group.COMMUNICATION,
        "Collectives of tensor and sequence parallelism (activations) while no compute kernel runs.",
    ),
    Bucket(
        "data_parallel",
        "data-parallel collectives",
        Group.COMMUNICATION,
        "Collectives of data parallelism (parameters and gradients) while no compute kernel runs.",
    ),
    Bucket(
        "all_gather",
        "all-gather of unknown owner",
        Group.COMMUNICATION,
        "NCCL all-gather of unknown owner while no compute kernel runs.",
    ),
    Bucket(
        "reduce_scatter",
        "reduce-scatter of unknown owner",
        Group.COMMUNICATION,
        "NCCL reduce-scatter of unknown owner while no compute kernel runs.",
    ),
    Bucket(
        "all_reduce",
        "all-reduce of unknown owner",
        Group.COMMUNICATION,
        "NCCL all-reduce of unknown owner (norms, losses, barriers, or gradients) while no compute kernel runs.",
    ),
    Bucket(
        "broadcast",
        "broadcast of unknown owner",
        Group.COMMUNICATION,
        "NCCL broadcast of unknown owner while no compute kernel runs.",
    ),
    Bucket(
        "other_collective",
        "other NCCL communication",
        Group.COMMUNICATION,
        "Other NCCL communication while no compute kernel runs.",
    ),
    Bucket(
        "copy_d2d",
        "device-to-device copies",
        Group.COPY,
        "Copies within the device's memory while none of the above runs.",
    ),
    Bucket("copy_p2p", "peer-to-peer copies", Group.COPY, "Copies between devices while none of the above runs."),
    Bucket(
        "copy_h2d_pinned",
        "pinned host-to-device copies",
        Group.COPY,
        "Copies from pinned host memory while none of the above runs.",
    ),
    Bucket(
        "copy_h2d_pageable",
        "pageable host-to-device copies",
        Group.COPY,
        "Copies from pageable host memory (effectively synchronous) while none of the above runs.",
    ),
    Bucket(
        "copy_d2h_pinned",
        "pinned device-to-host copies",
        Group.COPY,
        "Copies to pinned host memory while none of the above runs.",
    ),
    Bucket(
        "copy_d2h_pageable",
        "pageable device-to-host copies",
        Group.COPY,
        "Copies to pageable host memory (effectively synchronous) while none of the above runs.",
    ),
    Bucket(
        "copy_other",
        "other copies",
        Group.COPY,
        "Host-to-host, unified-memory and unknown copies while none of the above runs.",
    ),
    Bucket("memset", "memory fills", Group.COPY, "Memory fills while none of the above runs."),
    Bucket(
        "cuda_graph",
        "CUDA graphs recorded whole",
        Group.GRAPH,
        "A CUDA graph recorded as a whole: what ran in it is unknown (recapture with --cuda-graph-trace=node).",
    ),
    Bucket(
        "profiler",
        "profiler overhead",
        Group.IDLE,
        "Nothing ran on the device while the profiler flushed or allocated its buffers.",
    ),
    Bucket(
        "host_pause",
        "pauses of the host",
        Group.IDLE,
        "Nothing ran on the device, and the threads that launch did nothing for far longer than they usually do there.",
    ),
    Bucket(
        "host_blocked",
        "host-blocked",
        Group.IDLE,
        "Nothing ran on the device, and the thread that launched the next operation was still inside a synchronizing "
        "CUDA call.",
    ),
    Bucket(
        "launch_starved",
        "launch-starved",
        Group.IDLE,
        "Nothing ran on the device, and the next operation was not launched yet: the host was late.",
    ),
    Bucket(
        "idle_other",
        "other idle time",
        Group.IDLE,
        "Nothing ran on the device although the next operation was already launched, or its launch is not recorded.",
    ),
)

BUCKET_BY_NAME: dict[str, Bucket] = {bucket.name: bucket for bucket in BUCKETS}
BUCKET_TITLES: dict[str, str] = {bucket.name: bucket.title for bucket in BUCKETS}
_PLACES = {bucket.name: place for place, bucket in enumerate(BUCKETS)}

CATEGORIES: tuple[str, ...] = tuple(b.name for b in BUCKETS if b.group is not Group.IDLE)
"""Categories an operation can have, in order of precedence."""

IDLE_BUCKETS: tuple[str, ...] = tuple(b.name for b in BUCKETS if b.group is Group.IDLE)
"""Buckets that only idle time can have, in order of precedence."""


def in_precedence(bucket: str) -> tuple[int, str]:
    """Sorts names of buckets in order of precedence; those of a newer release come last."""
    return _PLACES.get(bucket, len(_PLACES)), bucket


def categories_of(group: Group) -> tuple[str, ...]:
    """Names of the buckets of ``group``, in order of precedence."""
    return tuple(b.name for b in BUCKETS if b.group is group)


COMPUTE_CATEGORIES = categories_of(Group.COMPUTE)
COMMUNICATION_CATEGORIES = categories_of(Group.COMMUNICATION)

SEND_RECV = "send_recv"
"""What the kernel table calls an NCCL SendRecv until its owner is known; never a bucket."""

TOKEN_EXCHANGES = ("ep_all_to_all", "ep_dispatch_combine")
EP_CATEGORIES = (*TOKEN_EXCHANGES, "ep_control")
"""Communication of expert parallelism."""

HOST_COPIES = ("copy_h2d_pinned", "copy_h2d_pageable", "copy_d2h_pinned", "copy_d2h_pageable")

GEMM_CATEGORIES = ("gemm", "grouped_gemm")
"""Kernels that multiply matrices."""
