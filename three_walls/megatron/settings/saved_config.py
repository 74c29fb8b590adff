"""Megatron-Bridge's saved configuration (``run_config.yaml``, or the dump in a log), every release since 0.3.

A configuration is saved before or after Bridge's ``validate``, which moves the values of ``comm_overlap`` and
``mixed_precision`` into ``model``, ``ddp`` and ``optimizer``. Once it has run, the values in force are there. Before it
runs, null in ``comm_overlap`` means "automatic", so the value is unknown. Only ``validate`` sets the steps of the
schedule, which shows whether it has run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from three_walls.lib.errors import InputError
from three_walls.lib.files import read_text_file
from three_walls.lib.plain_data import as_size
from three_walls.megatron.settings.option_words import set_precision_recipe
from three_walls.megatron.settings.run_config import ConfigValue
from three_walls.megatron.settings.setting_sources import CONFIG_FILE, SettingsBuilder, SourceSettings
from three_walls.megatron.settings.written_values import describe, plain_value
from three_walls.tables.bridge_releases import bridge_releases, describe_unknown_paths, list_unknown_paths
from three_walls.tables.config_keys import ConfigKey, config_keys

_WHOLE = ("model", "train", "optimizer", "ddp")
"""Sections that a whole configuration has. Only a whole one is evidence of a release."""
_OBJECTS = {"comm_overlap": "CommOverlapConfig", "mixed_precision": "MixedPrecisionConfig"}
_SET_BY_VALIDATE = ("scheduler.wd_incr_steps", "scheduler.lr_decay_steps", "comm_overlap.data_parallel_size")
CONFIG_NAME = "run_config.yaml"
EXPECTED = f"Megatron-Bridge's configuration as YAML ({CONFIG_NAME})"


def read_config_file(path: Path) -> SourceSettings:
    """The configuration saved in ``path``; raises InputError if the file holds none.

    The warnings, which a report shows, name the file without its directories.
    """
    settings = read_dump(read_text_file(path, EXPECTED), CONFIG_FILE, str(path))
    warnings = tuple(warning.replace(str(path), path.name, 1) for warning in settings.warnings)
    return replace(settings, warnings=warnings)


def read_dump(text: str, source: str, shown_as: str) -> SourceSettings:
    """The configuration that YAML ``text`` holds; raises InputError, with a message that begins with ``shown_as``."""
    from three_walls.lib.yaml import read_yaml  # PyYAML, which few runs need

    try:
        root = read_yaml(text)
    except ValueError as error:
        raise InputError(f"{shown_as}: expected {EXPECTED}, found {error}") from error
    if not isinstance(root, dict):
        raise InputError(f"{shown_as}: expected {EXPECTED}, found {describe(root)}")
    config = _by_path(root)
    if not any(path in config for path in _known_paths()):
        raise InputError(f"{shown_as}: expected {EXPECTED}, found none of its settings")
    builder = SettingsBuilder(source)
    is_settled = any(config.get(path) is not None for path in _SET_BY_VALIDATE)
    for key in config_keys().keys.values():
        _read_key(key, root, config, is_settled, builder)
    _read_vocabulary(config, builder)
    if isinstance(root.get("mixed_precision"), str) and not is_settled:
        set_precision_recipe(root["mixed_precision"], builder)
    variables = root.get("env_vars")
    for name, value in variables.items() if isinstance(variables, dict) else ():
        builder.set_variable(name, value)
    data_parallel_size = as_size(config.get("comm_overlap.data_parallel_size"))
    if data_parallel_size:
        builder.sizes["data_parallel_size"] = ConfigValue(data_parallel_size, source)
    settings = builder.build("bridge", is_settled, warnings_begin=f"{shown_as}: ")
    if unknown := list_unknown_paths(config):
        warning = f"{shown_as}: {describe_unknown_paths(unknown)}"
        settings = replace(settings, warnings=(*settings.warnings, warning))
    if not all(isinstance(root.get(section), dict) for section in _WHOLE):
        return settings
    version, evidence = infer_release({*root, *config})
    if version is None:
        note = f"{shown_as}: Megatron-Bridge's release cannot be inferred ({evidence})"
        return replace(settings, warnings=(*settings.warnings, note))
    return replace(settings, bridge_version=version, bridge_version_evidence=f"{source}: {evidence}")


def infer_release(paths: Collection[str]) -> tuple[str | None, str]:
    """(release, evidence) from the ``paths`` of a whole saved configuration, or of a log's summary.

    ``paths`` are its sections and ``section.key``. The release is the newest one that introduced one of them. Returns
    (None, reason) where no path belongs to one release, or where paths occur together that no release has both.
    """
    releases = bridge_releases()
    newest, markers = 0, list[str]()
    for index, release in enumerate(releases):
        markers_here = [path for path in release.came_with if path in paths]
        if markers_here:
            newest, markers = index, markers_here
    for release in releases[:newest]:
        gone = [path for path in release.last_with if path in paths]
        if gone:
            return None, f"{gone[0]} last existed in {release.name}, {markers[0]} came with {releases[newest].name}"
    name = releases[newest].name
    if markers:
        return name, f"{', '.join(markers[:2])} came with {name}"
    gone = [path for path in releases[0].last_with if path in paths]
    if gone:
        return name, f"{', '.join(gone[:2])} last existed in {name}"
    return None, "none of its keys belongs to one release"


def _known_paths() -> Iterator[str]:
    for key in config_keys().keys.values():
        if key.bridge is not None:
            yield from key.bridge.paths + key.bridge.also_read + key.bridge.in_force


def _by_path(root: Mapping[str, Any]) -> dict[str, Any]:
    """``section.key`` -> value. Newer releases hold the transformer's settings one level deeper, in ``model``."""
    by_path: dict[str, Any] = {}
    for section, entries in root.items():
        if isinstance(entries, dict):
            by_path.update({f"{section}.{name}": value for name, value in entries.items()})
    inner = by_path.get("model.transformer")
    if isinstance(inner, dict):
        for name, value in inner.items():
            by_path.setdefault(f"model.{name}", value)
    return by_path


