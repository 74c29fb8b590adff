"""Arguments of Megatron-Bridge's scripts: recipe, script options, Hydra overrides."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from three_walls.inputs.config.collected import COMMAND_LINE, Settings
from three_walls.inputs.config.environment import variable_value
from three_walls.inputs.config.overrides import read_setting
from three_walls.model.config import ConfigValue
from three_walls.tables.config_keys import ConfigKey, config_keys, keys_by_path
from three_walls.tables.config_values import takes_several_words
from three_walls.tables.environment_variables import allowed_variables
from three_walls.tables.hydra_overrides import Override, read_override

_MORE_SECTIONS = {"dataset", "tokenizer", "scheduler", "checkpoint", "straggler", "validation", "peft", "env_vars"}


def is_bridge_override(word: str) -> bool:
    """Whether ``word`` overrides a section of Megatron-Bridge's configuration."""
    return any(override.path.partition(".")[0] in _sections() for override in read_override(word))


@cache
def _sections() -> frozenset[str]:
    return frozenset(path.partition(".")[0] for path in keys_by_path()) | _MORE_SECTIONS


def find_recipe(arguments: Sequence[str]) -> str | None:
    """Name of the recipe that the command line chooses."""
    recipe = None
    for option, value in _options(arguments):
        if option in config_keys().bridge_scripts.recipe and value:
            recipe = value
    return recipe


def read_bridge_arguments(arguments: Sequence[str], settings: Settings) -> dict[str, ConfigValue]:
    """Collect settings; the environment that ``env_vars.*`` sets is returned, as far as it may be shown."""
    environment: dict[str, ConfigValue] = {}
    for word in arguments:
        for override in read_setting(word):
            if override.path.startswith("env_vars."):
                _read_variable(override, environment)
            else:
                _read_setting(override, settings)
    for option, value in _options(arguments):  # after the overrides: the scripts let their options win
        _read_option(option, value, settings)
    return environment


def _options(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Options with the word that follows each (or stands behind its ``=``); empty when none does."""
    found = []
    for index, word in enumerate(arguments):
        if not word.startswith("-") or word.strip("-") == "":
            continue
        option, has_equals, attached = word.partition("=")
        following = arguments[index + 1] if index + 1 < len(arguments) else ""
        is_value = not following.startswith("-") and not is_bridge_override(following)
        found.append((option, attached if has_equals else following if is_value else ""))
    return found


def _read_option(option: str, value: str, settings: Settings) -> None:
    table = config_keys()
    if option not in table.bridge_scripts.options:
        if option not in table.bridge_scripts.recipe:
            settings.note_unknown(option)
        return
    settings.known.add(option)
    for name in table.bridge_scripts.options[option]:
        _give_option(table.keys[name], option, value, settings)
    if value.lower() not in ("", "none", "false"):
        for name, implied in table.bridge_scripts.implied.get(option, {}).items():
            settings.give(name, implied, f"derived: {option}")


def _give_option(key: ConfigKey, option: str, value: str, settings: Settings) -> None:
    if value == "None":
        settings.give(key.name, None)
    elif value:
        words = value.split(",") if takes_several_words(key.type) else [value]
        settings.give_words(key, words, option)
    else:
        settings.warnings.append(f"{option}: no value follows")


def _read_setting(override: Override, settings: Settings) -> None:
    path = override.path
    if path.startswith("comm_overlap.") and override.prefix == "":
        # Without + the override is an error unless the run has a CommOverlapConfig; this run was accepted.
        settings.give("comm_overlap", "CommOverlapConfig", "derived: plain override of comm_overlap")
    if path.startswith("mixed_precision.") and override.prefix == "":
        settings.give("mixed_precision", "MixedPrecisionConfig", "derived: plain override of mixed_precision")
    key = keys_by_path().get(path)
    if key is None:
        settings.note_unknown(path)
    elif override.prefix == "~":
        settings.values.pop(key.name, None)
    else:
        settings.known.add(path)
        settings.give_value(key, override.value, path)
        if path == "mixed_precision":
            give_precision_recipe(override.value, settings)


def give_precision_recipe(name: object, settings: Settings) -> None:
    """Set what a registered precision recipe sets; an unknown name sets nothing."""
    recipe = str(name).replace("-", "_")
    for key, value in config_keys().precision_recipes.get(recipe, {}).items():
        settings.give(key, value, f"derived: mixed_precision={recipe}")


def _read_variable(override: Override, environment: dict[str, ConfigValue]) -> None:
    name = override.path.removeprefix("env_vars.")
    if override.prefix != "~" and allowed_variables().allows(name) and not isinstance(override.value, tuple):
        value = override.value
        environment[name] = variable_value(name, value if value is None else str(value), COMMAND_LINE)
