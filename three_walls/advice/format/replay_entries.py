"""The list ``gain.replay`` of a rule file: what its edits change in a replay of the step.

An entry names one action with the work that it selects, and what remains of that work:

    - fuse: {work: [rope]}
      time: {low: 0.6, likely: 0.4, high: 0.15}
      host: 0.1
      reason: one kernel replaces about ten
      source: pair:fused-kernels

An entry with ``host`` and without an action scales all host time. ``replay/transformation.py`` defines the actions.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from three_walls.advice.format.conditions import Conditions
from three_walls.advice.format.rule_fields import AnyFact, OneMinusFact, Prose
from three_walls.advice.format.rule_sources import Pointer
from three_walls.lib.load_documents import Row, Text, Texts, between, suggest
from three_walls.replay.transformation import (
    ALL,
    CATEGORY_GROUPS,
    DIRECTIONS,
    MODULES,
    NOTHING,
    WORK,
    Action,
    FromFact,
    Level,
    Levels,
    Selection,
    Transformation,
)
from three_walls.tables.buckets import CATEGORIES
from three_walls.tables.rows import AfterValidator, checked

_LEVELLED = {
    "time": ALL,
    "host": ALL,
    "share": ALL,
    "slowdown": ALL,
    "overhead_us": NOTHING,
    "added_time": NOTHING,
    "added_kernels": NOTHING,
}
"""Parameters with a range, and what they are where an entry does not give them."""
_USED_BY = {
    "time": (Action.SCALE, Action.FUSE, Action.GRAPH, Action.REPEAT, Action.MICRO_BATCH),
    "host": (Action.SCALE, Action.FUSE, Action.HOST, Action.REPEAT, Action.MICRO_BATCH),
    "share": (Action.HIDE, Action.UNWAIT, Action.EVEN_HOSTS),
    "slowdown": (Action.HIDE,),
    "factor": (Action.MICRO_BATCH,),
    "launches": (Action.FUSE,),
    "overhead_us": (Action.GRAPH,),
    "added_time": (Action.SCALE,),
    "added_kernels": (Action.SCALE,),
}
"""Parameter -> the actions that have it."""
_AT_MOST = 10_000.0
"""Of a parameter."""


class FactNumber(Row):
    """A fact, or its ratio to another one or to a number; no more than ``at_most``."""

    fact: AnyFact
    over: AnyFact | float | None = None
    at_most: Annotated[float, between(0, _AT_MOST)] = 1.0

    @checked
    def _check(self) -> FactNumber:
        if isinstance(self.over, float) and self.over <= 0:
            raise ValueError(f"expected a number above 0, found {self.over:g}")
        return self


def _kind_of_end(value: Any) -> str:
    if isinstance(value, dict) and "one_minus_fact" in value:
        return "one minus"
    return "fact" if isinstance(value, dict) else "number"


def _kind_of_levels(value: Any) -> str:
    is_range = isinstance(value, dict) and not {"fact", "one_minus_fact"} & value.keys()
    return "range" if is_range else _kind_of_end(value)


Launches = Annotated[int, between(1, 100)]
Number = Annotated[float, between(0, _AT_MOST)]
_Ends = (
    Annotated[FactNumber, Tag("fact")] | Annotated[OneMinusFact, Tag("one minus")] | Annotated[Number, Tag("number")]
)
End = Annotated[_Ends, Discriminator(_kind_of_end)]
"""One end of the range of a parameter."""


class Range(Row):
    """A parameter at the smallest gain (``low``), the likely one, and the largest (``high``)."""

    low: End
    likely: End
    high: End

    @checked
    def _check(self) -> Range:
        numbers = [end for end in (self.low, self.likely, self.high) if isinstance(end, float)]
        if numbers not in (sorted(numbers), sorted(numbers, reverse=True)):
            listed = ", ".join(f"{number:g}" for number in numbers)
            raise ValueError(f"likely lies between low (the smallest gain) and high (the largest), found {listed}")
        return self


Parameter = Annotated[_Ends | Annotated[Range, Tag("range")], Discriminator(_kind_of_levels)]


def _check_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return pattern


Regex = Annotated[Text, AfterValidator(_check_pattern)]


def _each_of(allowed: tuple[str, ...]) -> AfterValidator:
    """The check that every word of a list is one of ``allowed``."""

    def check(words: tuple[str, ...]) -> tuple[str, ...]:
        if not words:
            raise ValueError("expected at least one name; leave the key out to select everything")
        for word in words:
            if word not in allowed:
                raise ValueError(f"expected one of {', '.join(allowed)}, found {word}{suggest(word, allowed)}")
        return words

    return AfterValidator(check)


class RanksFact(Row):
    """The rank whose number a fact gives."""

    fact: AnyFact


class SelectionEntry(Row):
    """The work that is meant: what matches every key that is given."""

    categories: Annotated[Texts, _each_of((*CATEGORIES, *CATEGORY_GROUPS))] | None = None
    work: Annotated[Texts, _each_of(WORK)] | None = None
    modules: Annotated[Texts, _each_of(MODULES)] | None = None
    directions: Annotated[Texts, _each_of(DIRECTIONS)] | None = None
    kernels: Regex | None = None
    calls: Regex | None = None
    ranks: RanksFact | None = None
    inner_layers: bool = False

    def to_selection(self) -> Selection:
        return Selection(
            categories=self.categories or (),
            work=self.work or (),
            modules=self.modules or (),
            directions=self.directions or (),
            kernels=self.kernels or "",
            calls=self.calls or "",
            inner_layers=self.inner_layers,
        )


class ReplayEntry(Row):
    scale: SelectionEntry | None = None
    fuse: SelectionEntry | None = None
    graph: SelectionEntry | None = None
    hide: SelectionEntry | None = None
    unwait: SelectionEntry | None = None
    repeat: SelectionEntry | None = None
    micro_batch: SelectionEntry | None = None
    balance: SelectionEntry | None = None
    heal: SelectionEntry | None = None
    even_hosts: SelectionEntry | None = None
    time: Parameter | None = None
    host: Parameter | None = None
    share: Parameter | None = None
    slowdown: Parameter | None = None
    factor: Parameter | None = None
    launches: Launches | None = None
    overhead_us: Parameter | None = None
    added_time: Parameter | None = None
    added_kernels: Parameter | None = None
    only_if: Conditions = ()
    reason: Prose
    source: Pointer | None = None

    @checked
    def _check(self) -> ReplayEntry:
        named = [action.value for action in Action if action is not Action.HOST and self._selected(action) is not None]
        if len(named) > 1 or (not named and self.host is None):
            actions = ", ".join(action.value for action in Action if action is not Action.HOST)
            raise ValueError(f"an entry has one of {actions}, or host alone: found {' and '.join(named) or 'none'}")
        action = self._action
        for name, actions_with_it in _USED_BY.items():
            if getattr(self, name) is not None and action not in actions_with_it:
                raise ValueError(f"{action.value} has no {name}")
        if action is Action.MICRO_BATCH and (self.factor is None or isinstance(self.factor, Range)):
            raise ValueError("micro_batch has a factor: one number or fact")
        return self

    def _selected(self, action: Action) -> SelectionEntry | None:
        entry: SelectionEntry | None = getattr(self, action.value)
        return entry

    @property
    def _action(self) -> Action:
        actions = (action for action in Action if action is not Action.HOST and self._selected(action) is not None)
        return next(actions, Action.HOST)

    def to_transformation(self) -> Transformation:
        selected = None if self._action is Action.HOST else self._selected(self._action)
        from_facts: list[FromFact] = []
        if selected is not None and selected.ranks is not None:
            from_facts.append(FromFact("ranks", selected.ranks.fact))
        levels = {
            name: _read_levels(name, getattr(self, name), from_facts, default) for name, default in _LEVELLED.items()
        }
        return Transformation(
            action=self._action,
            select=selected.to_selection() if selected else Selection(),
            **levels,
            launches=self.launches or 1,
            factor=_read_levels("factor", self.factor, from_facts).likely,
            reason=self.reason,
            source=self.source or "",
            only_if=self.only_if,
            from_facts=tuple(from_facts),
        )


def _read_levels(name: str, parameter: object, from_facts: list[FromFact], default: Levels = ALL) -> Levels:
    """The numbers of a parameter; what facts give is 1 here and added to ``from_facts``."""
    if parameter is None:
        return default
    if not isinstance(parameter, Range):
        number = _read_end(name, None, parameter, from_facts)
        return Levels(number, number, number)
    return Levels(*(_read_end(name, level, getattr(parameter, level.value), from_facts) for level in Level))


def _read_end(name: str, level: Level | None, end: object, from_facts: list[FromFact]) -> float:
    if isinstance(end, float):
        return end
    if isinstance(end, OneMinusFact):
        from_facts.append(FromFact(name, end.one_minus_fact, level, one_minus=True))
    elif isinstance(end, FactNumber):
        from_facts.append(FromFact(name, end.fact, level, over=end.over, at_most=end.at_most))
    return 1.0
