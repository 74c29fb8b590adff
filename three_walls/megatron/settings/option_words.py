"""Settings written as words: a process's command line, and what a user states with ``--set key=value``.

A command line has Megatron-LM's flags, or the options and overrides of Megatron-Bridge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

from three_walls.lib.errors import UsageError
from three_walls.lib.hydra import Override, read_override
from three_walls.lib.load_documents import suggest
from three_walls.megatron.settings.launchers import LaunchedProgram, find_program
from three_walls.megatron.settings.run_config import BUILDS_COMM_OVERLAP, ConfigValue
from three_walls.megatron.settings.setting_sources import USER, SettingsBuilder, SourceSettings, shown_words
from three_walls.megatron.settings.written_values import read_overrides
from three_walls.tables.bridge_releases import precision_settings
from three_walls.tables.config_keys import ConfigKey, config_keys, form_of, is_allowed, keys_by_flag, keys_by_path
from three_walls.tables.config_values import fit, takes_several_words
from three_walls.tables.environment_variables import allowed_variables
from three_walls.tables.megatron_signs import megatron_signs

_BRIDGE_SCRIPTS = {"run_recipe", "run_script", "setup_experiment"}
_MEGATRON_LM_SCRIPTS = {"pretrain_gpt", "pretrain_mamba", "pretrain_hybrid"}
_SECTIONS_WITHOUT_KEYS = {
    "dataset",
    "tokenizer",
    "scheduler",
    "checkpoint",
    "straggler",
    "validation",
    "peft",
    "env_vars",
}
_MINIMUM_MEGATRON_FLAGS = 3  # one or two could be any program's
_NEGATIVE_NUMBER = re.compile(r"-\.?\d")
VARIABLE_PREFIX = "env_vars."
"""Begins the path of an override that sets an environment variable."""


def read_command_line(words: Sequence[str]) -> SourceSettings:
    """Settings of a process's command line, which may begin with launchers. Never raises.

    The environment holds only the variables that the command line itself sets.
    """
    program = find_program(words)
    dialect = find_dialect(program)
    settings = SettingsBuilder()
    reads_file = False
    if dialect == "bridge":
        _read_bridge_arguments(program, settings)
    elif dialect == "megatron_lm":
        _read_flags(program.arguments, settings)
        file_flags = {word.partition("=")[0] for word in program.arguments} & config_keys().defaults_unknown_with
        reads_file = bool(file_flags)
        if reads_file:
            flags = ", ".join(sorted(file_flags))
            settings.warnings.append(f"{flags}: settings that are not on the command line come from a file: unknown")
    settings.unknown = [name for name in settings.unknown if name not in config_keys().defaults_unknown_with]
    read = settings.build(dialect, leaves_out_defaults=dialect == "megatron_lm" and not reads_file)
    return replace(read, is_certain=_is_megatron(program, read))


def _is_megatron(program: LaunchedProgram, read: SourceSettings) -> bool:
    """Whether the script, a recipe or a setting is one that only Megatron has."""
    signs = megatron_signs()
    names = (program.script_name, *(word.rpartition("=")[2] for word in program.arguments))
    is_named = any(sign.pattern.fullmatch(name) for sign in signs.programs for name in names)
    return is_named or not read.values.keys() <= signs.common_settings


def find_dialect(program: LaunchedProgram) -> str:
    """``bridge``, ``megatron_lm`` or ``unknown``, by the name of the script and the form of its arguments."""
    words = program.arguments
    names_recipe = any(word.partition("=")[0] == "--recipe" for word in words)
    if program.script_name in _BRIDGE_SCRIPTS or names_recipe or any(map(is_bridge_override, words)):
        return "bridge"
    flags = {word.partition("=")[0] for word in words}
    is_megatron = len(flags & keys_by_flag().keys()) >= _MINIMUM_MEGATRON_FLAGS
    return "megatron_lm" if is_megatron or program.script_name in _MEGATRON_LM_SCRIPTS else "unknown"


def _read_flags(arguments: Sequence[str], settings: SettingsBuilder) -> None:
    """Megatron-LM's ``--flag value``, ``--flag=value``, switches and lists."""
    table = config_keys()
    index = 0
    while index < len(arguments):
        word = arguments[index]
        index += 1
        if not word.startswith("--") or word == "--":
            continue
        flag, has_equals, attached = word.partition("=")
        key = keys_by_flag().get(flag)
        if key is not None:
            end = next((place for place in range(index, len(arguments)) if is_flag(arguments[place])), len(arguments))
            words = (attached,) if has_equals else tuple(arguments[index:end])
            used = _read_flag(key, flag, words, settings)
            index += 0 if has_equals else used
        for name, value in table.shorthands.get(flag, {}).items():
            settings.set(name, value)
        if key is None and flag not in table.shorthands:
            settings.note_unknown(flag)


