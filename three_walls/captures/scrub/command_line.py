"""The launched command line, reduced to the settings that analysis reads, each value in its form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from three_walls.inputs.config.bridge_arguments import is_bridge_override
from three_walls.inputs.config.collected import known_value, known_words
from three_walls.inputs.config.command_line import find_dialect
from three_walls.inputs.config.launchers import Program, find_program
from three_walls.inputs.config.overrides import read_setting
from three_walls.model.config import ConfigData
from three_walls.tables.config_keys import ConfigKey, config_keys, keys_by_flag, keys_by_path
from three_walls.tables.config_values import takes_several_words
from three_walls.tables.environment_variables import allowed_variables
from three_walls.tables.hydra_overrides import Override

REMOVED = "removed"
"""Stands for what is not of its form; it is of no setting's form itself, so that analysis withholds it too."""

OTHER_SCRIPT = "train.py"
_OTHER_SETTING = "other"
_VARIABLES = "env_vars."


@dataclass(frozen=True, slots=True)
class ReducedCommand:
    """``words`` to keep and the words that are ``dropped`` (values of unknown options, paths, launchers)."""

    words: tuple[str, ...]
    dropped: tuple[str, ...]


def reduce_command(words: Sequence[str], scripts: frozenset[str]) -> ReducedCommand:
    """Known settings with values of their form; the script's name if it is one of ``scripts``; nothing of launchers."""
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
        if has_equals:
            kept.append(f"{flag}={_known(key, [attached])[0]}")
            continue
        kept.append(flag)
        if key.type == "bool":
            continue
        end = index + 1 if not takes_several_words(key.type) else len(arguments)
        values = []
        while index < min(end, len(arguments)) and not _is_flag(arguments[index]):
            values.append(arguments[index])
            index += 1
        kept += _known(key, values)
    return kept


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not word[1:2].isdigit() and word[1:2] != "."


def _known(key: ConfigKey, words: Sequence[str]) -> Sequence[str]:
    """``words`` where they are a value of ``key``; no part of them where they are none."""
    return words if not words or known_words(key, words) is not None else [REMOVED]


def _bridge_words(arguments: Sequence[str]) -> list[str]:
    kept: list[str] = []
    table = config_keys()
    known = table.bridge_scripts.options.keys() | table.bridge_scripts.recipe | table.bridge_scripts.implied.keys()
    for index, word in enumerate(arguments):
        option, has_equals, attached = word.partition("=")
        if option in known:
            kept.append(f"{option}={_option_value(option, attached)}" if has_equals else option)
            following = arguments[index + 1] if index + 1 < len(arguments) else ""
            if not has_equals and following and not following.startswith("-") and not is_bridge_override(following):
                kept.append(_option_value(option, following))
        elif is_bridge_override(word):
            kept += [_override(one) for one in read_setting(word)]
    return kept


def _option_value(option: str, value: str) -> str:
    """The value of a script's option; the recipe's name is read by nobody."""
    keys = [config_keys().keys[name] for name in config_keys().bridge_scripts.options.get(option, ())]
    is_known = all(
        value == "None" or known_words(key, value.split(",") if takes_several_words(key.type) else [value]) is not None
        for key in keys
    )
    return value if keys and is_known else REMOVED


def _override(one: Override) -> str:
    """A known setting with its value; of another one its section alone (that it is there says something)."""
    section = one.path.partition(".")[0]
    if one.path.startswith(_VARIABLES):
        is_known, is_shown = _judge_variable(one.path.removeprefix(_VARIABLES), one)
    else:
        key = keys_by_path().get(one.path)
        is_known, is_shown = key is not None, key is not None and known_value(key, one.value) is not None
    path = one.path if is_known else f"{section}.{_OTHER_SETTING}"
    if one.prefix == "~":
        return f"~{path}"
    return f"{one.prefix}{path}={_written(one.value) if is_shown else REMOVED}"


def _judge_variable(name: str, one: Override) -> tuple[bool, bool]:
    """Whether the variable is read at all, and whether its value may be shown."""
    is_known = allowed_variables().allows(name) and not isinstance(one.value, tuple)
    return is_known, is_known and (one.value is None or allowed_variables().shows(name, str(one.value)))


def _written(value: ConfigData) -> str:
    """``value`` as Hydra reads it back."""
    if isinstance(value, tuple):
        return f"[{','.join(map(_written, value))}]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and any(character in value for character in ",[]{}() '"):
        return f'"{value}"'
    return str(value)
