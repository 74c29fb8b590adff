"""What the verdict and the plan say of each other: sentences for where their numbers would seem to disagree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from three_walls.advice.counterfactuals import COMMUNICATION, COMPUTE, HOST, MEMORY
from three_walls.advice.finding import PlanStep
from three_walls.advice.verdict_rows import Counterfactual, Verdict
from three_walls.lib.fact import FactSheet
from three_walls.lib.text import in_ms
from three_walls.step.step_rows import StepSummary
from three_walls.tables.buckets import SubWall, Wall

_NAMES = {
    MEMORY: "the use of memory",
    COMMUNICATION: "communication",
    COMPUTE: "compute",
    HOST: "the host",
    Wall.COMPUTE_HOST.value: "compute and the host",
}
_KEPT = {
    MEMORY: "which only leaves out recompute and copies: what the memory buys shortens other work",
    COMMUNICATION: "which keeps compute and the host as they are",
    COMPUTE: "which only takes out unfused attention and brings GEMMs to their peak",
    HOST: "which keeps every kernel as long as it is",
}
"""Wall -> why an edit against it may save more than the replay without it."""


def reconcile(verdict: Verdict, plan: Sequence[PlanStep], noise_ns: float = 0) -> tuple[Verdict, tuple[PlanStep, ...]]:
    """``verdict`` with a remark on the plan, and ``plan`` with why an entry may gain more than its wall.

    ``noise_ns``: by how much the steps of the run differ. Entries that gain less are marked.
    """
    explained = tuple(
        replace(
            step,
            beyond_wall=_explain_more(verdict, step),
            is_below_noise=step.gain_ns.likely is not None and step.gain_ns.likely < noise_ns,
        )
        for step in plan
    )
    remarks = (*_explain_first(verdict, plan), *_explain_total(verdict, plan))
    return replace(verdict, plan_remark=" ".join(remarks)), explained


def measure_noise_ns(facts: FactSheet, step: StepSummary) -> float:
    """How far a step of the run is from its median: half of the middle half of the log's steps, else of all traced."""
    ends = [facts.number(f"unprofiled_step_{end}_quartile_ns") for end in ("lower", "upper")]
    low, high = ends if None not in ends else (step.min_ns, step.max_ns)
    return 0 if low is None or high is None else (high - low) / 2


def _explain_more(verdict: Verdict, step: PlanStep) -> str:
    name = _name(step.finding.wall, step.finding.sub_wall)
    without, gain = find_without(verdict, name), step.gain_ns
    if without is None or step.order == 0 or gain.high is None or gain.high <= max(0, without.saved_ns):
        return ""
    saved = f"the {in_ms(max(0, without.saved_ns))} of the replay without {_NAMES[name]}"
    if gain.likely is not None and gain.likely > without.saved_ns:
        return f"It gains more than {saved}, {_KEPT[name]}."
    return f"Its high end is above {saved}: measured gains have exceeded replayed ones by so much."


def _explain_first(verdict: Verdict, plan: Sequence[PlanStep]) -> Iterator[str]:
    """Why the plan begins with an edit against another wall."""
    first = next((step for step in plan if step.order), None)
    if first is None or verdict.wall is None or verdict.abstained:
        return
    named, taken = _name(verdict.wall, verdict.sub_wall), _name(first.finding.wall, first.finding.sub_wall)
    if verdict.names(first.finding.wall, first.finding.sub_wall):
        return
    against = [step for step in plan if step.order and verdict.names(step.finding.wall, step.finding.sub_wall)]
    entry = f"Entry {first.order} changes {_NAMES[taken]}, not {_NAMES[named]}"
    if taken == MEMORY:
        entry = f"Entry {first.order} pays with memory for what it saves elsewhere"
    if not against:
        yield f"{entry}: no edit against {_NAMES[named]} alone gains enough for an entry."
    elif first.gain_ns.likely is None:
        yield f"{entry}: it makes room for entry {against[0].order}, the first against {_NAMES[named]}."
    else:
        yield f"{entry}: it gains more than entry {against[0].order}, the first against {_NAMES[named]}."


def _explain_total(verdict: Verdict, plan: Sequence[PlanStep]) -> Iterator[str]:
    """Why the plan gains more than any wall."""
    saved_ns = [each.saved_ns for each in list_walls(verdict)]
    gained_ns = sum(step.gain_ns.likely or 0 for step in plan if step.order)
    if saved_ns and gained_ns > max(saved_ns):
        yield (
            f"Together the edits gain {in_ms(gained_ns)}, more than the removal of any one wall: they shorten several, "
            "and take whole kernels out."
        )


def list_walls(verdict: Verdict) -> tuple[Counterfactual, ...]:
    """The replayed steps without one wall, or without one half of the third."""
    one = {(name,) for name in _NAMES} | {(COMPUTE, HOST)}
    return tuple(each for each in verdict.counterfactuals if each.without in one)


def find_without(verdict: Verdict, *walls: str) -> Counterfactual | None:
    """The replayed step without ``walls``; None where it was not replayed."""
    return next((each for each in verdict.counterfactuals if each.without == walls), None)


def _name(wall: Wall, sub_wall: SubWall | None) -> str:
    return wall.value if sub_wall is None else f"{wall.value}.{sub_wall.value}"
