"""What benchmarks/gpu says of cases without a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.paths import REPOSITORY

KIT = REPOSITORY / "benchmarks" / "gpu"
sys.path.insert(0, str(KIT))

import case as cases  # noqa: E402 - scripts beside the package
import dry_run  # noqa: E402

CASES = sorted(KIT.glob("cases/*.yaml"))


def variant(folder: Path, text: str, like: str = "four-host") -> cases.Case:
    """A copy of a case of the kit that differs from it in ``text``."""
    for path in CASES:
        (folder / path.name).write_text(path.read_text())
    (folder / "variant.yaml").write_text(f"like: {like}\n{text}\n")
    return cases.read_case(folder / "variant.yaml")


def problems_of(case: cases.Case) -> list[str]:
    return [problem for plan in dry_run.plan([case]) for problem in plan.problems]


@pytest.mark.parametrize(
    "path", [path for path in CASES if path.stem.startswith(("eight-", "four-"))], ids=lambda path: path.stem
)
def test_the_cases_for_many_gpus_have_no_problems(path: Path) -> None:
    assert problems_of(cases.read_case(path)) == []


@pytest.mark.slow
def test_the_command_says_what_a_good_case_takes_and_ends_with_0() -> None:
    found = run_command(KIT / "cases" / "eight-host.yaml")
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[1].split() == ["eight-host", "8", "DP8", "EP8", "4", "x", "1", "10", "3.5"]
    assert found.stdout.splitlines()[-1] == "no problems"


@pytest.mark.slow
def test_the_command_names_the_runs_of_a_bad_case_and_ends_with_1(tmp_path: Path) -> None:
    variant(tmp_path, "edits: [micro-batch-2, {name: misspelt, overrides: [model.moe_router_fuse=true]}]")
    found = run_command(tmp_path / "variant.yaml")
    assert found.returncode == 1, found.stderr
    [problem] = [line for line in found.stdout.splitlines() if line.startswith("variant: ")]
    assert problem.startswith("variant: misspelt: model.moe_router_fuse=true")


def run_command(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(KIT / "run_cases.py"), str(path), "--dry-run"]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("gpus: 6", "base: 6 GPUs do not divide into expert groups of 4"),
        ("overrides: [model.num_moe_experts=126]", "base: 126 experts do not divide among 4 ranks"),
        (
            "overrides: [train.global_batch_size=18]",
            "base: 18 sequences do not divide into micro-batches of 1 on 4 copies",
        ),
        ("faults: {late_host: {rank: 4, ms: 1}}", "base: late_host needs rank 4"),
        (
            "edits: [{name: stages, overrides: [model.pipeline_model_parallel_size=3]}]",
            "stages: 4 GPUs do not divide into model copies of 3",
        ),
    ],
)  # fmt: skip
def test_what_does_not_divide_is_a_problem(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in problems_of(variant(tmp_path, text))


@pytest.mark.parametrize(("batch", "known"), [(16, False), (20, True)])
def test_virtual_stages_need_whole_rounds_of_micro_batches(tmp_path: Path, batch: int, known: bool) -> None:
    case = variant(tmp_path, f"overrides: [train.global_batch_size={batch}]", like="eight-virtual-stages")
    assert ("base: virtual stages need a multiple of 2 micro-batches" in problems_of(case)) == known


def test_a_dry_run_names_the_cases_that_megatron_bridge_did_not_judge() -> None:
    named, own = (cases.read_case(KIT / "cases" / f"{name}.yaml") for name in ("te-wide", "ling-narrow"))
    assert dry_run.describe_judges([named], "python") == "and by Megatron-Bridge"
    assert dry_run.describe_judges([named, own], "python") == (
        "and by Megatron-Bridge but for ling-narrow, whose recipes are in a file"
    )
    assert "--python" in dry_run.describe_judges([named], None)


def test_edits_alone_take_less_time_than_with_the_capture() -> None:
    case = cases.read_case(KIT / "cases" / "eight-host.yaml")
    both, capture, edits = (dry_run.estimate(case, only) for only in (None, "capture", "edits"))
    assert both == pytest.approx(capture + edits)
    assert min(capture, edits) > 0


@pytest.mark.parametrize(
    "path", [path for path in CASES if cases.read_case(path).expect is not None], ids=lambda path: path.stem
)
def test_labels_say_only_what_the_tests_of_labelled_traces_check(path: Path) -> None:
    from tests.test_sample_traces import EXPECT_KEYS, MUST_NOT_KEYS

    case = cases.read_case(path)
    labels = cases.labels_of(case)
    assert set(labels["expect"]) <= EXPECT_KEYS
    assert set(labels["must_not"]) <= MUST_NOT_KEYS
    assert labels["expect"]["facts"]["world_size"] == len(labels["expect"]["ranks"]) == case.gpus
    assert yaml.safe_load(yaml.safe_dump(labels)) == labels


def test_a_case_may_expect_other_shares_and_facts_than_all_have(tmp_path: Path) -> None:
    case = variant(tmp_path, "expect: {shares: {unclassified: [0, 0.1], gemm: [0.2, 1]}, facts: {world_size: 2}}")
    expect = cases.labels_of(case)["expect"]
    assert expect["shares"] == {"unclassified": [0, 0.1], "gemm": [0.2, 1]}
    assert expect["facts"] == {"world_size": 2}
