"""The training log's summary, as report.json holds it."""

from __future__ import annotations

from typing import Any

from three_walls.vocabulary.report import LogSummary
from three_walls.vocabulary.units import known_ns_to_ms

Json = dict[str, Any]


def log_as_json(log: LogSummary) -> Json:
    """The object ``log``; the same numbers with their reasons are facts."""
    length_ns = log.unprofiled_step_ns
    return {
        "files": list(log.files),
        "iterations": log.iterations,
        "steady_count": log.roles.get("steady", 0),
        "roles": dict(log.roles),
        "torn_lines": log.torn_lines,
        "unprofiled_step_ms": known_ns_to_ms(length_ns),
        "peak_memory_bytes": log.peak_memory_bytes,
        "reserved_memory_bytes": log.reserved_memory_bytes,
        "allocator_retries": log.allocator_retries,
        "theoretical_memory_bytes": log.theoretical_memory_bytes,
        "parameters": log.parameters,
        "ooms": log.ooms,
        "events": dict(log.events),
    }
