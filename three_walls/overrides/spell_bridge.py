"""Edits as Megatron-Bridge overrides (Hydra) and as Python. Both apply whatever the recipe holds."""

from __future__ import annotations

import re
from collections.abc import Sequence

from three_walls.model.config import ConfigData, ConfigScalar, RunConfig
from three_walls.model.finding import PlannedEdit
from three_walls.overrides.merged_config import COMM_OVERLAP, COMM_OVERLAP_CLASS, MIXED_PRECISION, MIXED_PRECISION_CLASS
from three_walls.tables.bridge import release_number
from three_walls.tables.config_keys import ConfigKey, PathSpelling, config_keys

_PLAIN_WORD = re.compile(r"[A-Za-z_./][\w./+-]*")
_CONSTANTS = {"null", "true", "false", "nan", "inf"}

_CREATE_COMM_OVERLAP = (
    "from megatron.bridge.training.comm_overlap import CommOverlapConfig",
    "cfg.comm_overlap = cfg.comm_overlap or CommOverlapConfig(tp_comm_overlap=False)",
)
_CREATE_MIXED_PRECISION = (
    "from megatron.bridge.training.mixed_precision import get_mixed_precision_config",
    "cfg.mixed_precision = get_mixed_precision_config(cfg.mixed_precision)",
)
_OPENINGS = {"comm_overlap": _CREATE_COMM_OVERLAP, "mixed_precision": _CREATE_MIXED_PRECISION}
"""Statements that make an object of a section that may be missing or a name, before its fields are set."""


