"""What a Megatron-Bridge release requires of a whole configuration: ``tables/bridge-constraints.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo

from three_walls.advice.finding import PlanNote
from three_walls.advice.format.rule_sources import Pointer, load_sources
from three_walls.bridge.merged_config import MergedConfig, values_by_path
from three_walls.bridge.resolve_config import BEFORE, DERIVED, DERIVED_NAMES, ENVIRONMENT, PLATFORM, Resolved, resolve
from three_walls.lib.expressions import FAILURES, Truth, evaluate, list_names, parse_expression
from three_walls.lib.load_documents import Text, load_table, suggest
from three_walls.lib.resources import RULES_DIR, TABLES_DIR
from three_walls.tables.bridge_releases import FailureMode, bridge_schema, is_between, known_releases, release_number
from three_walls.tables.config_values import show

CONSTRAINTS_FILE = TABLES_DIR / "bridge-constraints.yaml"


def _check_expression(text: str, info: ValidationInfo) -> str:
    known = (info.context or {})["names"]
    for name in list_names(parse_expression(text)):
        setting = ".".join(name.removeprefix(BEFORE).split(".")[:2])  # what an object in a setting holds is not listed
        if not name.startswith(ENVIRONMENT) and setting not in known:
            raise ValueError(f"unknown name {name}{suggest(name, known)}")
    return text


ExpressionText = Annotated[Text, AfterValidator(_check_expression)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """Where ``if`` is true, ``needs`` must be true."""

    when: Annotated[ExpressionText | None, Field(alias="if")] = None
    needs: ExpressionText
    message: Text
    """Beginning of the message the run would end with."""
    since: Text | None = None
    until: Text | None = None
    source: Pointer
    failure_mode: FailureMode = FailureMode.REFUSED
    """How a run that breaks it fails: nearly all are checked before a run starts."""

    def is_checked_in(self, version: str) -> bool:
        """Whether the release checks it."""
        return is_between(release_number(version), self.since, self.until)

    def judge(self, settings: Resolved) -> tuple[Truth, str]:
        """Whether the configuration keeps it, and what is wrong where it does not."""
        applies = Truth.HOLDS
        try:
            if self.when is not None:
                applies = Truth.of(evaluate(parse_expression(self.when), settings.find))
            if applies is Truth.FAILS:
                return Truth.HOLDS, ""
            needs = parse_expression(self.needs)
            holds = Truth.of(evaluate(needs, settings.find))
        except FAILURES as error:
            if applies is Truth.UNKNOWN:
                return Truth.UNKNOWN, ""
            return Truth.FAILS, f"{type(error).__name__}: {error}"
        if holds is not Truth.FAILS or applies is Truth.UNKNOWN:
            return (Truth.HOLDS if holds is Truth.HOLDS else Truth.UNKNOWN), ""
        values = [(name, settings.find(name)) for name in list_names(needs)]
        return Truth.FAILS, ", ".join(
            f"{name} is {show(value)}" for name, value in values if value is not Truth.UNKNOWN
        )


@dataclass(frozen=True, slots=True)
class ConstraintTable:
    """Every constraint by name."""

    platform: tuple[Text, ...]
    """Names of what is no setting: the machine and the libraries that the configuration meets."""
    constraints: dict[str, Constraint]


@cache
def constraint_table(path: Path = CONSTRAINTS_FILE) -> ConstraintTable:
    """The table that ships with the program, or the one in ``path``; RuleBaseError lists every error."""
    return load_table(path, ConstraintTable, _list_names(path))


@cache
def constraints_of(version: str) -> dict[str, Constraint]:
    """Those that the release ``version`` checks, by name."""
    return {name: row for name, row in constraint_table().constraints.items() if row.is_checked_in(version)}


def _list_names(path: Path) -> dict[str, object]:
    """What the table in ``path`` may refer to: names of settings and of its own platform, and sources."""
    listed = load_table(path, dict[str, object]).get("platform")
    names = {f"{PLATFORM}{name}" for name in listed} if isinstance(listed, list) else set()
    names |= {f"{DERIVED}{name}" for name in DERIVED_NAMES}
    for release in known_releases():
        schema = bridge_schema(release)
        names |= {*schema.sections, *schema.paths(), *schema.sections["model"].fields}
    return {"names": names, "sources": load_sources(RULES_DIR / "sources.yaml")}


def judge_constraints(config: MergedConfig, version: str) -> tuple[tuple[PlanNote, ...], tuple[str, ...]]:
    """Constraints of the release that ``config`` breaks, and the names of those that cannot be judged."""
    return judge_values(config, values_by_path(config, bridge_schema(version)), version)


def judge_values(
    config: MergedConfig, paths: Mapping[str, Any], version: str
) -> tuple[tuple[PlanNote, ...], tuple[str, ...]]:
    """The same for settings by Bridge path; ``config`` gives the environment and the platform."""
    settings = resolve(paths, config, version)
    broken = [PlanNote(WRONG_KIND, problem, WRONG_KIND_SOURCE) for problem in settings.problems]
    unknown = []
    for name, constraint in constraints_of(version).items():
        truth, values = constraint.judge(settings)
        if truth is Truth.FAILS:
            text = constraint.failure_mode.describe(f"{constraint.message} ({values})", settings.schema.release)
            broken.append(PlanNote(name, text, constraint.source))
        elif truth is Truth.UNKNOWN:
            unknown.append(name)
    return tuple(broken), tuple(unknown)


WRONG_KIND = "settings_fit_each_other"
"""Name of the note on a value of a wrong kind that Bridge calculates with before it checks it."""
WRONG_KIND_SOURCE = "bridge-0.6:src/megatron/bridge/training/config.py:1853-1888"


def failure_mode_of(name: str) -> FailureMode:
    """How a run fails that breaks the constraint ``name``."""
    constraint = constraint_table().constraints.get(name)
    return constraint.failure_mode if constraint is not None else FailureMode.REFUSED


@cache
def compared_names() -> frozenset[str]:
    """Every name that some constraint compares."""
    texts = [text for row in constraint_table().constraints.values() for text in (row.when, row.needs) if text]
    return frozenset(name for text in texts for name in list_names(parse_expression(text)))
