"""The rule base: YAML files in, rules out, every error of every file in one exception.

The models below are the format of a rule file: their fields are its keys. ``rules/README.md`` explains the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Tag, ValidationInfo

from three_walls.advice.format.conditions import Conditions, KnownFacts
from three_walls.advice.format.replay_entries import ReplayEntry
from three_walls.advice.format.rule import (
    APPLICABILITIES,
    FREES_MEMORY,
    NO_BASIS,
    RULE_BASES,
    UPPER_BOUND,
    Advice,
    Edit,
    Evidence,
    GainModel,
    GainTerm,
    Requirement,
    Rule,
)
from three_walls.advice.format.rule_fields import AnyFact, Fraction, OneMinusFact, Prose, TimeFact
from three_walls.advice.format.rule_sources import Pointer, Source, read_sources
from three_walls.lib.errors import UsageError
from three_walls.lib.expressions import list_names
from three_walls.lib.fact import FactDefinition
from three_walls.lib.load_documents import Problem, Row, Text, Value, describe, one_of, raise_problems, read_table
from three_walls.lib.resources import WARNINGS_FOLDER
from three_walls.lib.shell import is_variable
from three_walls.tables.buckets import SubWall, Wall
from three_walls.tables.rows import AfterValidator, BeforeValidator, Field, checked

CASES_SUFFIX = ".cases.yaml"
SOURCES_FILE = "sources.yaml"


def load_rules(directory: Path, *more: Path, definitions: Iterable[FactDefinition]) -> tuple[Rule, ...]:
    """The rules of ``directory`` and of ``more`` directories, by id; RuleBaseError lists all problems of all files.

    ``definitions``: the facts that rules may compare. Rules may cite the sources of their own directory's
    ``sources.yaml`` and of the directories before it.
    """
    problems: list[Problem] = []
    sources: dict[str, Source] = {}
    rules: dict[str, Rule] = {}
    facts = KnownFacts.of(definitions)
    for place in (directory, *more):
        if not place.is_dir():
            problems.append(Problem((str(place), 1, 1), "expected a directory of rules"))
            continue
        if place == directory or (place / SOURCES_FILE).exists():
            sources |= read_sources(place / SOURCES_FILE, problems)
        for path in rule_files(place):
            found = read_table(path, RuleFile, problems, {"facts": facts, "sources": sources, "path": path})
            if found is None:
                continue
            if found.id in rules:
                message = f"id {found.id} is already that of {rules[found.id].path}; rename this rule"
                problems.append(Problem((str(path), 1, 1), message))
            rules.setdefault(found.id, found.to_rule(path))
    raise_problems(problems)
    return tuple(rules[name] for name in sorted(rules))


def rule_files(directory: Path) -> tuple[Path, ...]:
    """The rule files in the folders of ``directory``, one folder per wall; not cases, not warnings."""
    found = (path for path in directory.glob("*/*.yaml") if not path.name.endswith(CASES_SUFFIX))
    return tuple(sorted(path for path in found if path.parent.name != WARNINGS_FOLDER))


def check_rules_directory(directory: Path) -> None:
    """Raises UsageError for a directory of a user's that has no rules, no warnings and no sources."""
    warnings = (directory / WARNINGS_FOLDER).glob("*.yaml")
    if rule_files(directory) or any(warnings) or (directory / SOURCES_FILE).exists():
        return
    folders = ", ".join((*map(folder_of, Wall), WARNINGS_FOLDER))
    raise UsageError(f"--rules {directory}: expected .yaml files in its folders ({folders}), found none")


def cases_file(rule_path: Path) -> Path:
    """The file of cases next to the rule file ``rule_path``."""
    return rule_path.with_name(rule_path.name.removesuffix(".yaml") + CASES_SUFFIX)


def rule_file(cases_path: Path) -> Path:
    """The rule file next to the file of cases ``cases_path``."""
    return cases_path.with_name(cases_path.name.removesuffix(CASES_SUFFIX) + ".yaml")


def folder_of(wall: Wall) -> str:
    """The folder of a wall's rules."""
    return wall.value.replace("_", "-")


class FactTarget(Row):
    """The target of an edit, taken from a fact."""

    fact: AnyFact


def _is_mapping(value: Any) -> str:
    return "mapping" if isinstance(value, dict) else "value"


Target = Annotated[
    Annotated[FactTarget, Tag("mapping")] | Annotated[Value, Tag("value")],
    Discriminator(_is_mapping),
]
HighEnd = Annotated[
    Annotated[OneMinusFact, Tag("mapping")] | Annotated[Fraction, Tag("value")],
    Discriminator(_is_mapping),
]


