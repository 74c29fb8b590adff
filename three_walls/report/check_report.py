"""What must hold between the numbers of a report, whoever adds them up.

The sums are asserted where a report is made. That its first screen speaks of one step is tested on real captures.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from three_walls.advice.finding import FREES_MEMORY, Bounds, PlanStep
from three_walls.advice.reconcile import list_walls
from three_walls.lib.text import format_ms
from three_walls.report.report import Report
from three_walls.report.section import Hero, Section, plain_text
from three_walls.report.sections.steps import StepBase, find_step_base
from three_walls.report.sections.verdict import verdict
from three_walls.report.sections.walls import find_counterfactual

_STEP = re.compile(
    r"\b(\w{1,40}) ([\d.,]{1,20}) ms (?:unprofiled )?step\b|\b(of) ([\d.,]{1,20}) ms without the profiler"
)
"""A length of the step in a sentence, with the word before it."""


def check_report(report: Report) -> None:
    """Raises AssertionError where the entries of the plan do not lead from the step now to the step after them."""
    if problems := [*find_wrong_steps(report)]:
        raise AssertionError(f"the report contradicts itself: {'; '.join(problems)}")


def find_wrong_steps(report: Report) -> Iterator[str]:
    """Entries of the plan whose gain does not lead from the step before to the step after."""
    base = find_step_base(report)
    if base is None:
        return
    before, likely_ns = Bounds(base.now_ns, base.now_ns), base.now_ns
    for step in report.plan:
        yield from _check_sums(step, before, likely_ns)
        before = step.step_after_ns
        likely_ns = likely_ns if step.step_after_likely_ns is None else step.step_after_likely_ns


def find_wrong_sums(report: Report) -> Iterator[str]:
    """The same, and numbers of verdict and plan that differ although no sentence says why."""
    yield from find_wrong_steps(report)
    for step in report.plan:
        wall = find_counterfactual(report, step.finding.wall, step.finding.sub_wall)
        if step.order and wall and (step.gain_ns.high or 0) > max(0, wall.saved_ns) and not step.beyond_wall:
            yield f"entry {step.order} ({step.rule}) gains more than its wall without a word why"
    if base := find_step_base(report):
        yield from _check_culprit(report, base)
    entries, result = [step for step in report.plan if step.order], report.verdict
    walls = list_walls(result)
    gained_ns = sum(step.gain_ns.likely or 0 for step in entries)
    if walls and gained_ns > max(each.saved_ns for each in walls) and "Together" not in result.plan_remark:
        yield f"the plan gains {format_ms(gained_ns)}, more than any wall, without a word why"
    if not entries or result.wall is None or result.abstained:
        return
    first = entries[0]
    is_other = not result.names(first.finding.wall, first.finding.sub_wall)
    if is_other and f"Entry {first.order} " not in result.plan_remark:
        yield f"entry {first.order} ({first.rule}) is of another wall than the verdict without a word why"


def _check_sums(step: PlanStep, before: Bounds, likely_ns: int) -> Iterator[str]:
    gain, after = step.gain_ns, step.step_after_ns
    if gain.basis == FREES_MEMORY or gain.high is None:
        return
    widest = Bounds(max(0, before.low - gain.high), before.high - (gain.low or 0))
    is_wider = after.low < widest.low - 1 or after.high > widest.high + 1  # ends are rounded one by one
    if is_wider or (before.low == before.high and after != widest):
        yield f"the step after entry {step.order} ({step.rule}) is {after}, and its gain leads to {widest} at most"
    if gain.likely is not None and step.step_after_likely_ns != likely_ns - gain.likely:
        yield f"the likely step after entry {step.order} ({step.rule}) is not the step before less its gain"


def _check_culprit(report: Report, base: StepBase) -> Iterator[str]:
    """The rank to fix first costs what the first entry gains, of the step that everything else is of."""
    culprit, first = report.verdict.culprit, report.plan[0] if report.plan else None
    if culprit is None:
        return
    sum_ns = culprit.cost_ns + culprit.step_without_it_ns
    if sum_ns != base.now_ns:
        yield f"the step of {culprit.named} is {sum_ns}, the report's {base.now_ns}"
    if first and first.order == 0 and culprit.cost_ns != (first.gain_ns.likely or first.gain_ns.high):
        yield f"{culprit.named} costs {culprit.cost_ns}, and to fix it gains {first.gain_ns}"


def find_other_steps(report: Report) -> Iterator[str]:
    """Lengths of a step on the first screen that are neither the step now nor named as traced."""
    base = find_step_base(report)
    if base is None:
        return
    hero = find_hero(verdict(report))
    culprit = report.verdict.culprit
    paused_ns = report.facts.number("host_pause_cost_ns") or 0
    judged_ns = (base.now_ns, *((culprit.step_without_it_ns,) if culprit else ()))
    steps_ns = [ns - pause_ns for ns in judged_ns for pause_ns in (0, paused_ns)]  # what is judged, and named so
    for text in (hero.text, *hero.notes, hero.remark):
        for found in _STEP.finditer(text):
            word, length = found[1] or found[3], found[2] or found[4]
            ns = float(length.replace(",", "")) * 1e6
            if word != "traced" and not any(math.isclose(ns, step_ns, rel_tol=0.01) for step_ns in steps_ns):
                yield f"{found[0]!r} beside a step of {format_ms(base.now_ns)}"
    warnings = next((plain_text(piece) for piece in hero.limits if "warning" in plain_text(piece)), "")
    if warnings:
        names = warnings.partition("(")[2].rstrip(")").split(", ")
        named = sum(int(name.split()[0]) if name.split()[0].isdecimal() else 1 for name in names)
        if named != int(warnings.split()[0]):
            yield f"{warnings}: {named} are named"


def find_hero(section: Section) -> Hero:
    """The head of the report."""
    return next(block for block in section.blocks if isinstance(block, Hero))
