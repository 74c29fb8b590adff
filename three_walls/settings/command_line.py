"""The run's configuration, as far as the process's command line tells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

from three_walls.knowledge.config_keys import config_keys, keys_by_flag
from three_walls.settings.bridge_arguments import find_recipe, is_bridge_override, read_bridge_arguments
from three_walls.settings.collected import Settings
from three_walls.settings.derived_settings import derive_megatron_settings, derive_settings
from three_walls.settings.launchers import Program, find_program
from three_walls.settings.megatron_flags import fill_defaults, read_flags
from three_walls.vocabulary.config import RunConfig

_BRIDGE_SCRIPTS = {"run_recipe", "run_script", "setup_experiment"}
_MEGATRON_FLAGS_AT_LEAST = 3  # one or two could be any program's


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What a command line says. ``config.environment`` holds only what the command line itself sets."""

    config: RunConfig
    script: str | None
    """File name (or module) of the training script; no directory."""
    recipe: str | None
    unknown: tuple[str, ...]
    """Options and override paths that the table does not know: names only, sorted."""
    warnings: tuple[str, ...]


def read_command_line(arguments: Sequence[str]) -> CommandLine:
    """Read the words of a process's command line, launchers in front included. Never raises."""
    program = find_program(arguments)
    dialect = find_dialect(program)
    if dialect == "bridge":
        return _read_bridge(program)
    if dialect == "megatron_lm":
        return _read_megatron(program)
    return CommandLine(RunConfig(), program.file_name, None, (), ())


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
    else:
        fill_defaults(settings)
        derive_megatron_settings(settings)
    derive_settings(settings)
    return _command_line(settings, program, RunConfig(MappingProxyType(settings.values), dialect="megatron_lm"), None)


def _read_bridge(program: Program) -> CommandLine:
    settings = Settings()
    environment = read_bridge_arguments(program.arguments, settings)
    derive_settings(settings)
    config = RunConfig(MappingProxyType(settings.values), MappingProxyType(environment), dialect="bridge")
    return _command_line(settings, program, config, find_recipe(program.arguments))


def _command_line(settings: Settings, program: Program, config: RunConfig, recipe: str | None) -> CommandLine:
    unknown = tuple(sorted(set(settings.unknown) - config_keys().defaults_unknown_with))
    return CommandLine(config, program.file_name, recipe, unknown, tuple(settings.warnings))
