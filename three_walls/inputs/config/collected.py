"""Settings as they are collected from one source: typed by the table, never a reason to fail."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from three_walls.model.config import ConfigData, ConfigValue
from three_walls.tables.config_keys import ConfigKey, form_of, may_be_shown
from three_walls.tables.config_values import fit, read_words

COMMAND_LINE = "command line"
Known = tuple[ConfigData] | None
"""A value that may be shown, alone in a tuple because it may be None itself; or None: there is none."""
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

    def derive(self, key: str, value: ConfigData, reason: str) -> None:
        """Set ``key`` to what follows from other settings, unless its value is settled."""
        found = self.values.get(key)
        if found is not None and found.is_withheld:
            return
        if key in self.settled and found is not None and found.value is not None:
            return
        if found is None or not found.is_stated or found.value != value:
            self.give(key, value, f"derived: {reason}")

    def give_words(self, key: ConfigKey, words: Sequence[str], said: str) -> None:
        """Set ``key`` to the words; what is not of its form is withheld, with a warning."""
        self._give_known(key, known_words(key, words), said)

    def give_value(self, key: ConfigKey, value: ConfigData, said: str) -> None:
        """Set ``key`` to an already parsed value; what is not of its form is withheld, with a warning."""
        self._give_known(key, known_value(key, value), said)

    def _give_known(self, key: ConfigKey, known: Known, said: str) -> None:
        if known is not None:
            self.give(key.name, known[0])
            return
        self.values[key.name] = ConfigValue.withheld(self.source)
        self.warnings.append(f"{said}: expected {form_of(key)}, found something else; not shown")


def known_words(key: ConfigKey, words: Sequence[str]) -> Known:
    """``words`` as a value of ``key``; None for what is not of its form."""
    try:
        return known_value(key, read_words(key.type, words))
    except ValueError:
        return None


def known_value(key: ConfigKey, value: ConfigData) -> Known:
    """``value`` in the form of ``key``; None for what is not of its form, and may therefore be a secret."""
    words = value if isinstance(value, tuple) else (value,)
    if len(words) == 1 and isinstance(words[0], str) and words[0] in key.read_as:
        return (key.read_as[words[0]],)
    try:
        fitted = fit(key.type, value)
    except ValueError:
        return None
    return (fitted,) if may_be_shown(key, fitted) else None
