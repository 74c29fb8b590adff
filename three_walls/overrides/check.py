"""Whether overrides apply in one Megatron-Bridge release, and how they fail if they do not.

Nothing of Megatron is imported: fields and types come from ``tables/generated/bridge``, what the release asserts of a
whole configuration from ``tables/bridge-constraints.yaml``. Four questions are asked of each override: does the key
exist, does the form fit, does the value fit its field, and does Bridge reset it afterwards? Then the constraints are
checked on the merged configuration. The check is stricter than Bridge, which accepts any text for any field. For each
problem it states whether Bridge refuses the override, or how else it fails (``FailureMode``).

The overrides are Hydra's in struct mode: a plain one needs an existing key, a new key has to be appended with ``+`` or
``++``, and a section that is an object cannot be replaced by another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from three_walls.model.config import ConfigData, ConfigScalar, RunConfig
from three_walls.model.finding import FailureMode, Note, PlannedEdit
from three_walls.overrides.constraints import constraint_table, judge_constraints
from three_walls.overrides.merged_config import (
    COMM_OVERLAP,
    COMM_OVERLAP_CLASS,
    MIXED_PRECISION,
    MIXED_PRECISION_CLASS,
    OBJECT_CLASSES,
    OBJECT_PARTS,
    MergedConfig,
    apply_overrides,
    config_of_run,
)
from three_walls.overrides.spell import NEWEST_BRIDGE, spell
from three_walls.rules.conditions import Truth
from three_walls.tables.bridge import (
    BridgeSchema,
    FieldType,
    accepted_values,
    bridge_schema,
    measured_mismatches,
    release_number,
)
from three_walls.tables.config_keys import keys_by_path
from three_walls.tables.hydra_overrides import Override, read_override
from three_walls.tables.loader import suggest

_OVERRIDE = re.compile(r"(?P<prefix>\+\+|\+|~)?(?P<path>[\w.]+)(=(?P<value>.*))?", re.DOTALL)
_OPEN_SECTIONS = ("dataset", "peft", "tokenizer")
"""Sections whose class differs from run to run, so that a field that no release lists may exist."""
_UNKNOWN = object()
"""State of a section of which nothing is known."""


@dataclass(frozen=True, slots=True)
class CheckedOverride:
    """One override. ``message`` explains why it fails, or what it depends on where that is unknown."""

    text: str
    truth: Truth
    message: str = ""
    failure_mode: FailureMode | None = None
    """How it fails; None where it does not."""


@dataclass(frozen=True, slots=True)
class OverrideCheck:
    """Every override, the constraints that the merged configuration breaks, and those whose answer is unknown."""

    release: str
    """The release whose schema was used."""
    overrides: tuple[CheckedOverride, ...]
    broken: tuple[Note, ...]
    unknown: tuple[str, ...]

    @property
    def is_valid(self) -> bool:
        """Whether no override fails and no constraint is broken."""
        return not self.problems

    @property
    def is_accepted(self) -> bool | None:
        """Whether Megatron-Bridge applies the overrides and validates the result; None where that is not known.

        Accepted is not enough: an accepted override may do nothing, or fail when the model is built.
        """
        constraints = constraint_table().constraints
        modes = {override.failure_mode for override in self.overrides}
        modes |= {constraints[note.name].failure_mode for note in self.broken}
        if FailureMode.REFUSED in modes:
            return False
        return None if FailureMode.UNKNOWN in modes else True

    @property
    def problems(self) -> tuple[Note, ...]:
        """What fails, overrides first."""
        failing = (override for override in self.overrides if override.truth is Truth.FAILS)
        notes = (Note("override_applies", f"{override.text}: {override.message}") for override in failing)
        return (*notes, *self.broken)


def check_overrides(
    overrides: Sequence[str], base: MergedConfig, version: str, environment: Mapping[str, str] | None = None
) -> OverrideCheck:
    """Check ``overrides`` as applied to the configuration ``base``, with ``environment`` set as well."""
    schema = bridge_schema(version)
    lines = [_read_line(text) for text in overrides]
    readable = [line for line in lines if line is not None]
    checker = _Checker(schema, base, readable)
    checked = tuple(
        CheckedOverride(text, Truth.FAILS, _UNREADABLE, FailureMode.REFUSED) if line is None else checker.check(line)
        for line, text in zip(lines, overrides, strict=True)
    )
    merged = apply_overrides(base, (setting for line in readable for setting in line.settings), environment or {})
    broken, unknown = judge_constraints(merged, version)
    return OverrideCheck(schema.release, checked, broken, unknown)


def find_problems(
    edits: Iterable[PlannedEdit], config: RunConfig, bridge_version: str | None = None
) -> tuple[Note, ...]:
    """What is wrong with ``edits``: overrides that fail, and constraints that only the edits break."""
    version = bridge_version or config.bridge_version or NEWEST_BRIDGE
    base = config_of_run(config)
    broken_before = {note.name for note in judge_constraints(base, version)[0]}
    overrides = spell(list(edits), config, version)
    check = check_overrides(overrides.bridge, base, version, dict(overrides.env))
    return tuple(note for note in check.problems if note.name not in broken_before)


_UNREADABLE = "this is not an override: expected key=value with balanced brackets"


@dataclass(frozen=True, slots=True)
class _Line:
    """One override as written, and the settings it makes."""

    text: str
    prefix: str
    path: str
    is_mapping: bool
    settings: tuple[Override, ...]


def _read_line(text: str) -> _Line | None:
    """The override; None where Hydra could not read ``text``."""
    match = _OVERRIDE.fullmatch(text)
    if match is None or (match["value"] is None and match["prefix"] != "~"):
        return None
    value = (match["value"] or "").strip()
    if any(value.count(opening) != value.count(closing) for opening, closing in ("[]", "{}")):
        return None
    return _Line(text, match["prefix"] or "", match["path"], value.startswith("{"), tuple(read_override(text)))


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why an override is wrong, and how that shows."""

    problem: str
    mode: FailureMode = FailureMode.REFUSED


