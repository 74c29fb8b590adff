"""Edits as Megatron-Bridge overrides (Hydra) and as Python. Both keep what the run's recipe holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from three_walls.advice.finding import PlannedEdit
from three_walls.bridge.merged_config import COMM_OVERLAP, COMM_OVERLAP_CLASS, MIXED_PRECISION, MIXED_PRECISION_CLASS
from three_walls.lib.hydra import write_value
from three_walls.lib.plain_data import ConfigData
from three_walls.megatron.settings.run_config import BUILDS_COMM_OVERLAP, RunConfig
from three_walls.tables.bridge_releases import bridge_schema, release_number
from three_walls.tables.config_keys import ConfigKey, PathSpelling, config_keys, late_words

_COPIES = ("model", "optimizer", "ddp")
"""Sections that a CommOverlapConfig copies its fields to, by name (``setup`` in comm_overlap.py of every release)."""
CHECK_SECTION = (
    "the run does not show whether its recipe has a comm_overlap section: check cfg.comm_overlap first. The lines that "
    "begin with comm_overlap. need one"
)
_CREATE_MIXED_PRECISION = (
    "from megatron.bridge.training.mixed_precision import get_mixed_precision_config",
    "cfg.mixed_precision = get_mixed_precision_config(cfg.mixed_precision)",
)
"""Statements that make an object of the precision, which may be a name, before its fields are set."""


class PythonSnippet:
    """Collects ``lines``: statements that change a recipe's ``cfg``, whatever the recipe holds.

    Python can set what an override cannot: fields of a precision that is given by its name.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []

    def set(self, path: str, value: ConfigData) -> None:
        """``cfg.<path> = value``."""
        section, _, field = path.partition(".")
        if field and section == MIXED_PRECISION:
            self._write(*_CREATE_MIXED_PRECISION)
        self._write(f"cfg.{path} = {_write_python(value)}")

    def set_in_either(self, section: str, others: Iterable[str], field: str, value: ConfigData) -> None:
        """``field`` in ``section``, or in each of the ``others`` where that section is None."""
        for other in others:
            self._write(f"(cfg.{section} or cfg.{other}).{field} = {_write_python(value)}")

    def set_member(self, path: str, class_path: str, member: str) -> None:
        """``cfg.<path>`` to a member of an enum."""
        module, _, name = class_path.rpartition(".")
        self._write(f"from {module} import {name}", f"cfg.{path} = {name}.{member}")

    def _write(self, *lines: str) -> None:
        self.lines += [line for line in lines if line not in self.lines]


def _write_python(value: ConfigData) -> str:
    return repr(list(value) if isinstance(value, tuple) else value)


