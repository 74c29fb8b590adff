"""What an export recorded: each capability is present, or missing for a reason that names the remedy.

Facts name the capabilities that they need. A missing table is a lack of evidence, never evidence of absence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from three_walls.trace.hardware_samples import GPU_METRICS, NIC_METRICS
from three_walls.trace.nccl_payload import holds_payloads
from three_walls.trace.nsys_export import NsysExport
from three_walls.trace.read_tables import API, COPIES, GRAPHS, KERNELS, MEMORY_USAGE, MEMSETS, NVTX

YES = "yes"
NONE_RECORDED = "none recorded"
"""A table without events does not exist in an export. Where kernels were captured, copies were captured too."""

_CAPTURED_WITH_KERNELS = ("copies", "copy_memory_kinds", "memsets")

_TABLES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "process_ids": (KERNELS, ("globalPid",), "export with a newer Nsight Systems"),
    "kernels": (KERNELS, ("start", "end", "demangledName"), "capture with -t cuda"),
    "graph_nodes": (KERNELS, ("graphNodeId",), "export with Nsight Systems 2023 or newer"),
    "copies": (COPIES, ("start", "end", "copyKind"), "capture with -t cuda"),
    "copy_memory_kinds": (COPIES, ("srcKind", "dstKind"), "export with a newer Nsight Systems"),
    "memsets": (MEMSETS, ("start", "end"), "capture with -t cuda"),
    "api_calls": (API, ("start", "end", "globalTid", "nameId"), "capture with -t cuda"),
    "launch_correlation": (API, ("correlationId",), "capture with -t cuda"),
    "nvtx_ranges": (NVTX, ("start", "end", "eventType"), "capture with -t cuda,nvtx"),
    "synchronization": ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", ("start", "end", "syncType"), "capture with -t cuda"),
    "event_sync_ids": (
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        ("eventSyncId",),
        "export with Nsight Systems 2025 or newer and CUDA 12.8 or newer",
    ),
    "gpu_memory_usage": (
        MEMORY_USAGE,
        ("start", "globalPid", "deviceId", "bytes", "memKind", "memoryOperationType"),
        "capture with --cuda-memory-usage=true",
    ),
    "gpu_metrics": (
        GPU_METRICS,
        ("timestamp", "typeId", "metricId", "value"),
        "capture with --gpu-metrics-devices; three-walls capture --gpu-metrics prints how",
    ),
    "nic_metrics": (
        NIC_METRICS,
        ("start", "end", "globalId", "portId", "metricsListId", "metricsIdx", "value"),
        "capture with --nic-metrics",
    ),
    "nccl_payload": (
        "NVTX_EVENTS",
        ("binaryData",),
        "export with Nsight Systems 2025 or newer; NCCL 2.20 or newer names its communicators there",
    ),
    "launch_environment": ("META_DATA_CAPTURE", ("name", "value"), "export with Nsight Systems 2024 or newer"),
    "diagnostics": ("DIAGNOSTIC_EVENT", ("text",), "export with Nsight Systems 2024 or newer"),
}


def probe_capabilities(export: NsysExport, launches_graphs: bool) -> Mapping[str, str]:
    """Capability name -> ``yes``, ``none recorded``, or the reason it is missing.

    ``launches_graphs``: whether some API call launches a CUDA graph; only then can graphs hide kernels.
    """
    found: dict[str, str] = {}
    for name, (table, columns, remedy) in _TABLES.items():
        if table not in export.columns and name in _CAPTURED_WITH_KERNELS and KERNELS in export.columns:
            found[name] = NONE_RECORDED
            continue
        if table not in export.columns:
            found[name] = f"no table {table}: no such events, or not captured ({remedy})"
            continue
        absent = [column for column in columns if column not in export.columns[table]]
        found[name] = f"no column {table}.{absent[0]} ({remedy})" if absent else YES
    if found["nccl_payload"] == YES and not holds_payloads(export):
        found["nccl_payload"] = NONE_RECORDED
    found["inside_cuda_graphs"] = _inside_graphs(export, launches_graphs)
    is_recorded = not launches_graphs or found["inside_cuda_graphs"] == YES or GRAPHS in export.columns
    found["cuda_graph_activity"] = YES if is_recorded else found["inside_cuda_graphs"]
    return MappingProxyType(found)


def _inside_graphs(export: NsysExport, launches_graphs: bool) -> str:
    if not launches_graphs:
        return YES
    if export.has(KERNELS, "graphNodeId"):
        any_node = export.rows(f"SELECT 1 FROM {KERNELS} WHERE graphNodeId IS NOT NULL AND graphNodeId != 0 LIMIT 1")
        if any_node:
            return YES
    if GRAPHS in export.columns:
        return "graphs were recorded whole, without their kernels (recapture with --cuda-graph-trace=node)"
    return (
        "graphs are launched, but neither their envelopes nor their kernels are in the export: the device may be busy "
        "where it looks idle (recapture with --cuda-graph-trace=node, export with Nsight Systems 2024 or newer)"
    )


def common_capabilities(found: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    """The capabilities of all traces together: what one trace lacks is missing, for its reason."""
    common = dict(found[0])
    for capabilities in found[1:]:
        for name, state in capabilities.items():
            if common.get(name) == YES:
                common[name] = state
    return common
