"""Edits and runs for tests of overrides, from a few words."""

from __future__ import annotations

from types import MappingProxyType

from three_walls.advice.finding import Overrides, PlannedEdit
from three_walls.bridge.render_overrides import NEWEST_BRIDGE, spell
from three_walls.lib.plain_data import ConfigData
from three_walls.megatron.settings.merge_settings import merge_sources
from three_walls.megatron.settings.option_words import read_command_line
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig


def edit(key: str, to: ConfigData, kind: str = "config") -> PlannedEdit:
    return PlannedEdit(key, None, to, kind, changes_numerics=False)


def spelled(*edits: PlannedEdit, run: str = "", version: str | None = NEWEST_BRIDGE) -> Overrides:
    """The edits for the run with this command line."""
    return spell(edits, merge_sources([read_command_line(run.split())]), version)


def config(**values: ConfigData) -> RunConfig:
    """A run whose command line gave these values."""
    return RunConfig(MappingProxyType({name: ConfigValue(value, "command line") for name, value in values.items()}))