def _read_flag(key: ConfigKey, flag: str, words: tuple[str, ...], settings: SettingsBuilder) -> int:
    """Reads one known flag. Returns how many of the following words it uses."""
    spelling = key.megatron_lm
    assert spelling is not None
    if key.type == "bool":
        is_negated = flag == spelling.negated_flag or (spelling.flag is None and flag in spelling.aliases)
        settings.set(key.name, not is_negated)
        return 0
    used = words if takes_several_words(key.type) else words[:1]
    if not used:
        settings.warnings.append(f"{flag}: no value follows")
        return 0
    settings.set_words(key, used, flag)
    return len(used)


def is_flag(word: str) -> bool:
    """Whether ``word`` is a flag rather than a value, which may be a negative number."""
    return word.startswith("-") and len(word) > 1 and not _NEGATIVE_NUMBER.match(word)


def is_bridge_override(word: str) -> bool:
    """Whether ``word`` overrides a section of Megatron-Bridge's configuration."""
    return any(override.path.partition(".")[0] in _bridge_sections() for override in read_override(word))


@cache
def _bridge_sections() -> frozenset[str]:
    return frozenset(path.partition(".")[0] for path in keys_by_path()) | _SECTIONS_WITHOUT_KEYS


def _read_bridge_arguments(program: LaunchedProgram, settings: SettingsBuilder) -> None:
    """Hydra overrides, then the options of Megatron-Bridge's scripts, which take precedence over overrides."""
    for word in program.arguments:
        for override in read_overrides(word):
            if not override.path.startswith(VARIABLE_PREFIX):
                _read_bridge_setting(override, settings)
            elif override.prefix != "~":
                settings.set_variable(override.path.removeprefix(VARIABLE_PREFIX), override.value)
    for option, value in _options(program.arguments):
        _read_option(option, value, settings)
        if program.script_name == "run_script":
            _imply_above_one(option, settings)


