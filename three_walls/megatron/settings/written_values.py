"""Reads values as launchers, saved configurations and logs write them; enum members and dtypes become words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from three_walls.lib.hydra import Override, read_override
from three_walls.lib.plain_data import ConfigData, ConfigScalar
from three_walls.tables.config_keys import ConfigKey, config_keys

# <CudaGraphScope.attn: 2> as Python's repr has it, AttnBackend.unfused as its str.
_MEMBER = re.compile(r"<?(?P<enum>[A-Za-z_]\w*)\.(?P<member>\w+)(: .*>)?")
_TARGET, _ARGUMENTS = "._target_", "._args_"


def read_overrides(word: str) -> list[Override]:
    """The settings of one Hydra override. ``x={_target_:...AttnBackend,_args_:[2]}`` is read as ``x=fused``."""
    overrides = read_override(word)
    values = {override.path: override.value for override in overrides}
    settings: list[Override] = []
    for override in overrides:
        path = override.path.removesuffix(_TARGET).removesuffix(_ARGUMENTS)
        member = None
        if path != override.path:
            member = read_construction(values.get(path + _TARGET), values.get(path + _ARGUMENTS))
        if member is None:
            settings.append(override)
        elif override.path.endswith(_TARGET):
            settings.append(Override(override.prefix, path, member))
    return settings


def plain_value(key: ConfigKey, raw: Any) -> ConfigData:
    """A value of a configuration as plain data: members become words, lists tuples; raises ValueError for an object."""
    if isinstance(raw, str) and raw in key.read_as:
        return key.read_as[raw]
    if isinstance(raw, list):
        return tuple(_plain_scalar(key, item) for item in raw)
    return _plain_scalar(key, raw)


def _plain_scalar(key: ConfigKey, raw: Any) -> ConfigScalar:
    if isinstance(raw, dict):
        word = read_construction(raw.get("_target_"), raw.get("_args_"), raw.get("_name_"))
        if word is None:
            raise ValueError(f"expected a value, found {describe(raw)}")
        return word
    if isinstance(raw, str):
        return read_word(raw)
    if key.type == "bool" and isinstance(raw, int | float):
        return bool(raw)  # as Python does: performance recipes write manual_gc_eval=100
    if isinstance(raw, int) and not isinstance(raw, bool) and key.enum is not None:
        return _member(config_keys().enums[key.enum], raw) or raw
    if raw is None or isinstance(raw, int | float):
        return raw
    raise ValueError(f"expected a value, found {describe(raw)}")


def describe(value: Any) -> str:
    """What was found instead of a value, for a message that must not show the value itself."""
    if isinstance(value, dict):
        return "an object" if isinstance(value.get("_target_"), str) else "a mapping"
    return "a list" if isinstance(value, list) else "nothing" if value is None else "a single value"


def read_construction(target: object, arguments: object, name: object = None) -> str | None:
    """The word that ``{_target_: module.Class, _args_: [number]}`` stands for; None if it is no known member.

    A dtype has only a ``_target_``. ``name`` is the ``_name_`` that newer releases write in addition to the number.
    """
    table = config_keys()
    if not isinstance(target, str):
        return None
    if target in table.dtypes:
        return table.dtypes[target]
    members = table.enums.get(target)
    if members is None:
        return None
    if isinstance(name, str) and name in members:
        return name
    first = arguments[0] if isinstance(arguments, Sequence) and not isinstance(arguments, str) and arguments else None
    return _member(members, first)


def read_word(text: str) -> str:
    """The word for ``AttnBackend.flash``, ``<CudaGraphScope.attn: 2>`` or ``torch.float32``; other text unchanged."""
    table = config_keys()
    if text in table.dtypes:
        return table.dtypes[text]
    match = _MEMBER.fullmatch(text)
    if match is not None:
        for enum, members in table.enums.items():
            if enum.rpartition(".")[2] == match["enum"] and match["member"] in members:
                return match["member"]
    return text


def _member(members: Mapping[str, int], number_or_name: object) -> str | None:
    """The member with this number or this name."""
    if isinstance(number_or_name, str):
        return number_or_name if number_or_name in members else None
    if isinstance(number_or_name, bool):
        return None
    return next((member for member, number in members.items() if number == number_or_name), None)