@dataclass(frozen=True, slots=True)
class _Checker:
    """Checks lines against a release and what is known of the configuration they are applied to."""

    schema: BridgeSchema
    base: MergedConfig
    lines: Sequence[_Line]

    def check(self, line: _Line) -> CheckedOverride:
        failure = self._find_failure(line)
        if failure is not None:
            message = failure.mode.describe(failure.problem, self.schema.release)
            return CheckedOverride(line.text, Truth.FAILS, message, failure.mode)
        doubt = self._find_doubt(line)
        return CheckedOverride(line.text, Truth.UNKNOWN if doubt else Truth.HOLDS, doubt)

    def _find_failure(self, line: _Line) -> _Failure | None:
        """Why the override fails or has no effect; None where nothing is wrong with it."""
        section, _, field = line.path.partition(".")
        if section not in self.schema.sections:
            return self._fail_missing(self._describe_missing_section(section), line)
        if section == "env_vars":
            if field and line.prefix != "++":
                return _Failure(f"Could not override '{line.path}': the recipe may not have it; write ++{line.path}")
            return None
        if section in OBJECT_CLASSES:
            is_overlap = section == COMM_OVERLAP
            problem = self._check_comm_overlap(line, field) if is_overlap else self._check_precision(line, field)
            return _Failure(problem) if problem else self._check_settings(line)
        failure = self._check_settings(line)
        if failure is None and (problem := self._describe_reset(line.path)):
            failure = _Failure(problem, FailureMode.IGNORED)
        return failure

    def _find_doubt(self, line: _Line) -> str:
        """What has to be known of the recipe to decide whether the override applies; empty if nothing."""
        section, _, field = line.path.partition(".")
        if section in OBJECT_CLASSES and field and not line.prefix and section not in self.base.values:
            return f"applies only if the recipe's {section} is a {OBJECT_CLASSES[section]}, which is not known"
        if section in _OPEN_SECTIONS and self.schema.find(line.path) is None:
            return f"no known class for {section} has {line.path}; the recipe's class may have it"
        return ""

    # The key exists, and the form fits.

    def _describe_missing_section(self, section: str) -> str:
        if section == "env_vars":
            return f"Megatron-Bridge {self.schema.release} has no env_vars and skips it; export the variable instead"
        return f"Megatron-Bridge {self.schema.release} has no section {section}{suggest(section, self.schema.sections)}"

    def _fail_missing(self, problem: str, line: _Line) -> _Failure:
        """A section or field that the classes lack: a plain override of it fails, an appended one is skipped."""
        return _Failure(problem, FailureMode.IGNORED if line.prefix in ("+", "++") else FailureMode.REFUSED)

    def _describe_missing_field(self, path: str, prefix: str) -> str:
        """Empty where the recipe's class, or the object that the path leads into, may have the field."""
        section, _, field = path.partition(".")
        outer = ".".join(path.split(".")[:2])
        parent = self.schema.find(outer) if outer != path else None
        is_inside = parent is not None and any(kind.startswith(("object", "dict", "dtype")) for kind in parent.kinds)
        if section in _OPEN_SECTIONS or is_inside:
            return ""
        skipped = "; with ++ it is skipped with a warning" if prefix else ""
        known = self.schema.sections[section].fields
        return f"Megatron-Bridge {self.schema.release} has no {path}{skipped}{suggest(field, known)}"

    def _check_comm_overlap(self, line: _Line, field: str) -> str:
        state = self.base.values.get(COMM_OVERLAP, _UNKNOWN)
        if not field and line.is_mapping and state == COMM_OVERLAP_CLASS:
            return "comm_overlap is an object already and cannot be replaced: override its fields"
        if field and not line.prefix and state is None:
            return f"Could not override '{line.path}': the recipe has no CommOverlapConfig; append one with ++"
        if state is None and (line.is_mapping or line.prefix) and not self._constructs(COMM_OVERLAP):
            return "'dict' object has no attribute 'data_parallel_size': append the class, ++comm_overlap._target_="
        return ""

    def _check_precision(self, line: _Line, field: str) -> str:
        state = self.base.values.get(MIXED_PRECISION, _UNKNOWN)
        if field and state not in (_UNKNOWN, MIXED_PRECISION_CLASS):
            return f"Could not override '{line.path}': the recipe's mixed_precision is {state}, which has no fields"
        return ""

    def _check_settings(self, line: _Line) -> _Failure | None:
        """The first setting of the line that fails, if any."""
        if line.is_mapping and (problem := self._check_object(line)) is not None:
            return _Failure(problem, FailureMode.UNKNOWN) if problem else None
        for setting in line.settings:
            path = setting.path
            if path.endswith(OBJECT_PARTS):
                continue
            field = self.schema.find(path)
            if field is None:
                if problem := self._describe_missing_field(path, line.prefix):
                    return self._fail_missing(problem, line)
                continue
            if line.prefix == "~":
                return _Failure(f"{path} cannot be removed: it is a field of a class")
            if line.prefix == "+" and path.partition(".")[0] not in (*OBJECT_CLASSES, *_OPEN_SECTIONS):
                return _Failure(f"+{path} fails because the key exists; write it without +")
            if problem := self._check_value(path, field, setting.value):
                return _Failure(problem, self._find_failure_mode(path, field, setting.value))
        return None

    def _check_object(self, line: _Line) -> str | None:
        """What is wrong with a field that is set to ``{_target_:...}``; None where the mapping holds plain values."""
        field = self.schema.find(line.path)
        parts = {setting.path.removeprefix(f"{line.path}."): setting.value for setting in line.settings}
        if "." not in line.path or field is None or "_target_" not in parts:
            return None
        target, arguments = str(parts["_target_"]), parts.get("_args_")
        name = target.rpartition(".")[2]
        enum = self.schema.enums.get(name)
        if enum is not None:
            is_member = isinstance(arguments, tuple) and len(arguments) == 1 and arguments[0] in enum.members.values()
            is_expected = f"enum:{name}" in field.kinds and target == f"{enum.module}.{name}"
            found = "" if is_member and is_expected else f"{name}{arguments}"
        else:
            is_object = any(kind.startswith(("object:", "dtype", "callable", "any", "dict")) for kind in field.kinds)
            found = "" if is_object else f"an object of {name}"
        return f"{line.path} takes {_describe_field(field)}, found {found}" if found else ""

    # The value fits its field. Hydra checks neither types nor allowed values.

    def _check_value(self, path: str, field: FieldType, value: ConfigData) -> str:
        """Why ``path`` cannot hold ``value``; empty if it can."""
        takes = _describe_field(field)
        if value is None:
            may_be_null = {"null", "any"} & set(field.kinds) or (field.has_default and field.default is None)
            return "" if may_be_null else f"{path} cannot be null: it takes {takes}"
        if not isinstance(value, tuple):
            if not any(_fits(kind, value) for kind in field.kinds):
                return f"{path} takes {takes}, found {_show(value)}"
            return self._check_allowed(path, field, value)
        kinds = [_element_kind(kind) for kind in field.kinds if kind.startswith("list[")]
        if not kinds and "any" not in field.kinds:
            return f"{path} takes {takes}, found a list"
        for element in value:
            if kinds and not any(_fits(kind, element) for kind in kinds):
                return f"{path} takes {takes}, found the element {_show(element)}"
            if problem := self._check_allowed(path, field, element):
                return problem
        return ""

    def _check_allowed(self, path: str, field: FieldType, value: ConfigScalar) -> str:
        """Text is compared with the values that the release names, else with those of ``tables/config-keys.yaml``."""
        allowed: tuple[ConfigData, ...] = field.values or self._enum_members(field)
        key = keys_by_path().get(path)
        if not allowed and key is not None and key.values and key.bridge is not None:
            since, release = key.bridge.value_since, release_number(self.schema.release)
            allowed = tuple(word for word in key.values if release >= release_number(since.get(str(word), "0")))
        if not allowed or value in allowed or not isinstance(value, str):
            return ""
        if path == MIXED_PRECISION and value.replace("-", "_") in allowed:
            return ""  # both spellings are registered
        names = [str(name) for name in allowed]
        listed = ", ".join(names)
        return f"{path}: {value} is not one of {listed} in release {self.schema.release}{suggest(value, names)}"

    def _enum_members(self, field: FieldType) -> tuple[str, ...]:
        """Names of the enum members that the field takes."""
        enums = [_element_kind(kind).removeprefix("enum:") for kind in field.kinds if "enum:" in kind]
        members = [name for enum in enums if enum in self.schema.enums for name in self.schema.enums[enum].members]
        return tuple(dict.fromkeys((*members, "full"))) if members else ()

    def _find_failure_mode(self, path: str, field: FieldType, value: ConfigData) -> FailureMode:
        """How a value fails that ``path`` cannot hold: as measured of each release, or as upstream's code was read."""
        kind = _mismatch_kind(field, value)
        is_accepted = measured_mismatches(self.schema.release).is_accepted(path, kind)
        if is_accepted is None:
            return FailureMode.UNKNOWN
        if not is_accepted:
            return FailureMode.REFUSED
        reviewed = accepted_values().get((path, kind))
        return reviewed.failure_mode if reviewed is not None else FailureMode.NOT_VALIDATED

    # Bridge copies the fields of two sections over those of others before it validates.

    def _describe_reset(self, path: str) -> str:
        section, _, field = path.partition(".")
        is_distributed = self.base.values.get("use_distributed_optimizer") is True
        if (
            (section == "model" or (section == "ddp" and is_distributed))
            and field in self.schema.sections[COMM_OVERLAP].fields
            and self._state_after(COMM_OVERLAP) == COMM_OVERLAP_CLASS
        ):
            return f"{path} is reset by comm_overlap: set comm_overlap.{field} instead"
        if (
            section in ("model", "ddp", "optimizer")
            and field in self.schema.sections[MIXED_PRECISION].fields
            and self._state_after(MIXED_PRECISION) not in (None, _UNKNOWN)
        ):
            return f"{path} is reset by mixed_precision: set {field} in the recipe's MixedPrecisionConfig instead"
        return ""

    def _state_after(self, section: str) -> object:
        """What the section holds once the overrides are applied."""
        return OBJECT_CLASSES[section] if self._constructs(section) else self.base.values.get(section, _UNKNOWN)

    def _constructs(self, section: str) -> bool:
        """Whether some override names the section's class."""
        return any(setting.path == f"{section}._target_" for line in self.lines for setting in line.settings)


