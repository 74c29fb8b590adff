"""The run's configuration, as far as the process's command line tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from three_walls.inputs.config.bridge_arguments import find_recipe, is_bridge_override, read_bridge_arguments
from three_walls.inputs.config.collected import COMMAND_LINE, Settings
from three_walls.inputs.config.launchers import Program, find_program
from three_walls.inputs.config.megatron_flags import read_flags
from three_walls.inputs.config.merge import merge
from three_walls.inputs.config.sources import SaidSettings
from three_walls.model.config import ConfigValue, RunConfig
from three_walls.tables.config_keys import config_keys, keys_by_flag

_BRIDGE_SCRIPTS = {"run_recipe", "run_script", "setup_experiment"}
_MEGATRON_FLAGS_AT_LEAST = 3  # one or two could be any program's


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What a command line says. ``said.environment`` holds only what the command line itself sets."""

    said: SaidSettings
    script: str | None
    """File name (or module) of the training script; no directory."""
    recipe: str | None

    @property
    def config(self) -> RunConfig:
        """The configuration as far as the command line alone tells it."""
        return merge([self.said]).config


def read_command_line(arguments: Sequence[str]) -> CommandLine:
    """Read the words of a process's command line, launchers in front included. Never raises."""
    program = find_program(arguments)
    dialect = find_dialect(program)
    if dialect == "bridge":
        return _read_bridge(program)
    if dialect == "megatron_lm":
        return _read_megatron(program)
    return CommandLine(SaidSettings(COMMAND_LINE), program.file_name, None)


def find_dialect(program: Program) -> str:
    """``bridge``, ``megatron_lm`` or ``unknown``, by the script's name and by what its arguments look like."""
    words = program.arguments
    names_recipe = any(word.partition("=")[0] == "--recipe" for word in words)
    if program.script_name in _BRIDGE_SCRIPTS or names_recipe or any(map(is_bridge_override, words)):
        return "bridge"
    flags = {word.partition("=")[0] for word in words}
    return "megatron_lm" if len(flags & keys_by_flag().keys()) >= _MEGATRON_FLAGS_AT_LEAST else "unknown"


def _read_megatron(program: Program) -> CommandLine:
    settings = Settings()
    read_flags(program.arguments, settings)
    given = {word.partition("=")[0] for word in program.arguments}
    from_file = sorted(given & config_keys().defaults_unknown_with)
    if from_file:
        settings.warnings.append(f"{', '.join(from_file)}: settings not on the command line are unknown")
    said = _said(settings, {}, "megatron_lm", leaves_out_defaults=not from_file)
    return CommandLine(said, program.file_name, None)


def _read_bridge(program: Program) -> CommandLine:
    settings = Settings()
    environment = read_bridge_arguments(program.arguments, settings)
    said = _said(settings, environment, "bridge", leaves_out_defaults=False)
    return CommandLine(said, program.file_name, find_recipe(program.arguments))


def _said(
    settings: Settings, environment: Mapping[str, ConfigValue], dialect: str, leaves_out_defaults: bool
) -> SaidSettings:
    return SaidSettings(
        COMMAND_LINE,
        MappingProxyType(settings.values),
        MappingProxyType(dict(environment)),
        dialect=dialect,
        leaves_out_defaults=leaves_out_defaults,
        unknown=tuple(sorted(set(settings.unknown) - config_keys().defaults_unknown_with)),
        warnings=tuple(settings.warnings),
    )