class PythonSnippet:
    """Collects ``lines``: statements that change a recipe's ``cfg``, whatever the recipe holds.

    Python can set what an override cannot: fields of a precision that is given by its name.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []

    def set(self, path: str, value: ConfigData) -> None:
        """``cfg.<path> = value``."""
        section, _, field = path.partition(".")
        if field:
            self._write(*_OPENINGS.get(section, ()))
        self._write(f"cfg.{path} = {list(value) if isinstance(value, tuple) else value!r}")

    def set_member(self, path: str, class_path: str, member: str) -> None:
        """``cfg.<path>`` to a member of an enum."""
        module, _, name = class_path.rpartition(".")
        self._write(f"from {module} import {name}", f"cfg.{path} = {name}.{member}")

    def _write(self, *lines: str) -> None:
        self.lines += [line for line in lines if line not in self.lines]


class BridgeSpeller:
    """Turns edits into ``lines`` (raw overrides), ``python`` (the same for a recipe) and ``notes``."""

    def __init__(self, edits: Sequence[PlannedEdit], config: RunConfig, version: str) -> None:
        self.values = {edit.key: edit.to for edit in edits}
        self.config = config
        self.version = release_number(version)
        self.lines: list[str] = []
        self.notes: list[str] = []
        self.python = PythonSnippet()

    def spell_all(self) -> None:
        for name, value in self.values.items():
            key = config_keys().keys[self._name_in_release(name)]
            if key.bridge is None or not key.bridge.paths:
                self.note(f"{key.name} cannot be overridden")
            elif self._is_in_release(key, key.bridge) and self._knows_values(key, key.bridge, value):
                for path in key.bridge.paths:
                    self._spell(key, path, value)
                if key.name == "cuda_graph_scope" and value is not None and self.version >= (0, 5):
                    # From 0.5 on scope and modules exclude each other, and recipes use either.
                    self._spell(config_keys().keys["cuda_graph_modules"], "model.cuda_graph_modules", ())

    def spell_environment(self, variables: Sequence[tuple[str, str]]) -> None:
        """Variables in the configuration, from 0.6 on: there what the process has already wins, so it is left out."""
        if self.version >= (0, 6):
            for name, value in variables:
                if name not in self.config.environment and name not in self.config.withheld_environment:
                    self._write(f"++env_vars.{name}={write_value(value)}")

    def note(self, text: str) -> None:
        self.notes.append(f"Megatron-Bridge: {text}")

    def _spell(self, key: ConfigKey, path: str, value: ConfigData) -> None:
        section, _, field = path.partition(".")
        if path == COMM_OVERLAP:
            self.note("comm_overlap is an object; override its fields")
            return
        if key.enum is not None and isinstance(value, str):
            self.python.set_member(path, key.enum, value)
        else:
            self.python.set(path, value)
        if section == COMM_OVERLAP and self.config.get(COMM_OVERLAP) != COMM_OVERLAP_CLASS:
            self._spell_comm_overlap(field, value)
        elif section == MIXED_PRECISION and field and self.config.get(MIXED_PRECISION) != MIXED_PRECISION_CLASS:
            # Recipes give their precision by name; an override of a field then fails to apply.
            self.note(
                f"{key.name}: set {field}={write_value(value)} in the recipe's MixedPrecisionConfig; "
                "an override cannot reach its fields where mixed_precision is a name"
            )
        elif key.enum is not None and isinstance(value, str):
            # Hydra checks no types: a word would be stored as text, which equals no member and is silently ignored.
            number = config_keys().enums[key.enum][value]
            self._write(f"{path}={{_target_:{key.enum},_args_:[{number}]}}")
        else:
            self._write(f"{path}={write_value(value)}")

    def _spell_comm_overlap(self, field: str, value: ConfigData) -> None:
        """Overrides that apply whether or not the recipe has a CommOverlapConfig.

        A plain override fails where it has none; ``comm_overlap={...}`` fails where it has one. Appending the
        class and its one required field works in both, and keeps the other fields of one that is there.
        """
        opening = f"++{COMM_OVERLAP}._target_=megatron.bridge.training.comm_overlap.{COMM_OVERLAP_CLASS}"
        if opening not in self.lines:
            tensor_parallel = self.values.get("tp_comm_overlap", self.config.get("tp_comm_overlap")) is True
            self._write(opening)
            self._write(f"++{COMM_OVERLAP}.tp_comm_overlap={write_value(tensor_parallel)}")
            self._keep_data_parallel_overlap()
        if field != "tp_comm_overlap":
            self._write(f"++{COMM_OVERLAP}.{field}={write_value(value)}")

    def _keep_data_parallel_overlap(self) -> None:
        """A new CommOverlapConfig turns these on by itself; keep what the run is known to have."""
        unknown = []
        for name in ("overlap_grad_reduce", "overlap_param_gather"):
            if name in self.values:
                continue
            found = self.config.values.get(name)
            if found is not None and self.config.dialect == "bridge":
                self._write(f"++{COMM_OVERLAP}.{name}={write_value(found.value)}")
                self.python.set(f"{COMM_OVERLAP}.{name}", found.value)
            else:
                unknown.append(name)
        if unknown:
            self.note(
                "if the recipe has no CommOverlapConfig, these overrides create one; with data parallelism and the "
                f"distributed optimizer it also turns on {' and '.join(unknown)} and sets the bucket size"
            )

    def _name_in_release(self, name: str) -> str:
        """The key to write: SM counts were one key per backend before 0.6."""
        if name in ("moe_deepep_num_sms", "moe_hybridep_num_sms") and self.version >= (0, 6):
            return "moe_flex_dispatcher_num_sms"
        if name == "moe_flex_dispatcher_num_sms" and self.version < (0, 6):
            backend = self.values.get("moe_flex_dispatcher_backend", self.config.get("moe_flex_dispatcher_backend"))
            return "moe_hybridep_num_sms" if backend == "hybridep" else "moe_deepep_num_sms"
        return name

    def _is_in_release(self, key: ConfigKey, spelling: PathSpelling) -> bool:
        if spelling.since is not None and self.version < release_number(spelling.since):
            self.note(f"{key.name} needs release {spelling.since} or later")
            return False
        if spelling.until is not None and self.version > release_number(spelling.until):
            self.note(f"{key.name} was removed after release {spelling.until}")
            return False
        return True

    def _knows_values(self, key: ConfigKey, spelling: PathSpelling, value: ConfigData) -> bool:
        words = map(str, value if isinstance(value, tuple) else (value,))
        late = [word for word in words if self.version < release_number(spelling.value_since.get(word, "0"))]
        for word in late:
            self.note(f"{key.name}={word} needs release {spelling.value_since[word]} or later")
        return not late

    def _write(self, line: str) -> None:
        if line not in self.lines:
            self.lines.append(line)


def write_value(value: ConfigData) -> str:
    """``value`` in Hydra's grammar: null, true, 1, 1.5, word, "quoted text", [a,b]."""
    if isinstance(value, tuple):
        return f"[{','.join(_write_scalar(element) for element in value)}]"
    return _write_scalar(value)


def _write_scalar(value: ConfigScalar) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return repr(value)
    if _PLAIN_WORD.fullmatch(value) and value.lower() not in _CONSTANTS:
        return value
    escaped = value.replace('"', '\\"')
    return f'"{escaped}"'
