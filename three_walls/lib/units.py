"""Units: times are nanoseconds and sizes are bytes everywhere; ``lib/text.py`` turns them into text."""

from __future__ import annotations

NUMERIC = ("ns", "bytes", "count", "fraction", "ratio", "bytes_per_s", "tflops", "flops", "flops_per_s")
"""Units of facts that are numbers."""
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
