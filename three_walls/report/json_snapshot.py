"""A memory snapshot as report.json holds it."""

from __future__ import annotations

from typing import Any

from three_walls.model.memory_snapshot import MemorySnapshot

Json = dict[str, Any]


def snapshot_as_json(snapshot: MemorySnapshot | None) -> Json | None:
    """``snapshot`` as an object; null where none was given."""
    if snapshot is None:
        return None
    return {
        "path_name": snapshot.path_name,
        "sha256": snapshot.sha256,
        "device": snapshot.device,
        "because_no_peak": snapshot.because_no_peak,
        "peak_allocated_bytes": snapshot.peak_allocated_bytes,
        "reserved_at_peak_bytes": snapshot.reserved_at_peak_bytes,
        "peak_reserved_bytes": snapshot.peak_reserved_bytes,
        "fragmentation_fraction": snapshot.fragmentation_fraction,
        "allocated_bytes": snapshot.allocated_bytes,
        "reserved_bytes": snapshot.reserved_bytes,
        "largest_free_block_bytes": snapshot.largest_free_block_bytes,
        "shares": [{"category": o.category, "bytes": o.bytes, "fraction": o.fraction} for o in snapshot.shares],
        "sites": [
            {"stack": list(o.stack), "category": o.category, "bytes": o.bytes, "count": o.count} for o in snapshot.sites
        ],
        "failures": [
            {"requested_bytes": o.requested_bytes, "device_free_bytes": o.device_free_bytes} for o in snapshot.failures
        ],
        "release_count": snapshot.release_count,
    }
