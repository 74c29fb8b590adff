"""Config keys: how Megatron Core, Megatron-LM and Megatron-Bridge name each setting (``tables/config-keys.yaml``).

To add a key, add an entry to the file; its header explains the fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field

from three_walls.lib.load_documents import (
    NOT_STATED,
    ByName,
    Loc,
    NamedRow,
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
from three_walls.lib.plain_data import ConfigData, ConfigScalar
from three_walls.lib.resources import TABLES_DIR
from three_walls.tables.bridge_releases import is_between, release_number
from three_walls.tables.buckets import Wall
from three_walls.tables.config_values import LONGEST_VALUE, is_of_type

CONFIG_KEYS_FILE = TABLES_DIR / "config-keys.yaml"
KeyType = Literal["bool", "int", "float", "str", "list", "int_list", "str_or_list", "float_or_list", "any"]
"""Types of a key. A value of ``*_list`` is always a tuple; one of ``*_or_list`` with one element is that element."""
_TEXT_TYPES = ("str", "list", "str_or_list", "any")
_TYPE_NAMES = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "int_list": "whole numbers",
    "any": "a number, or a list of numbers as Python writes it",
    "float_or_list": "numbers",
}


@dataclass(frozen=True, slots=True)
class FlagSpelling:
    """How a key is written on a Megatron-LM command line. Of a bool, ``flag`` means true, ``negated_flag`` false."""

    flag: Text | None = None
    negated_flag: Text | None = None
    aliases: Texts = ()
    """Other names of the flag, for a key with a single flag."""
    default: Value = NOT_STATED
    """What an absent flag means in every release; see :attr:`has_default`."""
    since: Text | None = None
    """Megatron Core release, as is ``until``."""
    until: Text | None = None
    value_since: Mapping[str, Text] = field(default_factory=dict)
    """First release that knows a value, where that is later than the flag's."""

    def is_in(self, core: tuple[int, int]) -> bool:
        """Whether the release (major, minor) of Megatron Core knows the flag."""
        return is_between(core, self.since, self.until)

    @property
    def has_default(self) -> bool:
        """Whether an absent flag means :attr:`default` in every release."""
        return self.default is not NOT_STATED

    def __post_init__(self) -> None:
        if self.flag is None and self.negated_flag is None:
            raise ValueError("megatron_lm needs flag or negated_flag")
        if self.flag is not None and self.negated_flag is not None and self.aliases:
            raise ValueError("aliases of a key with two flags: it is unclear which of the two they stand for")


@dataclass(frozen=True, slots=True)
class PathSpelling:
    """Where Megatron-Bridge's configuration holds a key. All ``paths`` are written, any is read; none: read only."""

    paths: Annotated[Texts, Field(alias="path")] = ()
    also_read: Texts = ()
    since: Text | None = None
    """Megatron-Bridge release, as is ``until``."""
    until: Text | None = None
    value_since: Mapping[str, Text] = field(default_factory=dict)
    """Value -> first release that knows it, where that is later than the first release of the key."""
    in_force: Texts = ()
    """Where a saved config holds the value in force. Such a path does nothing on a command line."""
    core_default: Value = NOT_STATED
    """The default of Megatron Core's class in every release; see :attr:`has_core_default`."""

    @property
    def has_core_default(self) -> bool:
        """Whether Megatron Core's class has :attr:`core_default` in every release."""
        return self.core_default is not NOT_STATED

    def __post_init__(self) -> None:
        if not self.paths and not self.in_force:
            raise ValueError("bridge needs path, or in_force for a key that is only read")


@dataclass(frozen=True, slots=True)
class ConfigKey(NamedRow):
    """One setting; its name is the field's Megatron Core name."""

    type: KeyType
    values: tuple[Scalar, ...] = ()
    """Allowed values of the key, or of its elements; empty: any number, true or false, as the type allows."""
    pattern: Annotated[re.Pattern[str], compiled(re.ASCII)] | None = None
    """What a text that is none of :attr:`values` must match as a whole; None: no other text is allowed."""
    wall: Annotated[Text, one_of(tuple(Wall))] | None = None
    """The wall that the key affects, if any."""
    enum: Text | None = None
    """Class of the enum member that an override must construct, where Bridge would ignore a word."""
    read_as: Mapping[str, Value] = field(default_factory=dict)
    """Word of an older release -> the value that it means."""
    note: Text = ""
    megatron_lm: FlagSpelling | None = None
    bridge: PathSpelling | None = None

    def __post_init__(self) -> None:
        wrong: list[tuple[Loc, str]] = []
        if self.type in _TEXT_TYPES and not self.values and self.pattern is None:
            wrong.append(((), "the key may be any text, even a secret: give it values or a pattern"))
        if self.megatron_lm is None and self.bridge is None:
            wrong.append(((), "the key has no spelling: give it megatron_lm or bridge"))
        flag, path = self.megatron_lm, self.bridge
        if flag is not None and flag.has_default and not is_allowed(self, flag.default):
            text = f"the default is not of type {self.type} or not among the values of the key"
            wrong.append((("megatron_lm", "default"), text))
        if path is not None and path.has_core_default and not is_allowed(self, path.core_default):
            text = f"the core_default is not of type {self.type} or not among the values of the key"
            wrong.append((("bridge", "core_default"), text))
        raise_contradictions(wrong)