class BridgeSpeller:
    """Turns edits into ``lines`` (raw overrides), ``python`` (the same for a recipe) and ``notes``.

    Where the run does not show whether its recipe has a CommOverlapConfig, ``lines`` are for one that has, and
    ``without_section`` replaces those that begin with ``comm_overlap.`` for one that has none.
    """

    def __init__(
        self, edits: Sequence[PlannedEdit], config: RunConfig, release: str, *, release_is_known: bool = True
    ) -> None:
        self.values = {edit.key: edit.to for edit in edits}
        self.config = config
        self.release = release
        self.version = release_number(release)
        self.release_is_known = release_is_known
        self.lines: list[str] = []
        self.without_section: list[str] = []
        self.notes: list[str] = []
        self.python = PythonSnippet()

    def spell_all(self) -> None:
        for name, value in self.values.items():
            backend = self._setting("moe_flex_dispatcher_backend")
            key = config_keys().keys[name_of_sm_count(name, backend, one_name=self.version >= (0, 6))]
            if key.bridge is None or not key.bridge.paths:
                self.note(f"{key.name} cannot be overridden")
            elif self._is_in_release(key, key.bridge) and self._knows_values(key, key.bridge, value):
                for path in key.bridge.paths:
                    self._spell(key, path, value)
                if key.name == "cuda_graph_scope" and value is not None:
                    self._empty_graph_modules()
                elif key.name == "cuda_graph_modules" and value and not self._is_empty("cuda_graph_scope"):
                    self._spell(config_keys().keys["cuda_graph_scope"], "model.cuda_graph_scope", None)

    def _empty_graph_modules(self) -> None:
        """From 0.5 on scope and modules exclude each other, and recipes use either.

        Older releases skip an appended field that they do not have, with a warning (0.3.1 and 0.4.2 were asked).
        """
        if not self.release_is_known:
            self._write("++model.cuda_graph_modules=[]")
            self.python.set("model.cuda_graph_modules", ())
        elif self.version >= (0, 5):
            self._spell(config_keys().keys["cuda_graph_modules"], "model.cuda_graph_modules", ())

    def _is_empty(self, name: str) -> bool:
        """Whether the run is known to leave the setting empty, or to use the one that excludes it."""
        current, newer = self.config.values.get(name), self.config.values.get("cuda_graph_modules")
        is_used = newer is not None and newer.is_stated and bool(newer.value)
        return is_used or (current is not None and current.is_stated and current.value is None)

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
        elif section == COMM_OVERLAP:
            self._spell_comm_overlap(field, value)
        elif section == MIXED_PRECISION and field and self.config.get(MIXED_PRECISION) != MIXED_PRECISION_CLASS:
            # Recipes give their precision by name; an override of a field then fails to apply.
            self.python.set(path, value)
            self.note(
                f"{key.name}: set {field}={write_value(value)} in the recipe's MixedPrecisionConfig; "
                "an override cannot reach its fields where mixed_precision is a name"
            )
        elif key.enum is not None and isinstance(value, str):
            self.python.set_member(path, key.enum, value)
            # Hydra checks no types: a word would be stored as text, which equals no member and is silently ignored.
            number = config_keys().enums[key.enum][value]
            self._write(f"{path}={{_target_:{key.enum},_args_:[{number}]}}")
        else:
            self.python.set(path, value)
            self._write(f"{path}={write_value(value)}")

    def _spell_comm_overlap(self, field: str, value: ConfigData) -> None:
        """A field of ``comm_overlap`` where it takes effect, without building a CommOverlapConfig.

        A CommOverlapConfig replaces the fields of the same names in model, optimizer and ddp, by defaults of its own
        where it has no value. Building one would turn off what the model overlaps of tensor and expert parallelism,
        turn on the overlap of data parallelism, and fail on a ``tp_comm_overlap_cfg``. So a field is written to the
        CommOverlapConfig that is there, and to those sections where there is none.
        """
        text = write_value(value)
        copies = [section for section in _COPIES if bridge_schema(self.release).find(f"{section}.{field}")]
        section_exists = self.config.get(COMM_OVERLAP) == COMM_OVERLAP_CLASS
        is_copied = "model" in copies or self._setting("use_distributed_optimizer") is not False
        if is_copied and section_exists:
            # A section that the command line builds has the fields alone that were given.
            is_built = self.config.values[COMM_OVERLAP].is_stated_by(BUILDS_COMM_OVERLAP)
            self._write(f"{'++' if is_built else ''}{COMM_OVERLAP}.{field}={text}")
            self.python.set(f"{COMM_OVERLAP}.{field}", value)
        elif is_copied and not self.config.knows(COMM_OVERLAP):
            self._write(f"{COMM_OVERLAP}.{field}={text}")
            self.without_section += [f"{section}.{field}={text}" for section in copies]
            self.note(CHECK_SECTION)
            self.python.set_in_either(COMM_OVERLAP, copies, field, value)
        else:
            for section in copies:
                self._write(f"{section}.{field}={text}")
                self.python.set(f"{section}.{field}", value)

    def _setting(self, name: str) -> ConfigData:
        """The setting once the edits are made; None where it is not known."""
        return self.values.get(name, self.config.get(name))

    def _is_in_release(self, key: ConfigKey, spelling: PathSpelling) -> bool:
        if spelling.since is not None and self.version < release_number(spelling.since):
            self.note(f"{key.name} needs release {spelling.since} or later")
            return False
        if spelling.until is not None and self.version > release_number(spelling.until):
            self.note(f"{key.name} was removed after release {spelling.until}")
            return False
        return True

    def _knows_values(self, key: ConfigKey, spelling: PathSpelling, value: ConfigData) -> bool:
        late = late_words(spelling, value, self.version)
        for word in late:
            self.note(f"{key.name}={word} needs release {spelling.value_since[word]} or later")
        return not late

    def _write(self, line: str) -> None:
        if line not in self.lines:
            self.lines.append(line)


def name_of_sm_count(name: str, backend: ConfigData, *, one_name: bool) -> str:
    """The key to write for ``name``: the SMs of a dispatcher were one key per backend in older releases."""
    if name in ("moe_deepep_num_sms", "moe_hybridep_num_sms") and one_name:
        return "moe_flex_dispatcher_num_sms"
    if name == "moe_flex_dispatcher_num_sms" and not one_name:
        return "moe_hybridep_num_sms" if backend == "hybridep" else "moe_deepep_num_sms"
    return name
