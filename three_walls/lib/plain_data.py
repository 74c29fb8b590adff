"""Values as configurations hold them: texts, numbers, flags, lists of these."""

from __future__ import annotations

ConfigScalar = str | int | float | bool | None
ConfigData = ConfigScalar | tuple[ConfigScalar, ...]
LARGEST_WHOLE_NUMBER = 10**18 - 1
"""Of a setting: what 64 bits hold. A larger number is a mistake, and no other number may overflow because of it."""


def as_whole_number(value: object) -> int | None:
    """``value`` where it is a whole number that 64 bits hold, else None. True and False are no numbers."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if abs(value) <= LARGEST_WHOLE_NUMBER else None


def as_size(value: object) -> int | None:
    """``value`` where it is a whole number above 0, else None."""
    number = as_whole_number(value)
    return number if number is not None and number > 0 else None
