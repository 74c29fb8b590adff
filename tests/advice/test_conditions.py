"""Three-valued comparisons."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.advice.builders import sheet_of
from three_walls.advice.format.conditions import evaluate, evaluate_all, list_conditions, that_are
from three_walls.advice.wording import explain, explain_one
from three_walls.lib.expressions import Clause, Condition, Junction, Truth, parse_expression
from three_walls.lib.fact import Fact, FactSheet
from three_walls.lib.plain_data import ConfigData

HOLDS, FAILS, UNKNOWN = Truth.HOLDS, Truth.FAILS, Truth.UNKNOWN


@pytest.mark.parametrize(
    ("value", "condition", "answer"),
    [
        (3, "x == 3.0", HOLDS),
        (True, "x == 1", FAILS),  # True is not one
        (None, "x is None", HOLDS),
        (None, "x is not True", HOLDS),
        (False, "x is not True", HOLDS),
        (True, "x is not True", FAILS),
        ("a", "x in ('a', None)", HOLDS),
        (None, "x in ('a', None)", HOLDS),
        (None, "x in ('a',)", FAILS),
        (None, "x not in ['a']", HOLDS),
        ("a", "x not in ['a']", FAILS),
        (0.1, "x >= 0.1", HOLDS),
        (0.1, "x > 0.1", FAILS),
        (0.1, "x <= 0.1", HOLDS),
        (0.1, "x < 0.1", FAILS),
        (None, "x >= 0", FAILS),
        (None, "x <= 9", FAILS),
        (0, "x is not None", HOLDS),
        (None, "x is not None", FAILS),
        (("moe", "layernorm"), "'moe' in x", HOLDS),
        (("moe_act",), "'moe' in x", FAILS),  # elements of a list are compared whole
        ("expandable_segments:True,x:1", "'expandable_segments' in x", HOLDS),
        (None, "'moe' in x", FAILS),
        (None, "'moe' not in x", HOLDS),
        (("moe",), "'moe' not in x", FAILS),
    ],
)
def test_comparison(value: ConfigData, condition: str, answer: Truth) -> None:
    assert evaluate(read(condition), sheet_of({"x": value})) is answer


def read(text: str) -> Clause:
    expression = parse_expression(text)
    assert isinstance(expression, Condition | Junction)
    return expression


def test_a_missing_fact_is_unknown_whatever_is_asked() -> None:
    facts = FactSheet.of([Fact("config.x", None, "config", missing_reason="no command line")])
    for asked in (
        "config.x is None",
        "config.x is not None",
        "config.x >= 1",
        "'a' not in config.x",
        "config.y is None",
    ):
        assert evaluate(read(asked), facts) is UNKNOWN


def test_one_that_fails_decides_all_and_one_that_holds_decides_any() -> None:
    facts = sheet_of({"config.a": 1, "config.b": 2})
    holds, fails, unknown = read("config.a == 1"), read("config.b == 1"), read("config.c == 1")
    for answer, all_of, any_of in (
        (UNKNOWN, (holds, unknown), (fails, unknown)),
        (FAILS, (holds, unknown, fails), (fails, fails)),
        (HOLDS, (holds, holds), (fails, unknown, holds)),
    ):
        assert evaluate_all(all_of, facts) is evaluate(Junction("and", all_of), facts) is answer
        assert evaluate(Junction("or", any_of), facts) is answer
    assert evaluate_all((), facts) is HOLDS


def test_of_a_junction_the_parts_that_decide_are_told() -> None:
    facts = sheet_of({"config.a": 1, "config.b": 2})
    asked = read("config.a == 2 or (config.b == 3 and config.a == 1) or config.a == 3")
    (decisive,) = that_are(FAILS, (asked, read("config.a == 1")), facts)
    assert str(decisive) == "config.a == 2 or config.b == 3 or config.a == 3"
    assert explain((decisive,), facts) == "a is 1 (must be 2), or b is 2 (must be 3), or a is 1 (must be 3)"
    (unknown,) = that_are(UNKNOWN, (read("config.a == 2 or config.c == 1"),), facts)
    assert str(unknown) == "config.c == 1"


def test_text_is_never_compared_as_a_number() -> None:
    with pytest.raises(TypeError, match=r"expected a number to compare config\.x with a limit, found '8'"):
        evaluate(Condition("config.x", ">=", 8), sheet_of({"config.x": "8"}))


@pytest.mark.parametrize(
    ("condition", "sentence"),
    [
        (
            Condition("launch_starved_fraction", ">=", 0.1),
            "Launch-starved time takes 18.4% of the step (threshold 10%)",
        ),
        (Condition("step_ns", ">", 2_000_000), "The step length is 1.5 ms (must be more than 2 ms)"),
        (Condition("config.x", "==", True), "x is unset (must be on)"),
        (Condition("config.x", "is not", None), "x is unset (must be set)"),
        (Condition("config.x", "in", ("a", "b")), "x is unset (must be a or b)"),
        (Condition("config.x", "not in", ("a",)), "x is unset"),
        (Condition("config.x", "!=", "a"), "x is unset"),
        (Condition("config.x", "lacks", "a"), "x is unset"),
        (Condition("config.l", "contains", "c"), "l is [a, b] (must include c)"),
        (
            Condition("config.y", "<", 2),
            "y is not recorded (must be less than 2)",
        ),
    ],
)
def test_explanation_has_the_compared_numbers(condition: Condition, sentence: str) -> None:
    facts = sheet_of({"launch_starved_fraction": 0.184, "step_ns": 1_500_000, "config.x": None, "config.l": ("a", "b")})
    assert explain_one(condition, facts) == sentence


names = st.sampled_from(["config.a", "config.b", "config.c"])
values = st.one_of(st.none(), st.integers(0, 3), st.booleans())
conditions = st.recursive(
    st.builds(Condition, names, st.sampled_from(["==", "!="]), values),
    lambda parts: st.builds(
        Junction, st.sampled_from(["and", "or"]), st.lists(parts, min_size=2, max_size=3).map(tuple)
    ),
)


@pytest.mark.slow
@given(conditions, st.dictionaries(names, values), names, values)
def test_learning_a_fact_never_changes_a_decided_answer(
    found: Clause, known: dict[str, ConfigData], name: str, value: ConfigData
) -> None:
    before = sheet_of(known)
    after = sheet_of({name: value, **known})
    answer = evaluate(found, before)
    assert answer is UNKNOWN or evaluate(found, after) is answer


@given(conditions, st.dictionaries(names, values))
def test_what_decides_comes_to_the_same(found: Clause, known: dict[str, ConfigData]) -> None:
    facts = sheet_of(known)
    answer = evaluate(found, facts)
    (decisive,) = that_are(answer, (found,), facts)
    assert evaluate(decisive, facts) is answer
    assert {evaluate(part, facts) for part in list_conditions((decisive,))} == {answer}


@given(conditions)
def test_a_condition_reads_back_from_its_text(found: Clause) -> None:
    assert str(parse_expression(str(found))) == str(found)


@given(st.floats(0, 1), st.floats(0, 1))
def test_opposite_operators_never_agree(value: float, limit: float) -> None:
    facts = sheet_of({"launch_starved_fraction": value})
    for operator, other in ((">=", "<"), ("<=", ">")):
        answers = {evaluate(Condition("launch_starved_fraction", op, limit), facts) for op in (operator, other)}
        assert answers == {HOLDS, FAILS}
