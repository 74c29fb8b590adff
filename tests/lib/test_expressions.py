"""Expressions in Python's syntax: what they may say, their value, and what is wrong with others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from three_walls.lib.expressions import (
    Condition,
    Junction,
    Name,
    Operation,
    Truth,
    evaluate,
    list_names,
    parse_expression,
)

VALUES: dict[str, Any] = {"known": 2, "a.b": ("x", "y"), "unset": None, "text": "abc", "off": False}


def value_of(text: str) -> Any:
    return evaluate(parse_expression(text), lambda name: VALUES.get(name, Truth.UNKNOWN))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("known", 2),
        ("-known + 5 * 2 - 7 // 2", 5),
        ("known % 2 == 0", True),
        ("1 < known <= 2", True),
        ("known in [1, 2]", True),
        ("known not in (1, known)", False),
        ("'x' in a.b and 'z' not in a.b", True),
        ("'b' in text", True),
        ("unset is None and off is not None", True),
        ("unset or known", 2),  # the value that decides, as in Python
        ("not off", True),
        ("known == -2", False),
        ("a.b == ['x', 'y']", True),  # lists are tuples
        ("len(a.b) + prod([2, 3])", 8),
        ("is_list(a.b) and is_text(text) and is_whole_number(known)", True),
        ("starts_with(text, 'x', 'ab') and not starts_with(text, 'b')", True),
        ("without(a.b, ['x'])", ("y",)),
        ("shared(a.b, ['x', 'z'])", ("x",)),
    ],
)
def test_the_value_is_pythons(text: str, value: Any) -> None:
    assert value_of(text) == value


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("other > 1 or known == 2", Truth.HOLDS),
        ("other > 1 and known == 2", Truth.UNKNOWN),
        ("known == 3 and other > 1", Truth.FAILS),
        ("other > 1 and known == 3", Truth.FAILS),
        ("not other", Truth.UNKNOWN),
        ("other + len(known)", Truth.UNKNOWN),  # whether it is reached is not known
        ("other or len(known)", Truth.UNKNOWN),
        ("len(other) > 2", Truth.UNKNOWN),
    ],
)
def test_what_is_not_known_leaves_the_answer_unknown_unless_the_rest_decides(text: str, answer: Truth) -> None:
    assert Truth.of(value_of(text)) is answer


@pytest.mark.parametrize("text", ["unset > 1", "len(known)", "known // 0", "without([a.b], text)"])
def test_values_of_a_wrong_kind_are_an_error(text: str) -> None:
    with pytest.raises((TypeError, ZeroDivisionError)):
        value_of(text)


def test_a_name_that_is_compared_with_a_value_is_a_condition() -> None:
    assert parse_expression("a.b >= 0.10") == Condition("a.b", ">=", 0.1)
    assert parse_expression("'x' not in a.b") == Condition("a.b", "lacks", "x")
    assert parse_expression("a in (1, None)") == Condition("a", "in", (1, None))
    either = Junction("or", (Condition("a", "is", None), Condition("b", "<", -1)))
    assert parse_expression("a is None or b < -1") == either
    assert parse_expression("a == b") == Operation("==", (Name("a"), Name("b")))


@pytest.mark.parametrize("text", ["a >= 2", "'x' in a.b", "a not in ('x', None)", "(a == 1 or b is True) and c != 'x'"])
def test_a_condition_is_written_as_it_was_read(text: str) -> None:
    assert str(parse_expression(text)) == text


def test_names_are_listed_once_in_their_order() -> None:
    assert list_names(parse_expression("b.c > 1 and (a == b.c or len(d) > 2)")) == ("b.c", "a", "d")
    assert list_names(parse_expression("1 + 2")) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected an expression, found"),
        ("a = 1", "expected an expression, found a = 1"),
        ("a ** 2", "expressions have no a ** 2"),
        ("a[0]", "expressions have no"),
        ("f'{a}'", "expressions have no"),
        ("b'a'", "expressions have no"),
        ("lambda: a", "expressions have no"),
        ("open(a)", "expected one of the functions len, prod"),
        ("len(a, key=1)", "expected one of the functions"),
        ("a.b().c", "expected a name"),
        (r"a == '\x1b'", "expressions have no backslash"),
        ("a > 1e400", "the number is too large"),
        (f"a > 1{'0' * 18}", "the number is too large"),
        ("(" * 300 + "a" + ")" * 300, "expected an expression"),
        ("-" * 60 + "a", "of at most 40 levels"),
        ("a or " * 300 + "a", "of at most 1000 characters"),
        ("a\x00", "expected an expression"),
    ],
)
def test_what_is_no_expression_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"^expect|^the number|^expressions") as error:
        parse_expression(text)
    assert message in str(error.value)


@pytest.mark.parametrize("text", ["a * b", "b * a", "prod(c) == 2", "d % b == 0"])
def test_what_python_would_repeat_or_fill_in_is_no_number(text: str) -> None:
    values = {"a": "abc", "b": 10**12, "c": ("abc", 10**12), "d": "%999999999999d"}
    with pytest.raises(TypeError, match="can't"):
        evaluate(parse_expression(text), values.__getitem__)


@given(st.text())
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        parse_expression(text)
    except ValueError as error:
        assert str(error)
