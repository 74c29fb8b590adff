"""Constraints of ``tables/bridge-constraints.yaml``: read strictly, judged with three answers."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import Field, model_validator

from three_walls.model.fact import FactSheet
from three_walls.model.failure_mode import FailureMode
from three_walls.resources import RULES_DIR, TABLES_DIR
from three_walls.rules.conditions import (
    Alternatives,
    Conditions,
    KnownFacts,
    Truth,
    evaluate_all,
    evaluate_any,
    that_are,
)
from three_walls.rules.sources import Pointer, load_sources
from three_walls.rules.wording import explain
from three_walls.tables.bridge_schema import bridge_schema, known_releases, release_number
from three_walls.tables.config_keys import config_keys
from three_walls.tables.loader import Row, Text, load_table

CONSTRAINTS_FILE = TABLES_DIR / "bridge-constraints.yaml"
_DERIVED = ("graphed_modules", "full_iteration_graph", "names_graph_modules", "sequence_lengths_agree")


class Remainder(Row):
    """A remainder of a division: product of ``of`` by the product of ``by`` times ``factor``."""

    of: tuple[Text, ...]
    by: tuple[Text, ...]
    factor: int = 1


class Constraint(Row):
    """Where every comparison of ``if`` holds, ``needs`` must, or one of ``needs_any``."""

    when: Conditions = Field(default=(), alias="if")
    needs: Conditions | None = None
    needs_any: Alternatives | None = None
    says: Text
    """Beginning of the message the run would end with."""
    since: Text | None = None
    until: Text | None = None
    source: Pointer
    failure_mode: FailureMode = FailureMode.REFUSED
    """When a run that breaks it fails: nearly all are checked before a run starts."""

    @model_validator(mode="after")
    def _check(self) -> Constraint:
        if (self.needs is None) == (self.needs_any is None):
            raise ValueError("a constraint has either needs or needs_any")
        return self

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
        kept = evaluate_all(self.needs, facts) if self.needs is not None else evaluate_any(self.needs_any or (), facts)
        return Truth.UNKNOWN if kept is Truth.FAILS and matters is Truth.UNKNOWN else kept

    def explain(self, facts: FactSheet) -> str:
        """The message, with what was compared."""
        failing = that_are(Truth.FAILS, self.needs or self.needs_any or (), facts)
        return f"{self.says} ({explain(failing, facts, ', or ' if self.needs_any is not None else ' and ')})"


class ConstraintTable(Row):
    """Every constraint by name, the remainders they compare, and facts of the machine that they are given."""

    remainders: dict[str, Remainder]
    platform: tuple[Text, ...]
    constraints: dict[str, Constraint]


@cache
def constraint_table() -> ConstraintTable:
    """The table that ships with the program."""
    return load_constraints(CONSTRAINTS_FILE)


def load_constraints(path: Path) -> ConstraintTable:
    """The table in ``path``; raises RuleBaseError that lists every error."""
    table = load_table(path, dict[str, object])
    names = {f"config.{name}" for name in config_keys().keys} | {f"config.derived.{name}" for name in _DERIVED}
    for section in ("remainders", "platform"):  # a mapping by name, and a list of names
        listed = table.get(section)
        if isinstance(listed, dict | list):
            names |= {f"config.{section.removesuffix('s')}.{name}" for name in listed}
    context = {
        "facts": KnownFacts(dict.fromkeys(names, "config"), _unit_of_field),
        "sources": load_sources(RULES_DIR / "sources.yaml"),
    }
    return load_table(path, ConstraintTable, context)


def _unit_of_field(name: str) -> str | None:
    """Variables, and fields of some release that have no name of their own, may be compared too."""
    if name.startswith("env."):
        return "env"
    path = name.removeprefix("config.")
    if "." not in path or path == name:
        return None
    return "config" if any(bridge_schema(release).find(path) for release in known_releases()) else None
