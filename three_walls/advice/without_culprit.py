"""The facts of a run without the delay of the rank to fix first: waiting for it is nobody's recoverable time."""

from __future__ import annotations

from dataclasses import replace

from three_walls.lib.fact import FactSheet

CULPRIT_RULE = "late-rank"
"""The rule of the rank to fix first."""
CULPRIT_COST = "culprit_cost_ns"
_WAITS = {"ep_wait_exposed_ns": "ep_exposed_ns", "collective_wait_exposed_ns": "collective_exposed_ns"}
"""Waiting by kind of communication, and the exposed communication that contains it."""
_PARTS = {"collective_wait_exposed_ns": ("pipeline_bubble_ns", "pipeline_bubble_excess_ns", "barrier_exposed_ns")}
"""Parts of that waiting: a bubble is waiting inside collectives, except at the end of the step."""


def without_culprit(facts: FactSheet) -> FactSheet:
    """``facts`` of the step without the delay of the rank to fix first; as they are where there is none.

    The waiting for it is taken from expert-parallel and other waiting in proportion; which of them it was is not known.
    """
    if not facts.number(CULPRIT_COST):
        return facts
    after = _remove_delay(facts)
    traced = _remove_delay(facts.as_traced()).facts
    before_log = {name: fact.value for name, fact in traced.items() if fact.value != after.get(name).value}
    return replace(after, before_log=before_log if facts.before_log else {})


def _remove_delay(facts: FactSheet) -> FactSheet:
    cost_ns = round(facts.number(CULPRIT_COST) or 0)
    waits = {name: number for name in _WAITS if (number := facts.number(name))}
    after, left_ns = facts, cost_ns
    for name, waited_ns in waits.items():
        part_ns = min(left_ns, round(cost_ns * waited_ns / sum(waits.values())))
        after = _remove_time(after, name, part_ns)
        left_ns -= part_ns
    if left_ns:  # its owners are not known, or the parts were rounded down
        after = _remove_time(after, CULPRIT_COST, left_ns)
    return _derive_fractions(after.with_values({CULPRIT_COST: 0}))


def _remove_time(facts: FactSheet, name: str, removed_ns: int) -> FactSheet:
    """Facts after ``removed_ns`` of the waiting ``name`` disappeared, from all that contain it and from its parts.

    Each part loses its share: nobody knows which of them disappears.
    """
    sums = filter(None, (name, _WAITS.get(name), "wait_exposed_ns", "device_busy_ns", "step_ns", "unpaused_step_ns"))
    left = {each: number - removed_ns for each in sums if (number := facts.number(each)) is not None}
    lost_fraction = min(1.0, removed_ns / (facts.number(name) or removed_ns))
    left |= {part: ns * (1 - lost_fraction) for part in _PARTS.get(name, ()) if (ns := facts.number(part)) is not None}
    return facts.with_values({each: round(max(0, ns)) for each, ns in left.items()})


def _derive_fractions(facts: FactSheet) -> FactSheet:
    """Every known fraction computed again from its numerator and denominator."""
    values = {}
    for fact in facts.facts.values():
        if fact.definition is None or not fact.definition.numerator or fact.is_missing:
            continue
        part, whole = facts.number(fact.definition.numerator), facts.number(fact.definition.denominator)
        if part is not None and whole:
            values[fact.name] = part / whole
    return facts.with_values(values)
