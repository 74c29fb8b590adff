"""Entries of a timers block -> timers: shortest and longest rank, with every rank where each was printed."""

from __future__ import annotations

from collections.abc import Iterable

from three_walls.model.training_log import LogTimer
from three_walls.model.units import NS_PER_MS

Entries = Iterable[tuple[str, str]]
"""Values are numbers with two digits after the point: ``tables/log-lines.yaml`` lets no others through."""


def read_timers(entries: Entries) -> tuple[LogTimer, ...]:
    """Timers of (name, ``12.00`` or ``(11.50, 12.00)``) pairs, by name; of a name that comes again, the last."""
    found = {}
    for name, text in entries:
        shortest, _, longest = text.strip("()").rpartition(", ")
        found[name] = LogTimer(name, _ns(shortest) if shortest else None, _ns(longest))
    return tuple(found[name] for name in sorted(found))


def read_rank_timers(entries: Entries) -> tuple[LogTimer, ...]:
    """Timers of (``name.rank``, milliseconds) pairs, by name."""
    ranks: dict[str, dict[int, int]] = {}
    for entry, text in entries:
        name, _, rank = entry.rpartition(".")
        ranks.setdefault(name, {})[int(rank)] = _ns(text)
    return tuple(timer_of_ranks(name, ranks[name]) for name in sorted(ranks))


def timer_of_ranks(name: str, ranks_ns: dict[int, int]) -> LogTimer:
    """The timer of these ranks; at least one."""
    return LogTimer(name, min(ranks_ns.values()), max(ranks_ns.values()), tuple(sorted(ranks_ns.items())))


def _ns(milliseconds: str) -> int:
    return round(float(milliseconds) * NS_PER_MS)
