"""How much time an edit may save, and what the facts are once it has.

Which sums contain a pool is in the pool's definition (``lib/fact.py``: Pool), next to the code that measures it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from three_walls.advice.edits import fact_of
from three_walls.advice.finding import Gain, PlannedEdit
from three_walls.advice.format.rule import GainModel, GainTerm, Rule
from three_walls.advice.format.rule_fields import OneMinusFact
from three_walls.advice.wording import list_labels
from three_walls.lib.fact import Fact, FactSheet, Pool
from three_walls.replay.transformation import Level

CULPRIT_RULE = "late-rank"
"""The rule of the rank to fix first."""
CULPRIT_COST = "culprit_cost_ns"
_WAITS = ("ep_wait_exposed_ns", "collective_wait_exposed_ns")

_NO_POOL = Pool(is_device_busy=False)


def estimate(model: GainModel, facts: FactSheet) -> Gain:
    """Sum over the terms of fraction x pool, at most ``hidden_under``, ``at_most`` and the step, less ``added``.

    An upper bound stays one where its limit is unknown. It is only higher than it would be otherwise.
    """
    if not model.terms:
        return no_estimate(model, model.explanation)
    pools = (name for term in model.terms for name in term.facts)
    limits = tuple(name for name in (model.hidden_under, model.at_most) if name)
    unknown_pools, unknown_limits = _unknown(pools, facts), _unknown(limits, facts)
    if lacking := [*unknown_pools, *([] if model.is_upper_bound else unknown_limits)]:
        return no_estimate(model, f"Unknown: {list_labels(lacking, facts)}. {model.explanation}")
    known_limits = (facts.number(name) for name in ("step_ns", *limits))
    limit_ns = min((limit for limit in known_limits if limit is not None), default=float("inf"))
    saved = [_saved_ns(term, facts) for term in model.terms]
    added_ns = facts.number(model.added) or 0 if model.added else 0
    low, likely, high = (max(0, round(min(limit_ns, sum(ns[level] for ns in saved)) - added_ns)) for level in Level)
    lowering = [*unknown_limits, *_unknown((model.added,) if model.added else (), facts)]
    kind = "bound" if model.is_upper_bound else "gain"
    loose = f"The {kind} would be lower if these were known: {list_labels(lowering, facts)}. " if lowering else ""
    return Gain(low, None if model.is_upper_bound else likely, high, model.basis, f"{loose}{model.explanation}")


def no_estimate(model: GainModel, explanation: str) -> Gain:
    """A gain without times: unknown, or none because the edits free memory instead."""
    return Gain(None, None, None, model.basis, explanation, model.cost_fraction, model.cost_is_estimated)


def _unknown(names: Iterable[str], facts: FactSheet) -> list[str]:
    return [name for name in dict.fromkeys(names) if facts.number(name) is None]


def _saved_ns(term: GainTerm, facts: FactSheet) -> dict[Level, float]:
    """The time of its pool that a term saves at each level. An upper bound has only a high end."""
    pool_ns = facts.number(term.pool) or 0
    low = 0.0 if term.is_upper_bound else term.low
    high = max(low, term.high.read(facts)) if isinstance(term.high, OneMinusFact) else term.high
    likely = 0.0 if term.is_upper_bound else (low + high) / 2 if term.likely is None else term.likely
    return {Level.LOW: pool_ns * low, Level.LIKELY: pool_ns * likely, Level.HIGH: pool_ns * high}


def apply_gain(
    rule: Rule, gain: Gain, edits: Sequence[PlannedEdit], facts: FactSheet, level: Level = Level.LIKELY
) -> FactSheet:
    """Facts after the edits: settings set, the gain taken from its pools, their sums and fractions derived again."""
    after = facts.with_values({fact_of(edit): edit.to for edit in edits})
    saved_ns = {Level.LOW: gain.low, Level.LIKELY: gain.likely, Level.HIGH: gain.high}[level]
    if not saved_ns:
        return after
    saved_by_pool = _distribute(rule.gain, saved_ns, facts, level)
    if rule.gain.shrinks_all_pools:
        return _remove_slice(after, saved_by_pool)
    for pool, ns in saved_by_pool.items():
        after = remove_from_pool(after, pool, ns, hides=bool(rule.gain.hidden_under))
    return after


def _distribute(model: GainModel, saved_ns: int, facts: FactSheet, level: Level) -> dict[str, int]:
    """``saved_ns`` split over the pools in proportion to their terms; the parts sum to it."""
    by_term = [(term.pool, _saved_ns(term, facts)[level]) for term in model.terms]
    total = sum(ns for _, ns in by_term)
    by_pool: dict[str, int] = {}
    distributed_ns, so_far = 0, 0.0
    for pool, ns in by_term:
        so_far += ns
        part_ns = round(saved_ns * so_far / total) - distributed_ns if total else 0
        by_pool[pool] = by_pool.get(pool, 0) + part_ns
        distributed_ns += part_ns
    return by_pool


def remove_from_pool(facts: FactSheet, pool: str, removed_ns: int, hides: bool) -> FactSheet:
    """Facts after ``removed_ns`` of ``pool`` disappeared or, with ``hides``, moved under compute."""
    definition = _pool_of(facts.get(pool))
    changes = dict.fromkeys((pool, "step_ns", *definition.part_of), -removed_ns)
    if definition.is_device_busy:
        changes["device_busy_ns"] = -removed_ns
    if hides and definition.hidden_part:
        changes[definition.hidden_part] = removed_ns
    elif not hides and definition.union:
        changes[definition.union] = -removed_ns
    for part, ns in _share_among_parts(facts, pool, removed_ns).items():
        changes[part] = changes.get(part, 0) - ns
    known = {name: number for name in changes if (number := facts.number(name)) is not None}
    return rederive_fractions(
        facts.with_values({name: round(max(0, number + changes[name])) for name, number in known.items()})
    )


def without_culprit(facts: FactSheet) -> FactSheet:
    """Facts of the step without the delay of the rank to fix first: waiting for it is nobody's recoverable time.

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
        after = remove_from_pool(after, name, part_ns, hides=False)
        left_ns -= part_ns
    if left_ns:  # its owners are not known, or the parts were rounded down
        after = remove_from_pool(after, CULPRIT_COST, left_ns, hides=False)
    return rederive_fractions(after.with_values({CULPRIT_COST: 0}))


