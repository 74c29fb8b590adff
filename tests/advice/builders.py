"""Rules and runs for tests of judging and planning, from a few words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from three_walls.advice.finding import FREES_MEMORY, UPPER_BOUND
from three_walls.advice.format.conditions import KnownFacts
from three_walls.advice.format.replay_entries import ParameterRange, ReplayEntry, SelectionEntry
from three_walls.advice.format.rule import Docs, Edit, Evidence, GainModel, GainTerm, Requirement, Rule
from three_walls.advice.plan.gain import rederive_fractions
from three_walls.advice.testing import rule_cases
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.expressions import Clause, Condition
from three_walls.lib.fact import FactSheet
from three_walls.lib.plain_data import ConfigData
from three_walls.replay.transformation import ALL, Action, Transformation
from three_walls.tables.buckets import Wall

MS = 1_000_000

KNOWN = KnownFacts.of(DEFINITIONS)


def sheet_of(values: Mapping[str, ConfigData], environment_is_known: bool = False) -> FactSheet:
    """A fact sheet that holds exactly ``values``, in the units of their definitions."""
    return rule_cases.sheet_of(values, KNOWN, environment_is_known)


def rule(
    identifier: str,
    *,
    pool: str = "launch_starved_ns",
    low: float = 0.0,
    likely: float | None = 0.5,
    high: float = 1.0,
    lever: str = "",
    basis: str = "range",
    applies_to: tuple[Clause, ...] = (),
    when: tuple[Clause, ...] = (),
    requires: tuple[Requirement, ...] = (),
    edits: tuple[Edit, ...] = (),
    shrinks_all_pools: bool = False,
    hidden_under: str = "",
    at_most: str = "",
) -> Rule:
    """A rule that sets ``config.<identifier>`` to true and gains from one pool."""
    ends = {"low": low, "likely": likely} if likely is not None else {}
    terms = (GainTerm(pool=pool, **ends, high=high),)
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
        edits=edits or (Edit(identifier, True),),
        gain=GainModel(basis, "reason", terms, shrinks_all_pools, hidden_under, at_most),
        evidence=Evidence(),
    )


def upper_bound(
    identifier: str,
    *,
    pool: str = "launch_starved_ns",
    high: float = 1.0,
    lever: str = "",
    requires: tuple[Requirement, ...] = (),
    edits: tuple[Edit, ...] = (),
    hidden_under: str = "",
    at_most: str = "",
) -> Rule:
    """A rule of which only the most that it may gain is known."""
    return rule(
        identifier,
        pool=pool,
        likely=None,
        high=high,
        lever=lever,
        basis=UPPER_BOUND,
        requires=requires,
        edits=edits,
        hidden_under=hidden_under,
        at_most=at_most,
    )


def frees_memory(identifier: str, cost: float, is_estimated: bool = False) -> Rule:
    """A rule that frees memory."""
    gain = GainModel(FREES_MEMORY, "saves memory", cost_fraction=cost, cost_is_estimated=is_estimated)
    return replace(rule(identifier), gain=gain)


def requirement(name: str, *checks: Clause, confirm: str = "") -> Requirement:
    return Requirement(name=name, check=checks, confirm=confirm, reason="it must be so", source="guide:A guide")


def entry_of(change: Transformation, *only_if: Condition) -> ReplayEntry:
    """The entry of a rule that states ``change``, where ``only_if`` hold."""
    words = {part.name: getattr(change.select, part.name) for part in fields(change.select) if part.name != "ranks"}
    action = {} if change.action is Action.HOST else {change.action.value: SelectionEntry(**words)}
    levels = {name: getattr(change, name) for name in ("time", "host", "share", "slowdown")}
    ranges = {
        name: ParameterRange(found.low, found.likely, found.high)
        for name, found in levels.items()
        if found != ALL or name == change.action
    }
    return ReplayEntry(**action, **ranges, only_if=only_if, reason=change.reason, source=change.source)


def with_replay(rule: Rule, *changes: Transformation | ReplayEntry) -> Rule:
    """``rule`` with what its edits change in a replay of the step."""
    entries = (entry_of(change) if isinstance(change, Transformation) else change for change in changes)
    return replace(rule, gain=replace(rule.gain, replay=tuple(entries)))


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
    return rederive_fractions(sheet_of(base))
