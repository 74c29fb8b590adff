"""Units: nanoseconds and bytes inside, other units only at the edge.

The only module that holds a power of ten; ``report/formats.py`` turns these into strings.
"""

from __future__ import annotations

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def ns_to_ms(value_ns: float) -> float:
    """Milliseconds of ``value_ns``, rounded to the microsecond so that JSON stays readable."""
    return round(value_ns / NS_PER_MS, 3)


def known_ns_to_ms(value_ns: float | None) -> float | None:
    """:func:`ns_to_ms` of what is known, else None."""
    return None if value_ns is None else ns_to_ms(value_ns)
