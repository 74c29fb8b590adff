"""Whether Megatron-Bridge would apply an override: the key exists, the form fits, nothing resets it afterwards.

The overrides are Hydra's, in struct mode: a plain one needs an existing key. What is not there has to be appended with
``+``, and a section that is an object cannot be replaced by another one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from three_walls.model.failure_mode import FailureMode, Problem
from three_walls.overrides.merged_config import COMM_OVERLAP, MIXED_PRECISION, Settings
from three_walls.overrides.type_mismatches import failure_mode_of_mismatch
from three_walls.overrides.types import complaint_about_value
from three_walls.tables.bridge import BridgeSchema, FieldType
from three_walls.tables.hydra_overrides import Override, read_override
from three_walls.tables.strict_yaml import suggest

_OPEN_SECTIONS = ("dataset", "peft", "tokenizer")
"""Their class differs from run to run: a field that is not known may exist."""
_WORD = re.compile(r"(?P<prefix>\+\+|\+|~)?(?P<path>[\w.]+)(=(?P<value>.*))?", re.DOTALL)
_OBJECT = ("._target_", "._args_", "._call_", "._name_")


@dataclass(frozen=True, slots=True)
class Line:
    """One override as written, and the settings it makes."""

    text: str
    prefix: str
    path: str
    is_mapping: bool
    settings: tuple[Override, ...]


def read_line(text: str) -> Line | None:
    """The override; ``None`` where ``text`` is none that Hydra could read."""
    match = _WORD.fullmatch(text)
    if match is None or (match["value"] is None and match["prefix"] != "~"):
        return None
    value = (match["value"] or "").strip()
    if any(value.count(opening) != value.count(closing) for opening, closing in ("[]", "{}")):
        return None
    return Line(text, match["prefix"] or "", match["path"], value.startswith("{"), tuple(read_override(text)))


@dataclass(frozen=True, slots=True)
class FormChecker:
    """Checks lines against a release and what is known of the configuration they are applied to."""

    schema: BridgeSchema
    base: Settings
    lines: Sequence[Line]

    def problem(self, line: Line) -> Problem | None:
        """Why the override fails or has no effect; None if nothing speaks against it."""
        section, _, field = line.path.partition(".")
        if section not in self.schema.sections:
            return self._unknown(self._unknown_section(section), line)
        if section == "env_vars":
            return _refused(self._complaint_about_variable(line, field))
        form = ""
        if section == COMM_OVERLAP:
            form = self._complaint_about_comm_overlap(line, field)
        elif section == MIXED_PRECISION:
            form = self._complaint_about_mixed_precision(line, field)
        if form:
            return _refused(form)
        wrong = self._problem_of_values(line)
        if wrong is not None or section in (COMM_OVERLAP, MIXED_PRECISION):
            return wrong
        reset = self._reset_by_a_setup(line.path)
        return Problem(reset, FailureMode.IGNORED) if reset else None

    def doubt(self, line: Line) -> str:
        """What has to be known of the recipe before one can say that the override applies; empty if nothing."""
        for section, class_name in ((COMM_OVERLAP, "CommOverlapConfig"), (MIXED_PRECISION, "MixedPrecisionConfig")):
            if line.path.startswith(f"{section}.") and not line.prefix and section not in self.base.values:
                return f"applies only where the recipe's {section} is a {class_name}, which is not known"
        section = line.path.partition(".")[0]
        if section in _OPEN_SECTIONS and self.schema.find(line.path) is None:
            return f"{section} has no {line.path} in the classes that are known; the recipe's class may have it"
        return ""

    def _unknown_section(self, section: str) -> str:
        if section == "env_vars":
            return f"Megatron-Bridge {self.schema.release} has no env_vars and skips it; export the variable"
        return f"Megatron-Bridge {self.schema.release} has no section {section}{suggest(section, self.schema.sections)}"

    def _unknown(self, text: str, line: Line) -> Problem:
        """A section or field that the classes lack: a plain override of it fails, an appended one is skipped."""
        return Problem(text, FailureMode.IGNORED if line.prefix in ("+", "++") else FailureMode.REFUSED)

    def _problem_of_values(self, line: Line) -> Problem | None:
        if line.is_mapping and (built := self._complaint_about_object(line)) is not None:
            return Problem(built, FailureMode.UNKNOWN) if built else None
        for setting in line.settings:
            if setting.path.endswith(_OBJECT):
                continue
            field = self.schema.find(setting.path)
            if field is None:
                if complaint := self._unknown_field(setting.path, line.prefix):
                    return self._unknown(complaint, line)
                continue
            if line.prefix == "~":
                return _refused(f"{setting.path} cannot be removed: it is a field of a class")
            if line.prefix == "+" and self._is_there(setting.path):
                return _refused(f"+{setting.path} fails: the key exists; write it without +")
            if wrong := complaint_about_value(self.schema, setting.path, field, setting.value):
                return Problem(wrong, failure_mode_of_mismatch(self.schema, setting.path, field, setting.value))
        return None

    def _complaint_about_object(self, line: Line) -> str | None:
        """Of a field that is set to ``{_target_:...}``; ``None`` where the mapping is one of plain values."""
        field = self.schema.find(line.path)
        given = {one.path.removeprefix(f"{line.path}."): one.value for one in line.settings}
        if "." not in line.path or field is None or "_target_" not in given:
            return None
        name = str(given["_target_"]).rpartition(".")[2]
        enum = self.schema.enums.get(name)
        if enum is not None:
            arguments = given.get("_args_")
            is_member = isinstance(arguments, tuple) and len(arguments) == 1 and arguments[0] in enum.members.values()
            wanted = f"enum:{name}" in field.kinds and str(given["_target_"]) == f"{enum.module}.{name}"
            return "" if is_member and wanted else f"{line.path} takes {_kinds(field)}, found {name}{arguments}"
        is_object = any(kind.startswith(("object:", "dtype", "callable", "any", "dict")) for kind in field.kinds)
        return "" if is_object else f"{line.path} takes {_kinds(field)}, found an object of {name}"

    def _unknown_field(self, path: str, prefix: str) -> str:
        section, _, field = path.partition(".")
        outer = ".".join(path.split(".")[:2])
        parent = self.schema.find(outer) if outer != path else None
        if section in _OPEN_SECTIONS or (
            parent and any(kind.startswith(("object", "dict", "dtype")) for kind in parent.kinds)
        ):
            return ""
        skipped = ": with ++ it is skipped with a warning" if prefix else ""
        known = self.schema.sections[section].fields
        return f"Megatron-Bridge {self.schema.release} has no {path}{skipped}{suggest(field, known)}"

    def _complaint_about_comm_overlap(self, line: Line, field: str) -> str:
        state = self.base.values.get(COMM_OVERLAP, "unknown")
        gets_class = any(one.path == f"{COMM_OVERLAP}._target_" for other in self.lines for one in other.settings)
        if not field and line.is_mapping and state == "CommOverlapConfig":
            return "comm_overlap is an object already: override its fields, it cannot be replaced"
        if field and not line.prefix and state is None:
            return f"Could not override '{line.path}': the recipe has no CommOverlapConfig; append one with ++"
        if not gets_class and state is None and (line.is_mapping or line.prefix):
            return "'dict' object has no attribute 'data_parallel_size': append the class, ++comm_overlap._target_="
        return ""

    def _complaint_about_mixed_precision(self, line: Line, field: str) -> str:
        state = self.base.values.get(MIXED_PRECISION, "unknown")
        if field and state not in ("unknown", "MixedPrecisionConfig"):
            return f"Could not override '{line.path}': the recipe names its precision by {state}, which has no fields"
        return ""

    def _complaint_about_variable(self, line: Line, name: str) -> str:
        if name and line.prefix != "++":
            return f"Could not override '{line.path}': write ++{line.path}, the recipe may not have it"
        return ""

    def _reset_by_a_setup(self, path: str) -> str:
        """Bridge copies the fields of two sections over those of others before it validates."""
        section, _, field = path.partition(".")
        overlap = self._state(COMM_OVERLAP)
        is_overlap = field in self.schema.sections[COMM_OVERLAP].fields
        distributed = self.base.values.get("use_distributed_optimizer") is True
        resets = section == "model" or (section == "ddp" and distributed)
        if resets and is_overlap and overlap == "CommOverlapConfig":
            return f"{path} is reset by comm_overlap: set comm_overlap.{field}"
        precision = self._state(MIXED_PRECISION)
        is_precision = field in self.schema.sections[MIXED_PRECISION].fields
        if section in ("model", "ddp", "optimizer") and is_precision and precision not in (None, "unknown"):
            return f"{path} is reset by mixed_precision: set {field} in the recipe's MixedPrecisionConfig"
        return ""

    def _state(self, section: str) -> object:
        """What the section is once the overrides are applied."""
        if any(one.path == f"{section}._target_" for line in self.lines for one in line.settings):
            return "CommOverlapConfig" if section == COMM_OVERLAP else "MixedPrecisionConfig"
        return self.base.values.get(section, "unknown")

    def _is_there(self, path: str) -> bool:
        section = path.partition(".")[0]
        return section not in (COMM_OVERLAP, MIXED_PRECISION, *_OPEN_SECTIONS)


def _refused(text: str) -> Problem | None:
    return Problem(text) if text else None


def _kinds(field: FieldType) -> str:
    return " or ".join(field.kinds)
