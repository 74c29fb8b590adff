"""What one source says of a run's settings, and the names of the sources, highest precedence first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from three_walls.model.config import ConfigValue

USER = "--set"
CONFIG_FILE = "config file"
LOG_ARGUMENTS = "log arguments"
LOG_CONFIG = "log config"
LOG_SUMMARY = "log summary"
LOG_OBJECTS = "log set-up"
LOG_LAYOUT = "log layout"
LOG_PROGRESS = "progress file"


def _nothing() -> Mapping[str, ConfigValue]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SaidSettings:
    """Settings, environment and sizes as one source gives them; nothing is filled in."""

    source: str
    values: Mapping[str, ConfigValue] = field(default_factory=_nothing)
    environment: Mapping[str, ConfigValue] = field(default_factory=_nothing)
    sizes: Mapping[str, ConfigValue] = field(default_factory=_nothing)
    """``world_size`` and ``data_parallel_size`` where the run wrote them down."""
    dialect: str = "unknown"
    leaves_out_defaults: bool = False
    """Whether an absent setting is known to have its default."""
    is_settled: bool = False
    """Whether the launcher (or the user) has already worked out what follows from what."""
    bridge_version: str | None = None
    bridge_version_evidence: str = ""
    unknown: tuple[str, ...] = ()
    """Names that the table does not know, sorted; their values are not kept."""
    warnings: tuple[str, ...] = ()
