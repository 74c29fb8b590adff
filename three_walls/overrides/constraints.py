"""Constraints of ``tables/bridge-constraints.yaml``: read strictly, judged with three answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from three_walls.model.fact import FactSheet
from three_walls.model.failure_mode import FailureMode
from three_walls.model.rule import Condition
from three_walls.resources import RULES_DIR, TABLES_DIR
from three_walls.rules.conditions import Truth, evaluate_all, evaluate_any, explain, that_are
from three_walls.rules.rule_parts import PartReader
from three_walls.rules.sources import check_pointer, read_sources
from three_walls.tables.bridge import bridge_schema, known_releases, release_number
from three_walls.tables.config_keys import config_keys
from three_walls.tables.strict_yaml import Problems, load_strict, suggest
from three_walls.tables.yaml_nodes import Node

CONSTRAINTS_FILE = TABLES_DIR / "bridge-constraints.yaml"
_DERIVED = ("graphed_modules", "full_iteration_graph", "names_graph_modules", "sequence_lengths_agree")


@dataclass(frozen=True, slots=True)
class Remainder:
    """A remainder of a division: product of ``of`` by the product of ``by`` times ``factor``."""

    of: tuple[str, ...]
    by: tuple[str, ...]
    factor: int


@dataclass(frozen=True, slots=True)
class Constraint:
    """Where every comparison of ``when`` holds, ``needs`` must (one of them, if ``any_of``)."""

    name: str
    when: tuple[Condition, ...]
    needs: tuple[Condition, ...]
    any_of: bool
    says: str
    """Beginning of the message the run would end with."""
    since: str | None
    until: str | None
    source: str
    failure_mode: FailureMode = FailureMode.REFUSED
    """When it strikes: nearly all are checked before a run starts."""

    def is_checked_in(self, version: str) -> bool:
        """Whether the release checks it."""
        release = release_number(version)
        return (self.since is None or release >= release_number(self.since)) and (
            self.until is None or release <= release_number(self.until)
        )

    def judge(self, facts: FactSheet) -> Truth:
        """Whether it is kept."""
        matters = evaluate_all(self.when, facts)
        if matters is Truth.FAILS:
            return Truth.HOLDS
        kept = (evaluate_any if self.any_of else evaluate_all)(self.needs, facts)
        return Truth.UNKNOWN if kept is Truth.FAILS and matters is Truth.UNKNOWN else kept

    def explain(self, facts: FactSheet) -> str:
        """The message, with what was compared."""
        failing = that_are(Truth.FAILS, self.needs, facts)
        return f"{self.says.strip()} ({explain(failing, facts, ', or ' if self.any_of else ' and ')})"


@dataclass(frozen=True, slots=True)
class ConstraintTable:
    """Every constraint, and the remainders they compare."""

    constraints: tuple[Constraint, ...]
    remainders: Mapping[str, Remainder]


@cache
def constraint_table() -> ConstraintTable:
    """The table that ships with the program."""
    return load_constraints(CONSTRAINTS_FILE)


def load_constraints(path: Path) -> ConstraintTable:
    """The table in ``path``; raises RuleBaseError that lists every error."""
    problems = Problems()
    top = problems.fields(load_strict(path, problems), ("remainders", "platform", "constraints"))
    remainders = {name: _remainder(node, problems) for name, node in problems.entries(top.get("remainders")).items()}
    platform = problems.texts(top.get("platform"))
    names = {f"remainder.{name}" for name in remainders} | {f"platform.{name}" for name in platform}
    names |= {f"derived.{name}" for name in _DERIVED} | set(config_keys().keys)
    parts = PartReader(problems, read_sources(RULES_DIR / "sources.yaml", problems))
    entries = problems.entries(top.get("constraints"))
    constraints = tuple(_constraint(name, node, parts) for name, node in entries.items())
    for one in constraints:
        for condition in (*one.when, *one.needs):
            _note_unknown_name(condition, entries[one.name], names, problems)
    problems.raise_if_any()
    return ConstraintTable(constraints, remainders)


def _remainder(node: Node, problems: Problems) -> Remainder:
    found = problems.fields(node, ("of", "by"), ("factor",))
    factor = problems.integer(found["factor"]) if "factor" in found else 1
    return Remainder(problems.texts(found.get("of")), problems.texts(found.get("by")), factor)


def _constraint(name: str, node: Node, parts: PartReader) -> Constraint:
    problems = parts.problems
    found = problems.fields(node, ("says", "source"), ("if", "needs", "needs_any", "since", "until", "failure_mode"))
    if ("needs" in found) == ("needs_any" in found):
        problems.add(node, "a constraint has either needs or needs_any")
    needs = parts.alternatives(found["needs_any"]) if "needs_any" in found else parts.conditions(found.get("needs"))
    return Constraint(
        name=name,
        when=parts.conditions(found.get("if")),
        needs=needs,
        any_of="needs_any" in found,
        says=problems.text(found.get("says")),
        since=problems.text(found.get("since")) or None,
        until=problems.text(found.get("until")) or None,
        source=check_pointer(found.get("source"), problems, parts.sources),
        failure_mode=_read_strikes(found.get("failure_mode"), problems),
    )


def _read_strikes(node: Node | None, problems: Problems) -> FailureMode:
    word = problems.choice(node, tuple(FailureMode)) if node is not None else FailureMode.REFUSED
    return FailureMode(word) if word in tuple(FailureMode) else FailureMode.REFUSED


def _note_unknown_name(condition: Condition, node: Node, names: set[str], problems: Problems) -> None:
    """A fact must be a key, a field of some release, or one of those that are derived."""
    name = condition.fact.removeprefix("config.")
    if condition.fact.startswith("env.") or name in names:
        return
    if "." not in name or not any(bridge_schema(release).find(name) for release in known_releases()):
        problems.add(node, f"unknown setting {name}{suggest(name, names)}")
