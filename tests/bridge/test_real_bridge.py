"""The same cases, and the edits of every rule, through Megatron-Bridge itself: ``make test-bridge``."""

from __future__ import annotations

import os
from typing import Any

import pytest
import yaml

from tests.advice.test_sound_plan import config
from tests.bridge.cases import CASES, HERE, PLATFORM, RECIPE, RELEASE
from three_walls.advice.dialects import spell
from three_walls.advice.judge import judge
from three_walls.advice.rulebase import cases_file, load_cases, load_rules, rule_files
from three_walls.resources import RULES_DIR
from three_walls.verification.real_bridge import ask_bridge
from three_walls.vocabulary.findings import Outcome

PYTHON = os.environ.get("THREE_WALLS_BRIDGE_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="make test-bridge builds the interpreter that this needs")

FLAT = (
    "model.tensor_model_parallel_size=1", "model.pipeline_model_parallel_size=1", "model.sequence_parallel=false",
    "model.expert_model_parallel_size=8", "model.moe_token_dispatcher_type=alltoall",
)  # fmt: skip
"""The recipe on 8 GPUs without pipeline and tensor parallelism, as in the rules' workloads."""
NO_RECOMPUTE = ("model.recompute_granularity=null", "model.recompute_method=null", "model.recompute_num_layers=null")


def ask(*cases: dict[str, Any]) -> list[dict[str, Any]]:
    request = {
        "gpu_name": PLATFORM["gpu_name"],
        "transformer_engine": "2.12.0",
        "world_size": PLATFORM["world_size"],
        "models": str(HERE / "models"),
        "cases": [{"recipe": RECIPE, **case} for case in cases],
    }
    answer = ask_bridge(PYTHON, request)
    assert answer["bridge"] == RELEASE
    results: list[dict[str, Any]] = answer["results"]
    return results


def test_bridge_does_with_every_case_what_the_case_says() -> None:
    results = ask(*({"overrides": list(case.overrides), "prepare": list(case.prepare)} for case in CASES))
    for case, result in zip(CASES, results, strict=True):
        assert (result["applied"] and result["validated"]) is case.passes, f"{case.name}: {result['message']}"
        assert case.says in result["message"], case.name


def test_the_recorded_recipe_is_the_real_one() -> None:
    recorded = yaml.safe_load((HERE / f"qwen3-30b-a3b-{RELEASE}.yaml").read_text(encoding="utf-8"))
    dump = ask({"dump": True})[0]["dump"]
    assert {path: dump[path] for path in recorded} == recorded


def test_the_edits_of_every_rule_apply_and_validate_as_overrides_and_as_python() -> None:
    rules = {one.id: one for one in load_rules(RULES_DIR)}
    names, cases, as_python = [], [], []
    for path in rule_files(RULES_DIR):
        found = load_cases(cases_file(path))
        for case in found.cases:
            facts = found.facts_of(case)
            finding = judge(rules[found.rule], facts)
            if finding.outcome is not Outcome.RECOMMENDED:
                continue
            values = {name[7:]: fact.value for name, fact in facts.facts.items() if name.startswith("config.")}
            overrides = spell(finding.edits, config(**values), RELEASE)
            is_recomputing = values.get("recompute_granularity") == "full"
            before = [*FLAT, *(() if is_recomputing else NO_RECOMPUTE)]
            shown = [one.lstrip("+").partition("=")[0] for one in overrides.bridge if "_target_" not in one]
            shared = {"environment": dict(overrides.env), "show": shown}
            names.append(f"{found.rule}: {case.name}")
            cases.append({"overrides": [*before, *overrides.bridge], **shared})
            as_python.append({"overrides": before, "python": list(overrides.python), **shared})
    results, same = ask(*cases), ask(*as_python)
    assert len(names) > 20
    for name, result, other in zip(names, results, same, strict=True):
        assert result["applied"] and result["validated"], f"{name}: {result['message']}"
        assert other["applied"] and other["validated"], f"{name} in Python: {other['message']}"
        assert result["values"] == other["values"], name


def test_a_field_of_a_named_precision_can_be_set_in_python_alone() -> None:
    lines = [
        "from megatron.bridge.training.mixed_precision import get_mixed_precision_config",
        "cfg.mixed_precision = get_mixed_precision_config(cfg.mixed_precision)",
        "cfg.mixed_precision.grad_reduce_in_fp32 = False",
    ]
    result = ask({"python": lines, "show": ["ddp.grad_reduce_in_fp32"]})[0]
    assert (result["validated"], result["values"]) == (True, {"ddp.grad_reduce_in_fp32": False})


def test_a_larger_recipe_validates_too() -> None:
    result = ask({"recipe": "qwen3_235b_a22b_pretrain_config", "world_size": 512})[0]
    assert result["validated"], result["message"]