def _options(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Each option with its value, the word after its ``=`` or the next word; empty where there is none."""
    found = []
    for index, word in enumerate(arguments):
        if not word.startswith("-") or word.strip("-") == "":
            continue
        option, has_equals, attached = word.partition("=")
        following = arguments[index + 1] if index + 1 < len(arguments) else ""
        is_value = not following.startswith("-") and not is_bridge_override(following)
        found.append((option, attached if has_equals else following if is_value else ""))
    return found


def _read_option(option: str, value: str, settings: SettingsBuilder) -> None:
    table = config_keys()
    if option not in table.bridge_scripts.options:
        if option in table.bridge_scripts.recipe:
            settings.recipe = value or None
        else:
            settings.note_unknown(option)
        return
    scripts = table.bridge_scripts
    keys = [table.keys[name] for name in scripts.options[option]]
    if option in scripts.ignored_if_off and shown_words(keys[0], [value]) == (0,):  # False, too
        return
    for key in keys:
        if value == "None":
            settings.set(key.name, None)
        elif value:
            settings.set_words(key, value.split(",") if takes_several_words(key.type) else [value], option)
        else:
            settings.warnings.append(f"{option}: no value follows")
    implied = scripts.implied_by_none if value == "None" else scripts.implied if value else {}
    for name, setting in implied.get(option, {}).items():
        settings.set(name, setting, f"derived: {option}")


def _imply_above_one(option: str, settings: SettingsBuilder) -> None:
    scripts = config_keys().bridge_scripts
    for name in scripts.implied_above_one.get(option, ()):
        given = settings.values.get(scripts.options[option][0])
        if given is not None and isinstance(given.value, int):
            settings.set(name, given.value > 1, f"derived: {option}")


def _read_bridge_setting(override: Override, settings: SettingsBuilder) -> None:
    path = override.path
    if path == "comm_overlap._target_":
        settings.set("comm_overlap", "CommOverlapConfig", BUILDS_COMM_OVERLAP)
        return
    if path.startswith("comm_overlap.") and override.prefix == "" and "comm_overlap" not in settings.values:
        # Without + the override is an error unless the run has a CommOverlapConfig; this run was accepted.
        settings.set("comm_overlap", "CommOverlapConfig", "derived: plain override of comm_overlap")
    if path.startswith("mixed_precision.") and override.prefix == "":
        settings.set("mixed_precision", "MixedPrecisionConfig", "derived: plain override of mixed_precision")
    key = keys_by_path().get(path)
    if key is None:
        settings.note_unknown(path)
    elif override.prefix == "~":
        settings.values.pop(key.name, None)
    else:
        settings.set_value(key, override.value, path)
        if path == "mixed_precision":
            set_precision_recipe(override.value, settings)


def set_precision_recipe(name: object, settings: SettingsBuilder) -> None:
    """Sets the values of the precision recipe ``name``; an unknown name sets nothing."""
    recipe = str(name).replace("-", "_")
    for key, value in precision_settings(recipe).items():
        settings.set(key, value, f"derived: mixed_precision={recipe}")


def read_user_settings(words: Iterable[str]) -> SourceSettings:
    """What a user states: ``key=value`` each. Values are written as Hydra reads them.

    A key is a Megatron Core name or a Megatron-Bridge path; its last value counts. ``env_vars.NAME=value`` states an
    environment variable. Raises UsageError for a key that does not exist and for a value that the key cannot have.
    """
    settings = SettingsBuilder(USER)
    for word in words:
        overrides = read_overrides(word)
        if not overrides or overrides[0].prefix:
            raise UsageError(f"--set: expected key=value, found {word!r}")
        for override in overrides:
            if override.path.startswith(VARIABLE_PREFIX):
                _set_user_variable(override, settings)
            else:
                _set_user_value(override, settings)
    return settings.build(is_settled=True)


def _key_of_field(name: str) -> ConfigKey | None:
    """The key of a Bridge path that ends with ``name``, where all such paths hold one key."""
    found = {key.name: key for path, key in keys_by_path().items() if path.rpartition(".")[2] == name}
    return next(iter(found.values())) if len(found) == 1 else None


def _set_user_value(override: Override, settings: SettingsBuilder) -> None:
    table = config_keys()
    key = table.keys.get(override.path) or keys_by_path().get(override.path) or _key_of_field(override.path)
    if key is None:
        known = [*table.keys, *keys_by_path()]
        raise UsageError(
            f"--set: {override.path} is no setting that three-walls knows{suggest(override.path, known)}; "
            "give a Megatron Core name or a Megatron-Bridge path from tables/config-keys.yaml, or env_vars.NAME"
        )
    written = " ".join(map(str, override.value)) if isinstance(override.value, tuple) else str(override.value)
    try:
        value = fit(key.type, override.value)
    except ValueError as error:
        raise UsageError(f"--set {key.name}: expected a value of type {key.type}, found {written}") from error
    if not is_allowed(key, value):
        raise UsageError(f"--set {key.name}: expected {form_of(key)}, found {written}")
    settings.set(key.name, value)
    if key.name == "mixed_precision":
        set_precision_recipe(override.value, settings)


def _set_user_variable(override: Override, settings: SettingsBuilder) -> None:
    name = override.path.removeprefix(VARIABLE_PREFIX)
    if not allowed_variables().allows(name):
        raise UsageError(f"--set: {name} is not an environment variable that three-walls reads")
    if isinstance(override.value, tuple):
        raise UsageError(f"--set {name}: expected one value, found a list")
    value = None if override.value is None else str(override.value)
    form = allowed_variables().form_of(name)
    if form is not None and value is not None and not form.admits(value):
        raise UsageError(f"--set {name}: expected {form.description}, found something else")
    settings.environment[name] = ConfigValue(value, USER)
