"""The training log in one line, for the terminal and the page."""

from __future__ import annotations

from three_walls.render.formats import format_count, format_gib, format_ms
from three_walls.vocabulary.report import LogSummary


def describe_log(log: LogSummary) -> str:
    """``Log: unprofiled step 377 ms (2 of 10 iterations; 4 warm-up, 4 profiled); peak memory 29.9 GiB``."""
    others = ", ".join(f"{count} {role}" for role, count in log.roles.items() if role != "steady")
    steady = f"{format_count(log.roles.get('steady', 0))} of {format_count(log.iterations)} iterations"
    parts = [f"Log: unprofiled step {format_ms(log.unprofiled_step_ns)} ({'; '.join(filter(None, (steady, others)))})"]
    if log.peak_memory_bytes is not None:
        parts.append(
            f"peak memory {format_gib(log.peak_memory_bytes)}, reserved {format_gib(log.reserved_memory_bytes)}"
        )
    if log.allocator_retries:
        parts.append(f"{format_count(log.allocator_retries)} allocations tried again")
    if log.ooms:
        parts.append(f"memory exhausted {format_count(log.ooms)} times")
    if log.torn_lines:
        parts.append(f"{format_count(log.torn_lines)} torn lines left out")
    return "; ".join(parts)
