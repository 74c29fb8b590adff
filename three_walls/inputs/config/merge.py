"""Merges the settings of all sources: the value of highest precedence counts, and the others are compared with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from three_walls.inputs.config.sources import LOG_LAYOUT, LOG_OBJECTS, SourceSettings
from three_walls.model.config import ConfigConflict, ConfigData, ConfigValue, RunConfig, as_whole_number
from three_walls.tables.bridge import bridge_schema, known_releases, recipe_overlaps
from three_walls.tables.config_keys import config_keys, keys_by_path

MEGATRON_LM_DEFAULT = "Megatron-LM default"
MEGATRON_CORE_DEFAULT = "Megatron Core default"

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
    settings = _MergedSettings(values, frozenset(_settled_keys(sources)))
    if dialect == "megatron_lm":
        if any(source.leaves_out_defaults for source in sources):
            _fill_megatron_defaults(settings)
        if any(source.leaves_out_defaults or source.is_settled for source in sources):
            _derive_megatron_settings(settings)
    elif any(source.leaves_out_defaults for source in sources if source.dialect == "bridge"):
        _fill_core_defaults(settings)
    _derive_settings(settings)
    with_release = next((source for source in sources if source.bridge_version is not None), None)
    recipe = next((source.recipe for source in sources if source.recipe is not None), None)
    if recipe is not None:
        found = with_release.bridge_version if with_release else None
        _derive_overlaps(settings, recipe, recipe_release or found)
    return RunConfig(
        values=MappingProxyType(_shown(settings.values)),
        environment=MappingProxyType(dict(sorted(_shown(environment).items()))),
        dialect=dialect,
        bridge_version=with_release.bridge_version if with_release else None,
        bridge_version_evidence=with_release.bridge_version_evidence if with_release else "",
        megatron_core_version=next(
            (source.megatron_core_version for source in sources if source.megatron_core_version), None
        ),
        sizes=MappingProxyType(sizes),
        withheld_values=MappingProxyType(_withheld(settings.values)),
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
        found = [values_of(source)[key] for source in sources if key in values_of(source)]
        first = next((value for value in found if value.is_stated), found[0])
        compared = [] if first.is_withheld else [value for value in found if not value.is_withheld]
        agreeing = [value for value in compared if value is not first and is_same(value.value, first.value)]
        merged[key] = replace(first, confirmed_by=tuple(value.source for value in agreeing))
        stated = [value for value in compared if value.is_stated]
        if any(_contradicts(key, value, first) for value in stated):
            conflicts.append(ConfigConflict(key, tuple(stated)))
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


@dataclass(slots=True)
class _MergedSettings:
    """The merged values while defaults and derived settings are added. Nothing is derived for a ``settled`` key."""

    values: dict[str, ConfigValue]
    settled: frozenset[str]

    def get(self, key: str) -> ConfigData:
        found = self.values.get(key)
        return None if found is None else found.value

    def whole_number(self, key: str) -> int | None:
        return as_whole_number(self.get(key))

    def is_unset(self, key: str) -> bool:
        found = self.values.get(key)
        return found is None or (found.value is None and not found.is_withheld)

    def set(self, key: str, value: ConfigData, source: str) -> None:
        self.values[key] = ConfigValue(value, source)

    def derive(self, key: str, value: ConfigData, reason: str) -> None:
        """Sets ``key`` to what follows from other settings, unless its value is settled or withheld."""
        found = self.values.get(key)
        if found is not None and found.is_withheld:
            return
        if key in self.settled and found is not None and found.value is not None:
            return
        if found is None or not found.is_stated or found.value != value:
            self.set(key, value, f"derived: {reason}")


def _fill_megatron_defaults(settings: _MergedSettings) -> None:
    """Gives every key whose flag is absent its default, where that is the same in all releases."""
    for key in config_keys().keys.values():
        spelling = key.megatron_lm
        if spelling is not None and spelling.has_default and key.name not in settings.values:
            settings.set(key.name, spelling.default, MEGATRON_LM_DEFAULT)


def _fill_core_defaults(settings: _MergedSettings) -> None:
    """Adds what Bridge's summary leaves out because it is Megatron Core's default."""
    for key in config_keys().keys.values():
        if key.bridge is not None and key.bridge.has_core_default and key.name not in settings.values:
            settings.set(key.name, key.bridge.core_default, MEGATRON_CORE_DEFAULT)


def _derive_settings(settings: _MergedSettings) -> None:
    """Replaces unset and default values that the launcher itself replaces."""
    _derive_experts(settings)
    _derive_graph_scope(settings)
    _follow(settings, "expert_tensor_parallel_size", "tensor_model_parallel_size")


def _derive_megatron_settings(settings: _MergedSettings) -> None:
    """Derives what only a complete Megatron-LM command line determines; call it before :func:`_derive_settings`."""
    _derive_widths(settings)
    _derive_sequence_parallel(settings)
    _derive_pipeline(settings)
    _derive_precision(settings)
    _derive_recompute(settings)
    if settings.get("add_bias_linear") is False:
        settings.derive("bias_gelu_fusion", False, "no bias in linear layers")


def _derive_experts(settings: _MergedSettings) -> None:
    if settings.whole_number("num_moe_experts") == 0:  # how Megatron-LM also writes a dense model
        settings.set("num_moe_experts", None, settings.values["num_moe_experts"].source)
    if settings.whole_number("num_moe_experts") is not None:
        _follow(settings, "moe_ffn_hidden_size", "ffn_hidden_size")


def _derive_graph_scope(settings: _MergedSettings) -> None:
    given = settings.values.get("cuda_graph_modules")
    scope = settings.values.get("cuda_graph_scope")
    if given is not None and given.value and (scope is None or not scope.value):
        settings.derive("cuda_graph_scope", given.value, "cuda_graph_modules")


def _derive_widths(settings: _MergedSettings) -> None:
    hidden, heads = settings.whole_number("hidden_size"), settings.whole_number("num_attention_heads")
    if hidden is not None and settings.is_unset("ffn_hidden_size"):
        # A gated unit has two input matrices: 2/3 of the width keeps the number of parameters, in whole tiles of 64.
        gated = bool(settings.get("swiglu"))
        settings.derive("ffn_hidden_size", hidden * 8 // 3 // 64 * 64 if gated else 4 * hidden, "hidden_size")
    if hidden is not None and heads and settings.is_unset("kv_channels"):
        settings.derive("kv_channels", hidden // heads, "hidden_size / num_attention_heads")
    if heads is not None and settings.get("group_query_attention") is False:
        # Without grouped-query attention, Megatron-LM ignores the number of groups.
        settings.set("num_query_groups", heads, "derived: num_attention_heads (no --group-query-attention)")


def _derive_sequence_parallel(settings: _MergedSettings) -> None:
    if settings.whole_number("tensor_model_parallel_size") == 1 and settings.get("sequence_parallel") is True:
        settings.derive("sequence_parallel", False, "tensor_model_parallel_size")


def _derive_pipeline(settings: _MergedSettings) -> None:
    if not settings.is_unset("pipeline_model_parallel_layout"):
        # The layout string determines the number of virtual stages. Nothing here parses it, so the number is unknown.
        if "virtual_pipeline_model_parallel_size" not in settings.settled:
            settings.values.pop("virtual_pipeline_model_parallel_size", None)
        return
    layers = settings.whole_number("num_layers")
    per_stage = settings.whole_number("num_layers_per_virtual_pipeline_stage")
    stages = settings.whole_number("pipeline_model_parallel_size")
    if per_stage and layers is not None and stages:
        size = layers // stages // per_stage
        settings.derive("virtual_pipeline_model_parallel_size", size, "num_layers_per_virtual_pipeline_stage")
    if settings.whole_number("virtual_pipeline_model_parallel_size") == 1:
        settings.derive("virtual_pipeline_model_parallel_size", None, "one stage is none")
    if settings.is_unset("virtual_pipeline_model_parallel_size"):
        for name in ("overlap_p2p_comm", "align_param_gather"):
            settings.derive(name, False, "no interleaved pipeline stages")


def _derive_precision(settings: _MergedSettings) -> None:
    source = settings.values.get("grad_reduce_in_fp32")
    given = source is not None and source.source != MEGATRON_LM_DEFAULT
    if not given and settings.get("bf16") is True and settings.get("main_grads_dtype") == "fp32":
        settings.derive("grad_reduce_in_fp32", True, "bf16")


def _derive_recompute(settings: _MergedSettings) -> None:
    if settings.get("recompute_granularity") == "selective" and settings.is_unset("recompute_modules"):
        settings.derive("recompute_modules", ("core_attn",), "recompute_granularity")


def _derive_overlaps(settings: _MergedSettings, recipe: str, release: str | None) -> None:
    """Gives the run the recipe's comm_overlap section where no source shows one, as far as it is known.

    Where the release is not known, only what all releases of the recipe have in common counts. Of the fields those are
    known that Bridge copies to the model as they are; ``tp_comm_overlap`` also needs tensor and sequence parallelism.
    """
    if _OVERLAPS in settings.values:
        return
    releases = [release] if release is not None else list(known_releases())
    sections = [recipe_overlaps(name)[recipe] for name in releases if recipe in recipe_overlaps(name)]
    if not sections or len({section is None for section in sections}) > 1:
        return
    source = f"derived: recipe {recipe}"
    settings.set(_OVERLAPS, None if sections[0] is None else _OVERLAPS_CLASS, source)
    for name, value in (sections[0] or {}).items():
        path = f"{_OVERLAPS}.{name}"
        key = keys_by_path().get(path)
        is_common = all(section is not None and section.get(name) == value for section in sections)
        is_copied = bridge_schema(releases[-1]).find(f"model.{name}") is not None
        if name == "tp_comm_overlap" and value:
            is_copied = settings.get("sequence_parallel") is True and (
                (settings.whole_number("tensor_model_parallel_size") or 1) > 1
            )
        if key is not None and is_common and is_copied and key.name not in settings.values:
            settings.set(key.name, value, source)


def _follow(settings: _MergedSettings, name: str, other: str) -> None:
    """Gives an unset ``name`` the value of ``other``."""
    if name in settings.values and settings.is_unset(name) and settings.get(other) is not None:
        settings.derive(name, settings.values[other].value, other)
