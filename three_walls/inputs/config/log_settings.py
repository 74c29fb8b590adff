"""Settings that a training log holds: Megatron-LM's arguments block, Megatron-Bridge's dump and its summary."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType

from three_walls.inputs.config.bridge_release import infer_release, release_in_log
from three_walls.inputs.config.collected import Settings
from three_walls.inputs.config.members import read_written
from three_walls.inputs.config.saved_config import read_dump
from three_walls.inputs.config.saved_values import plain_value
from three_walls.inputs.config.sources import (
    LOG_ARGUMENTS,
    LOG_CONFIG,
    LOG_LAYOUT,
    LOG_OBJECTS,
    LOG_PROGRESS,
    LOG_SUMMARY,
    SaidSettings,
)
from three_walls.model.config import ConfigData, ConfigValue
from three_walls.model.errors import InputError
from three_walls.tables.config_keys import ConfigKey, config_keys, flags_of, keys_by_path

_CONSTANTS = {"None": None, "True": True, "False": False}
_LONGEST_LIST = 20_000  # characters: one entry per layer stays far below
_SIZES = ("world_size", "data_parallel_size")


def read_log_settings(
    argument_block: Sequence[tuple[str, str]] = (),
    config_dump: str | None = None,
    summary: Sequence[tuple[str, str]] = (),
    versions: Sequence[tuple[str, str]] = (),
    layout: Mapping[str, int | None] = MappingProxyType({}),
    progress_gpus: int | None = None,
    objects: Sequence[tuple[str, str]] = (),
) -> list[SaidSettings]:
    """What a log says, highest precedence first; empty for a log that says nothing of settings.

    ``argument_block``: name and value as printed by Megatron-LM. ``config_dump``: YAML. ``summary``: ``section.name``
    and value of "Configuration Summary". ``versions``: library and release. ``layout``: sizes that a line of the log
    prints, by Megatron Core name, ``world_size`` and ``data_parallel_size`` too; None where no line does.
    ``progress_gpus``: ranks by the progress file, which other runs may have written to, so it stands last. The dump is
    what Bridge was given, the summary what it made of it, so the summary stands first; ``objects``, the configuration
    that Megatron Core set gradients and optimizer up with, stand between them.
    """
    found = []
    version, evidence = release_in_log(versions)
    if argument_block:
        found.append(read_argument_block(argument_block))
    if summary:
        found.append(_read_summary_and_release(summary, version))
    if objects:
        found.append(_read_objects(objects))
    if config_dump is not None:
        found.append(_read_config(config_dump))
    if any(layout.values()):
        found.append(_read_layout(layout))
    if progress_gpus:
        world = {"world_size": ConfigValue(progress_gpus, LOG_PROGRESS)}
        found.append(SaidSettings(LOG_PROGRESS, sizes=MappingProxyType(world)))
    if version is not None:
        found = [_with_release(said, version, evidence) for said in found]
    return found


def _read_layout(layout: Mapping[str, int | None]) -> SaidSettings:
    printed = {name: ConfigValue(size, LOG_LAYOUT) for name, size in layout.items() if size}
    values = {name: value for name, value in printed.items() if name in config_keys().keys}
    sizes = {name: value for name, value in printed.items() if name in _SIZES}
    return SaidSettings(LOG_LAYOUT, MappingProxyType(values), sizes=MappingProxyType(sizes))


def read_argument_block(pairs: Sequence[tuple[str, str]]) -> SaidSettings:
    """Megatron-LM's arguments after its checks: every argument, so what it worked out is settled."""
    settings = Settings(source=LOG_ARGUMENTS)
    sizes: dict[str, ConfigValue] = {}
    for name, text in pairs:
        value = read_printed(text)
        if name in _SIZES and isinstance(value, int):
            sizes[name] = ConfigValue(value, LOG_ARGUMENTS)
        for key, is_negated in _keys_by_argument().get(name, ()):
            _give(key, (not value) if is_negated and isinstance(value, bool) else value, name, settings)
    return SaidSettings(
        LOG_ARGUMENTS,
        MappingProxyType(settings.values),
        sizes=MappingProxyType(sizes),
        dialect="megatron_lm",
        is_settled=True,
        warnings=tuple(f"arguments in the log: {note}" for note in settings.warnings),
    )