Settings = Mapping[str, Value]
"""Config key -> value."""


@dataclass(frozen=True, slots=True)
class BridgeScripts:
    """Options of Megatron-Bridge's own scripts."""

    recipe: frozenset[Text] = frozenset()
    """Options that name the recipe."""
    options: Mapping[str, tuple[Text, ...]] = field(default_factory=dict)
    """Option -> the keys it sets."""
    implied: Mapping[str, Settings] = field(default_factory=dict)
    """Option -> values of further keys that it sets when it turns something on."""
    implied_by_none: Mapping[str, Settings] = field(default_factory=dict)
    """Option -> values of keys that it sets with ``None``."""
    implied_above_one: Mapping[str, tuple[Text, ...]] = field(default_factory=dict)
    """Option of the script ``run_script`` -> switches that it turns on with a number above 1, and off with 1."""
    ignored_if_off: frozenset[Text] = frozenset()
    """Options that set nothing with ``false``, or with 0."""


@dataclass(frozen=True, slots=True)
class ConfigKeyTable:
    """``config-keys.yaml``: every key, and other words by which launchers set keys."""

    shorthands: Mapping[str, Settings]
    """Megatron-LM flag -> values of other keys that it sets."""
    defaults_unknown_with: frozenset[Text]
    """Flags that read settings from a file, so that an absent flag does not mean its default."""
    bridge_scripts: BridgeScripts
    keys: ByName[ConfigKey]
    argument_names: Mapping[str, tuple[Text, ...]] = field(default_factory=dict)
    """Name in Megatron-LM's arguments block that is neither a key nor a flag of one -> the keys it sets."""
    core_class_defaults: Mapping[str, Settings] = field(default_factory=dict)
    """Class of Megatron Core that a model has -> defaults that other such classes do not have."""
    enums: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Enum class, with its module -> number by member."""
    dtypes: Mapping[str, Text] = field(default_factory=dict)
    """torch dtype -> its name in Megatron-LM's flags."""

    def __post_init__(self) -> None:
        raise_contradictions([*self._wrong_settings(), *self._unknown_keys(), *self._wrong_spellings()])

    def _wrong_settings(self) -> Iterator[tuple[Loc, str]]:
        """Settings for which other words stand: their keys must exist and allow the values."""
        for loc, rows in (
            (("shorthands",), self.shorthands),
            (("core_class_defaults",), self.core_class_defaults),
            (("bridge_scripts", "implied"), self.bridge_scripts.implied),
            (("bridge_scripts", "implied_by_none"), self.bridge_scripts.implied_by_none),
        ):
            for name, settings in rows.items():
                yield from contradictions_of_settings(settings, (*loc, name), self.keys)

    def _unknown_keys(self) -> Iterator[tuple[Loc, str]]:
        for loc, rows in (
            (("bridge_scripts", "options"), self.bridge_scripts.options),
            (("bridge_scripts", "implied_above_one"), self.bridge_scripts.implied_above_one),
            (("argument_names",), self.argument_names),
        ):
            for option, names in rows.items():
                for name in set(names) - set(self.keys):
                    yield (*loc, option), f"{option} sets {name}, which is no key{suggest(name, self.keys)}"

    def _wrong_spellings(self) -> Iterator[tuple[Loc, str]]:
        """A flag or path must belong to one key, so that it can be read back. Values of an enum must be its members."""
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
    """The settings at ``loc`` of a file whose key does not exist or does not allow the value."""
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


def late_words(spelling: FlagSpelling | PathSpelling, value: ConfigData, release: tuple[int, int]) -> list[str]:
    """The words of ``value`` that only releases after ``release`` know."""
    words = map(str, _elements(value))
    return [word for word in words if release < release_number(spelling.value_since.get(word, "0"))]


def is_allowed(key: ConfigKey, value: ConfigData) -> bool:
    """Whether ``value`` is of the key's type and among its values."""
    if value is None or not is_of_type(key.type, value):
        return value is None
    return all(_is_among(key, element) for element in _elements(value))


def may_be_shown(key: ConfigKey, value: ConfigData) -> bool:
    """Whether ``value``, already of the key's type, cannot be a secret: a number, true or false, or an allowed text."""
    return all(not isinstance(element, str) or _is_among(key, element) for element in _elements(value))


def form_of(key: ConfigKey) -> str:
    """What a value of ``key`` must be, for a message that does not show what was found instead."""
    if key.values:
        return f"one of {', '.join(map(str, key.values))}"
    return _TYPE_NAMES.get(key.type, "a value of its form")


def _elements(value: ConfigData) -> tuple[ConfigScalar, ...]:
    return value if isinstance(value, tuple) else (value,)


def _is_among(key: ConfigKey, element: ConfigScalar) -> bool:
    """Whether the key allows ``element``. A text must be listed or match the pattern; a number only needs the type."""
    if element in key.values:
        return True
    if key.pattern is not None and isinstance(element, str):
        return len(element) <= LONGEST_VALUE and key.pattern.fullmatch(element) is not None
    return not key.values and not isinstance(element, str)
