"""The run's configuration as far as it is known, each value with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

ConfigScalar = str | int | float | bool | None
ConfigData = ConfigScalar | tuple[ConfigScalar, ...]

NOT_SHOWN = "value of an unexpected form, not shown"
"""Ends the source of a withheld value: what is of no known form may be a secret."""


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """One setting. ``value`` may be ``None``: known to be unset. An *unknown* setting is simply absent."""

    value: ConfigData
    source: str
    """Where it was read: ``--set``, ``config file``, ``log arguments``, ``log config``, ``log summary``,
    ``log set-up``, ``log layout``, ``progress file``, ``command line``, ``environment``, ``Megatron-LM default``,
    ``Megatron Core default``, ``derived: ...``; behind it :data:`NOT_SHOWN` where the value is withheld."""
    confirmed_by: tuple[str, ...] = ()
    """Sources of lower precedence that give the same value."""

    def is_stated_by(self, source: str) -> bool:
        """Whether ``source`` gives this value, as the one that counts or as one that agrees."""
        return source == self.source or source in self.confirmed_by

    @staticmethod
    def withheld(source: str) -> ConfigValue:
        """Stands for a value that ``source`` states and that may not be shown: unknown, not unset."""
        return ConfigValue(None, f"{source}: {NOT_SHOWN}")

    @property
    def is_withheld(self) -> bool:
        """Whether a value was stated that is not of its setting's form, and is therefore not known."""
        return self.source.endswith(NOT_SHOWN)

    @property
    def is_stated(self) -> bool:
        """Whether some source states it; otherwise it is derived or a default."""
        return not self.source.startswith("derived") and not self.source.endswith("default")


@dataclass(frozen=True, slots=True)
class ConfigConflict:
    """A setting that two sources give different values; the first value counts."""

    key: str
    values: tuple[ConfigValue, ...]


def _no_values() -> Mapping[str, ConfigValue]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Settings by Megatron Core name (``moe_token_dispatcher_type``), environment by variable name, of all sources.

    ``dialect`` is how the run was launched: ``megatron_lm`` (flags), ``bridge`` (Hydra overrides), or
    ``unknown``. Only a Megatron-LM command line is complete: there an absent flag means its default.
    """

    values: Mapping[str, ConfigValue] = field(default_factory=_no_values)
    environment: Mapping[str, ConfigValue] = field(default_factory=_no_values)
    dialect: str = "unknown"
    bridge_version: str | None = None
    bridge_version_evidence: str = ""
    """What the release was inferred from; empty where it is not known."""
    megatron_core_version: str | None = None
    """Release of Megatron Core, where the log states it or its arguments belong to one."""
    sizes: Mapping[str, ConfigValue] = field(default_factory=_no_values)
    """Sizes that the run itself worked out and wrote down: ``world_size``, ``data_parallel_size``."""
    withheld_values: Mapping[str, ConfigValue] = field(default_factory=_no_values)
    """Settings stated in a form that may not be shown: they are not among :attr:`values`."""
    withheld_environment: Mapping[str, ConfigValue] = field(default_factory=_no_values)
    """The same for variables: they are set, to a value that is not known."""
    conflicts: tuple[ConfigConflict, ...] = ()
    """Where sources disagree, by key."""

    @property
    def environment_is_known(self) -> bool:
        """Whether the launch environment was recorded: a variable that is in neither mapping was not set."""
        return bool(self.environment or self.withheld_environment)

    def get(self, key: str) -> ConfigData:
        """Value of ``key``; ``None`` when unset *or* unknown (:meth:`knows` distinguishes them)."""
        found = self.values.get(key)
        return None if found is None else found.value

    def knows(self, key: str) -> bool:
        """Whether anything, including "unset", is known of ``key``."""
        return key in self.values

    def whole_number(self, key: str) -> int | None:
        """Value of ``key`` where it is a whole number."""
        return as_whole_number(self.get(key))

    def size(self, key: str) -> int | None:
        """Value of ``key`` where it is a size: a whole number above 0."""
        return as_size(self.get(key))


def as_whole_number(value: object) -> int | None:
    """``value`` where it is a whole number: True and False are none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def as_size(value: object) -> int | None:
    """``value`` where it is a whole number above 0."""
    number = as_whole_number(value)
    return number if number is not None and number > 0 else None
