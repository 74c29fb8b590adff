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


# Title and definition by name, in order of precedence. Compute comes first: a nanosecond in which a GEMM runs belongs
# to the GEMM whatever else runs, so what communication owns is exactly its exposed time.
_BY_GROUP: dict[Group, dict[str, tuple[str, str]]] = {
    Group.COMPUTE: {
        "grouped_gemm": ("grouped GEMM", "GEMMs of several experts in one kernel."),
        "gemm": ("GEMM", "GEMMs (dense layers, experts one by one, router, logits)."),
        "attention": ("fused attention", "Fused attention (flash, cuDNN SDPA) kernels."),
        "attention_unfused": (
            "unfused attention",
            "What unfused attention runs between its two GEMMs: softmax, mask, scale, copies of the scores.",
        ),
        "linear_attention": (
            "linear attention",
            "Token mixers other than softmax attention: state space (Mamba), gated delta net, KDA, with their short "
            "convolutions and gates.",
        ),
        "permute": (
            "token permutation",
            "Moving tokens into expert order and back: gather, scatter, index, split, concatenate.",
        ),
        "router": ("router", "Choosing experts: top-k, sort, scan, small softmax, auxiliary losses."),
        "norm": ("normalization", "Layer and RMS normalization."),
        "elementwise": (
            "elementwise kernels",
            "Activations, additions, casts, reductions and other pointwise kernels.",
        ),
        "quantize": (
            "FP8/FP4 quantization",
            "Casts to and from FP8/FP4, with the scales and transposes that they need.",
        ),
        "optimizer": ("optimizer", "Optimizer update, gradient norm and clipping kernels."),
        "unclassified": (
            "unclassified kernels",
            "Kernels whose name matches no pattern (tables/kernel-names, --kernel-names).",
        ),
    },
    Group.COMMUNICATION: {
        "ep_all_to_all": (
            "expert all-to-all",
            "NCCL all-to-all of the MoE dispatcher (SendRecv or AllToAll kernels) while no compute kernel runs.",
        ),
        "ep_dispatch_combine": (
            "expert dispatch and combine",
            "Kernels that carry tokens other than by NCCL all-to-all (DeepEP, HybridEP, NVSHMEM; the all-gather "
            "dispatcher) while no compute kernel runs.",
        ),
        "ep_control": (
            "expert-parallel control",
            "Token counts, DeepEP/HybridEP notify, layout and barrier kernels: they carry no tokens, they wait for "
            "peers.",
        ),
        "pipeline_p2p": ("pipeline send/receive", "Pipeline sends and receives while no compute kernel runs."),
        "context_ring": ("context-parallel ring", "Context-parallel ring exchange while no compute kernel runs."),
        "send_recv_ambiguous": (
            "send/receive of unknown owner",
            "NCCL SendRecv that neither the config nor the trace can assign to experts, pipeline or context.",
        ),
        "tensor_parallel": (
            "tensor-parallel collectives",
            "Collectives of tensor and sequence parallelism (activations) while no compute kernel runs.",
        ),
        "data_parallel": (
            "data-parallel collectives",
            "Collectives of data parallelism (parameters and gradients) while no compute kernel runs.",
        ),
        "all_gather": ("all-gather of unknown owner", "NCCL all-gather of unknown owner while no compute kernel runs."),
        "reduce_scatter": (
            "reduce-scatter of unknown owner",
            "NCCL reduce-scatter of unknown owner while no compute kernel runs.",
        ),
        "all_reduce": (
            "all-reduce of unknown owner",
            "NCCL all-reduce of unknown owner (norms, losses, barriers, or gradients) while no compute kernel runs.",
        ),
        "broadcast": ("broadcast of unknown owner", "NCCL broadcast of unknown owner while no compute kernel runs."),
        "other_collective": ("other NCCL communication", "Other NCCL communication while no compute kernel runs."),
    },
    Group.COPY: {
        "copy_d2d": ("device-to-device copies", "Copies within the device's memory while none of the above runs."),
        "copy_p2p": ("peer-to-peer copies", "Copies between devices while none of the above runs."),
        "copy_h2d_pinned": (
            "pinned host-to-device copies",
            "Copies from pinned host memory while none of the above runs.",
        ),
        "copy_h2d_pageable": (
            "pageable host-to-device copies",
            "Copies from pageable host memory (effectively synchronous) while none of the above runs.",
        ),
        "copy_d2h_pinned": (
            "pinned device-to-host copies",
            "Copies to pinned host memory while none of the above runs.",
        ),
        "copy_d2h_pageable": (
            "pageable device-to-host copies",
            "Copies to pageable host memory (effectively synchronous) while none of the above runs.",
        ),
        "copy_other": ("other copies", "Host-to-host, unified-memory and unknown copies while none of the above runs."),
        "memset": ("memory fills", "Memory fills while none of the above runs."),
    },
    Group.GRAPH: {
        "cuda_graph": (
            "CUDA graphs recorded whole",
            "A CUDA graph recorded as a whole: what ran in it is unknown (recapture with --cuda-graph-trace=node).",
        ),
    },
    Group.IDLE: {
        "profiler": (
            "profiler overhead",
            "Nothing ran on the device while the profiler flushed or allocated its buffers.",
        ),
        "host_pause": (
            "pauses of the host",
            "Nothing ran on the device, and the threads that launch did nothing for far longer than they usually do "
            "there.",
        ),
        "host_blocked": (
            "host-blocked",
            "Nothing ran on the device, and the thread that launched the next operation was still inside a "
            "synchronizing CUDA call.",
        ),
        "launch_starved": (
            "launch-starved",
            "Nothing ran on the device, and the next operation was not launched yet: the host was late.",
        ),
        "idle_other": (
            "other idle time",
            "Nothing ran on the device although the next operation was already launched, or its launch is not "
            "recorded.",
        ),
    },
}
BUCKETS: tuple[Bucket, ...] = tuple(
    Bucket(name, title, group, definition)
    for group, buckets in _BY_GROUP.items()
    for name, (title, definition) in buckets.items()
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
