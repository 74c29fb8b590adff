"""The same cases, and the edits of every rule, through Megatron-Bridge itself: ``make test-bridge``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.bridge.cases import CASES, HERE, PLATFORM, RECIPE, RELEASE, not_runnable
from tests.bridge.differential import bridges_of_environment
from tests.bridge.recommended import H100, EditedRun, Gpu, recommended_cases
from tests.paths import SAMPLES
from three_walls import analyze
from three_walls.overrides.real_bridge.verify import ask_bridge

BRIDGE = bridges_of_environment().get(RELEASE)
pytestmark = pytest.mark.skipif(BRIDGE is None, reason="make test-bridge builds the interpreter that this needs")


RECOMMENDED = recommended_cases()


def ask(*cases: dict[str, Any], gpu: Gpu = H100) -> list[dict[str, Any]]:
    """One result per case, of Megatron-Bridge on machines with that GPU."""
    name, major, minor = gpu
    request = {
        "gpu_name": name,
        "gpu_major": major,
        "gpu_minor": minor,
        "transformer_engine": "2.12.0",
        "world_size": PLATFORM["world_size"],
        "models": str(HERE / "models"),
        "cases": [{"recipe": RECIPE, **case} for case in cases],
    }
    assert BRIDGE is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(BRIDGE.folders))
        answer = ask_bridge(BRIDGE.python, request)
    assert answer["bridge"] == RELEASE
    results: list[dict[str, Any]] = answer["results"]
    return results


def is_fine(result: dict[str, Any]) -> bool:
    """Whether the edits applied and what they made is valid."""
    return bool(result["applied"] and result["validated"])


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


def check_edits(name: str, alone: dict[str, Any], overridden: dict[str, Any], in_python: dict[str, Any]) -> None:
    """The edits apply and validate in both forms and leave the same values."""
    without = f"without the edits: {alone['message'] or 'valid'}"
    assert is_fine(overridden), f"{name}: {overridden['message']} ({without})"
    assert is_fine(in_python), f"{name} in Python: {in_python['message']} ({without})"
    assert overridden["values"] == in_python["values"], name


def test_the_whole_plan_of_every_sample_trace_applies_and_validates() -> None:
    runs = [planned_run(path) for path in sorted(SAMPLES.glob("*.labels.yaml"))]
    runs = [run for run in runs if run.edits]
    answers = ask(*(request for run in runs for request in run.requests()))
    assert runs
    for number, run in enumerate(runs):
        check_edits(run.name, *answers[3 * number : 3 * number + 3])


def planned_run(labels: Path) -> EditedRun:
    """The edits of all steps of a sample's plan, for the settings that its report has."""
    report = analyze(SAMPLES / yaml.safe_load(labels.read_text(encoding="utf-8"))["trace"], bridge_version=RELEASE)
    edits = tuple(edit for step in report.plan for edit in step.edits)
    settings = {f"config.{name}": found.value for name, found in report.config.values.items()}
    variables = {f"env.{name}": found.value for name, found in report.config.environment.items()}
    return EditedRun(labels.name.removesuffix(".labels.yaml"), edits, settings | variables)


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
