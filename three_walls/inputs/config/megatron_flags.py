"""Megatron-LM flags: ``--flag value``, ``--flag=value``, switches and lists, read by the table."""

from __future__ import annotations

import re
from collections.abc import Sequence

from three_walls.inputs.config.collected import Settings
from three_walls.tables.config_keys import ConfigKey, config_keys, keys_by_flag
from three_walls.tables.config_values import takes_several_words

_NEGATIVE_NUMBER = re.compile(r"-\.?\d")
MEGATRON_LM_DEFAULT = "Megatron-LM default"


def read_flags(arguments: Sequence[str], settings: Settings) -> None:
    """Collect what the flags among ``arguments`` say."""
    table = config_keys()
    index = 0
    while index < len(arguments):
        word = arguments[index]
        index += 1
        if not word.startswith("--") or word == "--":
            continue
        flag, has_equals, attached = word.partition("=")
        end = index if has_equals else _end_of_values(arguments, index)
        words = (attached,) if has_equals else tuple(arguments[index:end])
        key = keys_by_flag().get(flag)
        if key is not None:
            settings.known.add(flag)
            used = _read_flag(key, flag, words, settings)
            index += 0 if has_equals else used
        for name, value in table.shorthands.get(flag, {}).items():
            settings.known.add(flag)
            settings.give(name, value)
        if key is None and flag not in table.shorthands:
            settings.note_unknown(flag)


def fill_defaults(settings: Settings) -> None:
    """Give every key whose flag is absent the default that all releases agree on."""
    for key in config_keys().keys.values():
        spelling = key.megatron_lm
        if spelling is not None and spelling.has_default and key.name not in settings.values:
            settings.give(key.name, spelling.default, MEGATRON_LM_DEFAULT)


def _read_flag(key: ConfigKey, flag: str, words: tuple[str, ...], settings: Settings) -> int:
    """Read one known flag; the number of following words that it used up."""
    spelling = key.megatron_lm
    assert spelling is not None
    if key.type == "bool":
        negated = flag == spelling.negated_flag or (spelling.flag is None and flag in spelling.aliases)
        settings.give(key.name, not negated)
        return 0
    several = takes_several_words(key.type)
    used = words if several else words[:1]
    if not used:
        settings.warnings.append(f"{flag}: no value follows")
        return 0
    settings.give_words(key, used, flag)
    return len(used)


def _end_of_values(arguments: Sequence[str], start: int) -> int:
    """Index of the next word that is a flag."""
    end = start
    while end < len(arguments) and not _is_flag(arguments[end]):
        end += 1
    return end


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NEGATIVE_NUMBER.match(word)
