"""The plan by the shipped rules and effects: they unlock each other, and leave a healthy run alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

import pytest

from tests.advice.builders import MS, run, sheet_of
from tests.advice.fake_predictor import FakePredictor, names, plan_of
from three_walls.advice.answer_what_if import ReplayedRun, answer
from three_walls.advice.edits import fact_of
from three_walls.advice.finding import APPLICABILITIES, Finding, Outcome, PlanStep
from three_walls.advice.format.load_rules import load_rule_base
from three_walls.advice.judge import judge
from three_walls.advice.plan.make_plan import make_plan
from three_walls.advice.what_if import Question
from three_walls.facts.fact_rows import Prediction
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.plain_data import ConfigData
from three_walls.replay.transformation import Action, Transformation

RULES = load_rule_base(DEFINITIONS).rules
EFFECTS = load_rule_base(DEFINITIONS).effects


@dataclass
class EveryChange(FakePredictor):
    """Of a step of 1000 ms every change saves a time of its own, but work that is done again costs some."""

    seed: int = 0

    def predict(self, transformations: Sequence[Transformation]) -> Prediction:
        likely_ns = 1000 * MS - sum(self._saved_ns(change) for change in transformations)
        return Prediction(likely_ns - MS, likely_ns, likely_ns + MS)

    def predict_likely_ns(self, transformations: Sequence[Transformation]) -> int:
        return self.predict(transformations).likely_ns

    def _saved_ns(self, change: Transformation) -> int:
        saved_ns = Random(f"{self.seed} {change}").randrange(5 * MS, 40 * MS)
        return -saved_ns // 4 if change.action is Action.REPEAT else saved_ns

    def explain(self, transformation: Transformation) -> str:  # noqa: ARG002
        return ""


def every_change(seed: int = 0) -> EveryChange:
    return EveryChange(lambda _: 1000, seed=seed)


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
        "sufficient_recompute_modules": ("moe_act",),
        "gpu.family": "H100",
        "gpu.sm": "sm_90",
        "ep_spans_nodes": True,
        "num_microbatches": 8,
        "data_parallel_size": 16,
        "ep_internode_unique_copies_fraction": 0.25,
    }


@cache
def planned(seed: int = 0) -> tuple[dict[str, Finding], tuple[PlanStep, ...]]:
    return plan_of(RULES, every_change(seed), sheet_of(full_recompute_run()), *EFFECTS)


def test_the_shipped_rules_unlock_each_other() -> None:
    findings, steps = planned(seed=8)  # its random savings leave no entry below the threshold that another unlocks
    unlocked = {step.rule: step.unlocked_by for step in steps}
    assert unlocked["relax-full-recompute"] == ""
    assert unlocked["ep-overlap"] == "relax-full-recompute"
    assert set(unlocked["cuda-graph-moe-scopes"].split(", ")) == {"relax-full-recompute", "fused-attention"}
    assert unlocked["cuda-graph-attention"] == "cuda-graph-moe-scopes"
    assert findings["ep-overlap"].outcome is Outcome.BLOCKED
    assert findings["alltoall-to-hybridep"].outcome is Outcome.NOT_APPLICABLE
    order = names(steps)
    assert order.index("relax-full-recompute") < order.index("ep-overlap")


def test_a_healthy_run_gets_an_empty_plan() -> None:
    healthy = full_recompute_run() | {
        "config.recompute_granularity": None,
        "config.dataloader_type": "single",
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
        "ep_hidden_of_busy_fraction": 0.5,
        "dp_hidden_of_busy_fraction": 0.5,
        "fusions_are_configured": False,
        "foreach_optimizer_fraction": 0.0,
        "checkpoint_steps_count": 0,
        "casts_repeat": False,
        "config.use_megatron_fsdp": False,
        "config.optimizer_cpu_offload": False,
        "attention_choice_is_automatic": False,
        "flex_dispatcher_runs": False,
        "config.use_flash_attn": False,
        "synchronization_gain_fraction": 0.0,
        "costliest_synchronization": "aten::item",
        "data_loader_sets_pace": False,
        "host_pause_count": 0,
        "separate_weight_additions_count": 0,
        "experts_run_grouped": True,
        "loss_is_fused": True,
        "optimizer_runs_in_graph": True,
        "low_precision_not_seen": None,
        "attention_ns": 0,
        "optimizer_launch_starved_fraction": 0.0,
        "permute_fraction": 0.02,
        "token_padding_ns": 0,
        "token_padding_fraction": 0.0,
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
        "config.fp8_recipe": "blockwise",
        "config.fp4": None,
        "quantize_fraction": 0.02,
        "gemm_fraction": 0.45,
        "casts_to_fp8_gemms_ratio": 0.2,
        "config.bias_activation_fusion": True,
        "config.bias_swiglu_fusion": None,
        "config.bf16": True,
        "config.moe_router_dtype": "fp32",
        "gpu.sm": "sm_90",
        "nvlink_achieved_fraction": 0.7,
        "ep_transfer_spread_ratio": 1.05,
        "nccl_forced_settings": "none",
        "nccl_transport_disabled": False,
        "config.micro_batch_size": 1,
        "larger_micro_batch_size": 2,
        "memory_peak_fraction": 0.4,
        "memory_peak_larger_micro_batch_ratio": 0.7,
    }
    nothing_to_gain = FakePredictor(lambda _: 1000)
    findings, steps = plan_of(RULES, nothing_to_gain, sheet_of(healthy), *EFFECTS)
    assert steps == ()
    expected = (Outcome.NOT_NEEDED, Outcome.NOT_APPLICABLE)
    assert {name: found.reason for name, found in findings.items() if found.outcome not in expected} == {}


def test_the_order_of_the_rules_does_not_matter() -> None:
    facts = sheet_of(full_recompute_run())
    for seed in range(3):
        shuffled = Random(seed).sample(RULES, len(RULES))
        assert plan_of(shuffled, every_change(), facts, *EFFECTS) == planned()


@pytest.mark.parametrize("seed", range(6))
def test_recommended_findings_are_in_the_plan_or_say_why_not_and_each_lever_is_there_once(seed: int) -> None:
    findings, steps = planned(seed)
    parts = {step.with_rule for step in steps} - {""}
    recommended = {name for name, found in findings.items() if found.outcome is Outcome.RECOMMENDED}
    blocked = {name for name, found in findings.items() if found.outcome is Outcome.BLOCKED}
    assert set(names(steps)) <= recommended | blocked
    for name in recommended - set(names(steps)):
        assert findings[name].reason.startswith("What "), findings[name].reason
    continuing = {rule.id for rule in RULES if rule.continues in (*names(steps), *parts)}
    levers = [step.finding.lever for step in steps if step.rule not in continuing]
    assert len(levers) == len(set(levers))


@pytest.mark.parametrize("seed", range(6))
def test_the_settings_of_the_first_entries_give_the_step_after_them(seed: int) -> None:
    made = ReplayedRun(RULES, EFFECTS, sheet_of(full_recompute_run()), every_change(seed))
    _, steps = make_plan(made, APPLICABILITIES)
    settings: dict[str, ConfigData] = {}
    for step in steps:
        settings |= {fact_of(edit): edit.to for edit in step.edits}
        after = answer(Question(settings), made).after
        assert after is not None
        assert after.likely_ns == step.step_after_likely_ns


@pytest.mark.parametrize(
    ("name", "fact", "fits", "does_not", "text"),
    [
        ("context-parallel-exchange", "cp_within_nvlink_domain", False, True, "A ring crosses hosts"),
        ("allocator-in-steps", "config.moe_token_dispatcher_type", "flex", "alltoall", "Look whether these calls"),
    ],
)
def test_advice_for_some_runs_is_given_to_these_first_and_to_no_others(
    name: str, fact: str, fits: ConfigData, does_not: ConfigData, text: str
) -> None:
    found = next(rule for rule in RULES if rule.id == name)
    symptom: dict[str, ConfigData] = {
        "config.context_parallel_size": 16,
        "cp_exposed_fraction": 0.2,
        "allocator_calls_in_steps_count": 40,
    }
    assert judge(found, sheet_of({**symptom, fact: fits})).advice.startswith(text)
    assert text not in judge(found, sheet_of({**symptom, fact: does_not})).advice
    assert text in judge(found, sheet_of(symptom)).advice
