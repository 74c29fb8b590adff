"""Our checker on every rule's edits, on the whole recipe with the case's settings: little is left unknown there."""

from __future__ import annotations

import pytest

from tests.bridge.cases import not_runnable
from tests.bridge.recommended import recommended_cases
from tests.rules.test_sound_plan import config
from three_walls.overrides.check import check_overrides
from three_walls.overrides.spell import spell
from three_walls.tables.bridge import known_releases


@pytest.mark.parametrize("release", known_releases())
def test_what_a_rule_recommends_makes_a_valid_configuration_in_every_release(release: str) -> None:
    for case in recommended_cases():
        found = case.overrides(release)
        check = check_overrides(found.bridge, case.settings(), release, dict(found.env))
        assert check.is_sound is (case.name not in not_runnable()), f"{case.name}: {check.problems}"


@pytest.mark.parametrize("release", known_releases())
def test_an_edit_that_a_release_cannot_say_is_noted(release: str) -> None:
    for case in recommended_cases():
        for edit in case.edits:
            found = spell([edit], config(**case.values), release)
            said = (*found.bridge, *found.python, *found.env, *(one for one in found.notes if "Megatron-LM" not in one))
            assert said, f"{case.name}: nothing is said of {edit.key}"


def test_cases_that_cannot_be_asked_about_are_cases() -> None:
    assert set(not_runnable()) <= {case.name for case in recommended_cases()}
    assert all(one["says"] and one["reason"] for one in not_runnable().values())
