"""Expressions in Python's syntax, three-valued: ``num_moe_experts % expert_model_parallel_size == 0``.

The one language of rules, constraints and gates. Names stand for values that are looked up. One that is not known makes
the answer unknown unless the rest decides it. Lists are tuples here.

:func:`evaluate` gives an expression the meaning that it has in Python: 0, an empty list and None count as false, and a
number that is compared with a text is an error. Who means something else by a comparison evaluates each
:class:`Condition` in its own way, and joins the answers with :meth:`Junction.decide`.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from typing import Any

Value = str | int | float | bool | None | tuple[str | int | float | bool | None, ...]
Lookup = Callable[[str], Any]
"""The value of a name; ``Truth.UNKNOWN`` where it is not known."""

FAILURES = (TypeError, ValueError, ZeroDivisionError, OverflowError, KeyError, IndexError, AttributeError)
"""What an expression raises over values of a wrong kind."""

ORDERED = (">=", "<=", ">", "<")
"""Operators that compare with a limit."""
LISTED = ("in", "not in")
"""Operators whose value is a list that the name may be in."""
CONTAINING = {"contains": "in", "lacks": "not in"}
"""Operators whose value may be in the name, as it is written: ``'moe' in modules``."""

_LONGEST = 1000
"""Characters of an expression."""
_DEEPEST = 40
_LARGEST = 10**18
"""No whole number reaches it."""


class Truth(StrEnum):
    """What an expression comes to."""

    HOLDS = "holds"
    FAILS = "fails"
    UNKNOWN = "unknown"

    @classmethod
    def of(cls, value: object) -> Truth:
        """Whether ``value`` counts as true."""
        return Truth.UNKNOWN if value is Truth.UNKNOWN else Truth.HOLDS if value else Truth.FAILS


@dataclass(frozen=True, slots=True)
class Name:
    """A value that is looked up."""

    name: str


@dataclass(frozen=True, slots=True)
class Condition:
    """A name compared with a value."""

    name: str
    operator: str
    """``==``, ``!=``, ``is``, ``is not``, or one of :data:`ORDERED`, :data:`LISTED` and :data:`CONTAINING`."""
    value: Value

    def __str__(self) -> str:
        if self.operator in CONTAINING:
            return f"{self.value!r} {CONTAINING[self.operator]} {self.name}"
        return f"{self.name} {self.operator} {self.value!r}"


@dataclass(frozen=True, slots=True)
class Junction:
    """Expressions of which all must hold (``and``), or one (``or``)."""

    word: str
    parts: tuple[Any, ...]
    """Expressions of any kind; of rules, clauses alone."""

    def decide(self, evaluate_part: Callable[[Any], Any]) -> Any:
        """The first value that decides, as in Python. One that is not known leaves the decision to those after it."""
        value, is_unknown = None, False
        for part in self.parts:
            try:
                part_value = evaluate_part(part)
            except FAILURES:
                if is_unknown:  # whether it is reached is not known
                    return Truth.UNKNOWN
                raise
            if part_value is Truth.UNKNOWN:
                is_unknown = True
                continue
            value = part_value
            if bool(value) is (self.word == "or"):
                return value
        return Truth.UNKNOWN if is_unknown else value

    def __str__(self) -> str:
        parts = (f"({part})" if isinstance(part, Junction) else str(part) for part in self.parts)
        return f" {self.word} ".join(parts)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator or a function of :data:`OPERATIONS`, applied to operands."""

    operation: str
    operands: tuple[Expression, ...]


_Node = Name | Condition | Junction | Operation
Expression = _Node | Value
Clause = Condition | Junction
"""What rules are made of: every comparison is of a name with a value."""


def evaluate(expression: Expression, look_up: Lookup) -> Any:
    """Its value in Python, or ``Truth.UNKNOWN``; raises one of ``FAILURES``."""
    match expression:
        case Condition(name, comparison, value):
            left = look_up(name)
            return left if left is Truth.UNKNOWN else OPERATIONS[comparison](left, value)
        case Name(name):
            return look_up(name)
        case Junction():
            return expression.decide(lambda part: evaluate(part, look_up))
        case Operation(operation, operands):
            values = []
            for operand in operands:
                values.append(evaluate(operand, look_up))
                if values[-1] is Truth.UNKNOWN:
                    return Truth.UNKNOWN
            return OPERATIONS[operation](*values)
    return expression


def list_names(expression: Expression) -> tuple[str, ...]:
    """The names in it, in their order."""
    match expression:
        case Condition(name) | Name(name):
            return (name,)
        case Junction(parts=parts) | Operation(operands=parts):
            return tuple(dict.fromkeys(name for part in parts for name in list_names(part)))
    return ()


