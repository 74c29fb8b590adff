"""Spells each entry of the plan alone, to be applied to the run as it is.

In the plan an entry builds on the earlier ones: what they set it does not set again, and a list that they change it
changes further. Alone it has the edits that its rule asks for on the run as it is, at the values that the plan found
best. They are checked as the plan's are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from three_walls.advice.finding import Finding, Outcome, PlannedEdit, PlanStep
from three_walls.bridge.check_overrides import find_problems
from three_walls.bridge.render_overrides import spell
from three_walls.lib.text import join_words
from three_walls.megatron.settings.run_config import RunConfig


def spell_entries(
    plan: Sequence[PlanStep], findings: Iterable[Finding], config: RunConfig, bridge_version: str | None = None
) -> tuple[PlanStep, ...]:
    """``plan`` with the overrides of each entry alone, or with the reason why it has none.

    ``findings``: the rules as judged on the run as it is; those of the plan's entries are among them.
    """
    findings_by_rule = {finding.rule: finding for finding in findings}
    steps: dict[str, PlanStep] = {}
    for step in plan:
        steps[step.rule] = _spell_entry(step, findings_by_rule[step.rule], steps, config, bridge_version)
    return tuple(steps.values())


def _spell_entry(
    step: PlanStep, finding: Finding, earlier: Mapping[str, PlanStep], config: RunConfig, bridge_version: str | None
) -> PlanStep:
    """``earlier``: the entries before it by rule, in their order, which have their own overrides already."""
    if not step.edits:
        return replace(step, no_overrides_reason="It has no edits: no setting fixes it.")
    if finding.outcome is Outcome.BLOCKED:
        return _require(step, step.unlocked_by.split(", ") if step.unlocked_by else earlier, finding.reason, earlier)
    alone = _list_edits_alone(step, finding)
    problems = find_problems(alone, config, bridge_version)
    if problems:
        needed = _find_needed(step, alone, earlier.values(), config, bridge_version)
        return _require(step, needed, "; ".join(note.text for note in problems), earlier)
    planned = {(edit.kind, edit.key): edit.to for edit in step.edits}
    overrides = spell(alone, config, bridge_version or config.bridge_version)
    # What the plan settles by an earlier entry, a person has to confirm.
    unsettled = [note for note in finding.confirm_first if note not in step.finding.confirm_first]
    notes = (*overrides.notes, *(f"Applied alone: {note.text}" for note in unsettled))
    return replace(
        step,
        overrides=replace(overrides, notes=notes),
        differing_edits=tuple(
            edit for edit in alone if (edit.kind, edit.key) not in planned or planned[edit.kind, edit.key] != edit.to
        ),
    )


def _list_edits_alone(step: PlanStep, finding: Finding) -> tuple[PlannedEdit, ...]:
    """What the entry sets on the run as it is: what its rule asks for there, at the values of the plan.

    A list that the plan changes further is changed from what the run has. Edits of two rules belong together.
    """
    if step.with_rule:
        return step.edits
    planned = {(edit.kind, edit.key): edit for edit in step.edits if not isinstance(edit.to, tuple)}
    return tuple(planned.get((edit.kind, edit.key), edit) for edit in finding.edits)


def _require(step: PlanStep, needed: Iterable[str], problem: str, earlier: Mapping[str, PlanStep]) -> PlanStep:
    """``step`` with the entries that it needs, and those that these need in turn."""
    rules = {rule for needed_rule in needed for rule in (needed_rule, *earlier[needed_rule].needs)}
    ordered = tuple(rule for rule in earlier if rule in rules)
    names = [f"entry {earlier[rule].order} ({rule})" for rule in ordered]
    listed = join_words(names)
    return replace(
        step, needs=ordered, no_overrides_reason=f"It needs {listed} to be applied with it. Alone: {problem}"
    )


def _find_needed(
    step: PlanStep,
    alone: Sequence[PlannedEdit],
    earlier: Iterable[PlanStep],
    config: RunConfig,
    bridge_version: str | None,
) -> tuple[str, ...]:
    """The fewest earlier entries, as far as leaving out one after the other finds them, with which ``step`` applies.

    With all of them it does: the plan was checked entry by entry.
    """
    needed = [entry for entry in earlier if entry.edits]
    for entry in reversed(needed.copy()):
        rest = [other for other in needed if other is not entry]
        edits = [edit for other in rest for edit in other.edits]
        if not find_problems([*edits, *alone, *step.edits], config, bridge_version):
            needed = rest
    return tuple(entry.rule for entry in needed)
