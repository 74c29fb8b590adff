"""Whether overrides apply and the configuration they make is valid, in one Megatron-Bridge release.

Nothing of Megatron is imported: fields and types come from ``tables/generated/bridge``, what the release asserts
from ``tables/bridge-constraints.yaml``. It finds more than Bridge does, which takes any word for any field: of each
problem it says whether Bridge refuses it (``OverrideCheck.is_taken``) or when else it strikes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from three_walls.model.config import ConfigData, RunConfig
from three_walls.model.failure_mode import FailureMode, Problem
from three_walls.model.finding import Note, PlannedEdit
from three_walls.overrides.constraints import constraint_table
from three_walls.overrides.forms import FormChecker, Line, read_line
from three_walls.overrides.merged_config import (
    COMM_OVERLAP,
    COMM_OVERLAP_CLASS,
    MIXED_PRECISION,
    MIXED_PRECISION_CLASS,
    Settings,
    facts_of_settings,
    name_of,
    settings_of,
)
from three_walls.overrides.spell import NEWEST_BRIDGE, spell
from three_walls.rules.conditions import Truth
from three_walls.tables.bridge_schema import bridge_schema
from three_walls.tables.config_keys import config_keys


@dataclass(frozen=True, slots=True)
class CheckedOverride:
    """One override. ``message`` says why it fails, or what has to be known where that is unknown."""

    text: str
    truth: Truth
    message: str
    failure_mode: FailureMode | None = None
    """When that which fails strikes; None where nothing does."""


@dataclass(frozen=True, slots=True)
class OverrideCheck:
    """Every override, the constraints that the merged configuration breaks, and those that cannot be judged."""

    release: str
    """The release whose schema was used."""
    overrides: tuple[CheckedOverride, ...]
    broken: tuple[Note, ...]
    unknown: tuple[str, ...]
    failure_mode: Mapping[str, FailureMode] = field(default_factory=dict)
    """When each broken constraint strikes, by its name."""

    @property
    def is_sound(self) -> bool:
        """Nothing speaks against the overrides."""
        return not self.broken and all(one.truth is not Truth.FAILS for one in self.overrides)

    @property
    def is_taken(self) -> bool | None:
        """Whether Megatron-Bridge applies the overrides and validates what they make; None where that is not known.

        That is not enough: what it takes may do nothing, or fail when the model is built.
        """
        struck = (*(one.failure_mode for one in self.overrides), *self.failure_mode.values())
        if FailureMode.REFUSED in struck:
            return False
        return None if FailureMode.UNKNOWN in struck else True

    @property
    def problems(self) -> tuple[Note, ...]:
        """What fails, overrides first."""
        failing = (one for one in self.overrides if one.truth is Truth.FAILS)
        return (*(Note("override_applies", f"{one.text}: {one.message}") for one in failing), *self.broken)


def check_overrides(
    overrides: Sequence[str], base: Settings, version: str, environment: Mapping[str, str] | None = None
) -> OverrideCheck:
    """``overrides`` on the configuration ``base``; ``environment`` is set besides them."""
    schema = bridge_schema(version)
    lines = [read_line(text) for text in overrides]
    checker = FormChecker(schema, base, [line for line in lines if line is not None])
    checked = tuple(_check_one(checker, line, text) for line, text in zip(lines, overrides, strict=True))
    merged = merge(base, checker.lines, environment or {})
    broken, unknown = judge_constraints(merged, version)
    constraints = constraint_table().constraints
    return OverrideCheck(
        schema.release, checked, broken, unknown, {note.name: constraints[note.name].failure_mode for note in broken}
    )


def find_override_problems(
    edits: Iterable[PlannedEdit], config: RunConfig, bridge_version: str | None = None
) -> tuple[Note, ...]:
    """What is wrong with the edits: overrides that fail, and constraints that they break and that held without them."""
    version = bridge_version or config.bridge_version or NEWEST_BRIDGE
    base = settings_of(config)
    before = {note.name for note in check_overrides((), base, version).broken}
    overrides = spell(list(edits), config, version)
    after = check_overrides(overrides.bridge, base, version, dict(overrides.env))
    return tuple(note for note in after.problems if note.name not in before)


def judge_constraints(settings: Settings, version: str) -> tuple[tuple[Note, ...], tuple[str, ...]]:
    """Constraints that ``settings`` break, and names of those that cannot be judged."""
    table = constraint_table()
    facts = facts_of_settings(settings, version, table.remainders)
    broken, unknown = [], []
    for name, constraint in table.constraints.items():
        if not constraint.is_checked_in(version):
            continue
        truth = constraint.judge(facts)
        if truth is Truth.FAILS:
            problem = Problem(constraint.explain(facts), constraint.failure_mode)
            broken.append(Note(name, problem.sentence(bridge_schema(version).release), constraint.source))
        elif truth is Truth.UNKNOWN:
            unknown.append(name)
    return tuple(broken), tuple(unknown)


def merge(base: Settings, lines: Sequence[Line], environment: Mapping[str, str]) -> Settings:
    """What the configuration holds once ``lines`` are applied and Bridge has spread what they imply."""
    values = dict(base.values)
    variables: dict[str, ConfigData] = {**base.environment, **environment}
    for line in lines:
        for setting in line.settings:
            if line.path.startswith("env_vars."):
                variables.setdefault(line.path.removeprefix("env_vars."), str(setting.value))
            else:
                _set(values, setting.path, setting.value)
    return replace(base, values=values, environment=variables)


def _check_one(checker: FormChecker, line: Line | None, text: str) -> CheckedOverride:
    if line is None:
        message = "not an override: expected key=value with closed brackets"
        return CheckedOverride(text, Truth.FAILS, message, FailureMode.REFUSED)
    if problem := checker.problem(line):
        return CheckedOverride(text, Truth.FAILS, problem.sentence(checker.schema.release), problem.failure_mode)
    doubt = checker.doubt(line)
    return CheckedOverride(text, Truth.UNKNOWN if doubt else Truth.HOLDS, doubt)


def _set(values: dict[str, ConfigData], path: str, value: ConfigData) -> None:
    section, _, field = path.partition(".")
    if field == "_target_":
        values[section] = COMM_OVERLAP_CLASS if section == COMM_OVERLAP else MIXED_PRECISION_CLASS
    elif path.endswith(("._target_", "._call_", "._name_")):
        return
    elif path.endswith("._args_"):
        values.pop(name_of(path.removesuffix("._args_")), None)  # a member by its number; no constraint compares one
    else:
        values[name_of(path)] = value
    if path == MIXED_PRECISION and isinstance(value, str):
        values |= config_keys().precision_recipes.get(value.replace("-", "_"), {})
    if path == "rng.te_rng_tracker" and value is True:
        values["te_rng_tracker"] = True  # Bridge keeps both places the same
