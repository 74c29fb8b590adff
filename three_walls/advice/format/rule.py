"""A rule, as its YAML file states it: conditions on named facts, the edits it proposes, how much they gain, evidence.

The fields are the keys of the file; ``rules/README.md`` explains the format. pydantic reads them with the facts, the
sources and the path of the file as context (``load_rules.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, ValidationInfo

from three_walls.advice.finding import APPLICABILITIES, FREES_MEMORY, NO_BASIS, RULE_BASES, UPPER_BOUND
from three_walls.advice.format.conditions import Conditions
from three_walls.advice.format.replay_entries import ReplayEntry
from three_walls.advice.format.rule_fields import AnyFact, Fraction, OneMinusFact, Prose, TimeFact
from three_walls.advice.format.rule_sources import Pointer
from three_walls.lib.expressions import list_names
from three_walls.lib.load_documents import NOT_STATED, ByName, NamedRow, Text, Value, describe, one_of
from three_walls.lib.plain_data import ConfigData
from three_walls.lib.shell import is_variable
from three_walls.tables.buckets import SubWall, Wall


@dataclass(frozen=True, slots=True)
class FactTarget:
    """The target of an edit, taken from a fact when the rule is judged."""

    fact: AnyFact


def _is_mapping(value: Any) -> str:
    return "mapping" if isinstance(value, dict) else "value"


Target = Annotated[Annotated[FactTarget, Tag("mapping")] | Annotated[Value, Tag("value")], Discriminator(_is_mapping)]
HighEnd = Annotated[
    Annotated[OneMinusFact, Tag("mapping")] | Annotated[Fraction, Tag("value")],
    Discriminator(_is_mapping),
]


@dataclass(frozen=True, slots=True)
class Edit:
    """Changes one of ``set`` (a config key, by its Megatron Core name) and ``env`` (a variable)."""

    set: Text | None = None
    to: Target = NOT_STATED
    """The new value. An edit has one of this, ``add`` and ``remove``."""
    env: Text | None = None
    add: Value = NOT_STATED
    """Elements to add to a list."""
    remove: Value = NOT_STATED
    only_if: Conditions = ()
    """The edit is left out where these are known not to hold."""
    changes_numerics: bool = False
    reason: Prose = ""
    source: Pointer = ""

    def __post_init__(self) -> None:
        if (self.set is None) == (self.env is None):
            raise ValueError("an edit names either set (a config key) or env (a variable): give one of them")
        if self.env is not None and not is_variable(self.env):
            raise ValueError(f"a variable is named by letters, digits and _, found {self.env!r}")
        if sum(change is not NOT_STATED for change in (self.to, self.add, self.remove)) != 1:
            raise ValueError("an edit has exactly one of to (a value), add and remove (elements of a list)")
        if self.to is not NOT_STATED:
            if self.env and not isinstance(self.to, str | FactTarget | None):
                raise ValueError(f"a variable is set to text, found {describe(self.to)} (quote it)")
            if self.env and isinstance(self.to, str) and not self.to.isprintable():
                raise ValueError(f"the value of a variable holds no control characters, found {self.to!r}")
        elif self.env or not isinstance(self.literal, tuple):
            raise ValueError("add and remove change the list of a config key: expected set and a list of elements")

    @property
    def key(self) -> str:
        """The config key or the variable."""
        return self.set or self.env or ""

    @property
    def kind(self) -> str:
        """``config`` or ``env``."""
        return "config" if self.set else "env"

    @property
    def changes_list(self) -> bool:
        """Whether the key is a list, some of whose elements change."""
        return self.to is NOT_STATED

    @property
    def literal(self) -> ConfigData:
        """The value that the file states, or the elements; None where a fact gives the value."""
        if not self.changes_list:
            return None if isinstance(self.to, FactTarget) else self.to
        return self.remove if self.add is NOT_STATED else self.add


def _check_edits(edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
    if not edits:
        raise ValueError("expected at least one edit")
    return edits


Edits = Annotated[tuple[Edit, ...], AfterValidator(_check_edits)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement(NamedRow):
    """What must hold for the edits to be safe. Without ``check`` a person must ``confirm`` it."""

    check: Conditions = ()
    confirm: Prose = ""
    reason: Prose
    source: Pointer
    fix: Edits = ()
    """Edits that make it hold where it does not; they then join the rule's own edits."""


