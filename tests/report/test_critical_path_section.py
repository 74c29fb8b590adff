"""The section on the critical path: what runs on it, by what and where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.report.rendered import lines_of, section_of, table_of
from tests.report.sample_report import sample_report
from three_walls.model.report import CriticalPath, CriticalPathRow, CriticalPathSegment, Report
from three_walls.report.json_report import load_report, render_json

MS = 1_000_000

ON_PATH = (
    CriticalPathRow("host", 60 * MS, 0.6, 0, 0, None),
    CriticalPathRow("gemm", 40 * MS, 0.4, 20, 5, 3 * MS),
    CriticalPathRow("norm", 0, 0.0, 7, 0, 9 * MS),
)
PATH = CriticalPath(
    rank=2,
    step_ns=100 * MS,
    by_category=ON_PATH,
    by_module=(CriticalPathRow("attention", 100 * MS, 1.0, 27, 5, 4 * MS),),
    segments=(
        CriticalPathSegment(2, 0, 60 * MS, "host", "launch", "host", "attention", "cudaLaunchKernel"),
        CriticalPathSegment(2, 60 * MS, 100 * MS, "operation", "end", "gemm", "attention", "nvjet"),
    ),
)


def report_with(path: CriticalPath | None) -> Report:
    return replace(sample_report(), critical_path=path)


def test_a_run_that_was_not_replayed_has_no_critical_path() -> None:
    assert section_of(report_with(None), "critical-path") is None
    assert section_of(report_with(PATH), "critical-path") is not None


def test_one_row_per_category_with_the_slack_of_what_is_not_on_the_path() -> None:
    assert lines_of(table_of(report_with(PATH), "critical_path")) == [
        ["host (CUDA calls and between)", "60.0 ms", "60.0%", "0", "0", ""],
        ["GEMM", "40.0 ms", "40.0%", "5", "20", "3.00 ms"],
        ["normalization", "0 ms", "0%", "0", "7", "9.00 ms"],
    ]


def test_the_lead_gives_the_length_and_the_rank() -> None:
    section = section_of(report_with(PATH), "critical-path")
    assert section is not None
    assert "100 ms on rank 2" in section.lead


def test_a_module_is_not_called_after_the_bucket_of_the_same_name() -> None:
    assert lines_of(table_of(report_with(PATH), "critical_path_modules"))[0][0] == "attention"


def test_without_labels_there_is_no_table_of_modules() -> None:
    unlabelled = replace(PATH, by_module=(replace(PATH.by_module[0], name="unknown"),))
    section = section_of(report_with(unlabelled), "critical-path")
    assert section is not None
    assert len(section.blocks) == 1


def test_the_path_is_in_report_json_and_is_read_back(tmp_path: Path) -> None:
    written = tmp_path / "report.json"
    written.write_text(render_json(report_with(PATH)))
    assert load_report(written).critical_path == PATH
