"""Which operators and operands fit a fact of a given unit: checked when a rule is loaded."""

from __future__ import annotations

from three_walls.model.config import ConfigData

ORDERED = ("at_least", "at_most", "above", "below")
LISTED = ("one_of", "none_of", "within")
CONTAINING = ("includes", "excludes")

_NUMERIC_UNITS = ("ns", "bytes", "count", "fraction", "ratio", "bytes_per_s", "tflops", "flops", "flops_per_s")


def is_number(value: object) -> bool:
    """Whether ``value`` is a number; a boolean is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def complaint_about(unit: str, operator: str, operand: ConfigData) -> str:
    """What is wrong with comparing a fact of ``unit`` so; empty if nothing is."""
    if operator == "is_set":
        return "" if isinstance(operand, bool) else "is_set takes true or false"
    if operator in ORDERED:
        return _complaint_about_order(unit, operator, operand)
    if operator in LISTED and not isinstance(operand, tuple):
        return f"{operator} takes a list"
    if operator in CONTAINING:
        return _complaint_about_containing(unit, operator, operand)
    values = operand if operator in LISTED and isinstance(operand, tuple) else (operand,)
    return next((complaint for one in values if (complaint := _complaint_about_value(unit, one))), "")


def _complaint_about_order(unit: str, operator: str, operand: ConfigData) -> str:
    if unit in ("flag", "text", "env"):
        return f"{operator} needs a numeric fact, this one is {unit}"
    if isinstance(operand, bool) or not isinstance(operand, int | float):
        return f"{operator} takes a number"
    if unit == "fraction" and not 0 <= operand <= 1:
        return "a fraction lies between 0 and 1"
    return ""


def _complaint_about_containing(unit: str, operator: str, operand: ConfigData) -> str:
    if unit not in ("config", "env", "text"):
        return f"{operator} needs a list or text, this fact is in {unit}"
    return "" if isinstance(operand, str) else f"{operator} takes text"


def _complaint_about_value(unit: str, value: object) -> str:
    if unit in _NUMERIC_UNITS and not is_number(value):
        return f"a fact in {unit} is compared with a number"
    if unit == "flag" and not isinstance(value, bool):
        return "a flag is compared with true or false"
    if unit == "text" and not isinstance(value, str):
        return "a text fact is compared with text"
    if unit == "env" and not isinstance(value, str | None):
        return "a variable is compared with text (quote it) or null"
    return ""
