"""Config keys: what Megatron Core, Megatron-LM and Megatron-Bridge call one setting: ``tables/config-keys.yaml``.

To add a key, add an entry to the file; its header explains the fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field, model_validator

from three_walls.model.buckets import Wall
from three_walls.model.config import ConfigData, ConfigScalar
from three_walls.resources import TABLES_DIR
from three_walls.tables.bridge import release_number
from three_walls.tables.config_values import LONGEST_VALUE, is_of_type
from three_walls.tables.loader import (
    ByName,
    Loc,
    NamedRow,
    Row,
    Scalar,
    Text,
    Texts,
    Value,
    compiled,
    load_table,
    one_of,
    raise_contradictions,
    suggest,
)

CONFIG_KEYS_FILE = TABLES_DIR / "config-keys.yaml"
KeyType = Literal["bool", "int", "float", "str", "list", "int_list", "str_or_list", "float_or_list", "any"]
"""Types of a key: ``*_list`` is always a tuple; ``*_or_list`` is a scalar when there is one element."""
_TEXT_TYPES = ("str", "list", "str_or_list", "any")
_TYPE_NAMES = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "int_list": "whole numbers",
    "float_or_list": "numbers",
}


class FlagSpelling(Row):
    """A key on a Megatron-LM command line. A bool's ``flag`` means true, its ``negated_flag`` false."""

    flag: Text | None = None
    negated_flag: Text | None = None
    aliases: Texts = ()
    """Other names of the key's only flag."""
    default: Value = None
    """What an absent flag means in every release; see :attr:`has_default`."""
    since: Text | None = None
    """Megatron Core release, as is ``until``."""
    until: Text | None = None
    value_since: Mapping[str, Text] = Field(default_factory=dict)
    """First release that knows a value, where that is later than the flag's."""

    def is_in(self, core: tuple[int, int]) -> bool:
        """Whether the release (major, minor) of Megatron Core knows the flag."""
        is_late = self.since is not None and core < release_number(self.since)
        return not is_late and (self.until is None or core <= release_number(self.until))

    @property
    def has_default(self) -> bool:
        """Whether an absent flag means :attr:`default` in every release."""
        return "default" in self.model_fields_set

    @model_validator(mode="after")
    def check_flags(self) -> FlagSpelling:
        if self.flag is None and self.negated_flag is None:
            raise ValueError("megatron_lm needs flag or negated_flag")
        if self.flag is not None and self.negated_flag is not None and self.aliases:
            raise ValueError("aliases of a key with two flags: it is unclear which one they stand for")
        return self


class PathSpelling(Row):
    """A key in Megatron-Bridge's configuration: all of ``paths`` are written, any is read. No path: read only."""

    paths: Texts = Field(default=(), alias="path")
    also_read: Texts = ()
    since: Text | None = None
    """Megatron-Bridge release, as is ``until``."""
    until: Text | None = None
    value_since: Mapping[str, Text] = Field(default_factory=dict)
    """First release that knows a value, where that is later than the key's."""
    in_force: Texts = ()
    """Where a saved config holds the value that the launcher ended up with; of no use on a command line."""
    core_default: Value = None
    """The default of Megatron Core's class in every release; see :attr:`has_core_default`."""

    @property
    def has_core_default(self) -> bool:
        """Whether Megatron Core's class has :attr:`core_default` in every release."""
        return "core_default" in self.model_fields_set

    @model_validator(mode="after")
    def check_paths(self) -> PathSpelling:
        if not self.paths and not self.in_force:
            raise ValueError("bridge needs path, or in_force for a key that is only read")
        return self


class ConfigKey(NamedRow):
    """One setting; its name is the field's Megatron Core name."""

    type: KeyType
    values: tuple[Scalar, ...] = ()
    """What the key (or an element of it) may be; empty: any number or switch of the type."""
    pattern: Annotated[re.Pattern[str], compiled(re.ASCII)] | None = None
    """What a text other than :attr:`values` has to match as a whole; None: no other text."""
    wall: Annotated[Text, one_of(tuple(Wall))] | None = None
    """The wall that the key works on, if it works on one."""
    enum: Text | None = None
    """Class of the member that an override has to construct, where a word would be ignored."""
    read_as: Mapping[str, Value] = Field(default_factory=dict)
    """Words of older releases that mean another value."""
    note: Text = ""
    megatron_lm: FlagSpelling | None = None
    bridge: PathSpelling | None = None

    @model_validator(mode="after")
    def check(self) -> ConfigKey:
        wrong: list[tuple[Loc, str]] = []
        if self.type in _TEXT_TYPES and not self.values and self.pattern is None:
            wrong.append(((), "the key may be any text: give it values or a pattern, a secret could stand there"))
        if self.megatron_lm is None and self.bridge is None:
            wrong.append(((), "the key has no spelling: give it megatron_lm or bridge"))
        if self.megatron_lm is not None and not is_allowed(self, self.megatron_lm.default):
            text = f"the default is not of type {self.type} or not among the values of the key"
            wrong.append((("megatron_lm", "default"), text))
        if self.bridge is not None and not is_allowed(self, self.bridge.core_default):
            text = f"the core_default is not of type {self.type} or not among the values of the key"
            wrong.append((("bridge", "core_default"), text))
        raise_contradictions(wrong)
        return self


