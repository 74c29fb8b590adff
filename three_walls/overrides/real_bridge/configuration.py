"""A resolved configuration by paths (``model.recompute_granularity``) as settings that the checker judges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from three_walls.inputs.config.saved_config import EXPECTED
from three_walls.inputs.config.yaml_data import read_yaml
from three_walls.inputs.given_files import read_text_file
from three_walls.model.config import ConfigData
from three_walls.model.errors import InputError
from three_walls.overrides.merged_config import COMM_OVERLAP, MIXED_PRECISION, Settings, name_of
from three_walls.tables.bridge_schema import MAIN
from three_walls.tables.config_keys import config_keys

_OBJECT_SECTIONS = (COMM_OVERLAP, MIXED_PRECISION)


def read_run_config(path: Path) -> Settings:
    """Settings of a ``run_config.yaml`` that Megatron-Bridge wrote; raises InputError where it is none."""
    try:
        loaded = read_yaml(read_text_file(path, EXPECTED))
    except ValueError as error:
        raise InputError(f"{path}: expected {EXPECTED}, found {error}") from error
    if not isinstance(loaded, dict) or not isinstance(loaded.get("model"), dict):
        raise InputError(f"{path}: expected a run_config.yaml with a section model, found none")
    return settings_of_paths(dict(_flatten(loaded)))


def settings_of_paths(values: Mapping[str, Any]) -> Settings:
    """Settings of a flat mapping of paths; of a key that has several places, the first one that is set counts."""
    found: dict[str, ConfigData] = {}
    for path, value in values.items():
        if not isinstance(value, dict):
            found.setdefault(name_of(path), _data(value))
    for name, key in config_keys().keys.items():
        places = (*key.bridge.paths, *key.bridge.also_read) if key.bridge is not None else ()
        given = [_data(values[path]) for path in places if path in values]
        if given:
            found[name] = next((one for one in given if one is not None), None)
    for section in _OBJECT_SECTIONS:
        found.setdefault(section, None)
    precision = found[MIXED_PRECISION]
    if isinstance(precision, str):
        found |= config_keys().precision_recipes.get(precision.replace("-", "_"), {})
    if "dataset.seq_length" in values:
        found["dataset.seq_length"] = _data(values["dataset.seq_length"])
    if "model.seq_length" in values:
        found["seq_length"] = _data(values["model.seq_length"])
    return Settings(found, {})


def _flatten(loaded: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for section, part in loaded.items():
        if not isinstance(part, dict):
            yield section, part
            continue
        if "_target_" in part:
            yield section, str(part["_target_"]).rpartition(".")[2]
        yield from ((f"{section}.{name}", _member(value)) for name, value in part.items())


def _member(value: Any) -> Any:
    """Enums and types as their names: ``{_target_: torch.bfloat16, _call_: false}``."""
    if isinstance(value, list):
        return [_member(one) for one in value]
    if isinstance(value, dict) and "_target_" in value:
        return value.get("_name_") or str(value["_target_"])
    return value


def _data(value: Any) -> ConfigData:
    if isinstance(value, list):
        return tuple(one if isinstance(one, str | int | float | None) else str(one) for one in value)
    return value if isinstance(value, str | int | float | None) else str(value)


def guess_release(settings: Settings) -> str | None:
    """The newest release whose fields the configuration shows; ``None`` where it shows too few to tell."""
    sections = {path.partition(".")[0] for path in settings.values}
    if "env_vars" in sections:
        return MAIN if "ddp.megatron_fsdp_version" in settings.values else "0.6.2"
    if "cuda_graph_modules" in settings.values:
        return "0.5.1"
    if "validation" in sections or "eval_micro_batch_size" in settings.values:
        return "0.4.2"
    return "0.3.1" if "cuda_graph_scope" in settings.values else None
