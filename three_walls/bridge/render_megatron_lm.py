"""Edits as Megatron-LM flags. Most switches only turn on: to turn one off its flag has to go."""

from __future__ import annotations

from collections.abc import Sequence

from three_walls.advice.finding import PlannedEdit
from three_walls.bridge.render_bridge import name_of_sm_count
from three_walls.lib.plain_data import ConfigData
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.tables.config_keys import ConfigKey, FlagSpelling, config_keys, flags_of, late_words

_ONE_SM_COUNT = (0, 19)
"""The release from which one flag sets the SMs of every dispatcher backend."""
# Megatron-LM takes at most one of the ways to cut the pipeline into virtual stages.
_EXCLUDES = {"virtual_pipeline_model_parallel_size": "num_layers_per_virtual_pipeline_stage"}


class MegatronLmSpeller:
    """Turns edits into the flags of one release of Megatron Core.

    ``lines`` holds, by the key of the edit, one flag with its values each, separated by spaces. An edit for which the
    release has no flag or value has no line. ``notes`` holds what no flag can express.
    """

    def __init__(self, edits: Sequence[PlannedEdit], config: RunConfig, core: tuple[int, int]) -> None:
        self.edits = edits
        self.config = config
        self.core = core
        self.lines: dict[str, list[str]] = {}
        self.notes: list[str] = []
        self._edited_key = ""

    def spell_all(self) -> None:
        backend = {edit.key: edit.to for edit in self.edits}.get(
            "moe_flex_dispatcher_backend", self.config.get("moe_flex_dispatcher_backend")
        )
        for edit in self.edits:
            self._edited_key = edit.key
            key = config_keys().keys[name_of_sm_count(edit.key, backend, one_name=self.core >= _ONE_SM_COUNT)]
            if self._has_already(key, edit.to):
                continue
            if key.megatron_lm is None:
                self._spell_without_flag(key, edit.to)
            elif key.megatron_lm.is_in(self.core) and not late_words(key.megatron_lm, edit.to, self.core):
                self._spell(key, key.megatron_lm, edit.to)

    def _has_already(self, key: ConfigKey, value: ConfigData) -> bool:
        """Whether the run has the value without a flag for it; a derived one may move with other edits."""
        current = self.config.values.get(key.name)
        if current is None or current.value != value or current.is_stated_by("command line"):
            return False
        return current.is_stated or current.source == "Megatron-LM default"

    def _spell_without_flag(self, key: ConfigKey, value: ConfigData) -> None:
        for flag, settings in config_keys().shorthands.items():
            if key.name in settings and settings[key.name] == value:
                self._write(flag)
                return
        self._note(f"{key.name} has no flag")

    def _spell(self, key: ConfigKey, spelling: FlagSpelling, value: ConfigData) -> None:
        excluded = config_keys().keys.get(_EXCLUDES.get(key.name, ""))
        if excluded is not None and self.config.get(excluded.name) is not None:
            self._note(f"remove {flags_of(excluded)[0]}: it cannot be combined with {flags_of(key)[0]}")
        if key.type == "bool":
            self._spell_switch(key, spelling, value is True)
        elif value is None or value == ():
            self._remove(key, flags_of(key))
        else:
            elements = value if isinstance(value, tuple) else (value,)
            words = [repr(element) if isinstance(element, float) else str(element) for element in elements]
            # A word with spaces, or an empty one, could not be recognised in a line; a text that begins with - is
            # taken for the next flag.
            has_dash = any(isinstance(element, str) and element.startswith("-") for element in elements)
            if has_dash or any(word.split() != [word] for word in words):
                self._note(f"set {spelling.flag} by hand to {', '.join(map(repr, words))}")
            else:
                self._write(" ".join([spelling.flag or "", *words]))

    def _spell_switch(self, key: ConfigKey, spelling: FlagSpelling, on: bool) -> None:
        flag, opposite = (spelling.flag, spelling.negated_flag) if on else (spelling.negated_flag, spelling.flag)
        if flag is not None:
            self._write(flag)
        current = self.config.values.get(key.name)
        is_given = current is not None and current.is_stated_by("command line")
        if opposite is not None and (flag is None or is_given):
            aliases = spelling.aliases if spelling.flag is None or spelling.negated_flag is None else ()
            self._remove(key, (opposite, *aliases))

    def _remove(self, key: ConfigKey, flags: Sequence[str]) -> None:
        shorthands = [flag for flag, settings in config_keys().shorthands.items() if key.name in settings]
        others = [flag for flag in [*flags[1:], *shorthands] if flag not in flags[:1]]
        self._note(f"remove {flags[0]}" + (f" (or {', '.join(others)})" if others else ""))

    def _write(self, line: str) -> None:
        self.lines.setdefault(self._edited_key, []).append(line)

    def _note(self, text: str) -> None:
        self.notes.append(f"Megatron-LM: {text}")
