"""The list ``gain.replay`` of a rule file: what its edits change in a replay of the step, before facts give numbers.

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
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Tag

from three_walls.advice.format.conditions import Conditions
from three_walls.advice.format.rule_fields import AnyFact, OneMinusFact, Prose
from three_walls.advice.format.rule_sources import Pointer
from three_walls.lib.fact import FactSheet
from three_walls.lib.load_documents import Text, Texts, between, suggest
from three_walls.replay.transformation import (
    ALL,
    CATEGORY_GROUPS,
    NOTHING,
    WORK,
    Action,
    Selection,
    Transformation,
)
from three_walls.tables.buckets import CATEGORIES
from three_walls.tables.model_parts import DIRECTIONS, MODULES
from three_walls.tables.prediction_intervals import Levels

_LEVELLED = {
    "time": ALL,
    "host": ALL,
    "share": ALL,
    "slowdown": ALL,
    "overhead_us": NOTHING,
    "added_time": NOTHING,
    "added_kernels": NOTHING,
    "added_launch_us": NOTHING,
    "added_host_us": NOTHING,
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
    "added_time": (Action.SCALE, Action.GRAPH),
    "added_kernels": (Action.SCALE, Action.GRAPH),
    "added_launch_us": (Action.SCALE,),
    "added_host_us": (Action.SCALE, Action.UNGRAPH, Action.REPEAT),
}
"""Parameter -> the actions that have it."""
_AT_MOST = 10_000.0
"""Of a parameter."""


@dataclass(frozen=True, slots=True)
class FactNumber:
    """A fact, or its ratio to another one or to a number; no more than ``at_most``."""

    fact: AnyFact
    over: AnyFact | float | None = None
    at_most: Annotated[float, between(0, _AT_MOST)] = 1.0
    """A larger number counts as this. Above 1 the fact may show that an edit costs time. No bound for a factor."""

    def __post_init__(self) -> None:
        if isinstance(self.over, float) and self.over <= 0:
            raise ValueError(f"expected a number above 0, found {self.over:g}")

    @property
    def facts(self) -> tuple[str, ...]:
        """The facts that it needs."""
        return (self.fact, self.over) if isinstance(self.over, str) else (self.fact,)

    def read(self, facts: FactSheet) -> float:
        """The number, whatever ``at_most`` is; 0 where a fact is missing."""
        value = facts.number(self.fact) or 0.0
        over = facts.number(self.over) if isinstance(self.over, str) else self.over
        return value if over is None else value / over if over else 0.0


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


@dataclass(frozen=True, slots=True)
class ParameterRange:
    """A parameter at the smallest gain (``low``), the likely one, and the largest (``high``)."""

    low: End
    likely: End
    high: End

    def __post_init__(self) -> None:
        numbers = [end for end in (self.low, self.likely, self.high) if isinstance(end, float)]
        if numbers not in (sorted(numbers), sorted(numbers, reverse=True)):
            listed = ", ".join(f"{number:g}" for number in numbers)
            raise ValueError(f"likely lies between low (the smallest gain) and high (the largest), found {listed}")


Parameter = Annotated[_Ends | Annotated[ParameterRange, Tag("range")], Discriminator(_kind_of_levels)]


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


@dataclass(frozen=True, slots=True)
class RanksFact:
    """The rank whose number a fact gives."""

    fact: AnyFact


@dataclass(frozen=True, slots=True)
class SelectionEntry:
    """The work that is meant: what matches every key that is given."""

    categories: Annotated[Texts, _each_of((*CATEGORIES, *CATEGORY_GROUPS))] = ()
    work: Annotated[Texts, _each_of(WORK)] = ()
    modules: Annotated[Texts, _each_of(MODULES)] = ()
    directions: Annotated[Texts, _each_of(DIRECTIONS)] = ()
    kernels: Regex = ""
    calls: Regex = ""
    ranks: RanksFact | None = None
    layers_with: Annotated[Texts, _each_of(tuple(CATEGORIES))] = ()
    inner_layers: bool = False
    follows_recompute: Annotated[Texts, _each_of(WORK)] = ()
    after_gemm: Annotated[int, between(0, 100)] = 0
    before_gemm: Annotated[int, between(0, 100)] = 0

    def fill(self, facts: FactSheet) -> Selection:
        """The same with the numbers of ranks."""
        return Selection(
            categories=self.categories,
            work=self.work,
            modules=self.modules,
            directions=self.directions,
            kernels=self.kernels,
            ranks=() if self.ranks is None else (round(facts.number(self.ranks.fact) or 0),),
            layers_with=self.layers_with,
            inner_layers=self.inner_layers,
            follows_recompute=self.follows_recompute,
            after_gemm=self.after_gemm,
            before_gemm=self.before_gemm,
            calls=self.calls,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayEntry:
    """One change of the step: an action with the work that it selects, and its parameters."""

    scale: SelectionEntry | None = None
    fuse: SelectionEntry | None = None
    graph: SelectionEntry | None = None
    ungraph: SelectionEntry | None = None
    hide: SelectionEntry | None = None
    expose: SelectionEntry | None = None
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
    added_launch_us: Parameter | None = None
    added_host_us: Parameter | None = None
    only_if: Conditions = ()
    """It is left out where these are known not to hold."""
    reason: Prose
    """Where the parameters come from."""
    source: Pointer = ""

    def __post_init__(self) -> None:
        named = [action.value for action in _SELECTING if getattr(self, action.value) is not None]
        if len(named) > 1 or (not named and self.host is None):
            actions = ", ".join(action.value for action in _SELECTING)
            raise ValueError(f"an entry has one of {actions}, or host alone: found {' and '.join(named) or 'none'}")
        action = self.action
        for name, actions_with_it in _USED_BY.items():
            if getattr(self, name) is not None and action not in actions_with_it:
                raise ValueError(f"{action.value} has no {name}")
        if action is Action.MICRO_BATCH and (self.factor is None or isinstance(self.factor, ParameterRange)):
            raise ValueError("micro_batch has a factor: one number or fact")

    @property
    def action(self) -> Action:
        """What is done to the work."""
        return next((action for action in _SELECTING if getattr(self, action.value) is not None), Action.HOST)

    @property
    def selection(self) -> SelectionEntry:
        """The work; all of it for the action ``host``."""
        action = self.action
        selected: SelectionEntry = SelectionEntry() if action is Action.HOST else getattr(self, action.value)
        return selected

    def list_facts(self) -> Iterator[str]:
        """The facts that give its numbers."""
        if self.selection.ranks is not None:
            yield self.selection.ranks.fact
        for name in (*_LEVELLED, "factor"):
            for end in _list_ends(getattr(self, name)):
                yield from () if isinstance(end, float) else end.facts

    def fill(self, facts: FactSheet) -> Transformation:
        """The change in numbers alone."""
        levels = {name: _read_levels(getattr(self, name), default, facts) for name, default in _LEVELLED.items()}
        factor = next(iter(_list_ends(self.factor)), 1.0)
        return Transformation(
            action=self.action,
            select=self.selection.fill(facts),
            **levels,
            factor=factor if isinstance(factor, float) else factor.read(facts),
            launches=self.launches or 1,
            reason=self.reason,
            source=self.source,
        )


_SELECTING = tuple(action for action in Action if action is not Action.HOST)
"""Actions that select work."""


def _list_ends(parameter: Parameter | None) -> tuple[End, ...]:
    if parameter is None:
        return ()
    if isinstance(parameter, ParameterRange):
        return (parameter.low, parameter.likely, parameter.high)
    return (parameter,)


def _read_levels(parameter: Parameter | None, default: Levels, facts: FactSheet) -> Levels:
    numbers = [
        end if isinstance(end, float) else min(_most(end), max(0.0, end.read(facts))) for end in _list_ends(parameter)
    ]
    if not numbers:
        return default
    return Levels(*numbers) if len(numbers) > 1 else Levels(*numbers * 3)


def _most(end: FactNumber | OneMinusFact) -> float:
    return end.at_most if isinstance(end, FactNumber) else 1.0
