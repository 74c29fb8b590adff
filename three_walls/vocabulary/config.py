"""The run's configuration as far as it is known, each value with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

ConfigScalar = str | int | float | bool | None
ConfigData = ConfigScalar | tuple[ConfigScalar, ...]


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """One setting. ``value`` may be ``None``: known to be unset. An *unknown* setting is simply absent."""

    value: ConfigData
    source: str
    """Where it was read: ``command line``, ``environment``, ``Megatron-LM default``, ``derived: ...``."""


def _no_values() -> Mapping[str, ConfigValue]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Settings by Megatron Core name (``moe_token_dispatcher_type``), environment by variable name.

    ``dialect`` is how the run was launched: ``megatron_lm`` (flags), ``bridge`` (Hydra overrides), or
    ``unknown``. Only a Megatron-LM command line is complete: there an absent flag means its default.
    """

    values: Mapping[str, ConfigValue] = field(default_factory=_no_values)
    environment: Mapping[str, ConfigValue] = field(default_factory=_no_values)
    dialect: str = "unknown"
    bridge_version: str | None = None

    def get(self, key: str) -> ConfigData:
        """Value of ``key``; ``None`` when unset *or* unknown (use :meth:`knows` to tell them apart)."""
        found = self.values.get(key)
        return None if found is None else found.value

    def knows(self, key: str) -> bool:
        """Whether anything, including "unset", is known of ``key``."""
        return key in self.values