@cache
def parse_expression(text: str) -> Expression:
    """The expression in ``text``; ValueError where it is none, or uses what expressions do not have.

    Of 2,000 in the rules every second one stands there twice, and a plan judges every constraint dozens of times.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"expected an expression of at most {_LONGEST} characters, found {len(text)}")
    if "\\" in text:  # no text may hold what a terminal obeys
        raise ValueError(f"expressions have no backslash, found {text}")
    try:
        read = ast.parse(text.strip(), mode="eval").body
    except (
        SyntaxError,
        ValueError,
        MemoryError,
        RecursionError,
    ) as error:  # ValueError of Python 3.11.2, for a null byte
        raise ValueError(f"expected an expression, found {text}") from error
    return _read(read)


def _read(node: ast.expr, levels: int = _DEEPEST) -> Expression:
    if not levels:
        raise ValueError(f"expected an expression of at most {_DEEPEST} levels, found more")
    read = partial(_read, levels=levels - 1)
    match node:
        case ast.Name() | ast.Attribute():
            return Name(_name_of(node))
        case ast.Constant(value=(str() | int() | float() | None) as value):
            if (isinstance(value, int) and value >= _LARGEST) or value == math.inf:
                raise ValueError(f"the number is too large: {ast.unparse(node)}")
            return value
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            read_elements: tuple[Any, ...] = tuple(map(read, elements))
            is_flat = all(isinstance(element, str | int | float | None) for element in read_elements)
            return read_elements if is_flat else Operation("list", read_elements)
        case ast.BoolOp(op=word, values=values):
            return Junction("or" if isinstance(word, ast.Or) else "and", tuple(map(read, values)))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return Operation("not", (read(operand),))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = read(operand)
            if isinstance(number, int | float) and not isinstance(number, bool):
                return -number
            return Operation("minus", (number,))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            return Operation(_BINARY[type(sign)][0], (read(left), read(right)))
        case ast.Compare(left=left, ops=signs, comparators=others):
            operands = tuple(map(read, (left, *others)))
            triples = zip(operands, signs, operands[1:], strict=False)
            comparisons = tuple(_compare(first, _BINARY[type(sign)][0], second) for first, sign, second in triples)
            return comparisons[0] if len(comparisons) == 1 else Junction("and", comparisons)
        case ast.Call(func=function, args=arguments, keywords=keywords):
            if not isinstance(function, ast.Name) or function.id not in _FUNCTIONS or keywords:
                raise ValueError(f"expected one of the functions {', '.join(_FUNCTIONS)}, found {ast.unparse(node)}")
            return Operation(function.id, tuple(map(read, arguments)))
    raise ValueError(f"expressions have no {ast.unparse(node)}")


def _name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_name_of(node.value)}.{node.attr}"
    if not isinstance(node, ast.Name):
        raise ValueError(f"expected a name, found {ast.unparse(node)}")
    return node.id


def _compare(first: Expression, sign: str, second: Expression) -> Expression:
    """A condition where a name is compared with a value, else an operation."""
    if isinstance(first, Name) and not isinstance(second, _Node):
        return Condition(first.name, sign, second)
    if isinstance(second, Name) and not isinstance(first, _Node):
        for containing, written in CONTAINING.items():
            if sign == written:
                return Condition(second.name, containing, first)
    return Operation(sign, (first, second))


def _without(values: Any, others: Any) -> tuple[Any, ...]:
    """Elements of ``values`` that ``others`` lacks; lists in lists cannot be compared, as in a set."""
    if any(isinstance(value, tuple | dict) for value in values):
        raise TypeError("unhashable type: 'list'")
    return tuple(value for value in values if value not in others)


def _shared(values: Any, others: Any) -> tuple[Any, ...]:
    """Elements of ``values`` that ``others`` holds too."""
    missing = _without(values, others)
    return tuple(value for value in values if value not in missing)


def multiply(*factors: Any) -> Any:
    """Their product; TypeError where one is a text or a list, which Python would repeat a billion times, too."""
    if any(isinstance(factor, str | tuple) for factor in factors):
        raise TypeError("can't multiply a text or a list")
    return math.prod(factors)


def _remainder(value: Any, by: Any) -> Any:
    """What a division leaves; TypeError where ``value`` is a text, of which Python would take it for a format."""
    if isinstance(value, str):
        raise TypeError("can't divide a text")
    return value % by


_BINARY: dict[type, tuple[str, Callable[..., Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", multiply),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", _remainder),
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Is: ("is", operator.is_),
    ast.IsNot: ("is not", operator.is_not),
    ast.In: ("in", lambda value, values: value in values),
    ast.NotIn: ("not in", lambda value, values: value not in values),
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "len": len,
    "prod": lambda values: multiply(*values),
    "is_list": lambda value: isinstance(value, tuple),
    "is_text": lambda value: isinstance(value, str),
    "is_whole_number": lambda value: isinstance(value, int),
    "starts_with": lambda text, *beginnings: text.startswith(beginnings),
    "without": _without,
    "shared": _shared,
}
OPERATIONS: dict[str, Callable[..., Any]] = {
    **dict(_BINARY.values()),
    **_FUNCTIONS,
    "contains": operator.contains,
    "lacks": lambda values, value: value not in values,
    "not": operator.not_,
    "minus": operator.neg,
    "list": lambda *elements: elements,
}
"""What each operator and function does in Python."""