class Docs(Row):
    what_it_looks_for: Prose
    why_it_matters: Prose
    how_to_verify: Prose


class EditEntry(Row):
    """One of ``set`` (a config key) and ``env`` (a variable), with one of ``to``, ``add`` and ``remove``."""

    set: Text | None = None
    env: Text | None = None
    to: Target = None
    add: Value = None
    remove: Value = None
    only_if: Conditions = ()
    changes_numerics: bool = False
    reason: Prose = ""
    source: Pointer = ""

    @checked
    def _check(self) -> EditEntry:
        if (self.set is None) == (self.env is None):
            raise ValueError("an edit names either set (a config key) or env (a variable): give one of them")
        if self.env is not None and not is_variable(self.env):
            raise ValueError(f"a variable is named by letters, digits and _, found {self.env!r}")
        changes = self.fields_stated & {"to", "add", "remove"}
        if len(changes) != 1:
            raise ValueError("an edit has exactly one of to (a value), add and remove (elements of a list)")
        if "to" in changes:
            if self.env and not isinstance(self.to, str | FactTarget | None):
                raise ValueError(f"a variable is set to text, found {describe(self.to)} (quote it)")
            if self.env and isinstance(self.to, str) and not self.to.isprintable():
                raise ValueError(f"the value of a variable holds no control characters, found {self.to!r}")
        elif self.env or not isinstance(self.add or self.remove, tuple):
            raise ValueError("add and remove change the list of a config key: expected set and a list of elements")
        return self

    def to_edit(self) -> Edit:
        operation, to = "set", None if isinstance(self.to, FactTarget) else self.to
        if "add" in self.fields_stated:
            operation, to = "add", self.add
        elif "remove" in self.fields_stated:
            operation, to = "remove", self.remove
        return Edit(
            key=self.set or self.env or "",
            to=to,
            kind="config" if self.set else "env",
            only_if=self.only_if,
            changes_numerics=self.changes_numerics,
            reason=self.reason,
            source=self.source,
            to_fact=self.to.fact if isinstance(self.to, FactTarget) else "",
            operation=operation,
        )


def _check_edits(edits: tuple[EditEntry, ...]) -> tuple[EditEntry, ...]:
    if not edits:
        raise ValueError("expected at least one edit")
    return edits


Edits = Annotated[tuple[EditEntry, ...], AfterValidator(_check_edits)]


class RequirementEntry(Row):
    """``check`` (all must hold), or ``confirm`` (the reader checks)."""

    check: Conditions = ()
    confirm: Prose = ""
    reason: Prose
    source: Pointer
    fix: Edits | None = None

    @checked
    def _check(self) -> RequirementEntry:
        if not self.check and not self.confirm:
            raise ValueError("a requirement needs check or confirm: found none of them")
        return self

    def to_requirement(self, name: str) -> Requirement:
        return Requirement(
            name=name,
            checks=self.check,
            confirm=self.confirm,
            reason=self.reason,
            source=self.source,
            fix=tuple(edit.to_edit() for edit in self.fix or ()),
        )


class GainTermEntry(Row):
    pool: TimeFact
    low: Fraction | None = None
    likely: Fraction | None = None
    high: HighEnd

    @checked
    def _check(self) -> GainTermEntry:
        if isinstance(self.high, OneMinusFact):
            if self.likely is not None:
                raise ValueError("likely is the midpoint where high comes from a fact: remove likely")
        elif self.low is not None and not self.low <= self._likely <= self.high:
            raise ValueError(f"expected low <= likely <= high, found {self.low:g}, {self._likely:g}, {self.high:g}")
        return self

    @property
    def _likely(self) -> float:
        """The likely value; the midpoint where the file gives none."""
        high = self.high if isinstance(self.high, float) else 1.0
        return ((self.low or 0.0) + high) / 2 if self.likely is None else self.likely

    def to_term(self) -> GainTerm:
        fact = self.high.one_minus_fact if isinstance(self.high, OneMinusFact) else ""
        high = self.high if isinstance(self.high, float) else 1.0
        return GainTerm(self.pool, self.low or 0.0, None if self.low is None else self._likely, high, fact)


