"""A measured value, or the reason why there is none; and the units of numbers.

Times are nanoseconds and sizes are bytes everywhere; ``lib/text.py`` turns them into text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Never, TypeVar

NUMERIC = ("ns", "bytes", "count", "fraction", "ratio", "bytes_per_s", "tflops", "flops", "flops_per_s")
"""Units of facts that are numbers."""
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
GIVE_CONFIG = "(give --log, --config or --set)"
"""What to give so that a setting is known; ends the reason for which it, or what follows from it, is missing."""
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Measurement(Generic[T_co]):
    """A value, or the reason why there is none. ``None`` without a reason is a known "unset"."""

    value: T_co | None
    missing_reason: str | None = None

    @property
    def is_missing(self) -> bool:
        return self.missing_reason is not None

    @property
    def whole(self) -> int | None:
        """The value where it is a whole number."""
        return self.value if isinstance(self.value, int) and not isinstance(self.value, bool) else None

    def map(self, function: Callable[[T_co], T]) -> Measurement[T]:
        """What ``function`` makes of the value; missing for the same reason."""
        return Measurement(None, self.missing_reason) if self.value is None else Measurement(function(self.value))


def known(value: T) -> Measurement[T]:
    """The measurement ``value``."""
    return Measurement(value)


def missing(reason: str) -> Measurement[Never]:
    """No measurement, for ``reason``."""
    return Measurement(None, reason)


def unstated(*keys: str) -> Measurement[Never]:
    """No measurement, because no source states the settings ``keys``."""
    return missing(f"the config does not state {', '.join(keys)} {GIVE_CONFIG}")


def known_or_missing(value: T | None, reason: str) -> Measurement[T]:
    """The measurement ``value``; missing for ``reason`` where it is None."""
    return Measurement(value) if value is not None else Measurement(None, reason)
