"""Units: times are nanoseconds and sizes are bytes everywhere; ``report/formats.py`` turns them into text."""

from __future__ import annotations

NUMERIC = ("ns", "bytes", "count", "fraction", "ratio", "bytes_per_s", "tflops", "flops", "flops_per_s")
"""Units of facts that are numbers."""

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def ns_to_ms(value_ns: float) -> float:
    """Milliseconds of ``value_ns``, rounded to the microsecond."""
    return round(value_ns / NS_PER_MS, 3)
