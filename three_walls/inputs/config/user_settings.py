"""Settings that the user states: ``--set key=value``, by Megatron Core name or by Megatron-Bridge path, checked."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from three_walls.inputs.config.bridge_arguments import give_precision_recipe
from three_walls.inputs.config.collected import Settings
from three_walls.inputs.config.overrides import read_setting
from three_walls.inputs.config.sources import USER, SaidSettings
from three_walls.model.config import ConfigData, ConfigValue
from three_walls.model.errors import UsageError
from three_walls.tables.config_keys import ConfigKey, config_keys, is_allowed, keys_by_path
from three_walls.tables.config_values import fit
from three_walls.tables.environment_variables import allowed_variables
from three_walls.tables.hydra_overrides import Override
from three_walls.tables.loader import suggest

_ENVIRONMENT = "env_vars."


def read_user_settings(words: Iterable[str]) -> SaidSettings:
    """``words``: ``key=value`` each, values as Hydra reads them; the last one of a key counts.

    ``env_vars.NAME=value`` states an environment variable. Raises UsageError on a key that does not exist or a
    value that it cannot have.
    """
    settings = Settings(source=USER)
    environment: dict[str, ConfigValue] = {}
    for word in words:
        overrides = read_setting(word)
        if not overrides or overrides[0].prefix:
            raise UsageError(f"--set: expected key=value, found {word!r}")
        for override in overrides:
            if override.path.startswith(_ENVIRONMENT):
                _set_variable(override, environment)
            else:
                _set(override, settings)
    return SaidSettings(USER, MappingProxyType(settings.values), MappingProxyType(environment), is_settled=True)


def _set(override: Override, settings: Settings) -> None:
    table = config_keys()
    key = table.keys.get(override.path) or keys_by_path().get(override.path)
    if key is None:
        known = [*table.keys, *keys_by_path()]
        raise UsageError(
            f"--set: {override.path} is no setting that three-walls knows{suggest(override.path, known)}; "
            "give a Megatron Core name or a Megatron-Bridge path of tables/config-keys.yaml"
        )
    settings.give(key.name, _checked(key, override.value))
    if key.name == "mixed_precision":
        give_precision_recipe(override.value, settings)


def _checked(key: ConfigKey, value: ConfigData) -> ConfigData:
    try:
        fitted = fit(key.type, value)
    except ValueError as error:
        raise UsageError(f"--set {key.name}: expected a value of type {key.type}, found {_shown(value)}") from error
    if not is_allowed(key, fitted):
        allowed = ", ".join(map(str, key.values))
        raise UsageError(f"--set {key.name}: expected one of {allowed}, found {_shown(value)}")
    return fitted


def _shown(value: ConfigData) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _set_variable(override: Override, environment: dict[str, ConfigValue]) -> None:
    name = override.path.removeprefix(_ENVIRONMENT)
    if not allowed_variables().allows(name):
        raise UsageError(f"--set: {name} is no environment variable that three-walls reads")
    if isinstance(override.value, tuple):
        raise UsageError(f"--set {name}: expected one value, found a list")
    value = None if override.value is None else str(override.value)
    form = allowed_variables().form_of(name)
    if form is not None and value is not None and not form.admits(value):
        raise UsageError(f"--set {name}: expected {form.description}, found something else")
    environment[name] = ConfigValue(value, USER)
