"""Edits as Megatron-LM flags. Most switches only turn on: to turn one off its flag has to go."""

from __future__ import annotations

from collections.abc import Sequence

from three_walls.model.config import ConfigData, RunConfig
from three_walls.model.config_keys import ConfigKey, FlagSpelling
from three_walls.model.finding import PlannedEdit
from three_walls.overrides.writable_keys import writable_key
from three_walls.tables.config_keys import config_keys, flags_of

# Megatron-LM takes at most one of the ways to cut the pipeline into virtual stages.
_EXCLUDES = {"virtual_pipeline_model_parallel_size": "num_layers_per_virtual_pipeline_stage"}


class MegatronLmSpeller:
    """Turns edits into ``lines`` (one flag with its values each, parted by spaces) and ``notes``."""

    def __init__(self, edits: Sequence[PlannedEdit], config: RunConfig) -> None:
        self.edits = edits
        self.config = config
        self.lines: list[str] = []
        self.notes: list[str] = []

    def spell_all(self) -> None:
        for edit in self.edits:
            key = writable_key(edit.key, edit.to, self.config)
            if self._is_so_already(key, edit.to):
                continue
            if key.megatron_lm is None:
                self._spell_without_flag(key, edit.to)
            else:
                self._spell(key, key.megatron_lm, edit.to)

    def note(self, text: str) -> None:
        self.notes.append(f"Megatron-LM: {text}")

    def _is_so_already(self, key: ConfigKey, value: ConfigData) -> bool:
        """Whether the run has the value without a flag for it; a derived one may move with other edits."""
        found = self.config.values.get(key.name)
        if found is None or found.value != value or found.is_stated_by("command line"):
            return False
        return found.is_stated or found.source == "Megatron-LM default"

    def _spell_without_flag(self, key: ConfigKey, value: ConfigData) -> None:
        for flag, settings in config_keys().shorthands.items():
            if key.name in settings and settings[key.name] == value:
                self._write_line(flag)
                return
        self.note(f"{key.name} has no flag")

    def _spell(self, key: ConfigKey, spelling: FlagSpelling, value: ConfigData) -> None:
        self._note_exclusion(key)
        if key.type == "bool":
            self._spell_switch(key, spelling, value is True)
        elif value is None or value == ():
            self._remove(key, flags_of(key))
        else:
            words = [_word(word) for word in (value if isinstance(value, tuple) else (value,))]
            self._spell_values(spelling, words)

    def _spell_values(self, spelling: FlagSpelling, words: Sequence[str]) -> None:
        """A word with spaces in it, or an empty one, could not be told apart in a line: it is a note."""
        if all(word.split() == [word] for word in words):
            self._write(" ".join([spelling.flag or "", *words]), spelling)
        else:
            self.note(f"set {spelling.flag} by hand, the words are: {', '.join(map(repr, words))}")

    def _spell_switch(self, key: ConfigKey, spelling: FlagSpelling, on: bool) -> None:
        wanted, opposite = (spelling.flag, spelling.negated_flag) if on else (spelling.negated_flag, spelling.flag)
        if wanted is not None:
            self._write(wanted, spelling)
        if opposite is not None and (wanted is None or self._is_given(key)):
            aliases = spelling.aliases if spelling.flag is None or spelling.negated_flag is None else ()
            self._remove(key, (opposite, *aliases))

    def _remove(self, key: ConfigKey, flags: Sequence[str]) -> None:
        shorthands = [flag for flag, settings in config_keys().shorthands.items() if key.name in settings]
        others = [flag for flag in [*flags[1:], *shorthands] if flag not in flags[:1]]
        self.note(f"remove {flags[0]}" + (f" (or {', '.join(others)})" if others else ""))

    def _note_exclusion(self, key: ConfigKey) -> None:
        other = config_keys().keys.get(_EXCLUDES.get(key.name, ""))
        if other is not None and self.config.get(other.name) is not None:
            self.note(f"remove {flags_of(other)[0]}: it excludes {flags_of(key)[0]}")

    def _write(self, line: str, spelling: FlagSpelling) -> None:
        self._write_line(line)
        flag = line.partition(" ")[0]
        if spelling.since is not None:
            self.note(f"{flag} needs Megatron Core {spelling.since} or later")
        if spelling.until is not None:
            self.note(f"{flag} is gone after Megatron Core {spelling.until}")

    def _write_line(self, line: str) -> None:
        if line not in self.lines:
            self.lines.append(line)

    def _is_given(self, key: ConfigKey) -> bool:
        found = self.config.values.get(key.name)
        return found is not None and found.is_stated_by("command line")


def _word(value: ConfigData) -> str:
    return repr(value) if isinstance(value, float) else str(value)
