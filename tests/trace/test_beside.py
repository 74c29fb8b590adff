"""The log and the configuration that lie beside the traces of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trace_builder import TraceBuilder
from three_walls.trace.beside import add_beside, find_beside
from three_walls.trace.run_request import RunRequest


@pytest.fixture
def run(tmp_path: Path) -> Path:
    TraceBuilder().steps(4).write(tmp_path / "rank0.sqlite")
    for name in ("train.log", "notes.txt", "progress.txt", "overrides.txt", "run_config.yaml"):
        (tmp_path / name).touch()
    return tmp_path


def test_log_progress_and_configuration_in_the_directory_of_the_traces_are_taken(run: Path) -> None:
    found = find_beside([run])
    assert (found.logs, found.config, found.unclear) == (
        (run / "train.log", run / "progress.txt"), run / "run_config.yaml", ""
    )  # fmt: skip


def test_what_lies_beside_a_trace_that_is_named_alone_is_not_taken(run: Path) -> None:
    assert add_beside(RunRequest((run / "rank0.sqlite",))) == RunRequest((run / "rank0.sqlite",))


def test_a_directory_without_traces_gives_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.log").touch()
    assert find_beside([tmp_path]).logs == ()


def test_of_two_logs_none_is_taken_and_one_line_says_so(run: Path) -> None:
    (run / "other.log.gz").touch()
    request = add_beside(RunRequest((run,)))
    assert request.logs == ()
    assert request.unclear_logs == (
        "2 logs lie beside the traces (other.log.gz, train.log) and none was read: name those of this run with --log, "
        "or leave them out with --no-log."
    )
    assert request.config == run / "run_config.yaml"


def test_the_logs_of_all_ranks_are_taken_together(run: Path) -> None:
    (run / "train.log").unlink()
    for name in ("00-base.rank0.log", "00-base.rank1.log"):
        (run / name).touch()
    assert [log.name for log in find_beside([run]).logs] == ["00-base.rank0.log", "00-base.rank1.log", "progress.txt"]
    (run / "01-base.rank1.log").touch()
    assert find_beside([run]).logs == ()


def test_what_is_named_wins_and_what_is_left_out_is_not_taken(run: Path) -> None:
    named = RunRequest((run,), logs=(Path("my.log"),), config=Path("my.yaml"))
    assert add_beside(named) == named
    assert add_beside(RunRequest((run,)), with_log=False, with_config=False) == RunRequest((run,))
