"""An edit that the run could not start with is never in the plan: its rule is blocked, with the message."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from types import MappingProxyType

import pytest

from tests.advice.builders import case, effect, rule
from tests.advice.fake_predictor import change, names, plan_of, saving
from tests.bridge.releases import EACH_RELEASE
from three_walls.advice.answer_what_if import Validate
from three_walls.advice.finding import Outcome, PlannedEdit
from three_walls.advice.format.load_rules import cases_file, load_rule_base, rule_files
from three_walls.advice.format.rule import Edit
from three_walls.advice.judge import judge
from three_walls.advice.testing.rule_cases import load_cases
from three_walls.bridge.check_overrides import find_problems
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.plain_data import ConfigData
from three_walls.lib.resources import RULES_DIR
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig

pytestmark = pytest.mark.slow


def config(**values: ConfigData) -> RunConfig:
    return RunConfig(MappingProxyType({name: ConfigValue(value, "command line") for name, value in values.items()}))


def validator(known: RunConfig) -> Validate:
    return partial(find_problems, config=known)


OVERLAP = rule("overlap", edits=(Edit("overlap_moe_expert_parallel_comm", True),))
FUSION = rule("fusion", edits=(Edit("moe_permute_fusion", True),))
SAVING = saving(800, overlap_moe_expert_parallel_comm=200, moe_permute_fusion=100, relax=300)


def test_an_edit_that_breaks_a_constraint_is_blocked_and_the_rest_is_planned() -> None:
    refuse = validator(config(recompute_granularity="full"))
    findings, plan = plan_of([OVERLAP, FUSION], SAVING, validate=refuse)
    assert names(plan) == ["fusion"]
    blocked = findings["overlap"]
    assert blocked.outcome is Outcome.BLOCKED
    assert blocked.reason.startswith("disable full recomputation when enabling overlap_moe_expert_parallel_comm")
    assert [note.name for note in blocked.blocked_by] == ["ep_overlap_excludes_full_recompute"]


def test_the_same_edit_is_planned_where_the_constraint_holds_or_nobody_knows() -> None:
    for known in (config(recompute_granularity=None), config()):
        assert names(plan_of([OVERLAP, FUSION], SAVING, validate=validator(known))[1]) == ["overlap", "fusion"]


def test_an_edit_is_not_blamed_for_what_did_not_hold_before() -> None:
    broken_already = config(sequence_parallel=True, tensor_model_parallel_size=1)
    (step,) = plan_of([FUSION], SAVING, validate=validator(broken_already))[1]
    assert find_problems(step.edits, broken_already) == ()


def test_an_earlier_edit_makes_a_later_one_possible() -> None:
    relax = rule("relax", edits=(Edit("recompute_granularity", None),))
    relaxes = effect("recompute_granularity", case("config.recompute_granularity is None", change("relax")))
    refuse = validator(config(recompute_granularity="full"))
    assert names(plan_of([relax, OVERLAP], SAVING, None, relaxes, validate=refuse)[1]) == ["relax", "overlap"]


@cache
def recommended() -> Mapping[str, tuple[tuple[PlannedEdit, ...], RunConfig]]:
    """The edits that rules recommend in their cases, with the configuration, by the names of rule and case."""
    rules = {rule.id: rule for rule in load_rule_base(DEFINITIONS).rules}
    found = {}
    for path in rule_files(RULES_DIR):
        cases = load_cases(cases_file(path), definitions=DEFINITIONS)
        for written in cases.cases:
            facts = cases.facts_of(written)
            finding = judge(rules[cases.rule], facts)
            values = {
                name.removeprefix("config."): fact.value for name, fact in facts.facts.items() if "config." in name
            }
            if finding.outcome is Outcome.RECOMMENDED:
                found[f"{cases.rule}, {written.name}"] = finding.edits, config(**values)
    return found


@EACH_RELEASE
def test_every_edit_of_every_rule_passes_in_every_release_where_the_rule_recommends_it(release: str) -> None:
    assert len(recommended()) > 100
    for name, (edits, known) in recommended().items():
        found = find_problems(edits, known, release)
        assert found == (), f"{name}: {[note.text for note in found]}"
