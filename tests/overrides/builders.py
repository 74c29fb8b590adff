"""Edits and runs for tests of overrides, from a few words."""

from __future__ import annotations

from types import MappingProxyType

from three_walls.inputs.config.command_line import read_command_line
from three_walls.inputs.config.merge import merge_sources
from three_walls.model.config import ConfigData, ConfigValue, RunConfig
from three_walls.model.finding import Overrides, PlannedEdit
from three_walls.overrides.spell import NEWEST_BRIDGE, spell


def edit(key: str, to: ConfigData, kind: str = "config") -> PlannedEdit:
    return PlannedEdit(key, None, to, kind, changes_numerics=False)


def spelled(*edits: PlannedEdit, run: str = "", version: str | None = NEWEST_BRIDGE) -> Overrides:
    """The edits for the run with this command line."""
    return spell(edits, merge_sources([read_command_line(run.split())]), version)


def config(**values: ConfigData) -> RunConfig:
    """A run whose command line gave these values."""
    return RunConfig(MappingProxyType({name: ConfigValue(value, "command line") for name, value in values.items()}))