def _share_among_parts(facts: FactSheet, pool: str, removed_ns: int) -> dict[str, int]:
    """What pools that are part of ``pool`` lose: its own share each, because nobody knows which part disappears.

    Other pools that contain such a part lose as much as the part.
    """
    whole_ns = facts.number(pool)
    if not whole_ns:
        return {}
    lost: dict[str, int] = {}
    above = {pool, *_pool_of(facts.get(pool)).part_of}
    parents_of = {name: _pool_of(fact).part_of for name, fact in facts.facts.items()}
    parts = [name for name, parents in parents_of.items() if pool in parents and name not in above]
    for part in parts:
        lost_ns = round((facts.number(part) or 0) * min(1.0, removed_ns / whole_ns))
        others = (name for name in parents_of[part] if name not in above and name not in parts)
        for name in (part, *others):
            lost[name] = lost.get(name, 0) + lost_ns
    return lost


def _remove_slice(facts: FactSheet, pools: Mapping[str, int]) -> FactSheet:
    """Facts after a slice of everything disappeared: the pools by their amounts, the rest by the same share."""
    step_ns = facts.number("step_ns")
    if not step_ns:
        return facts
    left = max(0.0, 1 - sum(pools.values()) / step_ns)
    times = (fact.name for fact in facts.facts.values() if fact.unit == "ns")
    values = {name: round(number * left) for name in times if (number := facts.number(name))}
    for pool, removed_ns in pools.items():
        old_ns = facts.number(pool) or 0
        values[pool] = round(max(0, old_ns - removed_ns))
        for parent in _pool_of(facts.get(pool)).part_of:
            if (whole_ns := facts.number(parent)) is not None:
                values[parent] = values[pool] + round(max(0, whole_ns - old_ns) * left)
    return rederive_fractions(facts.with_values(values))


def _pool_of(fact: Fact) -> Pool:
    """What ``fact`` is part of; nothing where its definition names no pool."""
    return (fact.definition.pool if fact.definition else None) or _NO_POOL


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
