"""The settings in a training log: Megatron-LM's arguments block, Megatron-Bridge's configuration dump and summary."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from types import MappingProxyType

from three_walls.lib import limits
from three_walls.lib.errors import InputError
from three_walls.lib.plain_data import ConfigData
from three_walls.log.training_log import LogLayout, TrainingLog
from three_walls.megatron.settings.run_config import ConfigValue
from three_walls.megatron.settings.saved_config import infer_release, read_dump
from three_walls.megatron.settings.setting_sources import (
    LOG_ARGUMENTS,
    LOG_CONFIG,
    LOG_LAYOUT,
    LOG_OBJECTS,
    LOG_PROGRESS,
    LOG_SUMMARY,
    MEGATRON_CORE_DEFAULT,
    SettingsBuilder,
    SourceSettings,
)
from three_walls.megatron.settings.written_values import plain_value, read_word
from three_walls.tables.bridge_releases import is_known_release, name_release, nearest_release, release_number
from three_walls.tables.config_keys import ConfigKey, config_keys, flags_of, keys_by_path

BRIDGE_LIBRARY, CORE_LIBRARY = "megatron_bridge", "megatron_core"
_CONSTANTS = {"None": None, "True": True, "False": False}
_CLASS, _MODEL_CLASS = ".core_class", "model.core_class"
"""Group of the headings in log-lines.yaml: which class of Megatron Core a section of the summary is compared with."""
_SIZES = ("world_size", "data_parallel_size")


def read_log_settings(log: TrainingLog, progress_gpus: int | None = None) -> list[SourceSettings]:
    """The settings in ``log``, one source each, highest precedence first; empty for a log without any.

    Bridge dumps the configuration that it was given and summarizes the one that it runs, so the summary comes first.
    The configuration with which Megatron Core set up gradients and optimizer comes between them. ``progress_gpus`` is
    the number of ranks in the progress file. It comes last, because other runs may have written to that file.
    """
    version = dict(log.versions).get(BRIDGE_LIBRARY)
    sources = []
    if log.argument_block:
        sources.append(read_argument_block(log.argument_block))
    if log.non_default_settings:
        sources.append(_read_summary_and_release(log.non_default_settings, version))
    if log.config_objects:
        sources.append(_read_objects(log.config_objects))
    if log.config_dump is not None:
        sources.append(_read_config_dump(log.config_dump))
    if any(asdict(log.layout).values()):
        sources.append(_read_layout(log.layout))
    if progress_gpus:
        world = {"world_size": ConfigValue(progress_gpus, LOG_PROGRESS)}
        sources.append(SourceSettings(LOG_PROGRESS, sizes=MappingProxyType(world)))
    core = dict(log.versions).get(CORE_LIBRARY)
    if core is not None:
        first, *others = sources or [SourceSettings(LOG_LAYOUT)]
        sources = [replace(first, megatron_core_version=core), *others]
    if version is None:
        return sources
    if sources and not is_known_release(version):
        nearest = name_release(nearest_release(version))
        note = f"log: no data of Megatron-Bridge {version} is known; what is known of {nearest} is used"
        sources[0] = replace(sources[0], warnings=(*sources[0].warnings, note))
    return [
        replace(source, bridge_version=version, bridge_version_evidence="stated in the log")
        if source.dialect == "bridge"
        else source
        for source in sources
    ]


def _read_layout(layout: LogLayout) -> SourceSettings:
    """The sizes of the parallel layout that lines of the log print."""
    printed = {name: ConfigValue(size, LOG_LAYOUT) for name, size in asdict(layout).items() if size}
    values = {name: value for name, value in printed.items() if name in config_keys().keys}
    sizes = {name: value for name, value in printed.items() if name in _SIZES}
    return SourceSettings(LOG_LAYOUT, MappingProxyType(values), sizes=MappingProxyType(sizes))


def read_argument_block(pairs: Sequence[tuple[str, str]]) -> SourceSettings:
    """All arguments of Megatron-LM as they are after its checks, so the values are final."""
    settings = SettingsBuilder(LOG_ARGUMENTS)
    for name, text in pairs:
        value = read_printed(text)
        if name in _SIZES and isinstance(value, int):
            settings.sizes[name] = ConfigValue(value, LOG_ARGUMENTS)
        for key, is_negated in _keys_by_argument().get(name, ()):
            _set(key, (not value) if is_negated and isinstance(value, bool) else value, name, settings)
    source = settings.build("megatron_lm", is_settled=True, warnings_begin="arguments in the log: ")
    return replace(source, megatron_core_version=_infer_core_release({name for name, _ in pairs}))


def _infer_core_release(arguments: Collection[str]) -> str | None:
    """The newest release of Megatron Core that an argument came with; a release prints every argument that it knows.

    Of a release that no argument came with (0.16, the oldest that is distinguished) the last argument is evidence that
    went with it; None where neither is there, as in a block that is not whole.
    """
    spellings = [key.megatron_lm for key in config_keys().keys.values() if key.megatron_lm is not None]
    named = [spelling for spelling in spellings if spelling.flag is not None and _argument(spelling.flag) in arguments]
    since = [spelling.since for spelling in named if spelling.since is not None]
    until = [spelling.until for spelling in named if spelling.until is not None]
    return max(since, key=release_number) if since else min(until, key=release_number) if until else None


def _read_summary_and_release(pairs: Sequence[tuple[str, str]], version: str | None) -> SourceSettings:
    """The summary, and the release: a log rarely states it, but the keys of the summary differ between releases."""
    if version is not None:
        return read_summary(pairs, release_is_known=True)
    paths = {path for path, _ in pairs}
    inferred, evidence = infer_release(paths | {path.partition(".")[0] for path in paths})
    settings = read_summary(pairs, release_is_known=inferred is not None)
    evidence = f"{LOG_SUMMARY}: {evidence}" if inferred else ""
    return replace(settings, bridge_version=inferred, bridge_version_evidence=evidence)


def read_summary(pairs: Sequence[tuple[str, str]], release_is_known: bool) -> SourceSettings:
    """Bridge's "Configuration Summary" after its checks. It leaves out values that equal Megatron Core's default."""
    settings = SettingsBuilder(LOG_SUMMARY)
    places = _keys_by_place()
    printed = dict(pairs)
    defaults = config_keys().core_class_defaults.get(printed.pop(_MODEL_CLASS, ""), {})
    for path, text in printed.items():
        key = places.get(path)
        if key is not None:
            _set(key, read_printed(text), path, settings)
        elif not path.endswith(_CLASS):
            settings.note_unknown(path)
    is_whole = {"model", "train"} <= {path.partition(".")[0] for path, _ in pairs}  # train follows model
    _infer_comm_overlap(settings, release_is_known and is_whole)
    for name in defaults if is_whole else ():
        if name not in settings.values:
            settings.set(name, defaults[name], MEGATRON_CORE_DEFAULT)
    return settings.build(
        "bridge",
        is_settled=True,
        leaves_out_defaults=release_is_known,
        warnings_begin="configuration summary in the log: ",
    )


def _infer_comm_overlap(settings: SettingsBuilder, leaves_out_defaults: bool) -> None:
    """Whether the run has a CommOverlapConfig, which the summary does not print.

    One that states no ``wgrad_deferral_limit`` sets -1 in the model, where Megatron Core has 0.

    Source: ``_get_model_comm_overlap_cfgs`` in megatron/bridge/training/comm_overlap.py of Bridge 0.3.1 to 0.6.2.
    """
    limit = settings.values.get("wgrad_deferral_limit")
    is_deferred = settings.values.get("defer_embedding_wgrad_compute")
    if limit is not None and limit.value == -1:
        settings.set("comm_overlap", "CommOverlapConfig", "derived: wgrad_deferral_limit")
    elif limit is None and is_deferred is None and leaves_out_defaults:
        settings.set("comm_overlap", None, "derived: wgrad_deferral_limit")


def _read_objects(pairs: Sequence[tuple[str, str]]) -> SourceSettings:
    """Fields of the objects that Megatron Core prints; the objects have the names of Bridge's sections."""
    settings = SettingsBuilder(LOG_OBJECTS)
    places = _keys_by_place()
    for path, text in pairs:
        if path in places:
            _set(places[path], read_printed(text), path, settings)
    return settings.build(is_settled=True, warnings_begin="set-up in the log: ")


