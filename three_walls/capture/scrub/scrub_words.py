"""The launched command line, reduced to the settings that analysis reads, each with a value of its expected form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

from three_walls.capture.scrub.texts import filter_name
from three_walls.lib.hydra import Override, write_value
from three_walls.megatron.settings.launchers import find_program
from three_walls.megatron.settings.option_words import VARIABLE_PREFIX, find_dialect, is_bridge_override, is_flag
from three_walls.megatron.settings.setting_sources import shown_value, shown_words
from three_walls.megatron.settings.written_values import read_overrides
from three_walls.tables.config_keys import ConfigKey, config_keys, keys_by_flag, keys_by_path
from three_walls.tables.config_values import takes_several_words
from three_walls.tables.environment_variables import allowed_variables

REMOVED = "removed"
"""Replaces values of an unexpected form. It has no setting's form itself, so analysis redacts it too."""
OTHER_SCRIPT = "train.py"
"""Replaces the name of a script that is not a known one."""
_OTHER_SETTING = "other"

_LONG_NUMBER = re.compile(r"(?<![\d.])\d{15}", re.ASCII)
"""No setting counts to 10^15: this is the number of a card or an account. Digits behind a point are none."""


def reduce_command(words: Sequence[str], scripts: frozenset[str]) -> tuple[list[str], frozenset[str]]:
    """The words to keep, and the words left out with the pieces of those that hold several.

    Kept are known settings with values of their form, and the script's name if it is one of ``scripts``. Left out are
    values of unknown options, paths, and all of the launcher.
    """
    program = find_program(words)
    reduced = ["python"]
    if program.script is not None:
        names = (program.file_name or OTHER_SCRIPT, f"{program.script_name}.py")
        reduced.append(next((name for name in names if name in scripts), OTHER_SCRIPT))
    dialect = find_dialect(program)
    if dialect == "bridge":
        reduced += _bridge_words(program.arguments)
    elif dialect == "megatron_lm":
        reduced += _megatron_words(program.arguments)
    pieces = {piece for word in words for piece in (word, *word.split())}  # `bash -c "..."` holds many in one word
    return reduced, frozenset(pieces - set(reduced))


def _megatron_words(arguments: Sequence[str]) -> list[str]:
    table = config_keys()
    reduced: list[str] = []
    index = 0
    while index < len(arguments):
        flag, has_equals, attached = arguments[index].partition("=")
        index += 1
        key = keys_by_flag().get(flag)
        if key is None:
            if flag in table.shorthands or flag in table.defaults_unknown_with:
                reduced.append(flag)
            continue
        if has_equals:
            reduced.append(f"{flag}={_redact(key, [attached])[0]}")
            continue
        reduced.append(flag)
        if key.type == "bool":
            continue
        end = len(arguments) if takes_several_words(key.type) else index + 1
        values = list(takewhile(lambda word: not is_flag(word), arguments[index:end]))
        index += len(values)
        reduced += _redact(key, values)
    return reduced


def _redact(key: ConfigKey, words: Sequence[str]) -> Sequence[str]:
    """``words`` where they are a value of ``key``, else REMOVED."""
    is_shown = shown_words(key, words) is not None and not any(map(_LONG_NUMBER.search, words))
    return words if not words or is_shown else [REMOVED]


def _bridge_words(arguments: Sequence[str]) -> list[str]:
    reduced: list[str] = []
    scripts = config_keys().bridge_scripts
    options = scripts.options.keys() | scripts.recipe | scripts.implied.keys()
    for word, following in zip(arguments, [*arguments[1:], ""], strict=False):
        option, has_equals, attached = word.partition("=")
        if option in options:
            reduced.append(f"{option}={_option_value(option, attached)}" if has_equals else option)
            if not has_equals and following and not following.startswith("-") and not is_bridge_override(following):
                reduced.append(_option_value(option, following))
        elif is_bridge_override(word):
            reduced += [_reduce_override(override) for override in read_overrides(word)]
    return reduced


def _option_value(option: str, value: str) -> str:
    """The value of a script's option, or REMOVED. Analysis does not read the recipe's name, so that is removed too."""
    keys = [config_keys().keys[name] for name in config_keys().bridge_scripts.options.get(option, ())]
    is_known = all(
        value == "None" or shown_words(key, value.split(",") if takes_several_words(key.type) else [value]) is not None
        for key in keys
    )
    return value if keys and is_known and not _LONG_NUMBER.search(value) else REMOVED


def _reduce_override(override: Override) -> str:
    """A known setting with its value. Of an unknown one only the section is kept: its presence is informative."""
    section = override.path.partition(".")[0]
    if override.path.startswith(VARIABLE_PREFIX):
        name = override.path.removeprefix(VARIABLE_PREFIX)
        is_known = is_public_variable(name) and not isinstance(override.value, tuple)
        is_shown = is_known and (override.value is None or allowed_variables().shows(name, str(override.value)))
    else:
        key = keys_by_path().get(override.path)
        is_known, is_shown = key is not None, key is not None and shown_value(key, override.value) is not None
    path = override.path if is_known else f"{section}.{_OTHER_SETTING}"
    if override.prefix == "~":
        return f"~{path}"
    value = write_value(override.value) if is_shown else REMOVED
    return f"{override.prefix}{path}={REMOVED if _LONG_NUMBER.search(value) else value}"


def is_public_variable(name: str) -> bool:
    """Whether a report may state the variable, and its name is listed or consists of words of the field.

    Families of variables are open (``NCCL_...``): anyone may put a word of their own into a name.
    """
    if not allowed_variables().allows(name):
        return False
    return name in allowed_variables().names or filter_name(name, lambda _: "") == name
