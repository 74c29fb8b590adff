"""How much time an edit may give back, and what a run looks like after it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from three_walls.advice.edits import fact_of
from three_walls.advice.pools import remove_from_pool, remove_slice
from three_walls.vocabulary.facts import FactSheet
from three_walls.vocabulary.findings import Gain, PlannedEdit
from three_walls.vocabulary.rules import GainModel, GainTerm, Rule


class Level(StrEnum):
    """Which end of a gain is meant."""

    LOW = "low"
    LIKELY = "likely"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class _Share:
    """What one term takes from its pool, at each level."""

    pool: str
    ns: Mapping[Level, float]


def estimate(model: GainModel, facts: FactSheet) -> Gain:
    """Sum over the terms of fraction x pool, at most ``hidden_under`` and at most the step."""
    if not model.terms:
        return no_estimate(model, model.explanation)
    if lacking := _missing_facts(model, facts):
        return no_estimate(model, f"not known: {', '.join(lacking)}. {model.explanation}")
    shares = [_take(term, facts) for term in model.terms]
    limit = _limit(model, facts)
    low, likely, high = (min(limit, sum(share.ns[level] for share in shares)) for level in Level)
    return Gain(round(low), round(likely), round(high), model.basis, model.explanation)


def no_estimate(model: GainModel, explanation: str) -> Gain:
    """A gain that cannot be told."""
    return Gain(None, None, None, model.basis, explanation)


def gain_at(gain: Gain, level: Level) -> int | None:
    """The end of ``gain`` that ``level`` names."""
    return {Level.LOW: gain.low_ns, Level.LIKELY: gain.likely_ns, Level.HIGH: gain.high_ns}[level]


def apply_gain(
    rule: Rule, gain: Gain, edits: Sequence[PlannedEdit], facts: FactSheet, level: Level = Level.LIKELY
) -> FactSheet:
    """Facts after the edits: settings set, the gain taken from its pools, their sums and fractions derived again."""
    after = facts.with_values({fact_of(edit): edit.to for edit in edits})
    removed_ns = gain_at(gain, level)
    if not removed_ns:
        return after
    removed = _distribute(rule.gain, removed_ns, facts, level)
    if rule.gain.shrinks_all_pools:
        return remove_slice(after, removed)
    for pool, ns in removed.items():
        after = remove_from_pool(after, pool, ns, hides=bool(rule.gain.hidden_under))
    return after


def _distribute(model: GainModel, removed_ns: int, facts: FactSheet, level: Level) -> dict[str, int]:
    """``removed_ns`` split over the pools in proportion to their terms; the parts sum to it."""
    shares = [_take(term, facts) for term in model.terms]
    total = sum(share.ns[level] for share in shares)
    removed: dict[str, int] = {}
    taken_ns, so_far = 0, 0.0
    for share in shares:
        so_far += share.ns[level]
        part_ns = round(removed_ns * so_far / total) - taken_ns if total else 0
        removed[share.pool] = removed.get(share.pool, 0) + part_ns
        taken_ns += part_ns
    return removed


def _take(term: GainTerm, facts: FactSheet) -> _Share:
    pool_ns = facts.number(term.pool) or 0
    low, likely, high = _fractions(term, facts)
    return _Share(term.pool, {Level.LOW: pool_ns * low, Level.LIKELY: pool_ns * likely, Level.HIGH: pool_ns * high})


def _fractions(term: GainTerm, facts: FactSheet) -> tuple[float, float, float]:
    if not term.high_one_minus_fact:
        return term.low, term.likely, term.high
    high = max(term.low, 1 - (facts.number(term.high_one_minus_fact) or 0))
    return term.low, (term.low + high) / 2, high


def _limit(model: GainModel, facts: FactSheet) -> float:
    step_ns = facts.number("step_ns")
    cover_ns = facts.number(model.hidden_under) if model.hidden_under else None
    return min(limit for limit in (step_ns, cover_ns, float("inf")) if limit is not None)


def _missing_facts(model: GainModel, facts: FactSheet) -> list[str]:
    names = [name for term in model.terms for name in (term.pool, term.high_one_minus_fact)]
    needed = dict.fromkeys(name for name in [*names, model.hidden_under] if name)
    return [name for name in needed if facts.number(name) is None]
