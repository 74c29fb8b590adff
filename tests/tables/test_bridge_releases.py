"""The keys that identify a Megatron-Bridge release, compared with the schemas of the releases."""

from __future__ import annotations

from itertools import pairwise

import pytest

from three_walls.tables.bridge_releases import bridge_releases, bridge_schema, known_releases
from three_walls.tables.config_keys import config_keys

SCHEMAS = {"0.3": "0.3.1", "0.4": "0.4.2", "0.5": "0.5.1", "0.6": "0.6.2", "main": "main"}


def has(release: str, path: str) -> bool:
    schema = bridge_schema(SCHEMAS[release])
    return path in schema.sections or schema.find(path) is not None


@pytest.mark.parametrize(("older", "newer"), list(pairwise(SCHEMAS)))
def test_a_key_came_with_the_first_release_that_has_it(older: str, newer: str) -> None:
    (release,) = [release for release in bridge_releases() if release.name == newer]
    assert release.came_with
    assert [path for path in release.came_with if not has(newer, path) or has(older, path)] == []


@pytest.mark.parametrize(("older", "newer"), list(pairwise(SCHEMAS)))
def test_a_key_went_after_the_last_release_that_has_it(older: str, newer: str) -> None:
    (release,) = [release for release in bridge_releases() if release.name == older]
    assert [path for path in release.last_with if not has(older, path) or has(newer, path)] == []


def test_every_release_has_a_schema() -> None:
    assert [release.name for release in bridge_releases()] == list(SCHEMAS)


def test_the_key_lists_the_precision_recipes_of_all_releases() -> None:
    recipes = {name for release in known_releases() for name in bridge_schema(release).precision_recipes}
    assert {*config_keys().keys["mixed_precision"].values} == {"MixedPrecisionConfig", *recipes}
