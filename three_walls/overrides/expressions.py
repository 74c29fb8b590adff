"""Comparisons of settings as text: ``num_moe_experts % expert_model_parallel_size == 0``.

The syntax and the meaning are Python's, as in Megatron-Bridge's own code: 0, an empty list and null count as false, and
a number that is compared with a text is an error, with which a launch stops. Names are settings; a setting that is not
known makes the answer unknown unless the rest decides it. Lists are tuples here.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from typing import Any

Lookup = Callable[[str], Any]
"""The value of a name; raises :class:`NotKnownError`."""

Evaluate = Callable[[Lookup], Any]


class NotKnownError(Exception):
    """The answer depends on a setting that is not known."""


FAILURES = (TypeError, ValueError, ZeroDivisionError, OverflowError, KeyError, IndexError, AttributeError)
"""What an expression raises over values of a wrong kind."""


@dataclass(frozen=True, slots=True)
class Expression:
    """One expression, and the names in it in their order."""

    text: str
    evaluate: Evaluate
    """Its value; raises NotKnownError, or one of ``FAILURES``."""
    names: tuple[str, ...]


@cache
def parse_expression(text: str) -> Expression:
    """The expression in ``text``; ValueError where it is none, or uses what expressions do not have."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"expected an expression, found {text}") from error
    names: list[str] = []
    _collect_names(tree, names)
    return Expression(text, _compile(tree), tuple(dict.fromkeys(names)))


def _collect_names(node: ast.expr, names: list[str]) -> None:
    match node:
        case ast.Name() | ast.Attribute():
            names.append(_name_of(node))
            return
        case ast.Call():
            if not isinstance(node.func, ast.Name) or node.func.id not in _FUNCTIONS or node.keywords:
                raise ValueError(f"expected one of the functions {', '.join(_FUNCTIONS)}, found {ast.unparse(node)}")
            children: list[ast.expr] = node.args
        case ast.BoolOp():
            children = node.values
        case ast.UnaryOp() if isinstance(node.op, ast.Not | ast.USub):
            children = [node.operand]
        case ast.BinOp() if type(node.op) in _OPERATORS:
            children = [node.left, node.right]
        case ast.Compare() if all(type(comparison) in _OPERATORS for comparison in node.ops):
            children = [node.left, *node.comparators]
        case ast.List() | ast.Tuple():
            children = node.elts
        case ast.Constant():
            children = []
        case _:
            raise ValueError(f"expressions have no {ast.unparse(node)}")
    for child in children:
        _collect_names(child, names)


def _name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_name_of(node.value)}.{node.attr}"
    if not isinstance(node, ast.Name):
        raise ValueError(f"expected the name of a setting, found {ast.unparse(node)}")
    return node.id


def _compile(node: ast.expr) -> Evaluate:
    """``node`` as a function of the lookup: a plan evaluates every expression dozens of times."""
    match node:
        case ast.Name() | ast.Attribute():
            name = _name_of(node)
            return lambda lookup: lookup(name)
        case ast.Constant():
            constant = node.value
            return lambda _: constant
        case ast.List() | ast.Tuple():
            elements = [_compile(element) for element in node.elts]
            return lambda lookup: tuple([element(lookup) for element in elements])
        case ast.BoolOp():
            return partial(_evaluate_all, [_compile(operand) for operand in node.values], isinstance(node.op, ast.Or))
        case ast.UnaryOp():
            operand = _compile(node.operand)
            if isinstance(node.op, ast.Not):
                return lambda lookup: not operand(lookup)
            return lambda lookup: -operand(lookup)
        case ast.BinOp():
            operation, left, right = _OPERATORS[type(node.op)], _compile(node.left), _compile(node.right)
            return lambda lookup: operation(left(lookup), right(lookup))
        case ast.Compare():
            comparisons = [
                (_OPERATORS[type(comparison)], _compile(other))
                for comparison, other in zip(node.ops, node.comparators, strict=True)
            ]
            return partial(_compare, _compile(node.left), comparisons)
        case ast.Call():
            function = _FUNCTIONS[node.func.id if isinstance(node.func, ast.Name) else ""]
            arguments = [_compile(argument) for argument in node.args]
            return lambda lookup: function(*[argument(lookup) for argument in arguments])
    raise ValueError(f"expressions have no {ast.unparse(node)}")


def _evaluate_all(operands: Sequence[Evaluate], decides: bool, lookup: Lookup) -> Any:
    """``and``, ``or``: the first value that decides. One that is not known leaves the decision to those after it."""
    value, unknown = None, None
    for operand in operands:
        try:
            value = operand(lookup)
        except NotKnownError as error:
            unknown = error
            continue
        except FAILURES:
            if unknown is not None:  # whether it is reached is not known
                raise unknown from None
            raise
        if bool(value) is decides:
            return value
    if unknown is not None:
        raise unknown
    return value


def _compare(
    first: Evaluate, comparisons: Sequence[tuple[Callable[[Any, Any], Any], Evaluate]], lookup: Lookup
) -> bool:
    left = first(lookup)
    for holds, other in comparisons:
        right = other(lookup)
        if not holds(left, right):
            return False
        left = right
    return True


def _without(values: Any, others: Any) -> tuple[Any, ...]:
    """Elements of ``values`` that ``others`` lacks; lists in lists cannot be compared, as in a set."""
    if any(isinstance(value, tuple | dict) for value in values):
        raise TypeError("unhashable type: 'list'")
    return tuple(value for value in values if value not in others)


def _shared(values: Any, others: Any) -> tuple[Any, ...]:
    """Elements of ``values`` that ``others`` holds too."""
    missing = _without(values, others)
    return tuple(value for value in values if value not in missing)


_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda value, values: operator.contains(values, value),
    ast.NotIn: lambda value, values: not operator.contains(values, value),
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "len": len,
    "prod": prod,
    "is_list": lambda value: isinstance(value, tuple),
    "is_text": lambda value: isinstance(value, str),
    "is_whole_number": lambda value: isinstance(value, int),
    "without": _without,
    "shared": _shared,
}
