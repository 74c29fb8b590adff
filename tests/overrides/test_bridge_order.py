"""Overrides are read as Hydra reads them, and judged after what Bridge copies over them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bridge.cases import RELEASE, recipe_config
from three_walls.overrides.check import check_overrides
from three_walls.overrides.expressions import NotKnownError, parse_expression
from three_walls.overrides.hydra_grammar import parse_override


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=4_096", 4096),
        ("a='[b,c]'", "[b,c]"),
        ("a=[b,'c']", ("b", "c")),
        ("a=1e3", 1000.0),
        ("a=08", "08"),
        ("a=", ""),
    ],
)
def test_values_are_those_of_hydra(text: str, value: Any) -> None:
    assert parse_override(text).value == value


@pytest.mark.parametrize("text", ["a=[b", "a=[b,]", " a=b", "--a=b", "a", "a=#b", "a=b=c", ""])
def test_what_hydra_cannot_parse_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_override(text)


def test_an_expression_is_unknown_unless_the_rest_decides_it() -> None:
    def look_up(name: str) -> Any:
        if name == "known":
            return 2
        raise NotKnownError(name)

    assert parse_expression("other > 1 or known == 2").evaluate(look_up)
    with pytest.raises(NotKnownError):
        parse_expression("other > 1 and known == 2").evaluate(look_up)


@pytest.mark.parametrize("value", ["foo", "[1,2]", "[foo]", "{a:1}"])
@pytest.mark.parametrize("size", ["tensor", "pipeline", "context", "expert"])
def test_a_size_of_a_wrong_kind_is_refused_without_a_crash(size: str, value: str) -> None:
    check = check_overrides(
        [f"model.{size}_model_parallel_size={value}".replace("context_model", "context")], recipe_config(), RELEASE
    )
    assert check.is_accepted is False


def test_a_setting_that_mixed_precision_resets_is_not_judged_before_the_reset() -> None:
    assert check_overrides(["model.fp8_param=true"], recipe_config(), RELEASE).is_accepted
    assert (
        check_overrides(["mixed_precision=null", "model.fp8_param=true"], recipe_config(), RELEASE).is_accepted is False
    )
