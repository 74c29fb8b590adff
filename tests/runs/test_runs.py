"""Runs as users give them: reports, directories, logs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.paths import SAMPLES
from tests.runs.sample_runs import make_run
from three_walls.lib.errors import InputError, RuleBaseError, UsageError
from three_walls.report.comparison import Basis, ChangeOutcome, Decision
from three_walls.report.json_report import render_json
from three_walls.runs.compare_runs import compare
from three_walls.runs.read_runs import GivenRun, parse_run, read_history, read_run

LOGS = SAMPLES / "te-host-bound-runs"
"""Logs of a host-bound base and of its single edits."""


def write_report(directory: Path, step_ms: float = 600, **settings: int) -> Path:
    directory.mkdir(parents=True)
    (directory / "report.json").write_text(render_json(make_run("", step_ms, settings=dict(settings)).report))
    return directory


def test_options_follow_the_path_of_a_run_and_commas_may_be_in_it() -> None:
    assert parse_run(
        "a,b.sqlite,log=x.log,log=y.log,config=c.yaml,set=num_layers=2,name=my run,kernel-names=k.yaml"
    ) == GivenRun(
        Path("a,b.sqlite"), (Path("x.log"), Path("y.log")), Path("c.yaml"), ("num_layers=2",), "my run", Path("k.yaml")
    )
    assert parse_run("run/report.json") == GivenRun(Path("run/report.json"))


@pytest.mark.parametrize("text", ["", ",log=x", "a.sqlite,log=", "a.sqlite,name=a,name=b"])
def test_what_cannot_be_read_as_a_run_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        parse_run(text)


def test_a_report_is_read_from_its_directory_or_its_file_whatever_that_is_called(tmp_path: Path) -> None:
    directory = write_report(tmp_path / "edit.three-walls")
    baseline = shutil.copy(directory / "report.json", tmp_path / "main.json")
    assert read_run(GivenRun(baseline)).unprofiled_step_ns == 600_000_000
    launch = tmp_path / "slurm-4711.0"  # as attach leaves it
    write_report(launch / "report")
    assert read_run(GivenRun(launch)).name == "slurm-4711.0"
    for path in (directory, directory / "report.json"):
        run = read_run(GivenRun(path))
        assert (run.name, run.unprofiled_step_ns, run.traced_step_ns) == ("edit", 600_000_000, 640_000_000)
    with pytest.raises(UsageError, match="a report is compared as it is"):
        read_run(GivenRun(directory, logs=(Path("x.log"),)))


def test_logs_alone_give_the_step_and_its_settings() -> None:
    before, after = read_run(GivenRun(LOGS / "00-base")), read_run(GivenRun(LOGS / "01-micro-batch-2" / "train.log"))
    assert not before.has_trace
    pair = compare(before, [after]).pairs[0]
    assert (pair.step.basis, pair.step.outcome, pair.budget) == (Basis.LOG, ChangeOutcome.FASTER, None)
    assert [(change.key, change.before, change.after) for change in pair.settings] == [("micro_batch_size", 1, 2)]
    assert [unlike.code for unlike in pair.unlike] == ["logs-alone"]


def test_a_text_without_iterations_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("remember the milk")
    with pytest.raises(InputError, match=r"notes\.txt: expected iteration lines"):
        read_run(GivenRun(tmp_path / "notes.txt"))


def test_real_runs_that_drift_more_than_edits_gain_are_repetitions_and_reverted_edits() -> None:
    history = read_history(LOGS)
    assert {run.name: run.decision for run in history.runs} == {
        "00-base": Decision.BASE,
        "01-micro-batch-2": Decision.ACCEPTED,
        "03-router-fusion": Decision.REVERTED,
        "04-base": Decision.REPEATED,
        "05-permute-fusion": Decision.REVERTED,
        "06-rope-fusion": Decision.REVERTED,
        "07-loss-fusion": Decision.REVERTED,
        "08-base": Decision.REPEATED,
    }
    assert history.best == "01-micro-batch-2"


def test_an_empty_directory_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected a report\.json, traces or training logs"):
        read_run(GivenRun(tmp_path))


def test_runs_are_in_the_order_of_their_numbers_and_labels_name_them(tmp_path: Path) -> None:
    write_report(tmp_path / "run-0")
    write_report(tmp_path / "run-10", 590, micro_batch_size=4)
    write_report(tmp_path / "run-9", 550, micro_batch_size=2)
    (tmp_path / "run-9" / "tried.yaml").write_text("label: micro-batch 2\n")
    (tmp_path / "notes").mkdir()
    assert [run.name for run in read_history(tmp_path).runs] == ["run-0", "micro-batch 2", "run-10"]


def test_runs_are_in_the_order_in_which_they_began_where_all_state_it(tmp_path: Path) -> None:
    """By the clock of the traces, else of the logs; the logs' local time is not compared with the traces' UTC."""
    names = ("a-last", "b-base", "c-edit")
    for name, hour in zip(names, (12, 10, 11), strict=True):
        report = make_run("", 600 - hour, settings={"micro_batch_size": hour}).report
        assert report.log is not None
        log = replace(report.log, began_at=f"2026-11-22 {hour}:00:00")
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(render_json(replace(report, log=log)))
    history = read_history(tmp_path)
    assert [run.name for run in history.runs] == ["b-base", "c-edit", "a-last"]
    assert history.is_by_time
    write_report(tmp_path / "d-unknown")
    history = read_history(tmp_path)
    assert [run.name for run in history.runs] == [*names, "d-unknown"]
    assert not history.is_by_time


def test_a_directory_without_runs_and_a_wrong_label_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected subdirectories"):
        read_history(tmp_path)
    write_report(tmp_path / "run-0")
    (tmp_path / "run-0" / "tried.yaml").write_text("lable: x\n")
    with pytest.raises(RuleBaseError, match=r"tried\.yaml:1:1: unknown key lable \(did you mean label"):
        read_history(tmp_path)


def test_a_directory_with_a_config_next_to_its_logs_has_its_settings(tmp_path: Path) -> None:
    shutil.copy(LOGS / "00-base" / "train.log", tmp_path / "train.log")
    (tmp_path / "run_config.yaml").write_text("model: {num_moe_experts: 60}\n")
    assert read_run(GivenRun(tmp_path)).report.config.get("num_moe_experts") == 60
