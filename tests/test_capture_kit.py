"""The cases of benchmarks/gpu, and what its command makes of a run."""

from __future__ import annotations

import sys

import pytest

from tests.paths import REPOSITORY
from three_walls.facts.registry import DEFINITIONS
from three_walls.resources import RULES_DIR
from three_walls.rules.load import load_rules

KIT = REPOSITORY / "benchmarks" / "gpu"
sys.path.insert(0, str(KIT))

import run_cases as kit  # noqa: E402 - a script beside the package

CASES = sorted(KIT.glob("cases/*.yaml"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_case_changes_something_in_every_edit_and_names_rules_that_exist(path: kit.Path) -> None:
    case = kit.read_case(path)
    known = {rule.id for rule in load_rules(RULES_DIR, definitions=DEFINITIONS)}
    assert case.edits
    assert len({edit.name for edit in case.edits}) == len(case.edits)
    for edit in case.edits:
        assert edit.overrides or edit.environment, edit.name
        assert edit.rule is None or edit.rule in known, edit.rule
        assert all("=" in override for override in edit.overrides)


def test_every_edit_has_a_base_before_and_after_it() -> None:
    case = kit.read_case(KIT / "cases" / "one-by-one-experts.yaml")
    assert [edit.name for edit in kit.order(case)] == ["base", "grouped-gemm", "micro-batch-2", "base"]


def test_what_nvidia_smi_read_becomes_one_line_per_gpu() -> None:
    lines = [
        "0, 1980, 2619, 300.5, 50, 0x0, 100",
        "0, 1755, 2619, 690.1, 62, 0x4, 100",
        "1, 1980, 2619, 1, 40, 0x1, 9",
        "?",
    ]
    assert kit.summarize_gpus(lines) == (
        "GPU 0: SM 1755-1980 MHz, 690 W, 62 C, reasons 0x0|0x4",
        "GPU 1: SM 1980-1980 MHz, 1 W, 40 C, reasons 0x1",
    )


def test_the_error_of_a_run_is_the_last_that_its_logs_name(tmp_path: kit.Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_text("Traceback (most recent call last):\nValueError: first\nRuntimeError: CUDA out of memory\nmore\n")
    assert kit.last_error([log]) == "RuntimeError: CUDA out of memory"
    log.write_text("killed\n")
    assert kit.last_error([log]) == "see the log"
