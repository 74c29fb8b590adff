"""One configuration out of everything that was said: the source of highest precedence counts, others are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from three_walls.inputs.config.collected import Settings
from three_walls.inputs.config.derived_settings import derive_megatron_settings, derive_settings
from three_walls.inputs.config.megatron_flags import fill_defaults
from three_walls.inputs.config.sources import LOG_LAYOUT, LOG_OBJECTS, SaidSettings
from three_walls.model.config import ConfigConflict, ConfigData, ConfigValue, RunConfig
from three_walls.tables.config_keys import config_keys

MEGATRON_CORE_DEFAULT = "Megatron Core default"

_WORKED_OUT = (LOG_OBJECTS, LOG_LAYOUT)


@dataclass(frozen=True, slots=True)
class Merged:
    """The configuration, and where sources disagreed (by key)."""

    config: RunConfig
    conflicts: tuple[ConfigConflict, ...] = ()


def merge(sources: Sequence[SaidSettings]) -> Merged:
    """``sources``: highest precedence first. Defaults and what follows from settings come last, on the merged values.

    A default is filled in only where some source is known to leave defaults out.
    """
    values, conflicts = _choose(sources, lambda source: source.values)
    environment, environment_conflicts = _choose(sources, lambda source: source.environment)
    sizes, size_conflicts = _choose(sources, lambda source: source.sizes)
    settings = Settings(values=values, settled=_settled_keys(sources))
    dialect = _dialect(sources)
    if dialect == "megatron_lm":
        if any(source.leaves_out_defaults for source in sources):
            fill_defaults(settings)
        if any(source.leaves_out_defaults or source.is_settled for source in sources):
            derive_megatron_settings(settings)
    elif any(source.leaves_out_defaults for source in sources if source.dialect == "bridge"):
        _fill_core_defaults(settings)
    derive_settings(settings)
    versions = [source for source in sources if source.bridge_version is not None]
    return Merged(
        RunConfig(
            MappingProxyType(_shown(settings.values)),
            MappingProxyType(dict(sorted(_shown(environment).items()))),
            dialect,
            versions[0].bridge_version if versions else None,
            versions[0].bridge_version_evidence if versions else "",
            MappingProxyType(sizes),
            MappingProxyType(_withheld(settings.values)),
            MappingProxyType(_withheld(environment)),
        ),
        (*conflicts, *size_conflicts, *environment_conflicts),
    )


def _choose(
    sources: Sequence[SaidSettings], said: Callable[[SaidSettings], Mapping[str, ConfigValue]]
) -> tuple[dict[str, ConfigValue], list[ConfigConflict]]:
    """The value of each key that counts, with the sources that agree, and the keys on which stated values differ."""
    chosen: dict[str, ConfigValue] = {}
    conflicts = []
    for key in dict.fromkeys(key for source in sources for key in said(source)):
        found = [said(source)[key] for source in sources if key in said(source)]
        first = next((value for value in found if value.is_stated), found[0])
        compared = [] if first.is_withheld else [value for value in found if not value.is_withheld]
        agreeing = tuple(one.source for one in compared if one is not first and is_same(one.value, first.value))
        chosen[key] = replace(first, confirmed_by=agreeing)
        stated = [value for value in compared if value.is_stated]
        if any(_contradicts(value, first) for value in stated):
            conflicts.append(ConfigConflict(key, tuple(stated)))
    return chosen, sorted(conflicts, key=lambda conflict: conflict.key)


def _contradicts(value: ConfigValue, first: ConfigValue) -> bool:
    """Whether they differ; what Megatron worked out and prints later fills in what was left unset elsewhere."""
    pairs = ((value, first), (first, value))
    fills_in = any(one.source in _WORKED_OUT and other.value is None for one, other in pairs)
    return not fills_in and not is_same(value.value, first.value)


def _shown(values: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
    return {name: found for name, found in values.items() if not found.is_withheld}


def _withheld(values: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
    return {name: found for name, found in sorted(values.items()) if found.is_withheld}


def is_same(one: ConfigData, other: ConfigData) -> bool:
    """Whether two values mean the same: unset and an empty list do, and a list of one and its element."""
    return _as_list(one) == _as_list(other)


def _as_list(value: ConfigData) -> tuple[object, ...]:
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


def _settled_keys(sources: Sequence[SaidSettings]) -> set[str]:
    """Keys whose value comes from a source that has worked out what follows from what."""
    settled: set[str] = set()
    seen: set[str] = set()
    for source in sources:
        if source.is_settled:
            settled |= source.values.keys() - seen
        seen |= source.values.keys()
    return settled


def _dialect(sources: Sequence[SaidSettings]) -> str:
    """How the run was launched: its command line knows best, it is the last source that knows."""
    return next((source.dialect for source in reversed(sources) if source.dialect != "unknown"), "unknown")


def _fill_core_defaults(settings: Settings) -> None:
    """What Bridge's summary leaves out because it is Megatron Core's default."""
    for key in config_keys().keys.values():
        if key.bridge is not None and key.bridge.has_core_default and key.name not in settings.values:
            settings.give(key.name, key.bridge.core_default, MEGATRON_CORE_DEFAULT)
