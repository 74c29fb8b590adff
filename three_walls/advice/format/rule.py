"""A rule, as its YAML file states it: conditions on named facts, the edits it proposes, how much they gain, evidence.

The fields are the keys of the file; ``rules/README.md`` explains the format. pydantic reads them with the facts, the
sources and the path of the file as context (``load_rules.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, ValidationInfo

from three_walls.advice.finding import APPLICABILITIES
from three_walls.advice.format.conditions import Conditions
from three_walls.advice.format.replay_entries import ReplayEntry
from three_walls.advice.format.rule_fields import AnyFact, FileId, Fraction, OneMinusFact, Prose, TimeFact
from three_walls.advice.format.rule_sources import Pointer
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
ShareEnd = Annotated[
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
    only_if: Conditions = ()
    """It counts only for runs of which these are not known to fail."""
    fix: Edits = ()
    """Edits that make it hold where it does not; they then join the rule's own edits."""


def _check_requirement(requirement: Requirement) -> Requirement:
    if not requirement.check and not requirement.confirm:
        raise ValueError("a requirement needs check or confirm: found none of them")
    return requirement


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShare:
    """A share of a time of the step."""

    time: TimeFact
    share: ShareEnd = 1.0

    @property
    def facts(self) -> tuple[str, ...]:
        """The facts that it is calculated from."""
        return (self.time, *(self.share.facts if isinstance(self.share, OneMinusFact) else ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class GainModel:
    """What the edits may gain where no replay of the step tells it. What they change, ``rules/effects`` states."""

    at_most: tuple[TimeShare, ...] = ()
    """The upper bound: the sum of these. Empty where the edits free memory, or not even a bound is known."""
    within: tuple[TimeFact, ...] = ()
    """Times that the upper bound cannot exceed either: compute that can hide communication."""
    frees_memory: bool = False
    """Such rules come before all others in the plan of a run that does not fit."""
    explanation: Prose
    """Why no more can be gained."""
    replay: tuple[ReplayEntry, ...] = ()
    """What following the advice of a rule without edits changes in a replay of the step."""
    no_replay: Prose = ""
    """Why nobody can tell what following it changes."""

    def __post_init__(self) -> None:
        if self.replay and self.no_replay:
            raise ValueError("no_replay states why there is no replay: give one of them")
        if self.at_most and self.frees_memory:
            raise ValueError("edits that free memory gain no time: give at_most or frees_memory, found both")
        if self.within and not self.at_most:
            raise ValueError("within limits what at_most adds up: give at_most too")


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim with its source."""

    claim: Prose
    source: Pointer
    when: Conditions = ()
    """What the run must show for the claim to count; it then comes first, with the figures."""


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
    unless: Conditions = ()
    """Where they are known to hold, the run does what is advised, and the advice is left out."""
    cause: Prose = ""
    """What keeps the configured from happening where ``when`` holds, as a phrase; for rules with ``configured``."""


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


def _check_folder(wall: Wall, info: ValidationInfo) -> Wall:
    path: Path = (info.context or {})["path"]
    if path.parent.name != folder_of(wall):
        raise ValueError(f"a rule of wall {wall} belongs in {folder_of(wall)}/, found it in {path.parent.name}/")
    return wall


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule."""

    id: FileId
    wall: Annotated[Wall, AfterValidator(_check_folder)]
    sub_wall: SubWall | None = None
    title: Prose
    applicability: Annotated[Text, one_of(APPLICABILITIES)]
    docs: Docs
    applies_to: Conditions
    when: Conditions
    unless: Conditions = ()
    """Where these are known to hold, something measured rules the symptom out, and the rule is not needed."""
    requires: ByName[Annotated[Requirement, AfterValidator(_check_requirement)]] = field(default_factory=dict)
    lever: Text = ""
    """What the edits change. A plan has at most one rule per lever, and those that continue it."""
    continues: Text = ""
    """The rule after which this one may enter a plan, to add to what that one sets."""
    edits: Edits = ()
    advice: Annotated[tuple[Advice, ...], BeforeValidator(_as_advice)] = ()
    """What to do where no setting helps. In the file it may be a single text that always applies."""
    configured: Prose = ""
    """What the configuration asks for where ``applies_to`` holds, as a noun phrase: the rule finds that it does not
    happen. The report lists all of them, with those that do."""
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
        if self.edits and (self.gain.replay or self.gain.no_replay):
            raise ValueError("what edits change in a replay is stated in rules/effects: remove replay and no_replay")
        if self.configured and self.edits:
            raise ValueError("what is configured and does not happen has advice: remove configured, or the edits")
        if self.any_program and self.edits:
            raise ValueError("edits are Megatron's settings: a rule with edits cannot have any_program")
        if bool(self.edits) != bool(self.lever):
            raise ValueError("a rule with edits has a lever, and a rule with advice has none")

    @property
    def path(self) -> str:
        """The file, relative to the directory of rules."""
        return f"{folder_of(self.wall)}/{self.id}.yaml"
