"""A run in which nothing is wrong: no edit, and nothing that more inputs would change."""

from __future__ import annotations

from tests.advice.builders import MS, read, rule, run, sheet_of
from tests.advice.fake_predictor import WITHOUT_REPLAYS, plan_of, saving
from three_walls.advice.decide_verdict import decide_verdict
from three_walls.advice.finding import Outcome
from three_walls.advice.format.conditions import list_conditions
from three_walls.advice.format.load_rules import load_rule_base
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.plain_data import ConfigData
from three_walls.tables.buckets import SubWall

MEASURED: dict[str, ConfigData] = {
    "step_ns": 1000 * MS,
    "compute_busy_ns": 930 * MS,
    "compute_busy_fraction": 0.93,
    "ep_transfer_exposed_ns": 50 * MS,
    "ep_transfer_exposed_fraction": 0.04,
    "dp_exposed_ns": 20 * MS,
    "dp_exposed_fraction": 0.02,
    "launch_starved_ns": 0,
    "launch_starved_fraction": 0.0,
    "launch_starved_recoverable_ns": 0,
    "launch_starved_recoverable_fraction": 0.0,
    "host_blocked_ns": 0,
    "host_blocked_fraction": 0.0,
    "optimizer_launch_starved_fraction": 0.0,
    "permute_fraction": 0.02,
    "token_padding_ns": 0,
    "token_padding_fraction": 0.0,
    "attention_unfused_ns": 0,
    "attention_unfused_fraction": 0.0,
    "recompute_ns": 0,
    "memory_recoverable_ns": 0,
    "communication_recoverable_ns": 70 * MS,
    "compute_recoverable_ns": 0,
    "host_recoverable_ns": 0,
    "wait_exposed_fraction": 0.0,
    "ep_exposed_fraction": 0.05,
    "collective_exposed_fraction": 0.02,
    "overlap_slowdown_fraction": 0.0,
    "tp_exposed_fraction": 0.0,
    "ep_hidden_of_busy_fraction": 0.5,
    "dp_hidden_of_busy_fraction": 0.5,
    "synchronization_gain_fraction": 0.0,
    "costliest_synchronization": "aten::item",
    "straggler_late_fraction": 0.0,
    "straggler_late_recoverable_fraction": 0.0,
    "capture_start_skewed_steps_count": 0,
    "cuda_graph_fraction": 0.0,
    "unclassified_fraction": 0.0,
    "memory_pressure": "none",
    "allocator_calls_in_steps_count": 0,
    "offload_copy_exposed_fraction": 0.0,
}


def test_without_a_configuration_absent_symptoms_leave_nothing_unknown() -> None:
    rules = load_rule_base(DEFINITIONS).rules
    effects = load_rule_base(DEFINITIONS).effects
    found, plan = plan_of(rules, saving(), sheet_of(MEASURED), *effects)
    findings = found.values()
    of_symptoms = {
        rule.id
        for rule in rules
        if not rule.configured and any(condition.name in MEASURED for condition in list_conditions(rule.when))
    }
    assert {finding.outcome for finding in findings if finding.rule in of_symptoms} == {Outcome.NOT_NEEDED}
    # Rules without a measured symptom look for settings that contradict each other.
    assert {finding.outcome for finding in findings if finding.rule not in of_symptoms} <= {
        Outcome.NOT_NEEDED,
        Outcome.UNKNOWN,
    }
    assert plan == ()


def test_what_is_not_known_does_not_matter_where_the_gain_is_too_small_anyway() -> None:
    here = read("config.here == True")
    rules = [rule("tiny", share=0.049, applies_to=here), rule("big", applies_to=here)]
    for predictor in (WITHOUT_REPLAYS, saving(1000)):
        findings, _ = plan_of(rules, predictor, run())
        assert (findings["big"].outcome, findings["big"].missing) == (Outcome.UNKNOWN, ("config.here",))
        assert (findings["tiny"].outcome, findings["tiny"].missing) == (Outcome.NOT_NEEDED, ())
        assert findings["tiny"].reason == "The gain is at most 9.8 ms (threshold 10 ms)"


def test_a_lean_step_that_computes_is_held_back_by_computing() -> None:
    verdict = decide_verdict(sheet_of(MEASURED))
    assert (verdict.sub_wall, verdict.runner_up_wall) == (SubWall.COMPUTE, None)
    assert verdict.reason == (
        "The 1,000.0 ms traced step is mostly compute (93.0%), and no wall can save more than 70.0 ms (7.0%): only "
        "edits that change the work itself, such as its precision or the size of a micro-batch, may save more."
    )
