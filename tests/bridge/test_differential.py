"""Seeded overrides through four releases of Megatron-Bridge and through our checker: ``make test-bridge``.

``THREE_WALLS_BRIDGE_SEED`` and ``THREE_WALLS_BRIDGE_CASES`` choose other cases than the default ones.
"""

from __future__ import annotations

import os
import sys

import pytest

from tests.bridge.differential import GENERATORS, compare, describe
from tests.bridge.releases import BRIDGES, EVERY_RELEASE

SEED = int(os.environ.get("THREE_WALLS_BRIDGE_SEED", "1"))
CASES = int(os.environ.get("THREE_WALLS_BRIDGE_CASES", "1000"))


EVERY_GENERATOR = pytest.mark.parametrize("generator", sorted(GENERATORS))


@EVERY_RELEASE
@EVERY_GENERATOR
def test_the_checker_catches_what_bridge_refuses_and_refuses_little_else(release: str, generator: str) -> None:
    agreement = compare(BRIDGES[release], generator, SEED, CASES)
    table = describe([agreement], f"{generator}, seed {SEED}", shown=3)
    sys.stdout.write(f"{table}\n")  # pytest -s shows it
    assert agreement.caught_fraction >= 0.99, table
    assert agreement.wrongly_refused_fraction < 0.005, table


@EVERY_GENERATOR
def test_a_seed_names_the_cases(generator: str) -> None:
    make = GENERATORS[generator]
    assert make("0.6.2", 1, 50, 3) == make("0.6.2", 1, 50, 3)
    assert make("0.6.2", 1, 50, 3) != make("0.6.2", 2, 50, 3)


def test_a_third_of_the_sessions_lack_one_line() -> None:
    kinds = [case.kind for case in GENERATORS["sessions"]("0.6.2", 1, 600, 3)]
    assert 0.28 < kinds.count("one line less") / len(kinds) < 0.39


def test_flips_meet_settings_that_no_constraint_compares() -> None:
    flips = GENERATORS["flips"]("0.6.2", 1, 600, 3)
    compared, others = (
        {word.partition("=")[0] for case in flips if case.kind == kind for word in case.overrides}
        for kind in ("compared", "any other")
    )
    assert len(compared) > 150
    assert len(others) > 150
    assert not compared & others
