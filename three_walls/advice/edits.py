"""The edits of a rule resolved against a run: which remain, from what, to what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from three_walls.advice.finding import PlannedEdit
from three_walls.advice.format.conditions import evaluate_all, same
from three_walls.advice.format.rule import Edit, FactTarget
from three_walls.lib.expressions import Truth
from three_walls.lib.fact import FactSheet, FactValue
from three_walls.lib.load_documents import NOT_STATED
from three_walls.lib.plain_data import ConfigData, ConfigScalar


def plan_edits(edits: Iterable[Edit], facts: FactSheet) -> tuple[PlannedEdit, ...]:
    """The edits that remain for this run: without those already made and those whose ``only_if`` fails.

    Raises ValueError if the ``only_if`` of two edits of a key hold at once.
    """
    resolved = (_resolve(edit, facts) for edit in _select_per_key(edits, facts))
    return tuple(edit for edit in resolved if _empties_unset(edit) or not is_set(fact_of(edit), edit.to, facts))


def _empties_unset(edit: PlannedEdit) -> bool:
    """Whether the edit asks for an empty list where none is set: code that takes its elements fails without one."""
    return edit.to == () and edit.from_value is None and not edit.relative


def settings_as_edits(settings: Mapping[str, ConfigData], facts: FactSheet) -> tuple[PlannedEdit, ...]:
    """``settings`` (``config.<key>`` or ``env.<VARIABLE>`` to a value) as edits of the run, but for those it has."""
    edits = []
    for name, value in settings.items():
        kind, _, key = name.partition(".")
        edits.append(PlannedEdit(key, facts.get(name).value, value, kind, changes_numerics=False))
    return tuple(edit for edit in edits if not is_set(fact_of(edit), edit.to, facts))


def missing_targets(edits: Iterable[Edit], facts: FactSheet) -> tuple[str, ...]:
    """Missing facts that an edit takes its target from, or that hold the list it changes."""
    possible = (edit for edit in edits if evaluate_all(edit.only_if, facts) is not Truth.FAILS)
    needed = (
        edit.to.fact if isinstance(edit.to, FactTarget) else fact_of(edit) if edit.changes_list else ""
        for edit in possible
    )
    return tuple(dict.fromkeys(name for name in needed if name and facts.get(name).is_missing))


def fact_of(edit: Edit | PlannedEdit) -> str:
    """The fact that holds the current value: ``config.<key>`` or ``env.<VARIABLE>``."""
    return f"{edit.kind}.{edit.key}"


def _select_per_key(edits: Iterable[Edit], facts: FactSheet) -> tuple[Edit, ...]:
    """At most one edit per key: the one whose ``only_if`` holds, else the first whose ``only_if`` is unknown."""
    selected: dict[str, Edit] = {}
    certain: set[str] = set()
    for edit in edits:
        answer = evaluate_all(edit.only_if, facts)
        key = fact_of(edit)
        if answer is Truth.HOLDS and key in certain:
            raise ValueError(f"{edit.key} is set twice: make the only_if of its edits exclude each other")
        if answer is Truth.HOLDS:
            certain.add(key)
            selected[key] = edit
        elif answer is Truth.UNKNOWN:
            selected.setdefault(key, edit)
    return tuple(selected.values())


def target_of(edit: Edit, facts: FactSheet) -> FactValue:
    """The value that ``edit`` sets in this run."""
    to = facts.get(edit.to.fact).value if isinstance(edit.to, FactTarget) else edit.literal
    if edit.changes_list:
        to = _change_list(edit, facts.get(fact_of(edit)).value)
    return as_text(fact_of(edit), to)


def _resolve(edit: Edit, facts: FactSheet) -> PlannedEdit:
    return PlannedEdit(
        key=edit.key,
        from_value=facts.get(fact_of(edit)).value,
        to=target_of(edit, facts),
        kind=edit.kind,
        changes_numerics=edit.changes_numerics,
        reason=edit.reason,
        relative=edit.changes_list,
    )


def _change_list(edit: Edit, current: ConfigData) -> ConfigData:
    """``current`` (a list, one element or nothing) with the elements of ``edit`` added at its end, or without them."""
    elements = edit.literal
    assert isinstance(elements, tuple)  # checked when the rule was read
    before = list_elements(current)
    if edit.add is NOT_STATED:
        return tuple(element for element in before if element not in elements)
    return (*before, *(element for element in elements if element not in before))


def is_set(name: str, value: ConfigData, facts: FactSheet) -> bool:
    """Whether the run is known to have this value already. An unset switch is off, and an unset list is empty."""
    current = facts.get(name)
    if current.is_missing:
        return False
    value, now = as_text(name, value), current.value
    if name.startswith("config.") and (isinstance(value, tuple) or isinstance(now, tuple)):
        return set(list_elements(value)) == set(list_elements(now))
    off = (None, False, "none")
    return same(now, value) or (any(same(value, each) for each in off) and any(same(now, each) for each in off))


def as_text(name: str, value: ConfigData) -> ConfigData:
    """``value`` as the setting ``name`` holds it: variables hold text."""
    return str(value) if name.startswith("env.") and value is not None else value


def list_elements(value: ConfigData) -> tuple[ConfigScalar, ...]:
    """The elements of a list; a single value is a list of one, and an unset one is empty."""
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)
