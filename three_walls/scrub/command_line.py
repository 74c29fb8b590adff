"""The launched command line, reduced to the settings that analysis reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from three_walls.knowledge.config_keys import config_keys, keys_by_flag, keys_by_path
from three_walls.knowledge.config_values import takes_several_words
from three_walls.knowledge.environment_variables import allowed_variables
from three_walls.knowledge.hydra_overrides import read_override
from three_walls.scrub.traits import is_plain_value
from three_walls.settings.bridge_arguments import is_bridge_override
from three_walls.settings.command_line import find_dialect
from three_walls.settings.launchers import Program, find_program

REMOVED = "removed"
OTHER_SCRIPT = "train.py"


@dataclass(frozen=True, slots=True)
class ReducedCommand:
    """``words`` to keep and the words that are ``dropped`` (values of unknown options, paths, launchers)."""

    words: tuple[str, ...]
    dropped: tuple[str, ...]


def reduce_command(words: Sequence[str], scripts: frozenset[str]) -> ReducedCommand:
    """Known flags with plain values; of the script its name if it is one of ``scripts``; nothing of launchers."""
    program = find_program(words)
    kept = ["python"]
    if program.script is not None:
        kept += _script(program, scripts)
    dialect = find_dialect(program)
    if dialect == "bridge":
        kept += _bridge_words(program.arguments)
    elif dialect == "megatron_lm":
        kept += _megatron_words(program.arguments)
    inner = {piece for word in words for piece in (word, *word.split())}  # `bash -c "..."` is one word of many
    return ReducedCommand(tuple(kept), tuple(sorted(inner - set(kept))))


def _script(program: Program, scripts: frozenset[str]) -> list[str]:
    name = program.file_name or OTHER_SCRIPT
    if name in scripts:
        return [name]
    return [f"{program.script_name}.py"] if f"{program.script_name}.py" in scripts else [OTHER_SCRIPT]


def _megatron_words(arguments: Sequence[str]) -> list[str]:
    table = config_keys()
    kept: list[str] = []
    index = 0
    while index < len(arguments):
        flag, has_equals, attached = arguments[index].partition("=")
        index += 1
        key = keys_by_flag().get(flag)
        if key is None:
            if flag in table.shorthands or flag in table.defaults_unknown_with:
                kept.append(flag)
            continue
        kept.append(f"{flag}={_plain(attached)}" if has_equals else flag)
        if key.type == "bool" or has_equals:
            continue
        end = index + 1 if not takes_several_words(key.type) else len(arguments)
        while index < min(end, len(arguments)) and not _is_flag(arguments[index]):
            kept.append(_plain(arguments[index]))
            index += 1
    return kept


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not word[1:2].isdigit() and word[1:2] != "."


def _bridge_words(arguments: Sequence[str]) -> list[str]:
    kept: list[str] = []
    table = config_keys()
    known = table.script_options.keys() | table.recipe_options | table.script_shorthands.keys()
    for index, word in enumerate(arguments):
        option, has_equals, attached = word.partition("=")
        if option in known:
            kept.append(f"{option}={_plain(attached)}" if has_equals else option)
            following = arguments[index + 1] if index + 1 < len(arguments) else ""
            if not has_equals and following and not following.startswith("-") and not is_bridge_override(following):
                kept.append(_plain(following))
        elif is_bridge_override(word):
            kept.append(_override(word))
    return kept


def _override(word: str) -> str:
    """An override of known settings as it is; of another setting its path alone (that it is there says something)."""
    overrides = read_override(word)
    path, _, value = word.partition("=")
    if all(_is_known(override.path) for override in overrides) and is_plain_value(value.strip("{}[]'\"")):
        return word
    return f"{path}={REMOVED}"


def _is_known(path: str) -> bool:
    if path.startswith("env_vars."):
        return allowed_variables().allows(path.removeprefix("env_vars."))
    return path in keys_by_path()


def _plain(value: str) -> str:
    return value if is_plain_value(value) else REMOVED