def _check_requirement(requirement: Requirement) -> Requirement:
    if not requirement.check and not requirement.confirm:
        raise ValueError("a requirement needs check or confirm: found none of them")
    return requirement


@dataclass(frozen=True, slots=True, kw_only=True)
class GainTerm:
    """Part of a gain: the fraction of the time in the fact ``pool`` that disappears. An upper bound has no low end."""

    pool: TimeFact
    low: Fraction = NOT_STATED
    likely: Fraction | None = None
    """None: the midpoint."""
    high: HighEnd

    @property
    def is_upper_bound(self) -> bool:
        """Whether only the most that can be saved is known."""
        return self.low is NOT_STATED

    @property
    def facts(self) -> tuple[str, ...]:
        """The facts that it is calculated from."""
        return (self.pool, *(self.high.facts if isinstance(self.high, OneMinusFact) else ()))


def _check_term(term: GainTerm) -> GainTerm:
    low, likely, high = term.low, term.likely, term.high
    if isinstance(high, OneMinusFact):
        if likely is not None:
            raise ValueError("likely is the midpoint where high comes from a fact: remove likely")
    elif not term.is_upper_bound:
        likely = (low + high) / 2 if likely is None else likely
        if not low <= likely <= high:
            raise ValueError(f"expected low <= likely <= high, found {low:g}, {likely:g}, {high:g}")
    return term


@dataclass(frozen=True, slots=True)
class GainModel:
    """How much time the edits may save: a sum of terms over pools, which are facts that measure parts of the step."""

    basis: Annotated[Text, one_of(RULE_BASES)]
    explanation: Prose
    terms: tuple[Annotated[GainTerm, AfterValidator(_check_term)], ...] = ()
    """Empty for the bases ``frees_memory`` and ``none``."""
    shrinks_all_pools: bool = False
    """The edits remove a share of everything (recompute), so every other pool shrinks by the same fraction."""
    hidden_under: TimeFact = ""
    """A fact that the gain cannot exceed: compute that can hide communication."""
    at_most: TimeFact = ""
    """Another fact that the gain cannot exceed."""
    added: TimeFact = ""
    """A fact: time that the edits add to the step, and that the gain is net of."""
    cost_fraction: Fraction | None = None
    """For the basis ``frees_memory``, roughly the fraction of the step that the edits cost. The cheapest rule goes
    first."""
    cost_is_estimated: bool = False
    """Nobody measured that cost: it only orders the rules."""
    replay: tuple[ReplayEntry, ...] = ()
    """What the edits change in a replay of the step. The terms then count only where no replay is to be trusted."""
    chosen_by: tuple[AnyFact, ...] = ()
    """Settings without any effect of their own that choose how the edits work, and so which of ``replay`` applies."""
    no_replay: Prose = ""
    """Why no transformation of the step stands for the edits; empty where ``replay`` does, or nothing was stated."""

    def __post_init__(self) -> None:
        if self.replay and self.no_replay:
            raise ValueError("no_replay states why there is no replay: give one of them")
        compared = {name for entry in self.replay for condition in entry.only_if for name in list_names(condition)}
        if unused := [name for name in self.chosen_by if name not in compared]:
            raise ValueError(f"chosen_by names settings that an only_if of replay compares, found {unused[0]}")
        if bool(self.terms) == (self.basis in (FREES_MEMORY, NO_BASIS)):
            found = f"found basis {self.basis} {'with' if self.terms else 'without'} terms"
            raise ValueError(f"a gain has either terms, or the basis frees_memory or none: {found}")
        if (self.cost_fraction is not None) != (self.basis == FREES_MEMORY):
            raise ValueError("a gain of basis frees_memory has a cost_fraction, and no other has one")
        for term in self.terms:
            if self.basis == UPPER_BOUND and not (term.is_upper_bound and term.likely is None):
                raise ValueError("terms of basis upper_bound have pool and high, neither low nor likely")
            if self.basis != UPPER_BOUND and term.is_upper_bound:
                raise ValueError(f"the term of {term.pool} has no low: give one, or use basis upper_bound")

    @property
    def is_upper_bound(self) -> bool:
        """Whether only the most that can be saved is known."""
        return self.basis == UPPER_BOUND

    @property
    def frees_memory(self) -> bool:
        """Whether the edits free memory. Such rules come before all others in the plan of a run that does not fit."""
        return self.basis == FREES_MEMORY


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim with its source."""

    claim: Prose
    source: Pointer


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks for and against the edits."""

    for_: Annotated[tuple[Claim, ...], Field(alias="for")] = ()
    against: tuple[Claim, ...] = ()


