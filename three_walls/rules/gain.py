"""How much time an edit may save, and the facts of the run after it did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from three_walls.model.fact import FactSheet
from three_walls.model.finding import Gain, PlannedEdit
from three_walls.model.rule import GainModel, GainTerm, Rule
from three_walls.rules.edits import fact_of
from three_walls.rules.pools import remove_from_pool, remove_slice
from three_walls.rules.wording import list_labels


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
    """Sum over the terms of fraction x pool, at most ``hidden_under``, ``at_most`` and the step.

    An upper bound whose limit is unknown is still an upper bound, only a higher one.
    """
    if not model.terms:
        return no_estimate(model, model.explanation)
    open_limits = _unknown(_limits(model), facts)
    if lacking := [*_unknown(_pools(model), facts), *([] if model.is_upper_bound else open_limits)]:
        return no_estimate(model, f"Unknown: {list_labels(lacking, facts)}. {model.explanation}")
    shares = [_take(term, facts) for term in model.terms]
    limit = _limit(model, facts)
    low, likely, high = (round(min(limit, sum(share.ns[level] for share in shares))) for level in Level)
    loose = f"The bound would be lower if these were known: {list_labels(open_limits, facts)}. " if open_limits else ""
    return Gain(low, None if model.is_upper_bound else likely, high, model.basis, f"{loose}{model.explanation}")


def no_estimate(model: GainModel, explanation: str) -> Gain:
    """A gain in time that is unknown, or that there is none because the edits free memory."""
    return Gain(None, None, None, model.basis, explanation, model.cost_fraction, model.cost_is_estimated)


def gain_at(gain: Gain, level: Level) -> int | None:
    """The end of ``gain`` that ``level`` names."""
    return {Level.LOW: gain.low, Level.LIKELY: gain.likely, Level.HIGH: gain.high}[level]


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
    """The time that disappears at each level; an upper bound has only a high end."""
    pool_ns = facts.number(term.pool) or 0
    low, likely, high = _fractions(term, facts)
    return _Share(
        term.pool, {Level.LOW: pool_ns * low, Level.LIKELY: pool_ns * (likely or 0), Level.HIGH: pool_ns * high}
    )


def _fractions(term: GainTerm, facts: FactSheet) -> tuple[float, float | None, float]:
    if not term.high_one_minus_fact:
        return term.low, term.likely, term.high
    high = max(term.low, 1 - (facts.number(term.high_one_minus_fact) or 0))
    return term.low, None if term.likely is None else (term.low + high) / 2, high


def _pools(model: GainModel) -> list[str]:
    """Facts without which there is no estimate."""
    return [name for term in model.terms for name in (term.pool, term.high_one_minus_fact) if name]


def _limits(model: GainModel) -> list[str]:
    """Facts that the gain cannot exceed."""
    return [name for name in (model.hidden_under, model.at_most) if name]


def _limit(model: GainModel, facts: FactSheet) -> float:
    limits = (facts.number(name) for name in ("step_ns", *_limits(model)))
    return min((limit for limit in limits if limit is not None), default=float("inf"))


def _unknown(names: Iterable[str], facts: FactSheet) -> list[str]:
    return [name for name in dict.fromkeys(names) if facts.number(name) is None]
