"""Megatron-Bridge's saved configuration (``run_config.yaml``, or the dump in a log), every release since 0.3.

A configuration is saved before or after Bridge's ``validate``, which moves what ``comm_overlap`` and
``mixed_precision`` say into ``model``, ``ddp`` and ``optimizer``. After it the values in force stand there; before it
a null of ``comm_overlap`` is "automatic", and so unknown. The schedule's steps are set by ``validate`` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from three_walls.inputs.config.bridge_arguments import give_precision_recipe
from three_walls.inputs.config.bridge_release import infer_release
from three_walls.inputs.config.collected import Settings
from three_walls.inputs.config.environment import variable_value
from three_walls.inputs.config.given_files import read_text_file
from three_walls.inputs.config.plain_yaml import load_plain
from three_walls.inputs.config.saved_values import describe, plain_value
from three_walls.inputs.config.saved_vocabulary import give_vocabulary
from three_walls.inputs.config.sources import CONFIG_FILE, SaidSettings
from three_walls.model.config import ConfigValue
from three_walls.model.errors import InputError
from three_walls.tables.config_keys import ConfigKey, config_keys
from three_walls.tables.environment_variables import allowed_variables

_WHOLE = ("model", "train", "optimizer", "ddp")
_OBJECTS = {"comm_overlap": "CommOverlapConfig", "mixed_precision": "MixedPrecisionConfig"}
_SET_BY_VALIDATE = ("scheduler.wd_incr_steps", "scheduler.lr_decay_steps", "comm_overlap.data_parallel_size")
EXPECTED = "Megatron-Bridge's configuration as YAML (run_config.yaml)"


def read_config_file(path: Path) -> SaidSettings:
    """The configuration saved in ``path``; raises InputError with one line where it is none.

    Its warnings, which a report shows, name the file without its directories.
    """
    said = read_dump(read_text_file(path, EXPECTED), CONFIG_FILE, str(path))
    return replace(said, warnings=tuple(note.replace(str(path), path.name, 1) for note in said.warnings))


def read_dump(text: str, source: str, shown_as: str) -> SaidSettings:
    """The configuration that YAML ``text`` holds; raises InputError, its line beginning with ``shown_as``."""
    try:
        root = load_plain(text)
    except ValueError as error:
        raise InputError(f"{shown_as}: expected {EXPECTED}, found {error}") from error
    if not isinstance(root, dict):
        raise InputError(f"{shown_as}: expected {EXPECTED}, found {describe(root)}")
    config = _by_path(root)
    if not any(path in config for path in _known_paths()):
        raise InputError(f"{shown_as}: expected {EXPECTED}, found none of its settings")
    settings = Settings(source=source)
    is_settled = any(config.get(path) is not None for path in _SET_BY_VALIDATE)
    for key in config_keys().keys.values():
        _read_key(key, root, config, is_settled, settings)
    give_vocabulary(config, settings)
    if isinstance(root.get("mixed_precision"), str) and not is_settled:
        give_precision_recipe(root["mixed_precision"], settings)
    said = SaidSettings(
        source,
        MappingProxyType(settings.values),
        MappingProxyType(_environment(root.get("env_vars"), source)),
        MappingProxyType(_sizes(config, source)),
        dialect="bridge",
        is_settled=is_settled,
        warnings=tuple(f"{shown_as}: {note}" for note in settings.warnings),
    )
    if not all(isinstance(root.get(section), dict) for section in _WHOLE):
        return said
    version, evidence = infer_release({*root, *config})
    if version is None:
        note = f"{shown_as}: Megatron-Bridge's release cannot be told ({evidence})"
        return replace(said, warnings=(*said.warnings, note))
    return replace(said, bridge_version=version, bridge_version_evidence=f"{source}: {evidence}")


def _known_paths() -> Iterator[str]:
    for key in config_keys().keys.values():
        if key.bridge is not None:
            yield from key.bridge.paths + key.bridge.also_read + key.bridge.in_force


def _by_path(root: Mapping[str, Any]) -> dict[str, Any]:
    """``section.key`` -> value. Newer releases keep the transformer's settings one level deeper, under ``model``."""
    found: dict[str, Any] = {}
    for section, entries in root.items():
        if isinstance(entries, dict):
            found.update({f"{section}.{name}": value for name, value in entries.items()})
    inner = found.get("model.transformer")
    if isinstance(inner, dict):
        for name, value in inner.items():
            found.setdefault(f"model.{name}", value)
    return found


def _read_key(
    key: ConfigKey, root: Mapping[str, Any], config: Mapping[str, Any], is_settled: bool, settings: Settings
) -> None:
    if key.name in _OBJECTS:
        if key.name in root:
            settings.give_value(key, _object_name(key.name, root[key.name]), key.name)
        return
    present = [path for path in _places(key, root, is_settled) if path in config]
    raw = [config[path] for path in present]
    if key.type == "bool" and key.bridge is not None and len(key.bridge.paths) > 1 and any(one is True for one in raw):
        settings.give(key.name, True)  # either place turns it on
        return
    first = next((index for index, value in enumerate(raw) if value is not None), None)
    if first is None and not _is_automatic(key, root, is_settled) and raw:
        settings.give(key.name, None)
    elif first is not None:
        _give(key, raw[first], present[first], settings)


def _places(key: ConfigKey, root: Mapping[str, Any], is_settled: bool) -> list[str]:
    """Paths that may hold the key, the one that counts first."""
    if key.bridge is None:
        return []
    written = list(key.bridge.paths + key.bridge.also_read)
    section = _object_section(key)
    if section is None:
        return [*written, *key.bridge.in_force]
    in_force = [*key.bridge.in_force, *key.bridge.also_read]
    if is_settled:
        return [*in_force, *written]
    return in_force if root.get(section) is None else list(key.bridge.paths)


def _object_section(key: ConfigKey) -> str | None:
    """The section that ``validate`` moves the key's value out of."""
    if key.bridge is None:
        return None
    of_paths = [path.partition(".")[0] for path in (key.bridge.paths or key.bridge.in_force)]
    return next((section for section in of_paths if section in _OBJECTS), None)


def _is_automatic(key: ConfigKey, root: Mapping[str, Any], is_settled: bool) -> bool:
    """Whether a null means that ``validate`` will choose."""
    return not is_settled and _object_section(key) == "comm_overlap" and root.get("comm_overlap") is not None


def _object_name(section: str, value: Any) -> str | None:
    if isinstance(value, dict):
        target = value.get("_target_")
        return target.rpartition(".")[2] if isinstance(target, str) else _OBJECTS[section]
    return value if isinstance(value, str) else None


def _give(key: ConfigKey, raw: Any, path: str, settings: Settings) -> None:
    try:
        value = plain_value(key, raw)
    except ValueError as error:
        settings.warnings.append(f"{path}: {error}; left out")
        return
    settings.give_value(key, value, path)


def _environment(entries: Any, source: str) -> dict[str, ConfigValue]:
    found: dict[str, ConfigValue] = {}
    for name, value in entries.items() if isinstance(entries, dict) else ():
        if allowed_variables().allows(name) and not isinstance(value, dict | list):
            found[name] = variable_value(name, value if value is None else str(value), source)
    return found


def _sizes(config: Mapping[str, Any], source: str) -> dict[str, ConfigValue]:
    size = config.get("comm_overlap.data_parallel_size")
    is_size = isinstance(size, int) and not isinstance(size, bool) and size > 0
    return {"data_parallel_size": ConfigValue(size, source)} if is_size else {}
