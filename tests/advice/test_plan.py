"""The plan: an order, gains that fit into the step, and reasons for what is left out."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.advice.builders import MS, frees_memory, requirement, rule, run, sheet_of, upper_bound
from three_walls.advice.finding import Finding, Outcome, PlanStep
from three_walls.advice.format.load_rules import load_rules
from three_walls.advice.format.rule import Edit, Rule
from three_walls.advice.plan.make_plan import make_plan
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.expressions import Condition
from three_walls.lib.plain_data import ConfigData
from three_walls.lib.resources import RULES_DIR
from three_walls.tables.buckets import SubWall, Wall

SHIPPED = load_rules(RULES_DIR, definitions=DEFINITIONS)

TRANSFER = "ep_transfer_exposed_ns"


def names(steps: tuple[PlanStep, ...]) -> list[str]:
    return [step.finding.rule for step in steps]


def outcome(findings: list[Finding], name: str) -> Outcome:
    return next(finding.outcome for finding in findings if finding.rule == name)


def test_the_largest_likely_gain_comes_first_then_the_better_founded_then_the_id() -> None:
    rules = [
        rule("small", likely=0.1, pool=TRANSFER),
        rule("b-bound", likely=0.5),
        rule("c-measured", pool="dp_exposed_ns", likely=1.0, basis="measured"),
        rule("a-bound", pool="attention_unfused_ns", likely=1.0),
        rule("unknown", pool="offload_copy_exposed_ns"),
    ]
    _, steps = make_plan(rules, run())
    assert names(steps) == ["c-measured", "a-bound", "b-bound", "small", "unknown"]
    assert [step.order for step in steps] == [1, 2, 3, 4, 5]


def test_two_rules_on_one_pool_share_it() -> None:
    first, second = rule("first", pool=TRANSFER, likely=0.8), rule("second", pool=TRANSFER, likely=0.5)
    findings, steps = make_plan([first, second], run())
    assert [finding.gain_ns.likely for finding in findings] == [120 * MS, 75 * MS]  # each alone
    assert [step.gain_ns.likely for step in steps] == [120 * MS, 15 * MS]  # the second on what is left
    assert steps[1].finding.gain_ns.likely == 75 * MS
    assert (steps[1].step_after_ns.low, steps[1].step_after_ns.high) == (850 * MS, 1000 * MS)


def test_a_log_changes_gains_and_not_the_order() -> None:
    """Launch-starved time is 200 ms as traced and 60 ms by the log, so the host edit gains less than the other one."""
    traced = run()
    logged = replace(traced.with_values({"launch_starved_ns": 60 * MS}), before_log={"launch_starved_ns": 200 * MS})
    symptom = (Condition("launch_starved_ns", ">=", 100 * MS),)
    rules = [rule("host", likely=0.5, when=symptom), rule("exchange", pool=TRANSFER, likely=0.4)]
    (_, without), (_, steps) = make_plan(rules, traced), make_plan(rules, logged)
    assert names(steps) == names(without) == ["host", "exchange"]
    assert [step.gain_ns.likely for step in without] == [100 * MS, 60 * MS]
    assert [(step.gain_ns.likely, step.profiler_ns) for step in steps] == [(30 * MS, 70 * MS), (60 * MS, 0)]
    assert steps[-1].step_after_ns.high == 1000 * MS


def test_an_entry_that_the_log_makes_too_small_is_left_out_with_what_the_log_takes() -> None:
    logged = replace(run().with_values({"launch_starved_ns": 4 * MS}), before_log={"launch_starved_ns": 200 * MS})
    rules = [rule("host", likely=0.5), rule("more-host", likely=0.4), rule("exchange", pool=TRANSFER, likely=0.4)]
    findings, steps = make_plan(rules, logged)
    assert names(steps) == ["exchange"]
    (dropped,) = [finding for finding in findings if finding.rule == "host"]
    assert dropped.outcome is Outcome.NOT_NEEDED
    assert "98 ms of a likely 100 ms in this trace are the profiler's" in dropped.reason
    assert dropped.gain_ns.likely == 2 * MS
    assert not dropped.near


def test_an_entry_that_the_log_makes_too_small_by_little_is_near() -> None:
    logged = replace(run().with_values({"launch_starved_ns": 19 * MS}), before_log={"launch_starved_ns": 200 * MS})
    (finding,), steps = make_plan([rule("host", likely=0.5)], logged)
    assert (steps, finding.outcome) == ((), Outcome.NOT_NEEDED)
    assert finding.near == finding.reason
    assert finding.near.endswith("The likely gain is 9.5 ms (threshold 10 ms)")


def test_an_edit_that_earlier_entries_leave_just_below_its_threshold_stays_in() -> None:
    """Of 20% launch-starved time, 9% is left where the rule asks for 10%, and half of it is worth an entry."""
    symptom = Condition("launch_starved_fraction", ">=", 0.1)
    first = rule("first", likely=0.55)
    second = rule("second", likely=0.5, when=(symptom,))
    _, steps = make_plan([first, second], run())
    assert names(steps) == ["first", "second"]
    assert steps[1].gain_ns.likely == 45 * MS


def test_upper_bounds_come_after_likely_gains_the_largest_first_and_before_unknown_gains() -> None:
    rules = [
        upper_bound("a-small", pool="dp_exposed_ns"),  # 100 ms
        upper_bound("b-large"),  # 200 ms
        upper_bound("c-like-a", pool="attention_unfused_ns"),
        rule("likely", pool=TRANSFER, likely=0.1),  # 15 ms
        rule("unknown", pool="offload_copy_exposed_ns"),
    ]
    _, steps = make_plan(rules, run())
    assert names(steps) == ["likely", "b-large", "a-small", "c-like-a", "unknown"]


def test_an_upper_bound_takes_nothing_that_a_later_edit_may_win() -> None:
    _, steps = make_plan([upper_bound("first", pool=TRANSFER), upper_bound("second", pool=TRANSFER, high=0.5)], run())
    assert [(step.gain_ns.low, step.gain_ns.likely, step.gain_ns.high) for step in steps] == [
        (0, None, 150 * MS),
        (0, None, 75 * MS),
    ]
    assert [(step.step_after_ns.low, step.step_after_ns.high) for step in steps] == [(850 * MS, 1000 * MS)] * 2


def test_of_upper_bounds_of_the_same_time_the_first_comes_before_those_of_other_time() -> None:
    rules = [
        upper_bound("a", pool=TRANSFER, high=0.9),
        upper_bound("b", pool=TRANSFER),
        upper_bound("other", pool="dp_exposed_ns"),
    ]
    _, steps = make_plan(rules, run())
    assert [(step.finding.rule, step.gain_ns.high) for step in steps] == [
        ("b", 150 * MS),
        ("other", 100 * MS),
        ("a", 135 * MS),
    ]
    same = "Earlier entries may save part of the same time. "
    assert [step.gain_ns.explanation.startswith(same) for step in steps] == [False, False, True]


def test_of_equal_upper_bounds_the_one_with_least_to_do_comes_first() -> None:
    many = upper_bound("a-many", edits=(Edit("one", True), Edit("two", True)))
    unsure = upper_bound("b-unsure", requires=(requirement("installed", confirm="the package imports"),))
    _, steps = make_plan([many, unsure, upper_bound("c-plain")], run())
    assert names(steps) == ["c-plain", "a-many", "b-unsure"]


def test_an_upper_bound_is_computed_again_on_what_likely_gains_leave() -> None:
    findings, steps = make_plan([rule("likely", pool=TRANSFER, likely=0.8), upper_bound("most", pool=TRANSFER)], run())
    assert [finding.gain_ns.high for finding in findings] == [150 * MS, 150 * MS]  # each alone
    assert [step.gain_ns.high for step in steps] == [150 * MS, 30 * MS]


def test_an_upper_bound_too_small_to_measure_is_not_needed() -> None:
    findings, steps = make_plan([upper_bound("tiny", high=0.049)], run())
    assert (steps, outcome(findings, "tiny")) == ((), Outcome.NOT_NEEDED)
    assert findings[0].reason == "The gain is at most 9.8 ms (threshold 10 ms)"
    assert len(make_plan([upper_bound("enough", high=0.05)], run())[1]) == 1


def test_an_upper_bound_of_which_the_earlier_edits_leave_too_little_stays_out() -> None:
    findings, steps = make_plan([rule("likely", pool=TRANSFER, likely=0.96), upper_bound("rest", pool=TRANSFER)], run())
    assert names(steps) == ["likely"]
    assert outcome(findings, "rest") is Outcome.ALTERNATIVE
    assert findings[1].reason == (
        "The earlier edits leave too little to gain. The gain is at most 6 ms (threshold 10 ms)"
    )


def test_upper_bounds_together_are_no_more_than_the_step() -> None:
    rules = [upper_bound(name, pool="step_ns", high=0.45) for name in "abcd"]
    findings, steps = make_plan(rules, run())
    assert [step.gain_ns.high for step in steps] == [450 * MS, 450 * MS, 100 * MS]
    assert "Limited to the time that the high gains of the earlier entries leave." in steps[2].gain_ns.explanation
    assert findings[3].reason == (
        "The earlier entries may already save the remaining time, so profile again after them. "
        "The gain is at most 0 ms (threshold 10 ms)"
    )


def test_one_edit_per_lever() -> None:
    better, other = rule("better", lever="dispatcher", likely=0.9), rule("other", lever="dispatcher", likely=0.5)
    findings, steps = make_plan([better, other], run())
    assert names(steps) == ["better"]
    assert outcome(findings, "other") is Outcome.ALTERNATIVE
    assert findings[1].reason == "better changes the same settings (dispatcher) and ranks higher"


def test_a_blocked_rule_enters_after_the_one_that_unlocks_it() -> None:
    no_full = requirement("no_full", Condition("config.recompute", "!=", "full"))
    locked = rule("locked", pool=TRANSFER, likely=1.0, requires=(no_full,))
    key = rule("key", likely=0.2, edits=(Edit("recompute", None),))
    findings, steps = make_plan([locked, key], run(config__recompute="full"))
    assert outcome(findings, "locked") is Outcome.BLOCKED
    assert [(step.finding.rule, step.unlocked_by) for step in steps] == [("key", ""), ("locked", "key")]
    assert steps[1].finding.outcome is Outcome.RECOMMENDED


def test_a_rule_whose_symptom_an_earlier_edit_removed_stays_out() -> None:
    symptom = Condition("ep_transfer_exposed_fraction", ">=", 0.1)
    cure = rule("cure", pool=TRANSFER, likely=0.9)
    late = rule("late", pool=TRANSFER, likely=0.5, when=(symptom,))
    findings, steps = make_plan([cure, late], run())
    assert names(steps) == ["cure"]
    assert outcome(findings, "late") is Outcome.ALTERNATIVE
    assert findings[1].reason == (
        "After cure, the rule is not needed: Exposed expert-parallel transfer takes 1.73% of the step (threshold 10%)"
    )


def test_edits_that_contradict_the_plan_stay_out() -> None:
    one = rule("one", likely=0.9, edits=(Edit("queues", "32"),))
    other = rule("other", pool=TRANSFER, likely=0.9, edits=(Edit("queues", "1"),))
    findings, steps = make_plan([one, other], run())
    assert names(steps) == ["one"]
    assert findings[1].reason == "one already sets queues to another value"


def test_edits_that_break_what_the_plan_requires_stay_out() -> None:
    needs = requirement("no_graphs", Condition("config.graphs", "!=", True))
    one = rule("one", likely=0.9, requires=(needs,))
    other = rule("other", pool=TRANSFER, likely=0.9, edits=(Edit("graphs", True),))
    findings, steps = make_plan([one, other], run(config__graphs=False))
    assert names(steps) == ["one"]
    assert findings[1].reason == "Its edits break a requirement of one: no_graphs"


def test_a_gain_too_small_to_measure_is_not_needed() -> None:
    findings, steps = make_plan([rule("tiny", likely=0.049)], run())
    assert (steps, outcome(findings, "tiny")) == ((), Outcome.NOT_NEEDED)
    assert findings[0].reason == "The likely gain is 9.8 ms (threshold 10 ms)"
    assert len(make_plan([rule("enough", likely=0.05)], run())[1]) == 1


def test_without_a_step_there_is_no_plan() -> None:
    findings, steps = make_plan([rule("r")], sheet_of({"launch_starved_ns": 100}))
    assert (steps, outcome(findings, "r")) == ((), Outcome.RECOMMENDED)


def test_an_empty_rule_base_gives_an_empty_plan() -> None:
    assert make_plan([], run()) == ([], ())


def full_recompute_run() -> dict[str, ConfigData]:
    """A run on two nodes that every shipped rule for Hopper has something to say about."""
    facts: dict[str, ConfigData] = {fact.name: fact.value for fact in run().facts.values()}
    settings: dict[str, ConfigData] = {
        "num_moe_experts": 64,
        "expert_model_parallel_size": 16,
        "tensor_model_parallel_size": 1,
        "context_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "virtual_pipeline_model_parallel_size": None,
        "moe_token_dispatcher_type": "alltoall",
        "moe_pad_expert_input_to_capacity": False,
        "moe_expert_capacity_factor": None,
        "moe_shared_expert_overlap": False,
        "moe_grouped_gemm": True,
        "moe_router_dtype": None,
        "moe_router_padding_for_quantization": False,
        "overlap_moe_expert_parallel_comm": False,
        "bf16": True,
        "fp16": False,
        "fp8": None,
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
        "recompute_modules": None,
        "mtp_num_layers": None,
        "cuda_graph_impl": "none",
        "cuda_graph_scope": (),
        "transformer_impl": "local",
        "attention_backend": "auto",
        "cpu_offloading": False,
        "use_distributed_optimizer": True,
        "optimizer": "adam",
        "overlap_grad_reduce": False,
        "overlap_param_gather": False,
    }
    return {
        **facts,
        **{f"config.{key}": value for key, value in settings.items()},
        "env.CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "attention_fell_back": False,
        "gpu.family": "H100",
        "gpu.sm": "sm_90",
        "ep_spans_nodes": True,
        "num_microbatches": 8,
        "data_parallel_size": 16,
        "ep_internode_unique_copies_fraction": 0.25,
    }


def test_the_shipped_rules_unlock_each_other() -> None:
    findings, steps = make_plan(SHIPPED, sheet_of(full_recompute_run()))
    unlocked = {step.finding.rule: step.unlocked_by for step in steps}
    assert unlocked["relax-full-recompute"] == ""
    assert unlocked["ep-overlap"] == "relax-full-recompute"
    assert set(unlocked["cuda-graph-moe-scopes"].split(", ")) == {"relax-full-recompute", "fused-attention"}
    assert outcome(findings, "ep-overlap") is Outcome.BLOCKED
    assert outcome(findings, "alltoall-to-hybridep") is Outcome.NOT_APPLICABLE
    order = names(steps)
    assert order.index("relax-full-recompute") < order.index("ep-overlap")


def test_a_healthy_run_gets_an_empty_plan() -> None:
    healthy = full_recompute_run() | {
        "config.recompute_granularity": None,
        "ep_transfer_exposed_fraction": 0.03,
        "dp_exposed_fraction": 0.02,
        "launch_starved_recoverable_fraction": 0.03,
        "launch_starved_recoverable_ns": 30 * MS,
        "num_microbatches": 8,
        "attention_unfused_fraction": 0.0,
        "ep_exposed_fraction": 0.04,
        "collective_exposed_fraction": 0.02,
        "overlap_slowdown_fraction": 0.0,
        "tp_exposed_fraction": 0.0,
        "straggler_late_fraction": 0.0,
        "straggler_late_recoverable_fraction": 0.0,
        "expert_tokens_largest_ratio": 1.05,
        "pass_tokens_largest_ratio": 1.01,
        "received_tokens_rank_ratio": 1.01,
        "capture_start_skewed_steps_count": 0,
        "flex_backend_is_chosen": False,
        "pageable_copy_exposed_fraction": 0.0,
        "offloads_to_host": False,
        "is_megatron_training": True,
        "log_unavailable_dispatchers": None,
        "memory_pressure": "none",
        "allocator_calls_in_steps_count": 0,
        "offload_copy_exposed_fraction": 0.0,
        "host_blocked_fraction": 0.0,
        "optimizer_launch_starved_fraction": 0.0,
        "permute_fraction": 0.02,
        "rope_fraction": 0.004,
        "loss_fraction": 0.005,
        "wgrad_accumulation_fraction": 0.005,
        "router_topk_fraction": 0.002,
        "bias_dropout_add_fraction": 0.003,
        "expert_gemm_efficiency_fraction": 0.7,
        "unprofiled_step_spread_ratio": 1.02,
        "expert_shapes_are_static": False,
        "env.CUDA_LAUNCH_BLOCKING": None,
        "config.deterministic_mode": False,
        "config.timing_log_level": 0,
        "config.fp8": "hybrid",
        "config.bf16": True,
        "config.moe_router_dtype": "fp32",
        "gpu.sm": "sm_90",
        "nvlink_achieved_fraction": 0.7,
        "ep_transfer_spread_ratio": 1.05,
        "nccl_forced_settings": "none",
        "nccl_transport_disabled": False,
    }
    findings, steps = make_plan(SHIPPED, sheet_of(healthy))
    assert steps == ()
    assert {finding.outcome for finding in findings} == {Outcome.NOT_NEEDED, Outcome.NOT_APPLICABLE}


def test_the_order_of_the_rules_does_not_matter() -> None:
    facts = sheet_of(full_recompute_run())
    expected = make_plan(SHIPPED, facts)
    for seed in range(10):
        shuffled = list(SHIPPED)
        random.Random(seed).shuffle(shuffled)
        assert make_plan(shuffled, facts) == expected


def test_recommended_findings_are_in_the_plan_and_each_lever_once() -> None:
    findings, steps = make_plan(SHIPPED, sheet_of(full_recompute_run()))
    recommended = {finding.rule for finding in findings if finding.outcome is Outcome.RECOMMENDED}
    blocked = {finding.rule for finding in findings if finding.outcome is Outcome.BLOCKED}
    assert recommended <= set(names(steps)) <= recommended | blocked
    continuing = {rule.id for rule in SHIPPED if rule.continues in names(steps)}
    levers = [step.finding.lever for step in steps if step.rule not in continuing]
    assert len(levers) == len(set(levers))


POOLS = ("launch_starved_ns", TRANSFER, "dp_exposed_ns", "attention_unfused_ns", "step_ns")
shares = st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)).map(sorted)


@st.composite
def random_rules(draw: st.DrawFn) -> list[Rule]:
    made = []
    for index in range(draw(st.integers(0, 6))):
        low, likely, high = draw(shares)
        is_upper_bound = draw(st.booleans())
        made.append(
            rule(
                f"r{index}",
                pool=draw(st.sampled_from(POOLS)),
                low=0.0 if is_upper_bound else low,
                likely=None if is_upper_bound else likely,
                high=high,
                basis="upper_bound" if is_upper_bound else "range",
                lever=draw(st.sampled_from(["", "shared"])),
                shrinks_all_pools=draw(st.booleans()),
                hidden_under=draw(st.sampled_from(["", "compute_busy_ns"])),
            )
        )
    return made


@given(random_rules())
def test_gains_never_add_up_past_the_step(rules: list[Rule]) -> None:
    _, steps = make_plan(rules, run())
    step_ns = 1000 * MS
    assert sum(step.gain_ns.high or 0 for step in steps) <= step_ns
    low, high = step_ns, step_ns
    for step in steps:
        assert step.gain_ns.low is not None
        assert step.gain_ns.high is not None
        likely = step.gain_ns.low if step.gain_ns.likely is None else step.gain_ns.likely
        assert step.gain_ns.low <= likely <= step.gain_ns.high
        assert 0 <= step.step_after_ns.low <= step.step_after_ns.high <= step_ns
        assert step.step_after_ns.low <= low
        assert step.step_after_ns.high <= high
        low, high = step.step_after_ns.low, step.step_after_ns.high


def test_what_makes_the_run_fit_comes_before_any_gain() -> None:
    _, steps = make_plan([rule("gains", likely=1.0), frees_memory("z-fits", 0.02)], run())
    assert names(steps) == ["z-fits", "gains"]
    assert (steps[0].gain_ns.likely, steps[0].gain_ns.basis, steps[0].gain_ns.cost_fraction) == (
        None,
        "frees_memory",
        0.02,
    )


@pytest.mark.parametrize("pressure", ["allocator_retries", "near_limit", "fragmented"])
def test_where_the_run_fits_what_frees_memory_comes_after_the_gains(pressure: str) -> None:
    rules = [rule("gains", likely=1.0), frees_memory("a-frees", 0.02)]
    _, steps = make_plan(rules, run(memory_pressure=pressure))
    assert names(steps) == ["gains", "a-frees"]
    _, steps = make_plan(rules, run(memory_pressure="out_of_memory"))
    assert names(steps) == ["a-frees", "gains"]


def test_of_comparable_gains_the_wall_of_the_verdict_goes_first() -> None:
    host = replace(rule("host", likely=0.5), wall=Wall.COMPUTE_HOST, sub_wall=SubWall.HOST)  # 100 ms
    comparable = rule("comparable", pool=TRANSFER, likely=0.4)  # 60 ms; communication has most to give back
    small = rule("small", pool=TRANSFER, likely=0.3)  # 45 ms
    walls = {"memory_recoverable_ns": 0, "compute_recoverable_ns": 0, "host_recoverable_ns": 200 * MS}
    facts = run(**walls, communication_recoverable_ns=250 * MS, compute_busy_fraction=0.5)
    assert names(make_plan([host, comparable], facts)[1]) == ["comparable", "host"]
    assert names(make_plan([host, small], facts)[1]) == ["host", "small"]


def test_edits_that_change_convergence_are_planned_only_when_allowed() -> None:
    precise = replace(rule("fp8"), applicability="convergence-changing")
    findings, steps = make_plan([precise], run())
    assert steps == ()
    assert outcome(findings, "fp8") is Outcome.ALTERNATIVE
    assert findings[0].reason.startswith("The rule is convergence-changing, so it needs --allow convergence-changing")
    assert names(make_plan([precise], run(), allowed=["convergence-changing"])[1]) == ["fp8"]


def test_a_later_edit_may_build_on_an_earlier_list() -> None:
    scopes = ("moe_router", "moe_preprocess")
    first = rule("first", likely=0.5, edits=(Edit("cuda_graph_scope", scopes),))
    wider = rule("wider", likely=0.2, edits=(Edit("cuda_graph_scope", add=("attn",)),))
    _, steps = make_plan([first, wider], run(config__cuda_graph_scope=None))
    assert [step.edits[0].to for step in steps] == [scopes, (*scopes, "attn")]


def test_of_edits_that_cost_time_the_cheapest_makes_the_run_fit_first() -> None:
    _, plan = make_plan([frees_memory("a-dear", 0.2), frees_memory("b-cheap", 0.02)], run())
    assert names(plan) == ["b-cheap", "a-dear"]


def test_with_a_log_the_steps_after_the_entries_are_those_of_the_unprofiled_step() -> None:
    """The gains are less what the profiler added, so the step shrinks from the log's by as much."""
    traced = make_plan([rule("a")], run())[1]
    logged = make_plan([rule("a")], run(unprofiled_step_ns=700 * MS))[1]
    assert [step.gain_ns for step in logged] == [step.gain_ns for step in traced]
    assert logged[0].step_after_ns.high == traced[0].step_after_ns.high - 300 * MS
    assert logged[0].step_after_ns.low == traced[0].step_after_ns.low - 300 * MS
