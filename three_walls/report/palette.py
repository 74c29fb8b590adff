"""Colours of buckets, groups and walls.

Compute is blue and green, communication orange and red, copies are purple. Idle time is grey: colour marks work.
"""

from __future__ import annotations

from three_walls.tables.buckets import Group, Wall

BUCKET_COLOURS: dict[str, str] = {
    "grouped_gemm": "#1d4ed8",
    "gemm": "#3b82f6",
    "attention": "#0891b2",
    "attention_unfused": "#67c8dd",
    "linear_attention": "#0369a1",
    "permute": "#0d9488",
    "router": "#2dd4bf",
    "norm": "#86d99b",
    "elementwise": "#22a05a",
    "quantize": "#84b83c",
    "optimizer": "#166534",
    "unclassified": "#a5c4ec",
    "ep_all_to_all": "#ea580c",
    "ep_dispatch_combine": "#f97316",
    "ep_control": "#fdba74",
    "pipeline_p2p": "#b91c1c",
    "context_ring": "#ef4444",
    "send_recv_ambiguous": "#f8a5a5",
    "tensor_parallel": "#d97706",
    "data_parallel": "#f5a524",
    "all_gather": "#a16207",
    "reduce_scatter": "#ca8a04",
    "all_reduce": "#e11d48",
    "broadcast": "#fb7185",
    "other_collective": "#c2703d",
    "copy_d2d": "#6b21a8",
    "copy_p2p": "#7c3aed",
    "copy_h2d_pinned": "#9333ea",
    "copy_h2d_pageable": "#c084fc",
    "copy_d2h_pinned": "#a21caf",
    "copy_d2h_pageable": "#d687e8",
    "copy_other": "#8b7bd8",
    "memset": "#b8a6f0",
    "cuda_graph": "#6b7280",
    "profiler": "#dfe3e8",
    "host_pause": "#0f172a",
    "host_blocked": "#4b5563",
    "launch_starved": "#94a3b8",
    "idle_other": "#c3cad4",
}

GROUP_COLOURS: dict[str, str] = {
    Group.COMPUTE: "#3b82f6",
    Group.COMMUNICATION: "#ea580c",
    Group.COPY: "#9333ea",
    Group.GRAPH: "#6b7280",
    Group.IDLE: "#b3bcc8",
}

EXPOSED_COLOUR = "#ea580c"
HIDDEN_COLOUR = "#7fb2f5"
AFTER_COLOUR = "#16a34a"
NOW_COLOUR = "#64748b"
TICK_COLOUR = "#14532d"
FREE_COLOUR = "#e2e8f0"
WAIT_COLOUR = "#e9a23b"
TRANSFER_COLOUR = "#4f8fe6"

WALL_COLOURS = {Wall.MEMORY: "#7c3aed", Wall.COMMUNICATION: "#ea580c", Wall.COMPUTE_HOST: "#2563eb"}

MEMORY_COLOURS = {
    "parameters": ("#1d4ed8", "parameters"),
    "gradients": ("#0891b2", "gradients"),
    "optimizer": ("#7c3aed", "optimizer"),
    "activations": ("#ea580c", "activations"),
    "allocated": ("#4f8fe6", "allocated"),
    "driver": ("#64748b", "allocated by the driver"),
    "reserved": ("#a5c4ec", "reserved, not allocated"),
}
"""Part of the memory -> its colour and what it is called."""
