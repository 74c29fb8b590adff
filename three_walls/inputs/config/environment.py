"""The process's environment: only variables and values that a report may show are ever read."""

from __future__ import annotations

from collections.abc import Iterable

from three_walls.inputs.config.sources import ENVIRONMENT
from three_walls.model.config import ConfigValue
from three_walls.tables.environment_variables import allowed_variables


def read_environment(rows: Iterable[str]) -> dict[str, ConfigValue]:
    """Allowed variables of rows like ``NAME="value"`` or ``NAME=value``, sorted by name; the last row wins.

    A value that is not of its variable's form is withheld.
    """
    allowed = allowed_variables()
    found: dict[str, ConfigValue] = {}
    for row in rows:
        name, separator, value = row.partition("=")
        if separator and allowed.allows(name):
            found[name] = variable_value(name, unquote(value), ENVIRONMENT)
    return dict(sorted(found.items()))


def variable_value(name: str, value: str | None, source: str) -> ConfigValue:
    """The value of an allowed variable, withheld where it is not of the variable's form."""
    if value is None or allowed_variables().shows(name, value):
        return ConfigValue(value, source)
    return ConfigValue.withheld(source)


def secret_names(rows: Iterable[str]) -> tuple[str, ...]:
    """Names (never values) of variables that look like secrets and are not empty, sorted."""
    allowed = allowed_variables()
    names = set()
    for row in rows:
        name, separator, value = row.partition("=")
        if separator and unquote(value) and allowed.looks_secret(name):
            names.add(name)
    return tuple(sorted(names))


def unquote(value: str) -> str:
    """``value`` without the quotes around it."""
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
