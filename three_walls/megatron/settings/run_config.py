"""The configuration of a run as far as it is known, each value with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from three_walls.lib.plain_data import ConfigData, as_size, as_whole_number

NOT_SHOWN = "value of an unexpected form, not shown"
"""Ends the source of a withheld value: a value of an unexpected form may be a secret."""
BUILDS_COMM_OVERLAP = "derived: comm_overlap._target_"
"""Source of a ``comm_overlap`` that the command line itself builds: the fields it does not give have to be appended."""


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A setting. ``None`` means that it is known to be unset; an *unknown* setting is absent altogether."""

    value: ConfigData
    source: str
    """Where it was read: ``--set``, ``config file``, ``log arguments``, ``log config``, ``log summary``,
    ``log set-up``, ``log layout``, ``progress file``, ``command line``, ``environment``, ``kernels of the trace``,
    ``Megatron-LM default``, ``Megatron Core default`` or ``derived: ...``; followed by :data:`NOT_SHOWN` where the
    value is withheld."""
    confirmed_by: tuple[str, ...] = ()
    """Sources of lower precedence that give the same value."""

    def is_stated_by(self, source: str) -> bool:
        """Whether ``source`` gives this value, as the source that counts or as one that agrees."""
        return source == self.source or source in self.confirmed_by

    @staticmethod
    def withheld(source: str) -> ConfigValue:
        """Stands for a value that ``source`` gives but that may not be shown: it is unknown, not unset."""
        return ConfigValue(None, f"{source}: {NOT_SHOWN}")

    @property
    def is_withheld(self) -> bool:
        """Whether a value was given but is not of its setting's form, and therefore counts as unknown."""
        return self.source.endswith(NOT_SHOWN)

    @property
    def is_stated(self) -> bool:
        """Whether a source states it; otherwise it is derived or a default."""
        return not self.source.startswith("derived") and not self.source.endswith("default")


@dataclass(frozen=True, slots=True)
class ConfigConflict:
    """A setting to which sources give different values; the first value counts."""

    key: str
    values: tuple[ConfigValue, ...]


def no_values() -> Mapping[str, ConfigValue]:
    """The default of a field that holds settings by name."""
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The settings and environment variables of a run, from all sources."""

    values: Mapping[str, ConfigValue] = field(default_factory=no_values)
    """Settings by Megatron Core name (``moe_token_dispatcher_type``)."""
    environment: Mapping[str, ConfigValue] = field(default_factory=no_values)
    """Environment variables by name."""
    dialect: str = "unknown"
    """How the run was launched: ``megatron_lm`` (flags), ``bridge`` (Hydra overrides) or ``unknown``. Only a command
    line of Megatron-LM is complete: an absent flag there means its default."""
    bridge_version: str | None = None
    """Megatron-Bridge release of the run; null where it is not known."""
    bridge_version_evidence: str = ""
    """What the release was inferred from; empty where it is not known."""
    megatron_core_version: str | None = None
    """Release of Megatron Core, where the log states it or its arguments belong to one."""
    sizes: Mapping[str, ConfigValue] = field(default_factory=no_values)
    """Sizes that the run itself calculated and wrote down: ``world_size``, ``data_parallel_size``."""
    withheld_values: Mapping[str, ConfigValue] = field(default_factory=no_values)
    """Settings with a value that may not be shown; they are not among :attr:`values`."""
    withheld_environment: Mapping[str, ConfigValue] = field(default_factory=no_values)
    """Environment variables with a value that may not be shown: they are set, to an unknown value."""
    conflicts: tuple[ConfigConflict, ...] = ()
    """Where sources disagree, by key."""

    @property
    def environment_is_known(self) -> bool:
        """Whether the launch environment was recorded: then a variable in neither mapping was not set."""
        return bool(self.environment or self.withheld_environment)

    def get(self, key: str) -> ConfigData:
        """Value of ``key``; None where it is unset *or* unknown (:meth:`knows` distinguishes them)."""
        value = self.values.get(key)
        return None if value is None else value.value

    def knows(self, key: str) -> bool:
        """Whether ``key`` is known, be it known to be unset."""
        return key in self.values

    def whole_number(self, key: str) -> int | None:
        """Value of ``key`` where it is a whole number, else None."""
        return as_whole_number(self.get(key))

    def size(self, key: str) -> int | None:
        """Value of ``key`` where it is a size (a whole number above 0), else None."""
        return as_size(self.get(key))
