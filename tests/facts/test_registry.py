"""Definitions of facts, beside what measures them."""

from __future__ import annotations

import pytest

from three_walls.facts.registry import DEFINITION_BY_NAME, index_definitions
from three_walls.model.fact import FactGroup
from three_walls.model.glossary import GLOSSARY_BY_NAME


def test_a_name_that_is_defined_twice_is_refused() -> None:
    first, second = FactGroup("first"), FactGroup("second")
    first.duration("step_ns", "Length.")
    second.duration("step_ns", "Another length.")
    with pytest.raises(ValueError, match="step_ns is defined twice"):
        index_definitions([first, second])


def test_a_unit_that_nothing_can_format_is_refused() -> None:
    with pytest.raises(ValueError, match="parsecs is not a unit"):
        FactGroup("group").fact("distance", "parsecs", "How far.")


def test_a_share_of_the_step_is_declared_with_its_time() -> None:
    group = FactGroup("group")
    group.duration("gemm_ns", "GEMMs.", share="Fraction of the step in GEMMs.")
    time, fraction = group.definitions
    assert (fraction.name, fraction.numerator, fraction.denominator) == ("gemm_fraction", time.name, "step_ns")


@pytest.mark.parametrize("name", DEFINITION_BY_NAME)
def test_definitions_agree_with_the_glossary(name: str) -> None:
    defined, listed = DEFINITION_BY_NAME[name], GLOSSARY_BY_NAME[name]
    assert (defined.unit, defined.numerator, defined.denominator, defined.needs) == (
        listed.unit,
        listed.numerator,
        listed.denominator,
        listed.needs,
    )