@dataclass(frozen=True, slots=True)
class SideEffect:
    """What the edits change besides, with its source."""

    effect: Prose
    source: Pointer


@dataclass(frozen=True, slots=True)
class Advice:
    """What to look at or do. Where ``when`` holds it comes first; without ``when`` it always applies."""

    text: Prose
    when: Conditions


def _as_advice(value: Any) -> Any:
    if isinstance(value, str):
        return ({"when": [], "text": value},)
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Docs:
    """What a reader wants to know of a rule."""

    what_it_looks_for: Prose
    why_it_matters: Prose
    how_to_verify: Prose


def folder_of(wall: Wall) -> str:
    """The folder of a wall's rules."""
    return wall.value.replace("_", "-")


def _check_id(identifier: str, info: ValidationInfo) -> str:
    path: Path = (info.context or {})["path"]
    if identifier != path.stem:
        raise ValueError(f"expected the file's name {path.stem} as id, found {identifier}")
    return identifier


def _check_folder(wall: Wall, info: ValidationInfo) -> Wall:
    path: Path = (info.context or {})["path"]
    if path.parent.name != folder_of(wall):
        raise ValueError(f"a rule of wall {wall} belongs in {folder_of(wall)}/, found it in {path.parent.name}/")
    return wall


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule."""

    id: Annotated[Text, AfterValidator(_check_id)]
    wall: Annotated[Wall, AfterValidator(_check_folder)]
    sub_wall: SubWall | None = None
    title: Prose
    applicability: Annotated[Text, one_of(APPLICABILITIES)]
    docs: Docs
    applies_to: Conditions
    when: Conditions
    requires: ByName[Annotated[Requirement, AfterValidator(_check_requirement)]] = field(default_factory=dict)
    lever: Text = ""
    """What the edits change. A plan has at most one rule per lever, and those that continue it."""
    continues: Text = ""
    """The rule after which this one may enter a plan, to add to what that one sets."""
    edits: Edits = ()
    advice: Annotated[tuple[Advice, ...], BeforeValidator(_as_advice)] = ()
    """What to do where no setting helps. In the file it may be a single text that always applies."""
    any_program: bool = False
    """Whether the advice also holds for a program that is not known to be a Megatron training run."""
    side_effects: tuple[SideEffect, ...] = ()
    gain: GainModel
    evidence: Evidence

    def __post_init__(self) -> None:
        if (self.sub_wall is not None) != (self.wall is Wall.COMPUTE_HOST):
            raise ValueError("sub_wall is for rules of wall compute_host: each of them has one, no other rule has")
        if bool(self.edits) == bool(self.advice):
            raise ValueError("a rule has either edits or, where no edit helps, advice: give one of them")
        if self.any_program and self.edits:
            raise ValueError("edits are Megatron's settings: a rule with edits cannot have any_program")
        if bool(self.edits) != bool(self.lever):
            raise ValueError("a rule with edits has a lever, and a rule with advice has none")

    @property
    def path(self) -> str:
        """The file, relative to the directory of rules."""
        return f"{folder_of(self.wall)}/{self.id}.yaml"