def read_printed(text: str) -> ConfigData:
    """Reads a value as Python prints it: constant, number, quoted text, list, enum member or dtype; else text."""
    text = text.strip()
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[:1] + text[-1:] in ("[]", "()") and len(text) <= limits.LONGEST_PRINTED_LIST:
        return _read_list(text)
    if text[:1] in ("'", '"', "-", ".", *"0123456789"):
        value = _literal(text)
        return value if isinstance(value, str | int | float) else text
    return read_word(text)


def _read_list(text: str) -> ConfigData:
    value = _literal(text)
    if isinstance(value, list | tuple):
        return tuple(item if item is None or isinstance(item, str | int | float) else str(item) for item in value)
    return tuple(read_word(item.strip()) for item in text[1:-1].split(",") if item.strip())  # <Enum.member: 1>


def _literal(text: str) -> object:
    try:
        with warnings.catch_warnings():  # Python warns of what it may refuse in a later release: 40.inf
            warnings.simplefilter("ignore")
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _set(key: ConfigKey, value: ConfigData, printed_name: str, settings: SettingsBuilder) -> None:
    settings.set_value(key, plain_value(key, list(value) if isinstance(value, tuple) else value), printed_name)


@cache
def _keys_by_argument() -> Mapping[str, tuple[tuple[ConfigKey, bool], ...]]:
    """Name in the arguments block -> its keys, each with whether the argument means the opposite of the key.

    An argument has the name of its key or of its flag. Where releases have both, the one with the key's own name holds
    the value that Megatron-LM derived.
    """
    by_argument: dict[str, tuple[tuple[ConfigKey, bool], ...]] = {}
    keys = config_keys().keys
    for name, key_names in config_keys().argument_names.items():
        by_argument[name] = tuple((keys[key_name], False) for key_name in key_names)
    for key in keys.values():
        spelling = key.megatron_lm
        if spelling is None:
            continue
        for flag in flags_of(key):
            if flag != spelling.negated_flag or spelling.flag is None:
                is_negated = spelling.flag is None
                by_argument.setdefault(_argument(flag), ((key, is_negated),))
    for key in keys.values():
        by_argument[key.name] = ((key, False),)
    return MappingProxyType(by_argument)


def _argument(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


@cache
def _keys_by_place() -> Mapping[str, ConfigKey]:
    """Path in the summary -> key. A path is that of an override, or the place of the value in force."""
    by_path = dict(keys_by_path())
    for key in config_keys().keys.values():
        for path in key.bridge.in_force if key.bridge is not None else ():
            by_path.setdefault(path, key)
    return MappingProxyType(by_path)


def _read_config_dump(text: str) -> SourceSettings:
    """The dump. One that cannot be read, for example because it is truncated, becomes a warning."""
    try:
        return read_dump(text, LOG_CONFIG, "configuration in the log")
    except InputError as error:
        return SourceSettings(LOG_CONFIG, warnings=(str(error),))
