"""Merges the settings of all sources: the value of highest precedence counts, and the others are compared with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from three_walls.lib.plain_data import LARGEST_WHOLE_NUMBER, ConfigData
from three_walls.megatron.derive import (
    KnownSettings,
    UnknownSettingError,
    derive_bridge,
    derive_core,
    derive_megatron_lm,
    overlaps_tensor_parallelism,
)
from three_walls.megatron.settings.run_config import ConfigConflict, ConfigValue, RunConfig
from three_walls.megatron.settings.setting_sources import LOG_LAYOUT, LOG_OBJECTS, MEGATRON_CORE_DEFAULT, SourceSettings
from three_walls.tables.bridge_releases import bridge_schema, known_releases, recipe_overlaps, release_number
from three_walls.tables.config_keys import config_keys, keys_by_path

MEGATRON_LM_DEFAULT = "Megatron-LM default"

_PRECISION_OBJECT = "MixedPrecisionConfig"
_OVERLAPS, _OVERLAPS_CLASS = "comm_overlap", "CommOverlapConfig"
_PRINTED_BY_MEGATRON = (LOG_OBJECTS, LOG_LAYOUT)


def merge_sources(sources: Sequence[SourceSettings], recipe_release: str | None = None) -> RunConfig:
    """The run's settings. ``sources``: highest precedence first; ``recipe_release``: whose recipes count, if stated.

    Defaults, and settings that follow from others, are added last. Defaults are added only if a source is known to
    leave them out.
    """
    values, conflicts = _merge_values(sources, lambda source: source.values)
    environment, environment_conflicts = _merge_values(sources, lambda source: source.environment)
    sizes, size_conflicts = _merge_values(sources, lambda source: source.sizes)
    # The source of lowest precedence that knows the launcher counts: the command line, if it was recorded.
    dialect = next((source.dialect for source in reversed(sources) if source.dialect != "unknown"), "unknown")
    with_release = next((source for source in sources if source.bridge_version is not None), None)
    release = recipe_release or (with_release.bridge_version if with_release else None)
    _fill_defaults(values, dialect, sources)
    settings = _derive(values, _settled_keys(sources), dialect, release)
    recipe = next((source.recipe for source in sources if source.recipe is not None), None)
    if recipe is not None and _OVERLAPS not in values:
        _derive_overlaps(settings, recipe, release)
    for name, reason in settings.reasons.items():
        if name in settings.values:
            values[name] = ConfigValue(settings.values[name], f"derived: {reason}")
        elif not values[name].is_stated:
            del values[name]
    return RunConfig(
        values=MappingProxyType(_shown(values)),
        environment=MappingProxyType(dict(sorted(_shown(environment).items()))),
        dialect=dialect,
        bridge_version=release,
        bridge_version_evidence=with_release.bridge_version_evidence if with_release and not recipe_release else "",
        megatron_core_version=next(
            (source.megatron_core_version for source in sources if source.megatron_core_version), None
        ),
        sizes=MappingProxyType(sizes),
        withheld_values=MappingProxyType(_withheld(values)),
        withheld_environment=MappingProxyType(_withheld(environment)),
        conflicts=(*conflicts, *size_conflicts, *environment_conflicts),
    )


def _merge_values(
    sources: Sequence[SourceSettings], values_of: Callable[[SourceSettings], Mapping[str, ConfigValue]]
) -> tuple[dict[str, ConfigValue], list[ConfigConflict]]:
    """Of each key the value that counts, with the sources that agree, and the keys whose stated values differ."""
    merged: dict[str, ConfigValue] = {}
    conflicts = []
    for key in dict.fromkeys(key for source in sources for key in values_of(source)):
        values = [values_of(source)[key] for source in sources if key in values_of(source)]
        first = next((value for value in values if value.is_stated), values[0])
        compared = [] if first.is_withheld else [value for value in values if not value.is_withheld]
        agreeing = [value for value in compared if value is not first and is_same(value.value, first.value)]
        merged[key] = replace(first, confirmed_by=tuple(value.source for value in agreeing))
        explicit = [value for value in compared if value.is_stated]
        if any(_contradicts(key, value, first) for value in explicit):
            conflicts.append(ConfigConflict(key, tuple(explicit)))
    return merged, sorted(conflicts, key=lambda conflict: conflict.key)


def _contradicts(key: str, value: ConfigValue, first: ConfigValue) -> bool:
    """Whether two values of ``key`` differ.

    What Megatron derives and prints may fill in a value that is unset elsewhere. An object whose class a saved
    configuration names may be what Bridge made of the name of a precision recipe.
    """
    pairs = ((value, first), (first, value))
    fills_in = any(printed.source in _PRINTED_BY_MEGATRON and other.value is None for printed, other in pairs)
    expands = key == "mixed_precision" and any(
        made.value == _PRECISION_OBJECT and isinstance(named.value, str) for made, named in pairs
    )
    return not fills_in and not expands and not is_same(value.value, first.value)


def is_same(first: ConfigData, second: ConfigData) -> bool:
    """Whether two values mean the same. An empty list means unset; a list of one element means that element."""
    return _as_list(first) == _as_list(second)


def _as_list(value: ConfigData) -> tuple[object, ...]:
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


def _shown(values: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
    return {name: value for name, value in values.items() if not value.is_withheld}


def _withheld(values: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
    return {name: value for name, value in sorted(values.items()) if value.is_withheld}


def _settled_keys(sources: Sequence[SourceSettings]) -> set[str]:
    """Keys whose value comes from a source with final values (:attr:`SourceSettings.is_settled`)."""
    settled: set[str] = set()
    seen: set[str] = set()
    for source in sources:
        if source.is_settled:
            settled |= source.values.keys() - seen
        seen |= source.values.keys()
    return settled


def _fill_defaults(values: dict[str, ConfigValue], dialect: str, sources: Sequence[SourceSettings]) -> None:
    """Gives keys that a source is known to leave out their defaults.

    Those of Megatron-LM's flags where they are the same in all releases; else those of Megatron Core, which Bridge's
    summary leaves out.
    """
    if not any(source.leaves_out_defaults for source in sources if source.dialect == dialect):
        return
    for key in config_keys().keys.values():
        if key.name in values:
            continue
        if dialect == "megatron_lm" and key.megatron_lm is not None and key.megatron_lm.has_default:
            values[key.name] = ConfigValue(key.megatron_lm.default, MEGATRON_LM_DEFAULT)
        elif dialect == "bridge" and key.bridge is not None and key.bridge.has_core_default:
            values[key.name] = ConfigValue(key.bridge.core_default, MEGATRON_CORE_DEFAULT)


def _derive(
    values: dict[str, ConfigValue], settled: Collection[str], dialect: str, release: str | None
) -> KnownSettings:
    """The values with what the launcher, and then Megatron Core, make of them.

    Nothing is derived for a value that is withheld, or that a source of final values states.
    """
    if values.get("num_moe_experts", _UNSET).value == 0:  # how Megatron-LM also writes a dense model
        values["num_moe_experts"] = replace(values["num_moe_experts"], value=None)
    groups = values.get("group_query_attention", _UNSET)
    if dialect == "megatron_lm" and groups.value is False:  # then Megatron-LM ignores the number of groups
        values["num_query_groups"] = ConfigValue(None, groups.source)
    known = {name: value.value for name, value in values.items() if not value.is_withheld and not _is_mistake(value)}
    fixed = {name for name in values if name not in known or (name in settled and known[name] is not None)}
    settings = KnownSettings(known, fixed)
    if dialect == "megatron_lm":
        reduces = values.get("grad_reduce_in_fp32", _UNSET)
        if not reduces.is_stated and known.get("bf16") is True and known.get("main_grads_dtype") == "fp32":
            settings.put("grad_reduce_in_fp32", True, "bf16")
        derive_megatron_lm(settings)
    elif dialect == "bridge":
        derive_bridge(settings, release_number(release) if release is not None else None)
    else:
        derive_core(settings)
    if known.get("cuda_graph_modules") and not known.get("cuda_graph_scope"):
        settings.put("cuda_graph_scope", known["cuda_graph_modules"], "cuda_graph_modules")
    return settings


_UNSET = ConfigValue(None, "default")


def _is_mistake(value: ConfigValue) -> bool:
    return isinstance(value.value, int) and abs(value.value) > LARGEST_WHOLE_NUMBER


def _derive_overlaps(settings: KnownSettings, recipe: str, release: str | None) -> None:
    """Gives the run the recipe's comm_overlap section where no source shows one, as far as it is known.

    Where the release is not known, only what all releases of the recipe have in common counts. Of the fields those are
    known that Bridge copies to the model; ``tp_comm_overlap`` is turned off without tensor and sequence parallelism.
    """
    releases = [release] if release is not None else list(known_releases())
    sections = [recipe_overlaps(name)[recipe] for name in releases if recipe in recipe_overlaps(name)]
    if not sections or len({section is None for section in sections}) > 1:
        return
    reason = f"recipe {recipe}"
    settings.put(_OVERLAPS, None if sections[0] is None else _OVERLAPS_CLASS, reason)
    for name, value in (sections[0] or {}).items():
        key = keys_by_path().get(f"{_OVERLAPS}.{name}")
        is_common = all(section is not None and section.get(name) == value for section in sections)
        is_copied = bridge_schema(releases[-1]).find(f"model.{name}") is not None
        if key is None or key.name in settings.values or not is_common or not is_copied:
            continue
        try:
            kept = value and overlaps_tensor_parallelism(settings) if name == "tp_comm_overlap" else value
        except UnknownSettingError:
            continue
        settings.put(key.name, kept, reason)
