"""Settings as they are collected from one source: typed by the table, never a reason to fail."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from three_walls.knowledge.config_values import fit, read_words
from three_walls.vocabulary.config import ConfigData, ConfigValue
from three_walls.vocabulary.config_keys import ConfigKey

COMMAND_LINE = "command line"
_OPTION_NAME = re.compile(r"--[A-Za-z][\w-]{0,60}|-[A-Za-z]{1,4}|[A-Za-z_]\w*(\.\w+)*")


@dataclass(slots=True)
class Settings:
    """What one source says. A later word overrides an earlier one, as in every launcher."""

    source: str = COMMAND_LINE
    values: dict[str, ConfigValue] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """Names of options that the table does not know; their values are not kept, they may be secrets."""
    known: set[str] = field(default_factory=set)
    """Flags and paths that the table knows."""
    settled: set[str] = field(default_factory=set)
    """Keys that a launcher has already worked out, or the user has: nothing is derived in their place."""

    def note_unknown(self, name: str) -> None:
        """Keep the name of an unknown option, unless it may carry a value (``-kSECRET``)."""
        if _OPTION_NAME.fullmatch(name):
            self.unknown.append(name)

    def give(self, key: str, value: ConfigData, source: str | None = None) -> None:
        """Set ``key``; without ``source`` it is what this source itself says."""
        self.values[key] = ConfigValue(value, source or self.source)

    def derive(self, key: str, value: ConfigData, because: str) -> None:
        """Set ``key`` to what follows from other settings, unless its value is settled."""
        found = self.values.get(key)
        if key in self.settled and found is not None and found.value is not None:
            return
        if found is None or not found.is_stated or found.value != value:
            self.give(key, value, f"derived: {because}")

    def give_words(self, key: ConfigKey, words: Sequence[str], said: str) -> None:
        """Set ``key`` to the words; what does not parse stays text, with a warning."""
        try:
            self.give(key.name, read_words(key.type, words))
        except ValueError as error:
            self._keep_text(key, " ".join(words), said, error)

    def give_value(self, key: ConfigKey, value: ConfigData, said: str) -> None:
        """Set ``key`` to an already parsed value."""
        try:
            self.give(key.name, fit(key.type, value))
        except ValueError as error:
            text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
            self._keep_text(key, text, said, error)

    def _keep_text(self, key: ConfigKey, text: str, said: str, error: ValueError) -> None:
        self.give(key.name, text)
        self.warnings.append(f"{said}: {error}; kept as text")
