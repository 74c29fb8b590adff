"""What to try first, in a sentence and in JSON."""

from __future__ import annotations

from typing import Any

from three_walls.model.finding import FirstTrial
from three_walls.model.rule import FREES_MEMORY, UPPER_BOUND
from three_walls.model.units import known_ns_to_ms
from three_walls.report.formats import format_cost, format_ms, format_ms_range, format_share


def describe_expectation(trial: FirstTrial) -> str:
    """What the log must show if the edit worked."""
    if trial.basis == FREES_MEMORY:
        cost = format_cost(trial.cost_fraction, trial.cost_is_estimated)
        return f"It makes room: the log's peak of memory should fall. It {cost}."
    if trial.saved_low_fraction is None or trial.saved_high_fraction is None:
        return "Its gain is not known: the log's unprofiled step time decides."
    if trial.basis == UPPER_BOUND:
        return _describe_ceiling(trial, format_share(trial.saved_high_fraction))
    share = f"{format_share(trial.saved_low_fraction)} to {format_share(trial.saved_high_fraction)}"
    if trial.unprofiled_step_ns is None:
        return f"The unprofiled step time in the log should fall by {share}."
    after = format_ms_range(trial.unprofiled_step_after_low_ns, trial.unprofiled_step_after_high_ns)
    now = format_ms(trial.unprofiled_step_ns)
    return f"The unprofiled step time in the log, {now} now, should fall to {after} (by {share})."


def _describe_ceiling(trial: FirstTrial, share: str) -> str:
    """What is seen at best; a plan that begins with a ceiling has no likely gain to begin with."""
    start = (
        "Nobody measured how much it gains, and no entry with a likely gain can go first: at best the log's step time"
    )
    if trial.unprofiled_step_ns is None:
        return f"{start} falls by {share}."
    now, after = format_ms(trial.unprofiled_step_ns), format_ms(trial.unprofiled_step_after_low_ns)
    return f"{start}, {now} now, falls to {after} (by {share})."


def first_trial_as_json(trial: FirstTrial | None) -> dict[str, Any] | None:
    """``first_trial`` of report.json."""
    if trial is None:
        return None
    return {
        "rule": trial.rule,
        "basis": trial.basis,
        "saved_fraction": {"low": trial.saved_low_fraction, "high": trial.saved_high_fraction},
        "unprofiled_step_ms": known_ns_to_ms(trial.unprofiled_step_ns),
        "unprofiled_step_ms_after": {
            "low": known_ns_to_ms(trial.unprofiled_step_after_low_ns),
            "high": known_ns_to_ms(trial.unprofiled_step_after_high_ns),
        },
        "cost_fraction": trial.cost_fraction,
        "cost_is_estimated": trial.cost_is_estimated,
        "must_show": trial.must_show,
    }
