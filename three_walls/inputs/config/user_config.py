"""What the user states of the run: ``--set key=value``, checked, and a saved configuration (``--config``)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from three_walls.inputs.config.command_line import VARIABLE_PREFIX, set_precision_recipe
from three_walls.inputs.config.saved_config import read_config_file
from three_walls.inputs.config.sources import USER, SettingsBuilder, SourceSettings
from three_walls.inputs.config.written_values import read_overrides
from three_walls.model.config import ConfigData, ConfigValue
from three_walls.model.errors import UsageError
from three_walls.tables.config_keys import ConfigKey, config_keys, is_allowed, keys_by_path
from three_walls.tables.config_values import fit
from three_walls.tables.environment_variables import allowed_variables
from three_walls.tables.hydra_overrides import Override
from three_walls.tables.loader import suggest


def read_user_config(config: str | Path | None, settings: Iterable[str]) -> list[SourceSettings]:
    """``settings`` (``key=value``), then the saved configuration ``config``; raises UsageError or InputError."""
    words = [settings] if isinstance(settings, str) else list(settings)
    found = [read_user_settings(words)] if words else []
    if config is not None:
        found.append(read_config_file(Path(config)))
    return found


def read_user_settings(words: Iterable[str]) -> SourceSettings:
    """``words``: ``key=value`` each, by Megatron Core name or Megatron-Bridge path, values as Hydra reads them.

    The last one of a key counts. ``env_vars.NAME=value`` states an environment variable. Raises UsageError on a key
    that does not exist or a value that it cannot have.
    """
    settings = SettingsBuilder(USER)
    for word in words:
        overrides = read_overrides(word)
        if not overrides or overrides[0].prefix:
            raise UsageError(f"--set: expected key=value, found {word!r}")
        for override in overrides:
            if override.path.startswith(VARIABLE_PREFIX):
                _set_variable(override, settings)
            else:
                _set(override, settings)
    return settings.build(is_settled=True)


def _set(override: Override, settings: SettingsBuilder) -> None:
    table = config_keys()
    key = table.keys.get(override.path) or keys_by_path().get(override.path)
    if key is None:
        known = [*table.keys, *keys_by_path()]
        raise UsageError(
            f"--set: {override.path} is not a setting that three-walls knows{suggest(override.path, known)}; "
            "give a Megatron Core name or a Megatron-Bridge path of tables/config-keys.yaml"
        )
    settings.set(key.name, _checked(key, override.value))
    if key.name == "mixed_precision":
        set_precision_recipe(override.value, settings)


def _checked(key: ConfigKey, value: ConfigData) -> ConfigData:
    try:
        fitted = fit(key.type, value)
    except ValueError as error:
        raise UsageError(f"--set {key.name}: expected a value of type {key.type}, found {_spell(value)}") from error
    if not is_allowed(key, fitted):
        allowed = ", ".join(map(str, key.values))
        raise UsageError(f"--set {key.name}: expected one of {allowed}, found {_spell(value)}")
    return fitted


def _spell(value: ConfigData) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _set_variable(override: Override, settings: SettingsBuilder) -> None:
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
