"""Plans forward: what the facts are once time of a pool is gone, or hidden.

Which facts contain a pool stands in its definition (``model/fact.py``: Pool), beside the code that measures it.
"""

from __future__ import annotations

from collections.abc import Mapping

from three_walls.model.fact import Fact, FactSheet, Pool

CULPRIT_COST = "culprit_cost_ns"
_WAITS = ("ep_wait_exposed_ns", "collective_wait_exposed_ns")

_NO_POOL = Pool(is_device_busy=False)


def pool_of(fact: Fact) -> Pool:
    """What ``fact`` is part of; nothing where its definition names no pool."""
    return (fact.definition.pool if fact.definition else None) or _NO_POOL


def remove_from_pool(facts: FactSheet, pool: str, removed_ns: int, hides: bool) -> FactSheet:
    """Facts after ``removed_ns`` of ``pool`` disappeared, or with ``hides`` moved under computing."""
    defined = pool_of(facts.get(pool))
    changes = dict.fromkeys((pool, "step_ns", *defined.part_of), -removed_ns)
    if defined.is_device_busy:
        changes["device_busy_ns"] = -removed_ns
    if hides and defined.hidden_part:
        changes[defined.hidden_part] = removed_ns
    elif not hides and defined.union:
        changes[defined.union] = -removed_ns
    for part, ns in _parts_that_go(facts, pool, removed_ns).items():
        changes[part] = changes.get(part, 0) - ns
    return rederive_fractions(_add(facts, changes))


def _parts_that_go(facts: FactSheet, pool: str, removed_ns: int) -> dict[str, int]:
    """Pools that are part of ``pool`` lose the share that it loses: which of its parts goes is not known.

    What else contains them loses as much.
    """
    whole_ns = facts.number(pool)
    if not whole_ns:
        return {}
    gone: dict[str, int] = {}
    above = {pool, *pool_of(facts.get(pool)).part_of}
    parents_of = {name: pool_of(fact).part_of for name, fact in facts.facts.items()}
    parts = [name for name, parents in parents_of.items() if pool in parents and name not in above]
    for part in parts:
        lost_ns = round((facts.number(part) or 0) * min(1.0, removed_ns / whole_ns))
        others = (name for name in parents_of[part] if name not in above and name not in parts)
        for name in (part, *others):
            gone[name] = gone.get(name, 0) + lost_ns
    return gone


def without_culprit(facts: FactSheet) -> FactSheet:
    """Facts of the step without the delay of the rank to fix first: waiting for it is nobody's recoverable time.

    The waiting for it is taken from expert-parallel and other waiting in proportion; which of them it was is not known.
    """
    cost_ns = round(facts.number(CULPRIT_COST) or 0)
    if not cost_ns:
        return facts
    waits = {name: number for name in _WAITS if (number := facts.number(name))}
    after, left_ns = facts, cost_ns
    for name, waited_ns in waits.items():
        part_ns = min(left_ns, round(cost_ns * waited_ns / sum(waits.values())))
        after = remove_from_pool(after, name, part_ns, hides=False)
        left_ns -= part_ns
    if left_ns:  # its owners are not known, or the parts were rounded down
        after = remove_from_pool(after, CULPRIT_COST, left_ns, hides=False)
    return rederive_fractions(after.with_values({CULPRIT_COST: 0}))


def remove_slice(facts: FactSheet, pools: Mapping[str, int]) -> FactSheet:
    """Facts after a slice of everything disappeared: the pools by their amounts, the rest by the same share."""
    step_ns = facts.number("step_ns")
    if not step_ns:
        return facts
    left = max(0.0, 1 - sum(pools.values()) / step_ns)
    values = {fact.name: round(number * left) for fact in _times(facts) if (number := facts.number(fact.name))}
    for pool, removed_ns in pools.items():
        old_ns = facts.number(pool) or 0
        values[pool] = round(max(0, old_ns - removed_ns))
        for parent in pool_of(facts.get(pool)).part_of:
            if (whole_ns := facts.number(parent)) is not None:
                values[parent] = values[pool] + round(max(0, whole_ns - old_ns) * left)
    return rederive_fractions(facts.with_values(values))


def rederive_fractions(facts: FactSheet) -> FactSheet:
    """Every known fraction computed again from its numerator and denominator."""
    values = {}
    for fact in facts.facts.values():
        if fact.definition is None or not fact.definition.numerator or fact.is_missing:
            continue
        part, whole = facts.number(fact.definition.numerator), facts.number(fact.definition.denominator)
        if part is not None and whole:
            values[fact.name] = part / whole
    return facts.with_values(values)


def _add(facts: FactSheet, changes: Mapping[str, int]) -> FactSheet:
    known = {name: number for name in changes if (number := facts.number(name)) is not None}
    return facts.with_values({name: round(max(0, number + changes[name])) for name, number in known.items()})


def _times(facts: FactSheet) -> list[Fact]:
    return [fact for fact in facts.facts.values() if fact.unit == "ns"]
