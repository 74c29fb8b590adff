"""The same cases, and the edits of every rule, through Megatron-Bridge itself: ``make test-bridge``."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.bridge.cases import CASES, HERE, PLATFORM, RECIPE, RELEASE, not_runnable
from tests.bridge.recommended import H100, Gpu, check_edits, is_fine, recommended_cases
from tests.bridge.releases import BRIDGES

BRIDGE = BRIDGES.get(RELEASE)
pytestmark = pytest.mark.skipif(BRIDGE is None, reason="make test-bridge builds the interpreter that this needs")


RECOMMENDED = recommended_cases() if BRIDGE else ()


def ask(*cases: dict[str, Any], gpu: Gpu = H100) -> list[dict[str, Any]]:
    """One result per case, of Megatron-Bridge on machines with that GPU."""
    assert BRIDGE is not None
    defaults = {"recipe": RECIPE, "world_size": PLATFORM["world_size"]}
    return BRIDGE.ask([defaults | case for case in cases], gpu, transformer_engine="2.12.0")


def test_bridge_does_with_every_case_what_the_case_states() -> None:
    results = ask(*({"overrides": list(case.overrides), "prepare": list(case.prepare)} for case in CASES))
    for case, result in zip(CASES, results, strict=True):
        assert is_fine(result) is case.passes, f"{case.name}: {result['message']}"
        assert case.message in result["message"], case.name


def test_the_recorded_recipe_is_the_real_one() -> None:
    recorded = yaml.safe_load((HERE / f"qwen3-30b-a3b-{RELEASE}.yaml").read_text(encoding="utf-8"))
    dump = ask({"dump": True})[0]["dump"]
    assert {path: dump[path] for path in recorded} == recorded


@pytest.mark.parametrize("gpu", sorted({case.gpu for case in RECOMMENDED}), ids=lambda gpu: gpu[0])
def test_the_edits_of_every_rule_apply_and_validate_as_overrides_and_as_python(gpu: Gpu) -> None:
    cases = [case for case in RECOMMENDED if case.gpu == gpu]
    answers = ask(*(request for case in cases for request in case.requests()), gpu=gpu)
    for number, case in enumerate(cases):
        alone, overridden, in_python = answers[3 * number : 3 * number + 3]
        if listed := not_runnable().get(case.name):
            assert not is_fine(alone), f"{case.name} runs: take it off the list"
            assert alone["message"].startswith(listed["message"]), f"{case.name}: {alone['message']}"
        else:
            check_edits(case.name, alone, overridden, in_python)


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
