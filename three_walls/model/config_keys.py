"""Config keys: how one setting is called by Megatron Core, Megatron-LM and Megatron-Bridge."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from three_walls.model.config import ConfigData

KEY_TYPES = ("bool", "int", "float", "str", "list", "int_list", "str_or_list", "float_or_list", "any")
"""Types of a key: ``*_list`` is always a tuple; ``*_or_list`` is a scalar when there is one element."""


@dataclass(frozen=True, slots=True)
class FlagSpelling:
    """A key on a Megatron-LM command line. A bool's ``flag`` means true, its ``negated_flag`` false."""

    flag: str | None
    negated_flag: str | None
    aliases: tuple[str, ...]
    """Other names of the key's only flag."""
    has_default: bool
    """Whether an absent flag means :attr:`default` in every release."""
    default: ConfigData
    since: str | None
    until: str | None


@dataclass(frozen=True, slots=True)
class PathSpelling:
    """A key in Megatron-Bridge's configuration: all of ``paths`` are written, any is read. No path: read only."""

    paths: tuple[str, ...]
    also_read: tuple[str, ...]
    since: str | None
    until: str | None
    value_since: Mapping[str, str]
    """First release that knows a value, where that is later than the key's."""
    in_force: tuple[str, ...] = ()
    """Where a saved config holds the value that the launcher ended up with; of no use on a command line."""
    has_core_default: bool = False
    """Whether Megatron Core's class has :attr:`core_default` in every release."""
    core_default: ConfigData = None


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One setting, by its Megatron Core name."""

    name: str
    type: str
    values: tuple[ConfigData, ...]
    """What it (or an element of it) may be; empty: anything of the type that is a number or a switch."""
    wall: str | None
    megatron_lm: FlagSpelling | None
    bridge: PathSpelling | None
    note: str
    enum: str | None = None
    """Class of the member that an override has to construct, where a word would be ignored."""
    read_as: Mapping[str, ConfigData] = field(default_factory=dict)
    """Words of older releases that mean another value."""
    pattern: re.Pattern[str] | None = None
    """What a text beside :attr:`values` has to match, whole; None: no other text."""


@dataclass(frozen=True, slots=True)
class ConfigKeyTable:
    """Every key, and what launchers say in other words."""

    keys: Mapping[str, ConfigKey]
    shorthands: Mapping[str, Mapping[str, ConfigData]]
    """Megatron-LM flag -> values of keys that it sets other than, or besides, its own."""
    defaults_unknown_with: frozenset[str]
    """Flags that bring in a file, after which an absent flag says nothing."""
    script_options: Mapping[str, tuple[str, ...]]
    """Option of Megatron-Bridge's own scripts -> the keys it sets."""
    script_shorthands: Mapping[str, Mapping[str, ConfigData]]
    """Option of those scripts -> values of further keys that it sets when it turns something on."""
    recipe_options: frozenset[str]
    precision_recipes: Mapping[str, Mapping[str, ConfigData]]
    """Megatron-Bridge precision recipe -> values of keys that it sets."""
    argument_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name in Megatron-LM's arguments block that is neither a key nor one of its flags -> keys it sets."""
    enums: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Enum class, with its module -> number by member."""
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """How a torch dtype is written -> how Megatron-LM's flags call it."""
