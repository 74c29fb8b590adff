"""Names of kernels that a user gives: they come before the program's, wherever kernels are classified."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import pytest
from trace_builder import ADAM, GEMM, POINTWISE, TraceBuilder

from three_walls import analyze
from three_walls.lib.errors import RuleBaseError
from three_walls.lib.load_documents import load_table
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.report.json_report import load_report, render_json
from three_walls.step.ranks.steps_to_read import UnknownStepsError, find_step_times
from three_walls.step.survey.rank_survey import plan_tasks
from three_walls.tables.kernel_names import KernelPack, match_kernel

pytestmark = pytest.mark.slow

OWN = "acme::gather_residuals"
OWN_UPDATE = "acme::update_parameters"
NAMES = "patterns:\n  - {category: norm, pattern: 'acme::gather'}\n"


def trace(path: Path, update: str = ADAM, kernel: str = OWN) -> Path:
    builder = TraceBuilder()
    for at in (1, 1001, 2001, 3001):
        builder.kernel(GEMM, at, at + 100)
        builder.kernel(kernel, at + 100, at + 200)
        builder.kernel(update, at + 900, at + 950)
    (path / "trace.sqlite").unlink(missing_ok=True)
    return builder.write(path / "trace.sqlite")


def names(path: Path, text: str = NAMES) -> Path:
    file = path / "names.yaml"
    file.write_text(text)
    return file


def test_a_kernel_is_what_its_name_in_the_file_says(tmp_path: Path) -> None:
    path = trace(tmp_path)
    without = analyze(path)
    assert dict(without.ranks[0].budget)["unclassified"] == 100
    assert [kernel.name for kernel in without.unclassified] == [OWN.rpartition("::")[2]]
    report = analyze(path, kernel_names=names(tmp_path))
    owned = dict(report.ranks[0].budget)
    assert (owned["norm"], owned["gemm"]) == (100, 100)
    assert "unclassified" not in owned
    assert report.unclassified == ()


def test_the_file_comes_before_the_names_of_the_program(tmp_path: Path) -> None:
    file = names(tmp_path, "patterns:\n  - {category: quantize, pattern: 'elementwise_kernel'}\n")
    owned = dict(analyze(trace(tmp_path, kernel=POINTWISE), kernel_names=file).ranks[0].budget)
    assert owned["quantize"] == 100
    assert "elementwise" not in owned
    assert dict(analyze(trace(tmp_path, kernel=POINTWISE)).ranks[0].budget)["elementwise"] == 100


def test_the_report_names_the_file_and_is_read_back_with_it(tmp_path: Path) -> None:
    file = names(tmp_path)
    path = trace(tmp_path)
    report = analyze(path, kernel_names=file)
    assert report.kernel_names is not None
    assert report.kernel_names.path_name == "names.yaml"
    assert report.kernel_names.sha256 == hashlib.sha256(NAMES.encode()).hexdigest()
    kept = tmp_path / "report.json"
    kept.write_text(render_json(report))
    assert load_report(kept).kernel_names == report.kernel_names
    assert analyze(path).kernel_names is None


def test_a_warning_names_the_largest_unknown_kernels_and_the_option(tmp_path: Path) -> None:
    (warning,) = (each for each in analyze(trace(tmp_path)).warnings if each.code == "unclassified-kernels")
    assert OWN.rpartition("::")[2] in warning.message
    assert "--kernel-names" in warning.message
    known = analyze(trace(tmp_path), kernel_names=names(tmp_path))
    assert "unclassified-kernels" not in {each.code for each in known.warnings}


def test_every_error_of_the_file_is_listed_with_its_place(tmp_path: Path) -> None:
    file = names(tmp_path, "patterns:\n  - {category: nrom, pattern: 'a'}\n  - {category: norm, pattern: '(a'}\n")
    with pytest.raises(RuleBaseError) as error:
        analyze(trace(tmp_path), kernel_names=file)
    wrong, unreadable = str(error.value).splitlines()
    assert f"{file}:2:16: found nrom (did you mean norm?), expected one of grouped_gemm, " in wrong
    assert len(wrong.removeprefix(str(file))) < 250
    assert f"{file}:3:31: not a regular expression" in unreadable


def test_steps_of_a_long_capture_are_found_by_the_update_that_the_file_names(tmp_path: Path) -> None:
    path = trace(tmp_path, update=OWN_UPDATE)
    with pytest.raises(UnknownStepsError):
        find_step_times(path, None)
    own = load_table(
        names(tmp_path, "patterns:\n  - {category: optimizer, pattern: 'acme::update', anchor: step}\n"), KernelPack
    )
    assert find_step_times(path, None, own).ranks[0].steps.height > 1


def test_the_workers_of_a_survey_get_the_names(tmp_path: Path) -> None:
    own = load_table(names(tmp_path), KernelPack)
    (task,) = pickle.loads(pickle.dumps(plan_tasks([tmp_path / "a.sqlite"], RunConfig({}), None, own_names=own)))
    found = match_kernel(OWN, task.own_names)
    assert found is not None
    assert found.category == "norm"
    assert match_kernel(OWN) is None
