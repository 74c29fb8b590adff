"""Seeded overrides through four releases of Megatron-Bridge and through our checker: ``make test-bridge``.

``THREE_WALLS_BRIDGE_SEED`` and ``THREE_WALLS_BRIDGE_CASES`` choose other cases than the default ones.
"""

from __future__ import annotations

import os
import sys

from tests.bridge.differential import compare, describe
from tests.bridge.override_cases import make_cases
from tests.bridge.releases import BRIDGES, EVERY_RELEASE

SEED = int(os.environ.get("THREE_WALLS_BRIDGE_SEED", "1"))
CASES = int(os.environ.get("THREE_WALLS_BRIDGE_CASES", "1000"))


@EVERY_RELEASE
def test_the_checker_catches_what_bridge_refuses_and_refuses_little_else(release: str) -> None:
    agreement = compare(BRIDGES[release], SEED, CASES)
    table = describe([agreement], SEED, shown=3)
    sys.stdout.write(f"{table}\n")  # pytest -s shows it
    assert agreement.caught_fraction >= 0.97, table
    assert agreement.wrongly_refused_fraction < 0.01, table


def test_a_seed_names_the_cases() -> None:
    assert make_cases("0.6.2", 1, 50, 3) == make_cases("0.6.2", 1, 50, 3)
    assert make_cases("0.6.2", 1, 50, 3) != make_cases("0.6.2", 2, 50, 3)
