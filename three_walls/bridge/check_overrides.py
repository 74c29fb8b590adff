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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from three_walls.advice.finding import PlannedEdit, PlanNote
from three_walls.bridge.constraints import constraints_of, failure_mode_of, judge_constraints, judge_values
from three_walls.bridge.field_values import ACTIVATIONS_NAMED_SINCE, FieldValues, describe_field
from three_walls.bridge.merged_config import (
    COMM_OVERLAP,
    COMM_OVERLAP_CLASS,
    MAPPING,
    MIXED_PRECISION,
    OBJECT_CLASSES,
    SAME_AS_GATHER,
    MergedConfig,
    OverriddenConfig,
    complete_sections,
    config_of_run,
    values_by_path,
)
from three_walls.bridge.render_overrides import NEWEST_BRIDGE, spell
from three_walls.bridge.resolve_config import FINE_TUNING_DATASETS
from three_walls.lib.expressions import Truth
from three_walls.lib.hydra import Override, Reference, Sweep, parse_override
from three_walls.lib.load_documents import suggest
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.tables.bridge_releases import BridgeSchema, FailureMode, FieldType, bridge_schema, release_number
from three_walls.tables.config_values import show

_OPEN_SECTIONS = ("dataset", "peft", "tokenizer")
"""Sections whose class differs from run to run, so that a field that no release lists may exist."""
OBJECT_PARTS = ("._target_", "._args_", "._call_", "._name_")
"""Ends of paths that construct an object instead of setting a field."""
_NOT_SAVED = ("dataset.mock", "dataset.token_dtype_code", "dataset.split_matrix")
"""Fields of the dataset that are calculated when the run starts."""
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
    broken: tuple[PlanNote, ...]
    unknown: tuple[str, ...]
    constraints_count: int
    """Constraints that the release has."""

    @property
    def is_valid(self) -> bool:
        """Whether no override fails and no constraint is broken."""
        return not self.problems

    @property
    def is_accepted(self) -> bool | None:
        """Whether Megatron-Bridge applies the overrides and validates the result; None where that is not known.

        Accepted is not enough: an accepted override may do nothing, or fail when the model is built.
        """
        modes = {override.failure_mode for override in self.overrides}
        modes |= {failure_mode_of(note.name) for note in self.broken}
        if FailureMode.REFUSED in modes:
            return False
        return None if FailureMode.UNKNOWN in modes else True

    @property
    def problems(self) -> tuple[PlanNote, ...]:
        """What fails, overrides first."""
        failing = (override for override in self.overrides if override.truth is Truth.FAILS)
        notes = (PlanNote("override_applies", f"{override.text}: {override.message}") for override in failing)
        return (*notes, *self.broken)


def check_overrides(
    overrides: Sequence[str], base: MergedConfig, version: str, environment: Mapping[str, str] | None = None
) -> OverrideCheck:
    """Check ``overrides`` as applied to the configuration ``base``, with ``environment`` set as well."""
    schema = bridge_schema(version)
    checker = _Checker(schema, base, overrides)
    merged = checker.view.finish()
    checked = tuple(checker.describe(override) for override in checker.overrides)
    variables = {path.partition(".")[2]: str(value) for path, value in merged.items() if path.startswith("env_vars.")}
    known = replace(base, environment=variables | {**base.environment, **(environment or {})})
    broken, unknown = judge_values(known, merged, version)
    return OverrideCheck(schema.release, checked, broken, unknown, len(constraints_of(version)))


def find_problems(
    edits: Iterable[PlannedEdit], config: RunConfig, bridge_version: str | None = None
) -> tuple[PlanNote, ...]:
    """What is wrong with ``edits``: overrides that fail, and constraints that only the edits break."""
    version = bridge_version or config.bridge_version or NEWEST_BRIDGE
    base, broken_before = _without_edits.of(config, version)
    overrides = spell(list(edits), config, version)
    check = check_overrides(overrides.bridge, base, version, dict(overrides.env))
    return tuple(note for note in check.problems if note.name not in broken_before)


