"""Which single edit to try first, and what must be seen if it worked."""

from __future__ import annotations

from collections.abc import Sequence

from three_walls.model.fact import FactSheet
from three_walls.model.finding import FirstTrial, PlanStep


def choose_first_trial(plan: Sequence[PlanStep], facts: FactSheet) -> FirstTrial | None:
    """The plan's first entry, alone; None for an empty plan.

    The plan's order is what prefers a likely gain to a ceiling, and what makes the run fit to both.

    Shares come from the trace, time from the log: the log's unprofiled step should fall by the share of the traced
    step that the entry may give back.
    """
    if not plan:
        return None
    first = plan[0]
    step_ns, unprofiled = facts.number("step_ns"), facts.number("unprofiled_step_ns")
    low = high = None
    if step_ns and first.gain_ns.low is not None and first.gain_ns.high is not None:
        low, high = first.gain_ns.low / step_ns, first.gain_ns.high / step_ns
    after_low = after_high = None
    if unprofiled is not None and low is not None and high is not None:
        after_low, after_high = round(unprofiled * (1 - high)), round(unprofiled * (1 - low))
    return FirstTrial(
        rule=first.finding.rule,
        title=first.finding.title,
        basis=first.gain_ns.basis,
        saved_low_fraction=low,
        saved_high_fraction=high,
        unprofiled_step_ns=None if unprofiled is None else round(unprofiled),
        unprofiled_step_after_low_ns=after_low,
        unprofiled_step_after_high_ns=after_high,
        cost_fraction=first.gain_ns.cost_fraction,
        cost_is_estimated=first.gain_ns.cost_is_estimated,
        must_show=first.finding.how_to_verify,
    )