def _element_kind(kind: str) -> str:
    return kind.removeprefix("list[").removesuffix("]")


def _fits(kind: str, value: ConfigScalar) -> bool:
    """A member of an enum has to be spelled as an object: its name alone is text, which equals no member."""
    match value:
        case bool():
            return kind in ("bool", "any")
        case int():
            return kind in ("int", "float", "any")
        case float():
            return kind in ("float", "any")
        case str():
            return kind in ("str", "any")
    return kind in ("null", "any")


def _mismatch_kind(field: FieldType, value: ConfigData) -> str:
    """The kind, of ``bridge_type_mismatches.KINDS``, of a value that does not fit ``field``."""
    match value:
        case None:
            return "nothing"
        case tuple():
            lists = [kind for kind in field.kinds if kind.startswith("list[")]
            if not lists:
                return "list"
            # An element of the list does not fit: unknown text in a list of names, or an element of another kind.
            takes_text = any("str" in kind or "enum" in kind for kind in lists)
            return "word" if takes_text and all(isinstance(element, str) for element in value) else "element"
        case bool():
            return "flag"
        case int():
            return "word" if "int" in field.kinds else "integer"
        case float():
            return "fraction"
    return "word" if "str" in field.kinds else "text"


def _describe_field(field: FieldType) -> str:
    if field.values:
        return f"one of {', '.join(map(str, field.values))}"
    return " or ".join(
        kind.replace("enum:", "a member of ").replace("object:", "an object of ") for kind in field.kinds
    )


def _show(value: ConfigScalar) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
