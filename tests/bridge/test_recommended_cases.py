"""Our checker on every rule's edits, on the whole recipe with the case's settings: little is unknown there."""

from __future__ import annotations

import pytest

from tests.bridge.builders import config
from tests.bridge.cases import RELEASE, not_runnable
from tests.bridge.recommended import recommended_cases
from tests.bridge.releases import EACH_RELEASE
from three_walls.bridge.check_overrides import check_overrides
from three_walls.bridge.constraints import judge_constraints
from three_walls.bridge.render_overrides import spell

pytestmark = pytest.mark.slow


@EACH_RELEASE
def test_what_a_rule_recommends_makes_a_valid_configuration_in_every_release(release: str) -> None:
    for case in recommended_cases():
        found = case.overrides(release)
        broken_before = {note.name for note in judge_constraints(case.config(), release)[0]}
        check = check_overrides(found.bridge, case.config(), release, dict(found.env))
        problems = [note for note in check.problems if note.name not in broken_before]
        assert not problems, f"{case.name}: {problems}"
        if release == RELEASE:
            assert check.is_valid is (case.name not in not_runnable()), f"{case.name}: {check.problems}"


@EACH_RELEASE
def test_an_edit_that_a_release_cannot_express_is_noted(release: str) -> None:
    for case in recommended_cases():
        for edit in case.edits:
            found = spell([edit], config(**case.values), release)
            notes = [note for note in found.notes if "Megatron-LM" not in note]
            assert found.bridge or found.python or found.env or notes, f"{case.name}: {edit.key} is lost"


def test_every_case_that_bridge_cannot_run_is_a_case() -> None:
    assert set(not_runnable()) <= {case.name for case in recommended_cases()}
    assert all(entry["message"] and entry["reason"] for entry in not_runnable().values())
