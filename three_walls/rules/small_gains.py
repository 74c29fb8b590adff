"""What is too small to be planned: a gain, likely or at most, that nobody could measure."""

from __future__ import annotations

from dataclasses import replace

from three_walls.model.fact import FactSheet
from three_walls.model.finding import Finding, Gain, Outcome
from three_walls.model.rule import Rule
from three_walls.model.units import ns_to_ms
from three_walls.rules.gain import estimate
from three_walls.rules.judge import judge_safely
from three_walls.rules.thresholds import Thresholds, default_thresholds


def judge_with_size(rule: Rule, facts: FactSheet, thresholds: Thresholds | None = None) -> Finding:
    """``judge_safely``, and not needed where the gain is too small; without a step nothing is."""
    finding = judge_safely(rule, facts)
    step_ns = facts.number("step_ns")
    if not step_ns:
        return finding
    return drop_small(finding, rule, facts, minimum_gain_ns(step_ns, thresholds))


def minimum_gain_ns(step_ns: float, thresholds: Thresholds | None = None) -> float:
    """The least that a rule must be able to gain of a step of this length."""
    return (thresholds or default_thresholds()).minimum_plan_gain_fraction * step_ns


def drop_small(finding: Finding, rule: Rule, facts: FactSheet, minimum_ns: float) -> Finding:
    """A rule that is recommended, or may be if more were known, is not needed where nobody could measure its gain."""
    gain = estimate(rule.gain, facts) if finding.outcome is Outcome.UNKNOWN else finding.gain_ns
    if finding.outcome not in (Outcome.RECOMMENDED, Outcome.UNKNOWN) or not is_small(gain, minimum_ns):
        return finding
    return replace(finding, outcome=Outcome.NOT_NEEDED, reason=describe_small(gain, minimum_ns), missing=())


def is_small(gain: Gain, minimum_ns: float) -> bool:
    """Whether the likely gain, or where only that is known the ceiling, is below ``minimum_ns``."""
    size_ns = gain.high if gain.likely is None else gain.likely
    return size_ns is not None and size_ns < minimum_ns


def describe_small(gain: Gain, minimum_ns: float) -> str:
    """The size of ``gain`` beside what is needed."""
    needed = f"at least {ns_to_ms(minimum_ns):g} ms needed"
    if gain.likely is None:
        return f"at most {ns_to_ms(gain.high or 0):g} ms can be gained, {needed}"
    return f"the likely gain is {ns_to_ms(gain.likely):g} ms, {needed}"
