"""Each entry of the plan alone: what it sets, what it needs, and that it applies to the run as it is."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from tests.analyzed_samples import analyze_sample, reads_sample
from tests.bridge.builders import config, edit
from three_walls.advice.finding import Bounds, Finding, Gain, Outcome, PlannedEdit, PlanNote, PlanStep
from three_walls.bridge.check_overrides import find_problems
from three_walls.bridge.render_entries import spell_entries
from three_walls.bridge.render_overrides import NEWEST_BRIDGE, spell
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.tables.buckets import Wall

NO_GAIN = Gain(None, None, None, "none")
TRANSFORMER_ENGINE = edit("transformer_impl", "transformer_engine")
GROUPED = edit("moe_grouped_gemm", True)
ROPE = edit("apply_rope_fusion", True)


def finding(rule: str, *edits: PlannedEdit, outcome: Outcome = Outcome.RECOMMENDED, reason: str = "") -> Finding:
    return Finding(rule, rule, outcome, Wall.COMPUTE_HOST, None, rule, reason, (), (), (), edits, NO_GAIN)


def entry(order: int, rule: str, *edits: PlannedEdit, unlocked_by: str = "") -> PlanStep:
    """An entry with the edits that the plan has for it."""
    return PlanStep(order, rule, finding(rule, *edits), edits, NO_GAIN, Bounds(1, 1), unlocked_by)


def test_an_entry_alone_has_its_own_edits_and_no_others() -> None:
    plan = (entry(1, "experts", GROUPED), entry(2, "rope", ROPE))
    first, second = spell_entries(plan, [step.finding for step in plan], RunConfig(), NEWEST_BRIDGE)
    assert first.overrides == spell([GROUPED], RunConfig(), NEWEST_BRIDGE)
    assert second.overrides == spell([ROPE], RunConfig(), NEWEST_BRIDGE)
    assert second.overrides is not None
    assert second.overrides.bridge == ("model.apply_rope_fusion=true",)
    assert [(step.needs, step.differing_edits, step.no_overrides_reason) for step in (first, second)] == [
        ((), (), "")
    ] * 2


def test_an_entry_alone_also_sets_what_an_earlier_entry_sets_for_it_in_the_plan() -> None:
    plan = (entry(1, "experts", GROUPED, TRANSFORMER_ENGINE), entry(2, "rope", ROPE))
    findings = [plan[0].finding, finding("rope", ROPE, TRANSFORMER_ENGINE)]
    _, alone = spell_entries(plan, findings, RunConfig(), NEWEST_BRIDGE)
    assert alone.overrides is not None
    assert alone.overrides.bridge == ("model.apply_rope_fusion=true", "model.transformer_impl=transformer_engine")
    assert alone.overrides.megatron_lm == ("--transformer-impl transformer_engine",)
    assert alone.differing_edits == (TRANSFORMER_ENGINE,)
    assert alone.edits == (ROPE,)  # those of the plan stay as they were


def test_a_list_that_an_earlier_entry_extends_has_only_the_own_elements_alone() -> None:
    scope = partial(edit, "recompute_modules")
    plan = (entry(1, "first", scope(("moe",))), entry(2, "second", scope(("moe", "layernorm"))))
    findings = [plan[0].finding, finding("second", scope(("layernorm",)))]
    _, alone = spell_entries(plan, findings, RunConfig(), NEWEST_BRIDGE)
    assert alone.overrides is not None
    assert alone.overrides.bridge == ("model.recompute_modules=[layernorm]",)
    assert alone.differing_edits == (scope(("layernorm",)),)


def test_an_entry_that_an_earlier_one_unlocks_names_it_instead() -> None:
    plan = (
        entry(1, "key", GROUPED),
        entry(2, "middle", ROPE, unlocked_by="key"),
        entry(3, "last", unlocked_by="middle"),
    )
    plan = (*plan[:2], replace(plan[2], edits=(TRANSFORMER_ENGINE,)))
    blocked = partial(finding, outcome=Outcome.BLOCKED, reason="recompute_granularity is full")
    findings = [plan[0].finding, blocked("middle", ROPE), blocked("last", TRANSFORMER_ENGINE)]
    key, middle, last = spell_entries(plan, findings, RunConfig(), NEWEST_BRIDGE)
    assert key.overrides is not None
    assert (middle.overrides, middle.needs) == (None, ("key",))
    assert middle.no_overrides_reason == (
        "It needs entry 1 (key) to be applied with it. Alone: recompute_granularity is full"
    )
    assert (last.overrides, last.needs) == (None, ("key", "middle"))
    assert last.no_overrides_reason.startswith("It needs entry 1 (key) and entry 2 (middle) to be applied with it.")


def test_an_entry_that_the_release_refuses_alone_names_the_fewest_entries_that_it_needs() -> None:
    """Delayed weight gradients need the overlap of expert communication, which the second entry turns on."""
    run = config(num_moe_experts=8, expert_model_parallel_size=8, overlap_moe_expert_parallel_comm=False)
    overlap, delay = edit("overlap_moe_expert_parallel_comm", True), edit("delay_wgrad_compute", True)
    assert find_problems([delay], run, NEWEST_BRIDGE)
    assert not find_problems([overlap, delay], run, NEWEST_BRIDGE)
    plan = (entry(1, "rope", ROPE), entry(2, "overlap", overlap), entry(3, "delay", delay))
    *_, alone = spell_entries(plan, [step.finding for step in plan], run, NEWEST_BRIDGE)
    assert (alone.overrides, alone.needs) == (None, ("overlap",))
    assert alone.no_overrides_reason.startswith("It needs entry 2 (overlap) to be applied with it. Alone: ")


def test_an_entry_without_edits_has_no_overrides_and_says_so() -> None:
    plan = (entry(0, "late-rank"), entry(1, "rope", ROPE))
    culprit, other = spell_entries(plan, [step.finding for step in plan], RunConfig(), NEWEST_BRIDGE)
    assert (culprit.overrides, culprit.needs) == (None, ())
    assert culprit.no_overrides_reason == "It has no edits: no setting fixes it."
    assert other.overrides is not None


def test_what_the_plan_settles_by_an_earlier_entry_is_to_be_confirmed_alone() -> None:
    note = PlanNote("te", "Confirm that transformer_impl is transformer_engine (not recorded)")
    step = entry(1, "rope", GROUPED)
    alone = replace(step.finding, confirm_first=(note,))
    (asked,) = spell_entries((step,), [alone], RunConfig(), NEWEST_BRIDGE)
    assert asked.overrides is not None
    assert asked.overrides.notes == (f"Applied alone: {note.text}",)
    same = replace(step, finding=alone)
    (silent,) = spell_entries((same,), [alone], RunConfig(), NEWEST_BRIDGE)
    assert silent.overrides is not None
    assert silent.overrides.notes == ()


@pytest.mark.slow
@reads_sample("wide-nvlink-alltoall.sqlite")
def test_every_entry_of_a_real_run_applies_alone_or_names_what_it_needs() -> None:
    report = analyze_sample("wide-nvlink-alltoall.sqlite")
    rules = [step.rule for step in report.plan]
    for step in report.plan:
        if step.overrides is None:
            assert step.needs and set(step.needs) <= set(rules[: rules.index(step.rule)])
            continue
        alone = next(found for found in report.findings if found.rule == step.rule)
        assert find_problems(alone.edits, report.config) == ()
        assert spell(alone.edits, report.config, report.config.bridge_version).bridge == step.overrides.bridge
    assert report.plan[0].overrides is not None
    edits = [edited for step in report.plan for edited in step.edits]
    assert report.overrides == spell(edits, report.config, report.config.bridge_version)
