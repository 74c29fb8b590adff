"""The most that a rule's edits can gain where no replay tells it: a sum of shares of times of the step.

Also whether a gain is large enough for an entry of the plan.
"""

from __future__ import annotations

from collections.abc import Iterable

from three_walls.advice import verdict_thresholds
from three_walls.advice.finding import FREES_MEMORY, NO_BASIS, UPPER_BOUND, Gain
from three_walls.advice.format.rule import GainModel, TimeShare
from three_walls.advice.format.rule_fields import OneMinusFact
from three_walls.advice.wording import list_labels
from three_walls.lib.fact import FactSheet
from three_walls.lib.text import in_ms


def bound_gain(model: GainModel, facts: FactSheet) -> Gain:
    """The upper bound of ``model``: no more than ``within`` and the step; unknown if one of its times is.

    It stays a bound where one of ``within`` is unknown. It is only higher than it would be otherwise.
    """
    if not model.at_most:
        return no_gain(model, model.explanation)
    times = (name for share in model.at_most for name in share.facts)
    if lacking := _unknown(times, facts):
        return no_gain(model, f"Unknown: {list_labels(lacking, facts)}. {model.explanation}")
    limits = [number for name in ("step_ns", *model.within) if (number := facts.number(name)) is not None]
    high = round(min([sum(_read(share, facts) for share in model.at_most), *limits]))
    unknown = _unknown(model.within, facts)
    loose = f"The bound would be lower if these were known: {list_labels(unknown, facts)}. " if unknown else ""
    return Gain(0, None, high, UPPER_BOUND, f"{loose}{model.explanation}")


def no_gain(model: GainModel, explanation: str) -> Gain:
    """A gain without times: unknown, or none because the edits free memory instead."""
    basis = FREES_MEMORY if model.frees_memory else UPPER_BOUND if model.at_most else NO_BASIS
    return Gain(None, None, None, basis, explanation)


def find_unpaused(facts: FactSheet) -> float:
    """The traced step without the pauses of the host; 0 where there is no step."""
    return facts.number("unpaused_step_ns") or 0


def minimum_gain_ns(step_ns: float) -> float:
    """The smallest gain worth a plan entry in a step of this length; a smaller one cannot be measured."""
    return verdict_thresholds.MINIMUM_PLAN_GAIN_FRACTION * step_ns


def is_small(gain: Gain, minimum_ns: float) -> bool:
    """Whether the likely gain, or the upper bound where only that is known, is below ``minimum_ns``."""
    size_ns = gain.high if gain.likely is None else gain.likely
    return size_ns is not None and size_ns < minimum_ns


def is_nearly_enough(gain: Gain, minimum_ns: float) -> bool:
    """Whether ``gain`` misses ``minimum_ns`` by little at most."""
    return not is_small(gain, (1 - verdict_thresholds.NEAR_THRESHOLD_FRACTION) * minimum_ns)


def describe_small(gain: Gain, minimum_ns: float) -> str:
    """The size of ``gain``, with the size that a plan needs."""
    threshold = f"(threshold {in_ms(minimum_ns, '.3g')})"
    if gain.likely is None:
        return f"The gain is at most {in_ms(gain.high or 0, '.3g')} {threshold}"
    if gain.likely < 0:
        return f"The edit likely costs {in_ms(-gain.likely, '.3g')} {threshold}"
    return f"The likely gain is {in_ms(gain.likely, '.3g')} {threshold}"


def _unknown(names: Iterable[str], facts: FactSheet) -> list[str]:
    return [name for name in dict.fromkeys(names) if facts.number(name) is None]


def _read(part: TimeShare, facts: FactSheet) -> float:
    share = max(0.0, part.share.read(facts)) if isinstance(part.share, OneMinusFact) else part.share
    return (facts.number(part.time) or 0) * share