def _read_key(
    key: ConfigKey, root: Mapping[str, Any], config: Mapping[str, Any], is_settled: bool, settings: SettingsBuilder
) -> None:
    if key.name in _OBJECTS:
        if key.name in root:
            settings.set_value(key, _object_name(key.name, root[key.name]), key.name)
        return
    present = [path for path in _places(key, root, is_settled) if path in config]
    raw = [config[path] for path in present]
    has_several_paths = key.bridge is not None and len(key.bridge.paths) > 1
    if key.type == "bool" and has_several_paths and any(value is True for value in raw):
        settings.set(key.name, True)  # either place turns it on
        return
    first = next((index for index, value in enumerate(raw) if value is not None), None)
    if first is not None:
        try:
            settings.set_value(key, plain_value(key, raw[first]), present[first])
        except ValueError as error:
            settings.warnings.append(f"{present[first]}: {error}; left out")
    elif raw and not _is_automatic(key, root, is_settled):
        settings.set(key.name, None)


def _places(key: ConfigKey, root: Mapping[str, Any], is_settled: bool) -> list[str]:
    """The paths that may hold the key, highest precedence first."""
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
    """The section out of which ``validate`` moves the key's value."""
    if key.bridge is None:
        return None
    sections = [path.partition(".")[0] for path in (key.bridge.paths or key.bridge.in_force)]
    return next((section for section in sections if section in _OBJECTS), None)


def _is_automatic(key: ConfigKey, root: Mapping[str, Any], is_settled: bool) -> bool:
    """Whether null means that ``validate`` will set the value."""
    return not is_settled and _object_section(key) == "comm_overlap" and root.get("comm_overlap") is not None


def _object_name(section: str, value: Any) -> str | None:
    if isinstance(value, dict):
        target = value.get("_target_")
        return target.rpartition(".")[2] if isinstance(target, str) else _OBJECTS[section]
    return value if isinstance(value, str) else None


_SIZE_IS_GIVEN = "NullTokenizer"
"""The tokenizer whose size the configuration states; the sizes of others are in their files."""


def _read_vocabulary(config: Mapping[str, Any], settings: SettingsBuilder) -> None:
    """Sets the size of the vocabulary, or its padded size, as far as ``config`` (values by path) determines it.

    Bridge saves the configuration before it builds the tokenizer, which determines the vocabulary. If the model states
    no size, or ``tokenizer.use_tokenizer_vocab_size`` is set, Bridge pads the tokenizer's size; otherwise it leaves the
    model's size as it is. The copy in a checkpoint is saved after that. ``model.should_pad_vocab`` distinguishes the
    two.

    Source: ``_validate_and_set_vocab_size`` in megatron/bridge/training/setup.py; runs of Bridge 0.3.1 to 0.6.2.
    """
    model_size = as_size(config.get("model.vocab_size"))
    is_padded_later = config.get("model.should_pad_vocab") is True
    if model_size and is_padded_later:
        return
    if model_size and config.get("tokenizer.use_tokenizer_vocab_size") is not True:
        if "model.should_pad_vocab" in config:
            settings.set("padded_vocab_size", model_size)
        return
    tokenizer_size = as_size(config.get("tokenizer.vocab_size"))
    if tokenizer_size and config.get("tokenizer.tokenizer_type") == _SIZE_IS_GIVEN:
        settings.set("vocab_size", tokenizer_size)
