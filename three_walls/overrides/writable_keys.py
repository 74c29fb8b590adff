"""Which of two names of one setting an edit has to use."""

from __future__ import annotations

from three_walls.model.config import ConfigData, RunConfig
from three_walls.model.config_keys import ConfigKey
from three_walls.tables.config_keys import config_keys
from three_walls.tables.config_values import is_allowed


def writable_key(name: str, value: ConfigData, config: RunConfig) -> ConfigKey:
    """The key to write: a run that gives cuda_graph_modules may not be given cuda_graph_scope beside it."""
    modules = config_keys().keys["cuda_graph_modules"]
    given = config.values.get(modules.name)
    if (
        name == "cuda_graph_scope"
        and given is not None
        and (given.is_stated_by("command line") or (given.is_stated and bool(given.value)))
        and is_allowed(modules, value)
    ):
        return modules
    return config_keys().keys[name]
