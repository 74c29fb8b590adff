"""What a Megatron-Bridge release requires of a whole configuration: ``tables/bridge-constraints.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from three_walls.model.config import ConfigData
from three_walls.model.fact import Fact, FactSheet
from three_walls.model.finding import FailureMode, Note
from three_walls.overrides.merged_config import DERIVED_NAMES, MergedConfig, derive_values
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
from three_walls.tables.bridge import bridge_schema, known_releases, release_number
from three_walls.tables.config_keys import config_keys
from three_walls.tables.loader import Row, Text, load_table

CONSTRAINTS_FILE = TABLES_DIR / "bridge-constraints.yaml"


def _check_setting(name: str, info: ValidationInfo) -> str:
    known = (info.context or {})["facts"]
    if problem := known.check(f"config.{name}"):
        raise ValueError(problem)
    return name


Setting = Annotated[Text, AfterValidator(_check_setting)]
"""A config key, the path of a field that has none, or ``platform.<name>``."""


class Remainder(Row):
    """A remainder of a division: the product of ``of`` by the product of ``by`` times ``factor``."""

    of: tuple[Setting, ...]
    by: tuple[Setting, ...]
    factor: int = 1

    def calculate(self, values: Mapping[str, ConfigData]) -> int | None:
        """The remainder; None where a setting is not known or no number. A divisor that is unset counts as 1."""
        if not all(name in values for name in (*self.of, *self.by)):
            return None
        factors = [value for name in self.of if isinstance(value := values[name], int)]
        divisors = [value for name in self.by if isinstance(value := 1 if values[name] is None else values[name], int)]
        is_known = len(factors) == len(self.of) and len(divisors) == len(self.by)
        if not is_known or any(divisor <= 0 for divisor in divisors):
            return None
        return prod(factors) % (prod(divisors) * self.factor)


class Constraint(Row):
    """Where every comparison of ``if`` holds, ``needs`` must hold, or one of ``needs_any``."""

    when: Conditions = Field(default=(), alias="if")
    needs: Conditions | None = None
    needs_any: Alternatives | None = None
    message: Text
    """Beginning of the message the run would end with."""
    since: Text | None = None
    until: Text | None = None
    source: Pointer
    failure_mode: FailureMode = FailureMode.REFUSED
    """How a run that breaks it fails: nearly all are checked before a run starts."""

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
        """Whether the configuration keeps it."""
        applies = evaluate_all(self.when, facts)
        if applies is Truth.FAILS:
            return Truth.HOLDS
        kept = evaluate_all(self.needs, facts) if self.needs is not None else evaluate_any(self.needs_any or (), facts)
        return Truth.UNKNOWN if kept is Truth.FAILS and applies is Truth.UNKNOWN else kept

    def explain(self, facts: FactSheet) -> str:
        """The message, with what was compared."""
        failing = that_are(Truth.FAILS, self.needs or self.needs_any or (), facts)
        return f"{self.message} ({explain(failing, facts, ', or ' if self.needs_any is not None else ' and ')})"


class ConstraintTable(Row):
    """Every constraint by name, with the remainders that they compare."""

    remainders: dict[str, Remainder]
    platform: tuple[Text, ...]
    """Names of what is no setting: the machine and the libraries that the configuration meets."""
    constraints: dict[str, Constraint]


@cache
def constraint_table() -> ConstraintTable:
    """The table that ships with the program."""
    return load_constraints(CONSTRAINTS_FILE)


def load_constraints(path: Path) -> ConstraintTable:
    """The table in ``path``; RuleBaseError lists every error."""
    table = load_table(path, dict[str, object])
    names = {f"config.{name}" for name in config_keys().keys} | {f"config.derived.{name}" for name in DERIVED_NAMES}
    for section in ("remainders", "platform"):  # a mapping by name, and a list of names
        listed = table.get(section)
        if isinstance(listed, dict | list):
            names |= {f"config.{section.removesuffix('s')}.{name}" for name in listed}
    context = {
        "facts": KnownFacts(dict.fromkeys(names, "config"), _unit_of_field),
        "sources": load_sources(RULES_DIR / "sources.yaml"),
    }
    return load_table(path, ConstraintTable, context)


def judge_constraints(config: MergedConfig, version: str) -> tuple[tuple[Note, ...], tuple[str, ...]]:
    """Constraints of the release that ``config`` breaks, and the names of those that cannot be judged."""
    facts = _collect_facts(config, version)
    release = bridge_schema(version).release
    broken, unknown = [], []
    for name, constraint in constraint_table().constraints.items():
        if not constraint.is_checked_in(version):
            continue
        truth = constraint.judge(facts)
        if truth is Truth.FAILS:
            text = constraint.failure_mode.describe(constraint.explain(facts), release)
            broken.append(Note(name, text, constraint.source))
        elif truth is Truth.UNKNOWN:
            unknown.append(name)
    return tuple(broken), tuple(unknown)


def _collect_facts(config: MergedConfig, version: str) -> FactSheet:
    """``config`` as facts that conditions compare, with what follows from its values. What is not known is missing."""
    values = dict(config.values)
    values |= {f"platform.{name}": value for name, value in config.platform.items()}
    values |= derive_values(values, version)
    for name, remainder in constraint_table().remainders.items():
        result = remainder.calculate(values)
        if result is not None:
            values[f"remainder.{name}"] = result
    facts = [Fact(f"config.{name}", value, "config") for name, value in sorted(values.items())]
    facts += [Fact(f"env.{name}", value, "config") for name, value in sorted(config.environment.items())]
    return FactSheet.of(facts, config.environment_is_known)


def _unit_of_field(name: str) -> str | None:
    """Variables, and fields of some release that have no key, may be compared too."""
    if name.startswith("env."):
        return "env"
    path = name.removeprefix("config.")
    if "." not in path or path == name:
        return None
    return "config" if any(bridge_schema(release).find(path) for release in known_releases()) else None
