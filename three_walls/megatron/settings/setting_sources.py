"""The settings of one source, and the names of the sources, highest precedence first.

A :class:`SettingsBuilder` collects them; ``tables/config-keys.yaml`` gives their types. What it cannot read becomes a
warning or is withheld. It never raises an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from three_walls.lib.plain_data import ConfigData
from three_walls.megatron.settings.run_config import ConfigValue, no_values
from three_walls.tables.config_keys import ConfigKey, form_of, may_be_shown
from three_walls.tables.config_values import fit, read_words
from three_walls.tables.environment_variables import allowed_variables

USER = "--set"
CONFIG_FILE = "config file"
LOG_ARGUMENTS = "log arguments"
LOG_SUMMARY = "log summary"
LOG_OBJECTS = "log set-up"
LOG_CONFIG = "log config"
LOG_LAYOUT = "log layout"
LOG_PROGRESS = "progress file"
COMMAND_LINE = "command line"
MEGATRON_CORE_DEFAULT = "Megatron Core default"
ENVIRONMENT = "environment"
KERNELS = "kernels of the trace"

ShownValue = tuple[ConfigData] | None
"""A value that may be shown, in a tuple because the value itself may be None; or None: no value may be shown."""
_OPTION_NAME = re.compile(r"--[A-Za-z][\w-]{0,60}|-[A-Za-z]{1,4}|[A-Za-z_]\w*(\.\w+)*")


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Settings, environment variables and sizes as one source states them, without defaults."""

    source: str
    values: Mapping[str, ConfigValue] = field(default_factory=no_values)
    environment: Mapping[str, ConfigValue] = field(default_factory=no_values)
    sizes: Mapping[str, ConfigValue] = field(default_factory=no_values)
    """``world_size`` and ``data_parallel_size``, where the source states them."""
    dialect: str = "unknown"
    is_certain: bool = True
    """Whether only a Megatron program has these settings; a command line may look like Megatron's by accident."""
    leaves_out_defaults: bool = False
    """Whether an absent setting is known to have its default."""
    is_settled: bool = False
    """Whether the values are final: the launcher, or the user, has already applied what follows from other settings."""
    bridge_version: str | None = None
    bridge_version_evidence: str = ""
    megatron_core_version: str | None = None
    recipe: str | None = None
    """Megatron-Bridge recipe that the run starts from, by the name of its function."""
    unknown: tuple[str, ...] = ()
    """Names that tables/config-keys.yaml does not list, sorted. Their values are not kept."""
    warnings: tuple[str, ...] = ()


@dataclass(slots=True)
class SettingsBuilder:
    """Collects the settings of one source. A later value overrides an earlier one, as in every launcher."""

    source: str = COMMAND_LINE
    values: dict[str, ConfigValue] = field(default_factory=dict)
    environment: dict[str, ConfigValue] = field(default_factory=dict)
    sizes: dict[str, ConfigValue] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """Names of options that the table does not list. Their values are not kept, because they may be secrets."""
    recipe: str | None = None

    def build(
        self,
        dialect: str = "unknown",
        is_settled: bool = False,
        leaves_out_defaults: bool = False,
        warnings_begin: str = "",
    ) -> SourceSettings:
        """The settings that were collected; each warning begins with ``warnings_begin``."""
        return SourceSettings(
            self.source,
            MappingProxyType(self.values),
            MappingProxyType(self.environment),
            MappingProxyType(self.sizes),
            dialect=dialect,
            leaves_out_defaults=leaves_out_defaults,
            is_settled=is_settled,
            recipe=self.recipe,
            unknown=tuple(sorted(set(self.unknown))),
            warnings=tuple(warnings_begin + warning for warning in self.warnings),
        )

    def note_unknown(self, name: str) -> None:
        """Keeps the name of an unknown option, unless a value may be attached to it (``-kSECRET``)."""
        if _OPTION_NAME.fullmatch(name):
            self.unknown.append(name)

    def set(self, key: str, value: ConfigData, source: str | None = None) -> None:
        """Sets ``key``. Give ``source`` where the value is not this source's own but a default or derived."""
        self.values[key] = ConfigValue(value, source or self.source)

    def set_words(self, key: ConfigKey, words: Sequence[str], name: str) -> None:
        """Sets ``key``, which this source calls ``name``, to ``words``. A value of the wrong form is withheld."""
        self._set_shown(key, shown_words(key, words), name)

    def set_value(self, key: ConfigKey, value: ConfigData, name: str) -> None:
        """Sets ``key``, which this source calls ``name``, to a parsed value. A value of the wrong form is withheld."""
        self._set_shown(key, shown_value(key, value), name)

    def set_variable(self, name: str, value: object) -> None:
        """Sets an environment variable if a report may show it. A value of the wrong form is withheld."""
        allowed = allowed_variables()
        if not allowed.allows(name) or isinstance(value, dict | list | tuple):
            return
        text = None if value is None else str(value)
        is_shown = text is None or allowed.shows(name, text)
        self.environment[name] = ConfigValue(text, self.source) if is_shown else ConfigValue.withheld(self.source)

    def _set_shown(self, key: ConfigKey, shown: ShownValue, name: str) -> None:
        if shown is not None:
            self.set(key.name, shown[0])
            return
        self.values[key.name] = ConfigValue.withheld(self.source)
        self.warnings.append(f"{name}: expected {form_of(key)}, found something else; not shown")


def shown_words(key: ConfigKey, words: Sequence[str]) -> ShownValue:
    """``words`` as a value of ``key``; None for a value of the wrong form."""
    try:
        return shown_value(key, read_words(key.type, words))
    except ValueError:
        return None


def shown_value(key: ConfigKey, value: ConfigData) -> ShownValue:
    """``value`` in the form of ``key``; None for a value of the wrong form, which may be a secret."""
    words = value if isinstance(value, tuple) else (value,)
    if len(words) == 1 and isinstance(words[0], str) and words[0] in key.read_as:
        return (key.read_as[words[0]],)
    try:
        fitted = fit(key.type, value)
    except ValueError:
        return None
    return (fitted,) if may_be_shown(key, fitted) else None