class _WithoutEdits:
    """The last configuration that was asked for, with the constraints that it breaks: a plan asks a dozen times."""

    def __init__(self) -> None:
        self._config: RunConfig | None = None
        self._version = ""
        self._found: tuple[MergedConfig, frozenset[str]] = (MergedConfig({}), frozenset())

    def of(self, config: RunConfig, version: str) -> tuple[MergedConfig, frozenset[str]]:
        if config is not self._config or version != self._version:
            base = config_of_run(config)
            self._found = base, frozenset(note.name for note in judge_constraints(base, version)[0])
            self._config, self._version = config, version
        return self._found


_without_edits = _WithoutEdits()


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why an override is wrong, and how that shows."""

    problem: str
    mode: FailureMode = FailureMode.REFUSED


@dataclass(frozen=True, slots=True)
class _Placed:
    """One override, and what is wrong with its form or its place; ``parsed`` is None where Hydra cannot read it."""

    text: str
    parsed: Override | None
    failure: _Failure | None = None
    doubt: str = ""


class _Checker:
    """Merges overrides in their order into what is known of the configuration, and judges each of them."""

    def __init__(self, schema: BridgeSchema, base: MergedConfig, overrides: Sequence[str]) -> None:
        self.schema = schema
        self.complete = complete_sections(base, schema.release)
        """Sections whose every field is known."""
        before = values_by_path(base, schema)
        self.before = before
        """What is known without the overrides, by path."""
        self.values = FieldValues(schema, before)
        self.view = OverriddenConfig(before, schema)
        self.current = self.view.paths
        self.removed: set[str] = set()
        """Sections and fields that ``~`` took from the overrides' view: a plain override does not find them."""
        self.appended: list[str] = []
        """What overrides name in sections that the release has not, each with a dot: later overrides find it."""
        self.overrides = [self._place(text) for text in overrides]

    def _place(self, text: str) -> _Placed:
        """Merge one override, unless it cannot be merged."""
        try:
            parsed = parse_override(text)
        except ValueError as error:
            return _Placed(text, None, _Failure(f"this is not an override that Hydra can read: {error}"))
        failure = self._find_misplacement(parsed)
        doubt = "" if failure is not None else self._find_doubt(parsed)
        if failure is None or (parsed.prefix == "~" and failure.mode is FailureMode.IGNORED):
            self.view.merge(parsed)
            if parsed.prefix == "~":
                self.removed.add(parsed.path)
        return _Placed(text, parsed, failure, doubt)

    def describe(self, placed: _Placed) -> CheckedOverride:
        """What becomes of the override, once all are merged."""
        failure = placed.failure
        if failure is None and placed.parsed is not None:
            failure = self._check_settings(placed.parsed)
        if failure is not None:
            message = failure.mode.describe(failure.problem, self.schema.release)
            return CheckedOverride(placed.text, Truth.FAILS, message, failure.mode)
        return CheckedOverride(placed.text, Truth.UNKNOWN if placed.doubt else Truth.HOLDS, placed.doubt)

    def _find_misplacement(self, override: Override) -> _Failure | None:
        """Why the override cannot be merged, or is skipped; None where it has a place."""
        section, _, field = override.path.partition(".")
        if override.package or "/" in section:
            return _Failure(f"{override.text} names a config group, and Megatron-Bridge has none")
        if isinstance(override.value, Sweep):
            return _Failure("this is a sweep over several runs, which Megatron-Bridge cannot merge")
        if section not in self.schema.sections:
            is_there = any(path.startswith(f"{override.path}.") for path in self.appended)
            is_refused = is_there if override.prefix == "+" else not is_there and override.prefix != "++"
            self.appended.append(f"{override.path}.")
            mode = FailureMode.REFUSED if is_refused else FailureMode.IGNORED
            return _Failure(self._describe_missing_section(section), mode)
        if section == "env_vars":
            return self._check_variable(override, field)
        if isinstance(override.value, Reference) and not self._exists(override.value.path, override.path):
            return _Failure(f"there is no setting {override.value.path or 'that the reference names'}")
        if section == "peft" and self.before.get(section) not in (None, MAPPING):
            return self._check_adapter(override)
        if override.prefix == "~":
            return self._check_removal(override)
        if override.prefix == "" and any(f"{override.path}.".startswith(f"{path}.") for path in self.removed):
            return _Failure(f"Could not override '{override.path}': an override before it removes it")
        return self._check_place(override, section, field) if field else self._check_whole(override, section)

    def _find_doubt(self, override: Override) -> str:
        """What has to be known of the recipe to decide whether the override applies; empty if nothing."""
        section, _, field = override.path.partition(".")
        if section in OBJECT_CLASSES and field and not override.prefix and section not in self.current:
            return f"applies only if the recipe's {section} is a {OBJECT_CLASSES[section]}, which is not known"
        if section in _OPEN_SECTIONS and section not in self.complete and self.schema.find(override.path) is None:
            return f"no known class for {section} has {override.path}; the recipe's class may have it"
        return ""

    # The key exists, and the form fits.

    def _exists(self, path: str, by: str) -> bool:
        """Whether a reference in the setting ``by`` has a target."""
        return path != by and (path in self.current or (not self.complete and bool(path)))

    def _check_variable(self, override: Override, name: str) -> _Failure | None:
        path, prefix, value = override.path, override.prefix, override.value
        if not name:
            if prefix != "~" and not isinstance(value, dict):
                return _Failure("env_vars takes a mapping of variables")
            missing = [key for key in value if f"env_vars.{key}" not in self.current] if isinstance(value, dict) else []
            is_plain = prefix == "" and bool(missing)
            return _Failure(f"Could not override 'env_vars.{missing[0]}'; write ++env_vars") if is_plain else None
        if prefix not in ("+", "++") and path not in self.current:
            return _Failure(f"Could not override '{path}': the recipe may not have it; write ++{path}")
        if prefix == "+" and self.current.get(path) is not None:
            return _Failure(f"+{path} fails because the variable is set; write ++{path}")
        if value is None or isinstance(value, tuple | dict):
            return _Failure(f"environment variable {name} must have a scalar value")
        return None

    def _check_adapter(self, override: Override) -> _Failure | None:
        """An adapter is an object that can be called, which overrides do not see: they append its fields alone."""
        if override.prefix in ("", "~"):
            return _Failure(f"Could not override '{override.path}': overrides do not see the adapter; append with ++")
        if override.path == "peft" and not isinstance(override.value, dict):
            return _Failure("the adapter stays the object that it is: set peft in the recipe", FailureMode.IGNORED)
        return None

    def _check_removal(self, override: Override) -> _Failure:
        """What is removed from the overrides' view of the configuration keeps its value."""
        present = self.current.get(override.path)
        section = override.path.partition(".")[0]
        is_known = override.path in self.current or section in self.complete
        is_known |= section in self.current and (
            not self.view.is_object(section) or self.current.get(section, _UNKNOWN) == MAPPING
        )
        if self.schema.find(override.path) is None and not is_known:
            return _Failure(self._describe_missing_field(override.path, "") or f"there is no {override.path}")
        if is_known and present is None:
            return _Failure(f"Could not delete from config. '{override.path}' does not exist.")
        if override.value is not None and override.value != present:
            return _Failure(f"Could not delete from config. The value of '{override.path}' is {show(present)}.")
        return _Failure(f"{override.path} cannot be removed: it is a field of a class", FailureMode.IGNORED)

    def _check_place(self, override: Override, section: str, field: str) -> _Failure | None:
        """Whether the field has a place, as far as that is known."""
        state = self.current.get(section, _UNKNOWN)
        outer, _, inner = field.partition(".")
        place = f"{section}.{outer}"
        is_object = state is _UNKNOWN or self.view.is_object(section)
        if not is_object:
            if override.prefix == "":
                content = "has none" if state is None else f"is {show(state)}, which has no fields"
                problem = f"Could not override '{override.path}': the recipe's {section} {content}; append one with ++"
                return _Failure(problem)
            return None
        if (section in self.complete or state == MAPPING) and place not in self.current:
            if override.prefix and (state == MAPPING or place.endswith(OBJECT_PARTS)):
                return None
            if state == MAPPING or not self._has_undumped(override, section):
                problem = self._describe_missing_field(override.path, override.prefix, is_complete=True)
                return self._fail_missing(problem, override)
        name = inner.partition(".")[0]
        if inner and override.prefix == "" and place in self.current and not self.view.has_inner(place, name):
            return _Failure(f"Could not override '{override.path}': {place} has no {name}")
        return self._check_merge(override)

    def _has_undumped(self, override: Override, section: str) -> bool:
        """Whether the field exists though the configuration does not show it.

        Fields that are calculated later are not saved. Up to 0.5 the dataset has its length under another name too,
        which an appended override can set.
        """
        if section == "dataset" and self.current.get("dataset") in FINE_TUNING_DATASETS:
            return False
        if section in ("model", "dataset", "tokenizer", "peft"):
            is_appended = override.prefix in ("+", "++")
            lengths = ("dataset.seq_length", "dataset.sequence_length")
            # From 0.6 on a dataset for pre-training has both lengths, of which the configuration saves one.
            may_set = is_appended or release_number(self.schema.release) >= (0, 6)
            has_length = may_set and override.path in lengths and any(length in self.current for length in lengths)
            return has_length or override.path in _NOT_SAVED
        return self.schema.find(".".join(override.path.split(".")[:2])) is not None

    def _is_function(self, path: str) -> bool:
        """Whether the setting holds a function, which overrides cannot reach unless Bridge reads its name."""
        field = self.schema.find(path)
        is_named = path == "model.activation_func" and release_number(self.schema.release) >= ACTIVATIONS_NAMED_SINCE
        is_callable = field is not None and "callable" in field.kinds
        return is_callable and isinstance(self.current.get(path), str) and path in self.before and not is_named

    def _check_merge(self, override: Override) -> _Failure | None:
        """Whether OmegaConf merges the value into what is there: a list and an object do not merge."""
        path, value, present = override.path, override.value, self.current.get(override.path)
        if self._is_function(path):
            return self._fail_missing(f"Could not override '{path}': it holds a function", override)
        is_merged = isinstance(value, dict) and override.prefix == "" and path.partition(".")[0] in self.complete
        if is_merged and path.count(".") == 1 and (isinstance(present, dict) or self.view.holds_object(path)):
            known = {inner.split(".")[2] for inner in self.current if inner.startswith(f"{path}.")}
            known |= set(present) if isinstance(present, dict) else set()
            missing = [name for name in value if name not in known]
            if missing:
                return _Failure(f"Could not override '{path}.{missing[0]}': {path} has none; append it with ++")
        is_new_object = isinstance(value, dict) and "_target_" in value and override.prefix == ""
        if is_new_object and self.view.holds_object(path):
            return _Failure(f"Could not override '{path}._target_': {path} is an object already")
        field = self.schema.find(path)
        takes_mapping = field is not None and field.kinds == ("dict",)
        if isinstance(value, tuple) and (isinstance(present, dict) or (takes_mapping and present is not None)):
            return _Failure(f"Error merging override {override.text}: {path} is an object")
        if override.prefix != "+" or isinstance(value, dict | tuple):
            return None
        is_there, section = present is not None, path.partition(".")[0]
        if path not in self.current and section not in self.complete:
            # Every configuration has the other sections, with one class each.
            is_certain = section not in (*OBJECT_CLASSES, *_OPEN_SECTIONS)
            is_there = field is not None and "null" not in field.kinds and is_certain
        return _Failure(f"+{path} fails because the key exists; write it without +") if is_there else None

    def _check_whole(self, override: Override, section: str) -> _Failure | None:
        """A section that is set as a whole: a mapping is merged into an object field by field."""
        value, is_object = override.value, self.view.is_object(section)
        is_known = section in self.current
        if isinstance(value, dict):
            missing = [name for name in value if not self.view.has_field(section, name)]
            if override.prefix == "" and missing and is_known and is_object:
                return _Failure(f"Could not override '{section}.{missing[0]}': {section} is an object already")
            return None
        if isinstance(value, tuple) and is_known and is_object:
            return _Failure(f"Error merging override {override.text}: {section} is an object")
        if override.prefix == "+" and is_known and self.current[section] is not None and not isinstance(value, tuple):
            return _Failure(f"+{section} fails because the section exists; write it without +")
        return None

    def _describe_missing_section(self, section: str) -> str:
        if section == "env_vars":
            return f"Megatron-Bridge {self.schema.release} has no env_vars and skips it; export the variable instead"
        return f"Megatron-Bridge {self.schema.release} has no section {section}{suggest(section, self.schema.sections)}"

    def _fail_missing(self, problem: str, override: Override) -> _Failure:
        """A section or field that the classes lack: a plain override of it fails, an appended one is skipped."""
        return _Failure(problem, FailureMode.IGNORED if override.prefix in ("+", "++") else FailureMode.REFUSED)

    def _describe_missing_field(self, path: str, prefix: str, is_complete: bool = False) -> str:
        """Empty where the recipe's class, or the object that the path leads into, may have the field."""
        section, _, field = path.partition(".")
        outer = ".".join(path.split(".")[:2])
        parent = self.schema.find(outer) if outer != path else None
        is_inside = parent is not None and any(kind.startswith(("object", "dict", "dtype")) for kind in parent.kinds)
        if not is_complete and (section in _OPEN_SECTIONS or is_inside):
            return ""
        skipped = "; with ++ it is skipped with a warning" if prefix else ""
        holder = f"Megatron-Bridge {self.schema.release}"
        if is_complete and self.schema.find(path) is not None:
            holder = f"the configuration's {section}"
        known = self.schema.sections[section].fields
        return f"{holder} has no {path}{skipped}{suggest(field, known)}"

    def _check_settings(self, override: Override) -> _Failure | None:
        """The first setting of the override that fails, if any."""
        value = override.value
        if isinstance(value, dict) and "." not in override.path:
            settings = {f"{override.path}.{name}": inner for name, inner in value.items()}
        else:
            settings = {override.path: value}
        failures = (
            self._check_setting(override, path, inner)
            for path, inner in settings.items()
            if not path.endswith(OBJECT_PARTS) and not path.startswith("env_vars.")
        )
        return next((failure for failure in failures if failure is not None), None)

    def _check_setting(self, override: Override, path: str, value: Any) -> _Failure | None:
        field = self.schema.find(path)
        if field is None:
            is_known = path in self.before or override.path == "dataset.seq_length"
            problem = "" if is_known else self._describe_missing_field(path, override.prefix)
            return self._fail_missing(problem, override) if problem else None
        if isinstance(value, dict) and "_target_" in value:
            problem = self._check_object(path, field, value)
            return _Failure(problem, FailureMode.NOT_VALIDATED) if problem else None
        if problem := self._describe_reset(path):
            return _Failure(problem, FailureMode.IGNORED)
        if isinstance(value, Reference) or self.current.get(path, value) != value:
            return None  # a later override sets it again
        if problem := self.values.find_problem(path, field, value):
            return _Failure(problem, self.values.find_failure_mode(path, field, value))
        return None

    def _check_object(self, path: str, field: FieldType, value: Mapping[str, Any]) -> str:
        """What is wrong with a field that is set to ``{_target_:...}``."""
        target, arguments = str(value["_target_"]), value.get("_args_")
        name = target.rpartition(".")[2]
        enum = self.schema.enums.get(name)
        if enum is not None:
            is_member = isinstance(arguments, tuple) and len(arguments) == 1 and arguments[0] in enum.members.values()
            is_expected = f"enum:{name}" in field.kinds and target == f"{enum.module}.{name}"
            problem = "" if is_member and is_expected else f"{name}{arguments}"
        else:
            is_object = any(kind.startswith(("object:", "dtype", "callable", "any", "dict")) for kind in field.kinds)
            problem = "" if is_object else f"an object of {name}"
        return f"{path} takes {describe_field(field)}, found {problem}" if problem else ""

    # Bridge copies the fields of two sections over those of others before it validates.

    def _describe_reset(self, path: str) -> str:
        section, _, field = path.partition(".")
        gathered = f"{path}_gather"
        if (
            section == MIXED_PRECISION
            and field in SAME_AS_GATHER
            and self.current.get(gathered, _UNKNOWN) not in (_UNKNOWN, self.current.get(path))
        ):
            return f"{path} is reset by {gathered}: set that instead"
        is_distributed = bool(self.current.get("ddp.use_distributed_optimizer"))
        if (
            (section == "model" or (section in ("ddp", "optimizer") and is_distributed))
            and field in self.schema.sections[COMM_OVERLAP].fields
            and self.current.get(COMM_OVERLAP) == COMM_OVERLAP_CLASS
        ):
            return f"{path} is reset by comm_overlap: set comm_overlap.{field} instead"
        if (
            section in ("model", "ddp", "optimizer")
            and field in self.schema.sections[MIXED_PRECISION].fields
            and self.current.get(MIXED_PRECISION, _UNKNOWN) not in (None, _UNKNOWN)
        ):
            return f"{path} is reset by mixed_precision: set {field} in the recipe's MixedPrecisionConfig instead"
        return ""
