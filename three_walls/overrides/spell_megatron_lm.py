"""Edits as Megatron-LM flags. Most switches only turn on: to turn one off its flag has to go."""

from __future__ import annotations

from collections.abc import Sequence

from three_walls.model.config import ConfigData, RunConfig
from three_walls.model.finding import PlannedEdit
from three_walls.tables.config_keys import ConfigKey, FlagSpelling, config_keys, flags_of

# Megatron-LM takes at most one of the ways to cut the pipeline into virtual stages.
_EXCLUDES = {"virtual_pipeline_model_parallel_size": "num_layers_per_virtual_pipeline_stage"}


class MegatronLmSpeller:
    """Turns edits into ``lines`` (one flag with its values each, separated by spaces) and ``notes``."""

    def __init__(self, edits: Sequence[PlannedEdit], config: RunConfig) -> None:
        self.edits = edits
        self.config = config
        self.lines: list[str] = []
        self.notes: list[str] = []

    def spell_all(self) -> None:
        for edit in self.edits:
            key = config_keys().keys[edit.key]
            if self._has_already(key, edit.to):
                continue
            if key.megatron_lm is None:
                self._spell_without_flag(key, edit.to)
            else:
                self._spell(key, key.megatron_lm, edit.to)

    def _has_already(self, key: ConfigKey, value: ConfigData) -> bool:
        """Whether the run has the value without a flag for it; a derived one may move with other edits."""
        found = self.config.values.get(key.name)
        if found is None or found.value != value or found.is_stated_by("command line"):
            return False
        return found.is_stated or found.source == "Megatron-LM default"

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
                self._write_flag(" ".join([spelling.flag or "", *words]), spelling)

    def _spell_switch(self, key: ConfigKey, spelling: FlagSpelling, on: bool) -> None:
        wanted, opposite = (spelling.flag, spelling.negated_flag) if on else (spelling.negated_flag, spelling.flag)
        if wanted is not None:
            self._write_flag(wanted, spelling)
        given = self.config.values.get(key.name)
        is_given = given is not None and given.is_stated_by("command line")
        if opposite is not None and (wanted is None or is_given):
            aliases = spelling.aliases if spelling.flag is None or spelling.negated_flag is None else ()
            self._remove(key, (opposite, *aliases))

    def _remove(self, key: ConfigKey, flags: Sequence[str]) -> None:
        shorthands = [flag for flag, settings in config_keys().shorthands.items() if key.name in settings]
        others = [flag for flag in [*flags[1:], *shorthands] if flag not in flags[:1]]
        self._note(f"remove {flags[0]}" + (f" (or {', '.join(others)})" if others else ""))

    def _write_flag(self, line: str, spelling: FlagSpelling) -> None:
        self._write(line)
        flag = line.partition(" ")[0]
        if spelling.since is not None:
            self._note(f"{flag} needs Megatron Core {spelling.since} or later")
        if spelling.until is not None:
            self._note(f"{flag} was removed after Megatron Core {spelling.until}")

    def _write(self, line: str) -> None:
        if line not in self.lines:
            self.lines.append(line)

    def _note(self, text: str) -> None:
        self.notes.append(f"Megatron-LM: {text}")
