"""Three-valued comparisons."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rules.builders import sheet_of
from three_walls.model.condition import Condition
from three_walls.model.config import ConfigData
from three_walls.model.fact import Fact, FactSheet
from three_walls.rules.conditions import Truth, evaluate, evaluate_all, evaluate_any
from three_walls.rules.wording import explain_one

HOLDS, FAILS, UNKNOWN = Truth.HOLDS, Truth.FAILS, Truth.UNKNOWN


@pytest.mark.parametrize(
    ("value", "operator", "operand", "answer"),
    [
        (3, "equals", 3.0, HOLDS),
        (True, "equals", 1, FAILS),  # true is not one
        (None, "equals", None, HOLDS),
        (None, "not_equals", True, HOLDS),
        (False, "not_equals", True, HOLDS),
        ("a", "one_of", ("a", None), HOLDS),
        (None, "one_of", ("a", None), HOLDS),
        (None, "one_of", ("a",), FAILS),
        (None, "none_of", ("a",), HOLDS),
        (0.1, "at_least", 0.1, HOLDS),
        (0.1, "above", 0.1, FAILS),
        (0.1, "at_most", 0.1, HOLDS),
        (0.1, "below", 0.1, FAILS),
        (None, "at_least", 0, FAILS),
        (None, "at_most", 9, FAILS),
        (0, "is_set", True, HOLDS),
        (None, "is_set", False, HOLDS),
        (("moe", "layernorm"), "includes", "moe", HOLDS),
        (("moe_act",), "includes", "moe", FAILS),  # elements of a list are compared whole
        ("expandable_segments:True,x:1", "includes", "expandable_segments", HOLDS),
        (None, "includes", "moe", FAILS),
        (None, "excludes", "moe", HOLDS),
    ],
)
def test_comparison(value: ConfigData, operator: str, operand: ConfigData, answer: Truth) -> None:
    facts = sheet_of({"config.x": value})
    assert evaluate(Condition("config.x", operator, operand), facts) is answer


def test_a_missing_fact_is_unknown_whatever_is_asked() -> None:
    facts = FactSheet.of([Fact("config.x", None, "config", missing_reason="no command line")])
    for operator, operand in (("equals", None), ("is_set", False), ("at_least", 1), ("excludes", "a")):
        assert evaluate(Condition("config.x", operator, operand), facts) is UNKNOWN
    assert evaluate(Condition("config.y", "equals", None), facts) is UNKNOWN


def test_one_that_fails_decides_all_and_one_that_holds_decides_any() -> None:
    facts = sheet_of({"config.a": 1, "config.b": 2})
    holds, fails = Condition("config.a", "equals", 1), Condition("config.b", "equals", 1)
    unknown = Condition("config.c", "equals", 1)
    assert evaluate_all((holds, unknown), facts) is UNKNOWN
    assert evaluate_all((holds, unknown, fails), facts) is FAILS
    assert evaluate_any((fails, unknown), facts) is UNKNOWN
    assert evaluate_any((fails, unknown, holds), facts) is HOLDS
    assert evaluate_all((), facts) is HOLDS


def test_text_is_never_compared_as_a_number() -> None:
    with pytest.raises(TypeError, match=r"expected a number to compare config\.x with a limit, found '8'"):
        evaluate(Condition("config.x", "at_least", 8), sheet_of({"config.x": "8"}))


@pytest.mark.parametrize(
    ("condition", "sentence"),
    [
        (
            Condition("launch_starved_fraction", "at_least", 0.1),
            "Launch-starved time takes 18.4% of the step (threshold 10%)",
        ),
        (Condition("step_ns", "above", 2_000_000), "The step length is 1.5 ms (must be more than 2 ms)"),
        (Condition("config.x", "equals", True), "x is unset (must be on)"),
        (Condition("config.x", "is_set", True), "x is unset (must be set)"),
        (Condition("config.x", "one_of", ("a", "b")), "x is unset (must be a or b)"),
        (Condition("config.x", "none_of", ("a",)), "x is unset"),
        (Condition("config.x", "not_equals", "a"), "x is unset"),
        (Condition("config.x", "excludes", "a"), "x is unset"),
        (Condition("config.l", "includes", "c"), "l is [a, b] (must include c)"),
        (
            Condition("config.y", "below", 2),
            "y is not recorded (must be less than 2)",
        ),
    ],
)
def test_explanation_has_the_compared_numbers(condition: Condition, sentence: str) -> None:
    facts = sheet_of({"launch_starved_fraction": 0.184, "step_ns": 1_500_000, "config.x": None, "config.l": ("a", "b")})
    assert explain_one(condition, facts) == sentence


names = st.sampled_from(["config.a", "config.b", "config.c"])
values = st.one_of(st.none(), st.integers(0, 3), st.booleans())
conditions = st.lists(
    st.builds(Condition, names, st.sampled_from(["equals", "not_equals"]), values), min_size=1, max_size=4
)


@given(conditions, st.dictionaries(names, values), names, values)
def test_learning_a_fact_never_changes_a_decided_answer(
    found: list[Condition], known: dict[str, ConfigData], name: str, value: ConfigData
) -> None:
    before = sheet_of(known)
    after = sheet_of({name: value, **known})
    for combine in (evaluate_all, evaluate_any):
        answer = combine(found, before)
        assert answer is UNKNOWN or combine(found, after) is answer


@given(st.floats(0, 1), st.floats(0, 1))
def test_opposite_operators_never_agree(value: float, limit: float) -> None:
    facts = sheet_of({"launch_starved_fraction": value})
    for operator, other in (("at_least", "below"), ("at_most", "above")):
        answers = {evaluate(Condition("launch_starved_fraction", op, limit), facts) for op in (operator, other)}
        assert answers == {HOLDS, FAILS}
