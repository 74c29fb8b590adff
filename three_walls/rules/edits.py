"""The edits of a rule resolved against a run: which remain, from what, to what."""

from __future__ import annotations

from collections.abc import Iterable

from three_walls.model.config import ConfigData
from three_walls.model.fact import FactSheet
from three_walls.model.finding import PlannedEdit
from three_walls.model.rule import Edit
from three_walls.rules.conditions import Truth, evaluate_all, same


def plan_edits(edits: Iterable[Edit], facts: FactSheet) -> tuple[PlannedEdit, ...]:
    """Edits left for this run: without those set already and those whose ``only_if`` is known not to hold.

    Raises ValueError if two edits of one key hold at once.
    """
    chosen = _choose_per_key(edits, facts)
    planned = (_resolve(edit, facts) for edit in chosen)
    return tuple(edit for edit in planned if not _is_set_already(edit, facts))


def missing_targets(edits: Iterable[Edit], facts: FactSheet) -> tuple[str, ...]:
    """Facts that an edit takes its target from, or whose list it changes, and that are missing."""
    needed = (_base_of(edit) for edit in edits if evaluate_all(edit.only_if, facts) is not Truth.FAILS)
    return tuple(dict.fromkeys(name for name in needed if name and facts.get(name).is_missing))


def _base_of(edit: Edit) -> str:
    return fact_of(edit) if edit.operation != "set" else edit.to_fact


def fact_of(edit: Edit | PlannedEdit) -> str:
    """The fact that holds what the run has now: ``config.<key>`` or ``env.<VARIABLE>``."""
    return f"{edit.kind}.{edit.key}"


def _choose_per_key(edits: Iterable[Edit], facts: FactSheet) -> tuple[Edit, ...]:
    """At most one edit per key: one whose ``only_if`` holds, else the first that is not ruled out."""
    chosen: dict[str, Edit] = {}
    certain: set[str] = set()
    for edit in edits:
        answer = evaluate_all(edit.only_if, facts)
        key = fact_of(edit)
        if answer is Truth.HOLDS and key in certain:
            raise ValueError(f"{edit.key} is set twice: the only_if of both edits hold")
        if answer is Truth.HOLDS:
            certain.add(key)
            chosen[key] = edit
        elif answer is Truth.UNKNOWN:
            chosen.setdefault(key, edit)
    return tuple(chosen.values())


def _resolve(edit: Edit, facts: FactSheet) -> PlannedEdit:
    current = facts.get(fact_of(edit))
    to = facts.get(edit.to_fact).value if edit.to_fact else edit.to
    if edit.operation != "set":
        to = _change_list(edit.operation, current.value, to)
    return PlannedEdit(
        key=edit.key,
        from_value=current.value,
        to=_as_variable(to) if edit.kind == "env" else to,
        kind=edit.kind,
        changes_numerics=edit.changes_numerics,
        reason=edit.reason,
        relative=edit.operation != "set",
    )


def _change_list(operation: str, current: ConfigData, elements: ConfigData) -> ConfigData:
    """``current`` (a list, one element or nothing) with ``elements`` added at its end, or without them."""
    assert isinstance(elements, tuple)  # checked when the rule was read
    before = current if isinstance(current, tuple) else () if current is None else (current,)
    if operation == "remove":
        return tuple(one for one in before if one not in elements)
    return (*before, *(one for one in elements if one not in before))


def _as_variable(value: ConfigData) -> ConfigData:
    return value if value is None else str(value)


def _is_set_already(edit: PlannedEdit, facts: FactSheet) -> bool:
    current = facts.get(fact_of(edit))
    if current.is_missing:
        return False
    if edit.to is False and current.value is None:
        return True  # an unset switch is off
    return same(current.value, edit.to)
