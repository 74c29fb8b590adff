"""The edits of a rule resolved against a run: which remain, from what, to what."""

from __future__ import annotations

from three_walls.advice.conditions import Truth, evaluate_all, same
from three_walls.vocabulary.config import ConfigData
from three_walls.vocabulary.facts import FactSheet
from three_walls.vocabulary.findings import PlannedEdit
from three_walls.vocabulary.rules import Edit, Rule


def plan_edits(rule: Rule, facts: FactSheet) -> tuple[PlannedEdit, ...]:
    """Edits left for this run: without those set already and those whose ``only_if`` is known not to hold."""
    chosen = _choose_per_key(rule, facts)
    planned = (_resolve(edit, facts) for edit in chosen)
    return tuple(edit for edit in planned if not _is_set_already(edit, facts))


def missing_targets(rule: Rule, facts: FactSheet) -> tuple[str, ...]:
    """Facts that an edit takes its target from and that are missing."""
    return tuple(edit.to_fact for edit in rule.edits if edit.to_fact and facts.get(edit.to_fact).is_missing)


def fact_of(edit: Edit | PlannedEdit) -> str:
    """The fact that holds what the run has now: ``config.<key>`` or ``env.<VARIABLE>``."""
    return f"{edit.kind}.{edit.key}"


def _choose_per_key(rule: Rule, facts: FactSheet) -> tuple[Edit, ...]:
    """At most one edit per key: one whose ``only_if`` holds, else the first that is not ruled out."""
    chosen: dict[str, Edit] = {}
    certain: set[str] = set()
    for edit in rule.edits:
        answer = evaluate_all(edit.only_if, facts)
        key = fact_of(edit)
        if answer is Truth.HOLDS and key in certain:
            raise ValueError(f"rule {rule.id} sets {edit.key} twice: the only_if of both edits hold")
        if answer is Truth.HOLDS:
            certain.add(key)
            chosen[key] = edit
        elif answer is Truth.UNKNOWN:
            chosen.setdefault(key, edit)
    return tuple(chosen.values())


def _resolve(edit: Edit, facts: FactSheet) -> PlannedEdit:
    current = facts.get(fact_of(edit))
    to = facts.get(edit.to_fact).value if edit.to_fact else edit.to
    return PlannedEdit(
        key=edit.key,
        from_value=current.value,
        to=_as_variable(to) if edit.kind == "env" else to,
        kind=edit.kind,
        changes_numerics=edit.changes_numerics,
        because=edit.because,
    )


def _as_variable(value: ConfigData) -> ConfigData:
    return value if value is None else str(value)


def _is_set_already(edit: PlannedEdit, facts: FactSheet) -> bool:
    current = facts.get(fact_of(edit))
    if current.is_missing:
        return False
    if edit.to is False and current.value is None:
        return True  # an unset switch is off
    return same(current.value, edit.to)