class GainEntry(Row):
    basis: Annotated[Text, one_of(RULE_BASES)]
    explanation: Prose
    terms: tuple[GainTermEntry, ...] = ()
    shrinks_all_pools: bool = False
    hidden_under: TimeFact | None = None
    at_most: TimeFact | None = None
    added: TimeFact | None = None
    cost_fraction: Fraction | None = None
    cost_is_estimated: bool = False
    replay: tuple[ReplayEntry, ...] = ()
    chosen_by: tuple[AnyFact, ...] = ()
    no_replay: Prose = ""

    @checked
    def _check(self) -> GainEntry:
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
            if self.basis == UPPER_BOUND and term.fields_stated & {"low", "likely"}:
                raise ValueError("terms of basis upper_bound have pool and high, neither low nor likely")
            if self.basis != UPPER_BOUND and "low" not in term.fields_stated:
                raise ValueError(f"the term of {term.pool} has no low: give one, or use basis upper_bound")
        return self

    def to_gain(self) -> GainModel:
        return GainModel(
            terms=tuple(term.to_term() for term in self.terms),
            basis=self.basis,
            explanation=self.explanation,
            shrinks_all_pools=self.shrinks_all_pools,
            hidden_under=self.hidden_under or "",
            at_most=self.at_most or "",
            added=self.added or "",
            cost_fraction=self.cost_fraction,
            cost_is_estimated=self.cost_is_estimated,
            replay=tuple(entry.to_transformation() for entry in self.replay),
            chosen_by=self.chosen_by,
            no_replay=self.no_replay,
        )


class EvidenceEntry(Row):
    claim: Prose
    source: Pointer

    def to_evidence(self) -> Evidence:
        return Evidence(self.claim, self.source)


class EvidenceEntries(Row):
    for_: tuple[EvidenceEntry, ...] = Field(default=(), alias="for")
    against: tuple[EvidenceEntry, ...] = ()


class SideEffect(Row):
    effect: Prose
    source: Pointer


class AdviceEntry(Row):
    when: Conditions
    text: Prose


def _as_entries(value: Any) -> Any:
    if isinstance(value, str):
        return ({"when": [], "text": value},)
    return tuple(value) if isinstance(value, list) else value


AdviceEntries = Annotated[tuple[AdviceEntry, ...], BeforeValidator(_as_entries)]
"""Text that always applies, or a list of texts with the conditions under which each comes first."""


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


class RuleFile(Row):
    id: Annotated[Text, AfterValidator(_check_id)]
    wall: Annotated[Wall, AfterValidator(_check_folder)]
    sub_wall: SubWall | None = None
    title: Prose
    applicability: Annotated[Text, one_of(APPLICABILITIES)]
    docs: Docs
    applies_to: Conditions
    when: Conditions
    requires: Mapping[Text, RequirementEntry] = Field(default={})
    lever: Text | None = None
    continues: Text | None = None
    edits: Edits | None = None
    advice: AdviceEntries | None = None
    any_program: bool = False
    side_effects: tuple[SideEffect, ...] = ()
    gain: GainEntry
    evidence: EvidenceEntries

    @checked
    def _check(self) -> RuleFile:
        if (self.sub_wall is not None) != (self.wall is Wall.COMPUTE_HOST):
            raise ValueError("sub_wall is for rules of wall compute_host: each of them has one, no other rule has")
        if (self.edits is None) == (self.advice is None):
            raise ValueError("a rule has either edits or, where no edit helps, advice: give one of them")
        if self.any_program and self.edits is not None:
            raise ValueError("edits are Megatron's settings: a rule with edits cannot have any_program")
        if (self.edits is None) != (self.lever is None):
            raise ValueError("a rule with edits has a lever, and a rule with advice has none")
        return self

    def to_rule(self, path: Path) -> Rule:
        return Rule(
            id=self.id,
            wall=self.wall,
            sub_wall=self.sub_wall,
            title=self.title,
            applicability=self.applicability,
            what_it_looks_for=self.docs.what_it_looks_for,
            why_it_matters=self.docs.why_it_matters,
            how_to_verify=self.docs.how_to_verify,
            applies_to=self.applies_to,
            when=self.when,
            requires=tuple(entry.to_requirement(name) for name, entry in self.requires.items()),
            lever=self.lever or "",
            continues=self.continues or "",
            edits=tuple(edit.to_edit() for edit in self.edits or ()),
            side_effects=tuple(f"{side.effect} ({side.source})" for side in self.side_effects),
            gain=self.gain.to_gain(),
            evidence_for=tuple(entry.to_evidence() for entry in self.evidence.for_),
            evidence_against=tuple(entry.to_evidence() for entry in self.evidence.against),
            path=f"{path.parent.name}/{path.name}",
            advice=tuple(Advice(entry.text, entry.when) for entry in self.advice or ()),
            any_program=self.any_program,
        )