def _read_summary_and_release(pairs: Sequence[tuple[str, str]], version: str | None) -> SaidSettings:
    """The summary; a log hardly ever names the release, but the summary has keys that came and went with releases."""
    if version is not None:
        return read_summary(pairs, release_is_known=True)
    paths = {path for path, _ in pairs}
    told, evidence = infer_release(paths | {path.partition(".")[0] for path in paths})
    said = read_summary(pairs, release_is_known=told is not None)
    return replace(said, bridge_version=told, bridge_version_evidence=f"{LOG_SUMMARY}: {evidence}" if told else "")


def read_summary(pairs: Sequence[tuple[str, str]], release_is_known: bool) -> SaidSettings:
    """Bridge's "Configuration Summary" after its checks; it leaves out what is Megatron Core's default."""
    settings = Settings(source=LOG_SUMMARY)
    places = _keys_by_place()
    for path, text in pairs:
        key = places.get(path)
        if key is not None:
            _give(key, read_printed(text), path, settings)
        else:
            settings.note_unknown(path)
    return SaidSettings(
        LOG_SUMMARY,
        MappingProxyType(settings.values),
        dialect="bridge",
        leaves_out_defaults=release_is_known,
        is_settled=True,
        unknown=tuple(sorted(set(settings.unknown))),
        warnings=tuple(f"configuration summary in the log: {note}" for note in settings.warnings),
    )


def _read_objects(pairs: Sequence[tuple[str, str]]) -> SaidSettings:
    """Fields of Megatron Core's objects, which have the names of Bridge's sections; others are no settings of ours."""
    settings = Settings(source=LOG_OBJECTS)
    places = _keys_by_place()
    for path, text in pairs:
        if path in places:
            _give(places[path], read_printed(text), path, settings)
    return SaidSettings(
        LOG_OBJECTS,
        MappingProxyType(settings.values),
        is_settled=True,
        warnings=tuple(f"set-up in the log: {note}" for note in settings.warnings),
    )


def read_printed(text: str) -> ConfigData:
    """A value as Python prints it: constants, numbers, quoted text, lists, enum members, dtypes; else the text."""
    text = text.strip()
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[:1] + text[-1:] in ("[]", "()") and len(text) <= _LONGEST_LIST:
        return _read_list(text)
    if text[:1] in ("'", '"', "-", ".", *"0123456789"):
        value = _literal(text)
        return value if isinstance(value, str | int | float) else text
    return read_written(text)


def _read_list(text: str) -> ConfigData:
    value = _literal(text)
    if isinstance(value, list | tuple):
        return tuple(item if item is None or isinstance(item, str | int | float) else str(item) for item in value)
    return tuple(read_written(item.strip()) for item in text[1:-1].split(",") if item.strip())  # <Enum.member: 1>


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _give(key: ConfigKey, value: ConfigData, said: str, settings: Settings) -> None:
    settings.give_value(key, plain_value(key, list(value) if isinstance(value, tuple) else value), said)


@cache
def _keys_by_argument() -> Mapping[str, tuple[tuple[ConfigKey, bool], ...]]:
    """Name in the block -> keys, and whether the argument says the opposite.

    An argument is called as its key, or as its flag; where releases have both, the key's own name is what Megatron-LM
    worked out.
    """
    found: dict[str, tuple[tuple[ConfigKey, bool], ...]] = {}
    keys = config_keys().keys
    for name, of_argument in config_keys().argument_names.items():
        found[name] = tuple((keys[key], False) for key in of_argument)
    for key in keys.values():
        spelling = key.megatron_lm
        if spelling is None:
            continue
        for flag in flags_of(key):
            if flag != spelling.negated_flag or spelling.flag is None:
                is_negated = spelling.flag is None
                found.setdefault(_argument(flag), ((key, is_negated),))
    for key in keys.values():
        found[key.name] = ((key, False),)
    return MappingProxyType(found)


def _argument(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


@cache
def _keys_by_place() -> Mapping[str, ConfigKey]:
    """Path in the summary -> key: paths of an override, and where the value in force stands."""
    found = dict(keys_by_path())
    for key in config_keys().keys.values():
        for path in key.bridge.in_force if key.bridge is not None else ():
            found.setdefault(path, key)
    return MappingProxyType(found)


def _read_config(text: str) -> SaidSettings:
    """The dump; a torn one is a warning, the rest of the log still counts."""
    try:
        return read_dump(text, LOG_CONFIG, "configuration in the log")
    except InputError as error:
        return SaidSettings(LOG_CONFIG, warnings=(str(error),))


def _with_release(said: SaidSettings, version: str, evidence: str) -> SaidSettings:
    if said.dialect != "bridge":
        return said
    return replace(said, bridge_version=version, bridge_version_evidence=evidence)
