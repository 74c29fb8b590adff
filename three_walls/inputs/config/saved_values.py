"""Values of a saved configuration as plain data: enum members and dtypes as words, lists as tuples."""

from __future__ import annotations

from typing import Any

from three_walls.inputs.config.members import read_construction, read_number, read_written
from three_walls.model.config import ConfigData
from three_walls.tables.config_keys import ConfigKey


def plain_value(key: ConfigKey, raw: Any) -> ConfigData:
    """A value of a configuration as plain data: members as words, lists as tuples; raises ValueError on others."""
    if isinstance(raw, str) and raw in key.read_as:
        return key.read_as[raw]
    if isinstance(raw, list):
        return tuple(_scalar(key, item) for item in raw)
    return _scalar(key, raw)


def _scalar(key: ConfigKey, raw: Any) -> str | int | float | bool | None:
    if isinstance(raw, dict):
        word = read_construction(raw.get("_target_"), raw.get("_args_"), raw.get("_name_"))
        if word is None:
            raise ValueError(f"expected a value, found {describe(raw)}")
        return word
    if isinstance(raw, str):
        return read_written(raw)
    if key.type == "bool" and isinstance(raw, int | float):
        return bool(raw)  # as Python takes it: performance recipes write manual_gc_eval=100
    number = read_number(key.enum, raw)
    if number is None or isinstance(number, str | int | float | bool):
        return number
    raise ValueError(f"expected a value, found {describe(raw)}")


def describe(value: Any) -> str:
    """What stands in place of a value, for a message; no word of it."""
    if isinstance(value, dict):
        return "an object" if isinstance(value.get("_target_"), str) else "a mapping"
    return "a list" if isinstance(value, list) else "nothing" if value is None else "a single value"
