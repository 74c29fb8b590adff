"""Loads ``tables/config-keys.yaml``: strict, all errors at once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from three_walls.model.buckets import Wall
from three_walls.model.config import ConfigData
from three_walls.model.config_keys import KEY_TYPES, ConfigKey, ConfigKeyTable, FlagSpelling, PathSpelling
from three_walls.resources import TABLES_DIR
from three_walls.tables.config_values import is_allowed
from three_walls.tables.strict_yaml import Problems, load_strict, suggest
from three_walls.tables.yaml_nodes import Node

CONFIG_KEYS_FILE = TABLES_DIR / "config-keys.yaml"
_SECTIONS = ("shorthands", "defaults_unknown_with", "bridge_scripts", "precision_recipes", "keys")
_TEXT_TYPES = ("str", "list", "str_or_list", "any")
_OPTIONAL_SECTIONS = ("argument_names", "enums", "dtypes")


@cache
def config_keys() -> ConfigKeyTable:
    """The table that ships with the program."""
    return load_config_keys(CONFIG_KEYS_FILE)


@cache
def keys_by_flag() -> Mapping[str, ConfigKey]:
    """Megatron-LM flag (negated ones and aliases too) -> its key."""
    return MappingProxyType({flag: key for key in config_keys().keys.values() for flag in flags_of(key)})


@cache
def keys_by_path() -> Mapping[str, ConfigKey]:
    """Megatron-Bridge path -> its key."""
    return MappingProxyType({path: key for key in config_keys().keys.values() for path in paths_of(key)})


def flags_of(key: ConfigKey) -> tuple[str, ...]:
    """Every Megatron-LM flag that gives the key a value."""
    spelling = key.megatron_lm
    if spelling is None:
        return ()
    return tuple(flag for flag in (spelling.flag, spelling.negated_flag, *spelling.aliases) if flag)


def paths_of(key: ConfigKey) -> tuple[str, ...]:
    """Every Megatron-Bridge path that holds the key."""
    return () if key.bridge is None else key.bridge.paths + key.bridge.also_read


def load_config_keys(path: Path) -> ConfigKeyTable:
    """The table in ``path``; raises RuleBaseError that lists every error with file, line and column."""
    problems = Problems()
    top = problems.fields(load_strict(path, problems), _SECTIONS, _OPTIONAL_SECTIONS)
    entries = problems.entries(top.get("keys"))
    keys = {name: _read_key(name, node, problems) for name, node in entries.items()}
    scripts = problems.fields(top.get("bridge_scripts"), (), ("recipe", "options", "implied"))
    options = problems.entries(scripts.get("options"))
    arguments = problems.entries(top.get("argument_names"))
    table = ConfigKeyTable(
        keys=MappingProxyType(keys),
        shorthands=_read_settings(top.get("shorthands"), keys, problems),
        defaults_unknown_with=frozenset(problems.texts(top.get("defaults_unknown_with"))),
        script_options=MappingProxyType({option: problems.texts(node) for option, node in options.items()}),
        script_shorthands=_read_settings(scripts.get("implied"), keys, problems),
        recipe_options=frozenset(problems.texts(scripts.get("recipe"))),
        precision_recipes=_read_settings(top.get("precision_recipes"), keys, problems),
        argument_names=MappingProxyType({name: problems.texts(node) for name, node in arguments.items()}),
        enums=_read_enums(top.get("enums"), problems),
        dtypes=MappingProxyType({k: problems.text(node) for k, node in problems.entries(top.get("dtypes")).items()}),
    )
    _check_known_keys(table.script_options, options, keys, problems)
    _check_known_keys(table.argument_names, arguments, keys, problems)
    _check_enums(table, entries, problems)
    _check_uniqueness(table, entries, problems)
    problems.raise_if_any()
    return table


def _read_key(name: str, node: Node, problems: Problems) -> ConfigKey:
    entry = problems.fields(
        node, ("type",), ("values", "pattern", "wall", "megatron_lm", "bridge", "note", "enum", "read_as")
    )
    type_name = problems.choice(entry.get("type"), KEY_TYPES)
    key = ConfigKey(
        name=name,
        type=type_name,
        values=tuple(problems.scalar(item) for item in problems.items(entry.get("values"))),
        wall=problems.choice(entry.get("wall"), tuple(Wall)) or None,
        megatron_lm=_read_flags(entry["megatron_lm"], problems) if "megatron_lm" in entry else None,
        bridge=_read_paths(entry["bridge"], problems) if "bridge" in entry else None,
        note=problems.text(entry.get("note")),
        enum=problems.text(entry.get("enum")) or None,
        read_as={word: problems.value(item) for word, item in problems.entries(entry.get("read_as")).items()},
        pattern=problems.pattern(entry["pattern"], re.ASCII) if "pattern" in entry else None,
    )
    if type_name in _TEXT_TYPES and not key.values and key.pattern is None:
        problems.add(node, f"{name} may be any text: give it values or a pattern, a secret could stand there")
    if key.megatron_lm is None and key.bridge is None:
        problems.add(node, f"{name} has no spelling: give it megatron_lm or bridge")
    is_sound = type_name in KEY_TYPES
    if is_sound and key.megatron_lm is not None and not is_allowed(key, key.megatron_lm.default):
        problems.add(node, f"the default of {name} is not of type {type_name} or not among its values")
    if is_sound and key.bridge is not None and not is_allowed(key, key.bridge.core_default):
        problems.add(node, f"the core_default of {name} is not of type {type_name} or not among its values")
    return key


def _read_flags(node: Node, problems: Problems) -> FlagSpelling:
    entry = problems.fields(node, (), ("flag", "negated_flag", "aliases", "default", "since", "until"))
    flag = problems.text(entry.get("flag")) or None
    negated = problems.text(entry.get("negated_flag")) or None
    if flag is None and negated is None:
        problems.add(node, "megatron_lm needs flag or negated_flag")
    if flag is not None and negated is not None and "aliases" in entry:
        problems.add(entry["aliases"], "aliases of a key with two flags: it is unclear which one they stand for")
    return FlagSpelling(
        flag=flag,
        negated_flag=negated,
        aliases=problems.texts(entry.get("aliases")),
        has_default="default" in entry,
        default=problems.value(entry.get("default")),
        since=problems.text(entry.get("since")) or None,
        until=problems.text(entry.get("until")) or None,
    )


def _read_paths(node: Node, problems: Problems) -> PathSpelling:
    entry = problems.fields(
        node, (), ("path", "also_read", "in_force", "since", "until", "value_since", "core_default")
    )
    if "path" not in entry and "in_force" not in entry:
        problems.add(node, "bridge needs path, or in_force for a key that is only read")
    value_since = problems.entries(entry.get("value_since"))
    return PathSpelling(
        paths=problems.texts(entry.get("path")),
        also_read=problems.texts(entry.get("also_read")),
        since=problems.text(entry.get("since")) or None,
        until=problems.text(entry.get("until")) or None,
        value_since=MappingProxyType({value: problems.text(item) for value, item in value_since.items()}),
        in_force=problems.texts(entry.get("in_force")),
        has_core_default="core_default" in entry,
        core_default=problems.value(entry.get("core_default")),
    )


def _read_enums(node: Node | None, problems: Problems) -> Mapping[str, Mapping[str, int]]:
    return MappingProxyType(
        {
            name: MappingProxyType({member: problems.integer(item) for member, item in problems.entries(entry).items()})
            for name, entry in problems.entries(node).items()
        }
    )


def _read_settings(
    node: Node | None, keys: Mapping[str, ConfigKey], problems: Problems
) -> Mapping[str, Mapping[str, ConfigData]]:
    """Name -> values of keys; the keys must exist and the values be theirs."""
    settings: dict[str, Mapping[str, ConfigData]] = {}
    for name, entry in problems.entries(node).items():
        values = {key: problems.value(item) for key, item in problems.entries(entry).items()}
        for key, value in values.items():
            if key not in keys:
                problems.add(entry.key_places[key], f"{name} sets {key}, which is no key{suggest(key, keys)}")
            elif not is_allowed(keys[key], value):
                problems.add(entry.key_places[key], f"{name} sets {key} to {value}, which is not one of its values")
        settings[name] = MappingProxyType(values)
    return MappingProxyType(settings)


def _check_known_keys(
    said: Mapping[str, tuple[str, ...]], places: Mapping[str, Node], keys: Mapping[str, ConfigKey], problems: Problems
) -> None:
    """What an option or argument sets has to be a key."""
    for option, names in said.items():
        for name in names:
            if name not in keys:
                problems.add(places[option], f"{option} sets {name}, which is no key{suggest(name, keys)}")


def _check_enums(table: ConfigKeyTable, entries: Mapping[str, Node], problems: Problems) -> None:
    for key in table.keys.values():
        if key.enum is not None and set(key.values) != set(table.enums.get(key.enum, {})):
            problems.add(entries[key.name], f"the values of {key.name} are not the members of {key.enum}")


def _check_uniqueness(table: ConfigKeyTable, entries: Mapping[str, Node], problems: Problems) -> None:
    """A flag or a path that two keys share could not be read back."""
    owner: dict[str, str] = {}
    for key in table.keys.values():
        for spelling in flags_of(key) + paths_of(key):
            if owner.setdefault(spelling, key.name) != key.name:
                problems.add(entries[key.name], f"{spelling} belongs to {owner[spelling]} already")
