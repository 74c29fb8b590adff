"""What is known of a configuration once overrides are applied to it.

It can start from what a trace or log showed of a run, from a ``run_config.yaml``, or from a recipe that Megatron-Bridge
itself resolved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from three_walls.model.config import ConfigData, RunConfig
from three_walls.tables.bridge import release_number
from three_walls.tables.config_keys import config_keys, keys_by_path
from three_walls.tables.hydra_overrides import Override

COMM_OVERLAP, COMM_OVERLAP_CLASS = "comm_overlap", "CommOverlapConfig"
MIXED_PRECISION, MIXED_PRECISION_CLASS = "mixed_precision", "MixedPrecisionConfig"
OBJECT_CLASSES = {COMM_OVERLAP: COMM_OVERLAP_CLASS, MIXED_PRECISION: MIXED_PRECISION_CLASS}
"""Sections that are an object of this class, or else nothing or a name."""
OBJECT_PARTS = ("._target_", "._args_", "._call_", "._name_")
"""Ends of paths that construct an object instead of setting a field."""


@dataclass(frozen=True, slots=True)
class MergedConfig:
    """Values by config key (by Bridge path where a field has no key) and environment variables, as far as known.

    ``comm_overlap`` and ``mixed_precision`` hold the name of their class where they are objects. A setting that is not
    known is absent; one that is known to be unset is None.
    """

    values: Mapping[str, ConfigData]
    environment: Mapping[str, ConfigData] = field(default_factory=dict)
    environment_is_known: bool = False
    """Whether a variable that is not in ``environment`` is known to be unset."""
    platform: Mapping[str, ConfigData] = field(default_factory=dict)
    """Where the run happens: names under ``platform`` in tables/bridge-constraints.yaml, as far as known."""


def config_of_run(config: RunConfig) -> MergedConfig:
    """What the inputs of the analysis showed of the run."""
    return MergedConfig(
        values={name: found.value for name, found in config.values.items()},
        environment={name: found.value for name, found in config.environment.items()},
    )


def config_of_sections(sections: Mapping[str, Any]) -> MergedConfig:
    """The configuration that a parsed ``run_config.yaml`` holds, by section and field."""
    return config_of_paths(dict(_flatten(sections)))


def config_of_paths(values: Mapping[str, Any]) -> MergedConfig:
    """The configuration in a resolved mapping of Bridge paths (``model.recompute_granularity``) to plain values.

    Of a key that has several places, the first one that is set counts.
    """
    by_key: dict[str, ConfigData] = {}
    for path, value in values.items():
        if not isinstance(value, dict):
            by_key.setdefault(key_of_path(path), _plain(value))
    for name, key in config_keys().keys.items():
        places = (*key.bridge.paths, *key.bridge.also_read) if key.bridge is not None else ()
        given = [_plain(values[path]) for path in places if path in values]
        if given:
            by_key[name] = next((value for value in given if value is not None), None)
    for section in OBJECT_CLASSES:
        by_key.setdefault(section, None)
    by_key |= _settings_of_precision(by_key[MIXED_PRECISION])
    # The two lengths share a key, and a constraint compares one with the other.
    if "dataset.seq_length" in values:
        by_key["dataset.seq_length"] = _plain(values["dataset.seq_length"])
    if "model.seq_length" in values:
        by_key["seq_length"] = _plain(values["model.seq_length"])
    return MergedConfig(by_key)


def apply_overrides(config: MergedConfig, settings: Iterable[Override], environment: Mapping[str, str]) -> MergedConfig:
    """``config`` once ``settings`` are applied and Bridge has copied what they imply.

    A variable that the process has already wins over ``env_vars``.
    """
    values = dict(config.values)
    variables: dict[str, ConfigData] = {**config.environment, **environment}
    for setting in settings:
        section, _, name = setting.path.partition(".")
        if section == "env_vars" and name:
            variables.setdefault(name, str(setting.value))
        else:
            _set(values, setting.path, setting.value)
    return replace(config, values=values, environment=variables)


def key_of_path(path: str) -> str:
    """The config key that a Megatron-Bridge path holds, else the path itself."""
    key = keys_by_path().get(path)
    if key is not None:
        return key.name
    section, _, name = path.partition(".")
    return name if section == "model" and name in config_keys().keys else path


def derive_values(values: Mapping[str, ConfigData], version: str) -> dict[str, ConfigData]:
    """What follows from ``values`` as far as they suffice: which modules CUDA graphs capture, whether lengths agree.

    Up to release 0.4 one list names the graphed modules, from 0.5 on there are two that exclude each other.
    """
    derived: dict[str, ConfigData] = {}
    if "seq_length" in values and "dataset.seq_length" in values:
        derived["derived.sequence_lengths_agree"] = values["seq_length"] == values["dataset.seq_length"]
    scope_known, modules_known = "cuda_graph_scope" in values, "cuda_graph_modules" in values
    scope = _graphed_modules(values.get("cuda_graph_scope"))
    modules = _graphed_modules(values.get("cuda_graph_modules"))
    if modules_known:
        derived["derived.names_graph_modules"] = bool(modules)
    if release_number(version) < (0, 5):
        graphed = scope if scope_known else None
    else:
        graphed = scope or modules if scope or modules or (scope_known and modules_known) else None
    if graphed is not None:
        derived["derived.graphed_modules"] = graphed
    implementation = values.get("cuda_graph_impl")
    if implementation == "local" and graphed is not None:
        derived["derived.full_iteration_graph"] = "full_iteration" in graphed
    elif "cuda_graph_impl" in values and implementation != "local":
        derived["derived.full_iteration_graph"] = implementation == "full_iteration"
    return derived


DERIVED_NAMES = ("graphed_modules", "full_iteration_graph", "names_graph_modules", "sequence_lengths_agree")
"""What :func:`derive_values` may give, each under ``derived.``."""


def _graphed_modules(value: ConfigData) -> tuple[str, ...]:
    if value in (None, "full"):  # these name no module
        return ()
    return tuple(map(str, value)) if isinstance(value, tuple) else tuple(str(value).split(","))


def _set(values: dict[str, ConfigData], path: str, value: ConfigData) -> None:
    section, _, name = path.partition(".")
    if name == "_target_":
        values[section] = OBJECT_CLASSES.get(section, str(value).rpartition(".")[2])
    elif path.endswith("._args_"):
        # A member of an enum given by its number: its name is not known here, and no constraint compares one.
        values.pop(key_of_path(path.removesuffix("._args_")), None)
    elif not path.endswith(OBJECT_PARTS):
        values[key_of_path(path)] = value
    if path == MIXED_PRECISION:
        values |= _settings_of_precision(value)
    if path == "rng.te_rng_tracker" and value is True:
        values["te_rng_tracker"] = True  # Bridge keeps both places the same


def _settings_of_precision(name: ConfigData) -> Mapping[str, ConfigData]:
    """What Megatron-Bridge sets for a precision recipe that is given by its name; both spellings are registered."""
    return config_keys().precision_recipes.get(name.replace("-", "_"), {}) if isinstance(name, str) else {}


def _flatten(sections: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for section, fields in sections.items():
        if not isinstance(fields, dict):
            yield section, fields
            continue
        if "_target_" in fields:
            yield section, str(fields["_target_"]).rpartition(".")[2]
        yield from ((f"{section}.{name}", _name_of_object(value)) for name, value in fields.items())


def _name_of_object(value: Any) -> Any:
    """Enum members and types by their names: ``{_target_: torch.bfloat16, _call_: false}`` is torch.bfloat16."""
    if isinstance(value, list):
        return [_name_of_object(element) for element in value]
    if isinstance(value, dict) and "_target_" in value:
        return value.get("_name_") or str(value["_target_"])
    return value


def _plain(value: Any) -> ConfigData:
    if isinstance(value, list):
        return tuple(element if isinstance(element, str | int | float | None) else str(element) for element in value)
    return value if isinstance(value, str | int | float | None) else str(value)
