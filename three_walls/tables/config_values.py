"""Types of config values: reads a value from words, and checks whether a value is of a type."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from three_walls.lib.plain_data import ConfigData, ConfigScalar, as_whole_number

LONGEST_VALUE = 1024
"""In characters. No setting of a run is longer, and no longer text is matched with an expression."""

_ELEMENT = {"list": "str", "int_list": "int", "str_or_list": "str", "float_or_list": "float"}
_INT = re.compile(r"[-+]?\d{1,18}")
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,3})?")


def takes_several_words(type_name: str) -> bool:
    """Whether a flag of this type collects words up to the next flag."""
    return type_name in _ELEMENT


def read_words(type_name: str, words: Sequence[str]) -> ConfigData:
    """``words`` as a value of the type; raises ValueError if a word is none."""
    element = _ELEMENT.get(type_name)
    if element is None:
        if len(words) != 1:
            raise ValueError(f"expected one word, found {len(words)}")
        return _read_word(type_name, words[0])
    values = tuple(_read_word(element, word) for word in words)
    return values[0] if type_name.endswith("_or_list") and len(values) == 1 else values


def fit(type_name: str, value: ConfigData) -> ConfigData:
    """``value`` in the form of its type: lists are tuples, and of ``*_or_list`` one element stands for itself.

    Raises ValueError for a value of another type.
    """
    element = _ELEMENT.get(type_name)
    if value is None:
        return None
    if element is None:
        return value if type_name == "any" else _fit_scalar(type_name, value)
    elements = value if isinstance(value, tuple) else (value,)
    fitted = tuple(_fit_scalar(element, item) for item in elements)
    if type_name.endswith("_or_list") and len(fitted) == 1:
        return fitted[0]
    return fitted


def is_of_type(type_name: str, value: ConfigData) -> bool:
    """Whether ``value`` already has the form that :func:`fit` gives it."""
    try:
        fitted = fit(type_name, value)
    except ValueError:
        return False
    return fitted == value and type(fitted) is type(value)


def _read_word(type_name: str, word: str) -> ConfigScalar:
    if type_name == "bool":
        return _read_bool(word)
    if type_name == "int":
        if not _INT.fullmatch(word):
            raise ValueError(f"{word} is not a whole number")
        return int(word)
    if type_name == "float":
        if not _NUMBER.fullmatch(word):
            raise ValueError(f"{word} is not a number")
        return _finite(float(word))
    if type_name == "any" and _INT.fullmatch(word):
        return int(word)
    return word


def _read_bool(word: str) -> bool:
    lowered = word.lower()
    if lowered in ("true", "1", "yes"):
        return True
    if lowered in ("false", "0", "no"):
        return False
    raise ValueError(f"{word} is neither true nor false")


def _fit_scalar(type_name: str, value: ConfigData) -> ConfigScalar:
    if isinstance(value, str):
        return _read_word(type_name, value)
    if type_name == "bool" and isinstance(value, bool):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value} is not of type {type_name}")
    if isinstance(value, int) and as_whole_number(value) is None:  # str() refuses to write the longest
        raise ValueError("a whole number of more than 18 digits")
    if type_name == "int" and isinstance(value, int):
        return value
    if type_name == "float":
        return _finite(float(value))
    if type_name == "str":
        return str(value)
    raise ValueError(f"{value} is not of type {type_name}")


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError("a number without end")
    return number


def show(value: Any) -> str:
    """``value`` for a reader, as an override has it; texts without quotes."""
    if isinstance(value, tuple):
        return f"[{','.join(map(show, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
