"""Definitions of facts, beside what measures them."""

from __future__ import annotations

import pytest

from three_walls.facts.measure import make_sheet
from three_walls.facts.registry import DEFINITION_BY_NAME, index_definitions
from three_walls.model.config import RunConfig
from three_walls.model.fact import FactGroup, known
from three_walls.model.glossary import GLOSSARY


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


POOLS = {name: each.pool for name, each in DEFINITION_BY_NAME.items() if each.pool is not None}


def test_definitions_agree_with_the_glossary() -> None:
    assert tuple(DEFINITION_BY_NAME.values()) == GLOSSARY


@pytest.mark.parametrize("pool", POOLS)
def test_what_a_pool_is_part_of_are_times_and_contain_what_their_parts_are_part_of(pool: str) -> None:
    parents = POOLS[pool].part_of
    assert pool not in parents
    for name in parents:
        assert DEFINITION_BY_NAME[name].unit == "ns"
        if name in POOLS:
            assert set(POOLS[name].part_of) <= {pool, *parents}, name


@pytest.mark.parametrize("name", DEFINITION_BY_NAME)
def test_a_fraction_is_of_defined_facts(name: str) -> None:
    each = DEFINITION_BY_NAME[name]
    assert {each.numerator, each.denominator} <= {"", *DEFINITION_BY_NAME}
    assert bool(each.numerator) == bool(each.denominator)


def test_a_measurement_without_a_listed_definition_is_refused() -> None:
    unlisted = FactGroup("group").duration("unlisted_ns", "A time that no report lists.")
    with pytest.raises(ValueError, match="unlisted_ns"):
        make_sheet({unlisted: known(1)}, RunConfig())
