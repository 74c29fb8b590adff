"""Rules, effects and facts of runs for tests of judging and planning, from a few words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from three_walls.advice.format.conditions import KnownFacts
from three_walls.advice.format.effect import Effect, EffectCase
from three_walls.advice.format.replay_entries import ParameterRange, ReplayEntry, SelectionEntry
from three_walls.advice.format.rule import Docs, Edit, Evidence, GainModel, Requirement, Rule, ShareEnd, TimeShare
from three_walls.advice.testing import rule_cases
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.expressions import Clause, parse_expression
from three_walls.lib.fact import FactSheet
from three_walls.lib.plain_data import ConfigData
from three_walls.replay.transformation import ALL, Action, Transformation
from three_walls.tables.buckets import Wall

MS = 1_000_000

KNOWN = KnownFacts.of(DEFINITIONS)


def sheet_of(values: Mapping[str, ConfigData], environment_is_known: bool = False) -> FactSheet:
    """A fact sheet that holds exactly ``values``, in the units of their definitions."""
    return rule_cases.sheet_of(values, KNOWN, environment_is_known)


def read(*texts: str) -> tuple[Clause, ...]:
    """The conditions that ``texts`` state, in the syntax of rule files."""
    conditions = [parse_expression(text) for text in texts]
    assert all(isinstance(condition, Clause) for condition in conditions)
    return tuple(condition for condition in conditions if isinstance(condition, Clause))


def rule(
    identifier: str,
    *,
    at_most: str = "launch_starved_ns",
    share: ShareEnd = 1.0,
    within: tuple[str, ...] = (),
    lever: str = "",
    applies_to: tuple[Clause, ...] = (),
    when: tuple[Clause, ...] = (),
    requires: tuple[Requirement, ...] = (),
    edits: tuple[Edit, ...] = (),
    continues: str = "",
) -> Rule:
    """A rule that sets ``config.<identifier>`` to true, and gains at most a share of one time."""
    return Rule(
        id=identifier,
        wall=Wall.COMMUNICATION,
        sub_wall=None,
        title=identifier,
        applicability="execution-only",
        docs=Docs("", "", ""),
        applies_to=applies_to,
        when=when,
        requires={each.name: each for each in requires},
        lever=lever or identifier,
        continues=continues,
        edits=edits or (Edit(identifier, True),),
        gain=GainModel(at_most=(TimeShare(time=at_most, share=share),), within=within, explanation="reason"),
        evidence=Evidence(),
    )


def frees_memory(identifier: str, *edits: Edit, when: tuple[Clause, ...] = (), lever: str = "") -> Rule:
    """A rule that frees memory."""
    freeing = rule(identifier, edits=edits, when=when, lever=lever)
    return replace(freeing, gain=GainModel(frees_memory=True, explanation="saves memory"))


def case(
    to: str = "",
    *changes: Transformation | ReplayEntry,
    from_: str = "",
    nothing: str = "",
    unknown: str = "",
) -> EffectCase:
    """A case of an effect, with its conditions in the syntax of rule files."""
    entries = (entry_of(change) if isinstance(change, Transformation) else change for change in changes)
    return EffectCase(
        from_=read(*filter(None, [from_])),
        to=read(*filter(None, [to])),
        changes=tuple(entries),
        nothing=nothing,
        unknown=unknown,
    )


def effect(
    identifier: str,
    *cases: EffectCase,
    settings: tuple[str, ...] = (),
    phase: str = "work",
    elements: tuple[str, ...] = (),
    together_with: tuple[str, ...] = (),
    otherwise: str = "nobody measured it",
) -> Effect:
    """What changes of ``settings`` do, by default of ``config.<identifier>``."""
    return Effect(
        id=identifier,
        phase=phase,
        settings=settings or (f"config.{identifier}",),
        elements=elements,
        together_with=together_with,
        cases=cases,
        otherwise=otherwise,
    )


def requirement(name: str, *checks: Clause, confirm: str = "") -> Requirement:
    return Requirement(name=name, check=checks, confirm=confirm, reason="it must be so", source="guide:A guide")


def entry_of(change: Transformation, *only_if: Clause) -> ReplayEntry:
    """The entry of an effect that states ``change``, where ``only_if`` hold."""
    words = {part.name: getattr(change.select, part.name) for part in fields(SelectionEntry) if part.name != "ranks"}
    action: dict[str, Any] = {} if change.action is Action.HOST else {change.action.value: SelectionEntry(**words)}
    levels = {name: getattr(change, name) for name in ("time", "host", "share", "slowdown")}
    ranges: dict[str, Any] = {
        name: ParameterRange(found.low, found.likely, found.high)
        for name, found in levels.items()
        if found != ALL or name == change.action
    }
    return ReplayEntry(**action, **ranges, only_if=only_if, reason=change.reason, source=change.source)


def run(**values: ConfigData) -> FactSheet:
    """A consistent run of 1000 ms; keyword names spell dots as two underscores."""
    base: dict[str, ConfigData] = {
        "step_ns": 1000 * MS,
        "device_busy_ns": 800 * MS,
        "compute_busy_ns": 500 * MS,
        "compute_busy_fraction": 0.0,
        "idle_ns": 200 * MS,
        "ep_busy_ns": 200 * MS,
        "ep_hidden_ns": 0,
        "ep_exposed_ns": 200 * MS,
        "ep_exposed_fraction": 0.0,
        "ep_hidden_of_busy_fraction": 0.0,
        "ep_transfer_exposed_ns": 150 * MS,
        "ep_transfer_exposed_fraction": 0.0,
        "ep_wait_exposed_ns": 50 * MS,
        "collective_busy_ns": 100 * MS,
        "collective_exposed_ns": 100 * MS,
        "collective_transfer_exposed_ns": 100 * MS,
        "dp_exposed_ns": 100 * MS,
        "dp_exposed_fraction": 0.0,
        "launch_starved_ns": 200 * MS,
        "launch_starved_fraction": 0.0,
        "launch_starved_recoverable_ns": 200 * MS,
        "launch_starved_recoverable_fraction": 0.0,
        "host_blocked_ns": 0,
        "host_idle_ns": 200 * MS,
        "attention_unfused_ns": 100 * MS,
        "attention_unfused_fraction": 0.0,
        "recompute_ns": 200 * MS,
        "memory_recoverable_ns": 200 * MS,
        "communication_recoverable_ns": 250 * MS,
        "compute_recoverable_ns": 100 * MS,
        "host_recoverable_ns": 200 * MS,
        "wait_exposed_ns": 50 * MS,
        "wait_exposed_fraction": 0.0,
        "cuda_graph_fraction": 0.0,
        "unclassified_fraction": 0.0,
    }
    base |= {name.replace("__", "."): value for name, value in values.items()}
    facts = sheet_of(base)
    return facts.with_values(dict(_list_quotients(facts)))


def _list_quotients(facts: FactSheet) -> Iterator[tuple[str, float]]:
    """The fractions on the sheet, from their numerators and denominators."""
    for name, fact in facts.facts.items():
        part = facts.number(fact.definition.numerator) if fact.definition else None
        whole = facts.number(fact.definition.denominator) if fact.definition else None
        if part is not None and whole:
            yield name, part / whole