Settings = Mapping[str, Value]
"""Config key -> value."""


class BridgeScripts(Row):
    """Options of Megatron-Bridge's own scripts."""

    recipe: frozenset[Text] = frozenset()
    """Options that name the recipe."""
    options: Mapping[str, tuple[Text, ...]] = Field(default_factory=dict)
    """Option -> the keys it sets."""
    implied: Mapping[str, Settings] = Field(default_factory=dict)
    """Option -> values of further keys that it sets when it turns something on."""


class ConfigKeyTable(Row):
    """``config-keys.yaml``: every key, and what launchers call by other words."""

    shorthands: Mapping[str, Settings]
    """Megatron-LM flag -> values of keys that it sets other than, or besides, its own."""
    defaults_unknown_with: frozenset[Text]
    """Flags that read settings from a file, so that an absent flag has no meaning."""
    bridge_scripts: BridgeScripts
    precision_recipes: Mapping[str, Settings]
    """Megatron-Bridge precision recipe -> values of keys that it sets."""
    keys: ByName[ConfigKey]
    argument_names: Mapping[str, tuple[Text, ...]] = Field(default_factory=dict)
    """Name in Megatron-LM's arguments block that is neither a key nor one of its flags -> keys it sets."""
    enums: Mapping[str, Mapping[str, int]] = Field(default_factory=dict)
    """Enum class, with its module -> number by member."""
    dtypes: Mapping[str, Text] = Field(default_factory=dict)
    """How a torch dtype is written -> how Megatron-LM's flags call it."""

    @model_validator(mode="after")
    def check(self) -> ConfigKeyTable:
        raise_contradictions([*self._wrong_settings(), *self._unknown_keys(), *self._wrong_spellings()])
        return self

    def _wrong_settings(self) -> Iterator[tuple[Loc, str]]:
        """Settings that other words stand for: their keys have to exist, and the values have to be theirs."""
        for loc, rows in (
            (("shorthands",), self.shorthands),
            (("bridge_scripts", "implied"), self.bridge_scripts.implied),
            (("precision_recipes",), self.precision_recipes),
        ):
            for name, settings in rows.items():
                yield from contradictions_of_settings(settings, (*loc, name), self.keys)

    def _unknown_keys(self) -> Iterator[tuple[Loc, str]]:
        for loc, rows in (
            (("bridge_scripts", "options"), self.bridge_scripts.options),
            (("argument_names",), self.argument_names),
        ):
            for option, names in rows.items():
                for name in set(names) - set(self.keys):
                    yield (*loc, option), f"{option} sets {name}, which is no key{suggest(name, self.keys)}"

    def _wrong_spellings(self) -> Iterator[tuple[Loc, str]]:
        """A flag or a path that two keys share could not be read back; values of an enum are its members."""
        owner: dict[str, str] = {}
        for key in self.keys.values():
            for spelling in flags_of(key) + paths_of(key):
                if owner.setdefault(spelling, key.name) != key.name:
                    yield ("keys", key.name), f"{spelling} belongs to {owner[spelling]} already"
            if key.enum is not None and set(key.values) != set(self.enums.get(key.enum, {})):
                yield ("keys", key.name), f"the values of {key.name} are not the members of {key.enum}"


def contradictions_of_settings(
    settings: Mapping[str, ConfigData], loc: Loc, keys: Mapping[str, ConfigKey]
) -> Iterator[tuple[Loc, str]]:
    """Settings at ``loc`` of a file whose key does not exist, or whose value the key may not have."""
    for name, value in settings.items():
        if name not in keys:
            yield (*loc, name), f"{name} is no config key{suggest(name, keys)}"
        elif not is_allowed(keys[name], value):
            yield (*loc, name), f"{value} is no value of {name}"


@cache
def config_keys() -> ConfigKeyTable:
    """The table that ships with the program."""
    return load_table(CONFIG_KEYS_FILE, ConfigKeyTable)


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


def is_allowed(key: ConfigKey, value: ConfigData) -> bool:
    """Whether ``value`` is of the key's type and among its values."""
    if value is None or not is_of_type(key.type, value):
        return value is None
    return all(_is_among(key, element) for element in _elements(value))


def may_be_shown(key: ConfigKey, value: ConfigData) -> bool:
    """Whether ``value``, already of the key's type, can be no secret: a number, a switch, or a text that is allowed."""
    return all(not isinstance(element, str) or _is_among(key, element) for element in _elements(value))


def form_of(key: ConfigKey) -> str:
    """What a value of ``key`` has to be, for a message that does not show what was found instead."""
    if key.values:
        return f"one of {', '.join(map(str, key.values))}"
    return _TYPE_NAMES.get(key.type, "a value of its form")


def _elements(value: ConfigData) -> tuple[ConfigScalar, ...]:
    return value if isinstance(value, tuple) else (value,)


def _is_among(key: ConfigKey, element: ConfigScalar) -> bool:
    """Texts need a list of words or a pattern that defines them; of numbers and switches the type is enough."""
    if element in key.values:
        return True
    if key.pattern is not None and isinstance(element, str):
        return len(element) <= LONGEST_VALUE and key.pattern.fullmatch(element) is not None
    return not key.values and not isinstance(element, str)
