"""Surveys in worker processes: the same result, a worker that dies costs what kills it, nothing is left behind."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.step.survey.six_ranks import DEADLY, FRAMES, die_at_the_deadly_rank, plan
from three_walls.lib.errors import InputError, UsageError
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.survey import survey_processes, survey_workers
from three_walls.step.survey.survey_workers import run_tasks
from three_walls.trace.run_request import Workers


@pytest.fixture
def no_process_stays() -> Iterator[None]:
    yield
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.usefixtures("no_process_stays")
def test_processes_give_what_this_process_gives(paths: list[Path], config: RunConfig) -> None:
    tasks, stages = plan(paths, config), list[str]()
    alone = run_tasks(tasks, Workers(), lambda _: None)
    together = run_tasks(tasks, Workers(jobs=2), stages.append)
    assert [capture.ranks for capture in together.captures] == [capture.ranks for capture in alone.captures]
    assert [capture.config for capture in together.captures] == [capture.config for capture in alone.captures]
    for name in FRAMES:
        assert getattr(together, name).equals(getattr(alone, name)), name
    assert stages == ["surveying 6 ranks", *(f"surveyed {done} of 6 ranks" for done in (2, 4, 6))]


@pytest.mark.slow
@pytest.mark.usefixtures("no_process_stays")
def test_a_worker_that_dies_costs_the_rank_that_kills_it_alone(
    paths: list[Path], config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey_processes, "survey_captures", die_at_the_deadly_rank)
    survey = run_tasks(plan(paths, config), Workers(jobs=2), lambda _: None)
    assert [(lost.capture_id, lost.path.name) for lost in survey.lost] == [(2, DEADLY)]
    assert "died" in survey.lost[0].reason
    assert [rank.rank for rank in survey.ranks] == [0, 1, 3, 4, 5]
    assert [rank.rank_index for rank in survey.ranks] == list(range(5))
    assert sorted(survey.steps["rank_index"].unique()) == list(range(5))


def test_a_damaged_rank_costs_itself_alone_and_ranks_without_kernels_have_no_row(
    paths: list[Path], config: RunConfig, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(paths[1].read_bytes()[:8192])
    survey = run_tasks(plan([paths[0], damaged, paths[2]], config, together=1), Workers(), lambda _: None)
    assert [lost.path.name for lost in survey.lost] == ["damaged.sqlite"]
    assert [rank.rank for rank in survey.ranks] == [0, 2]


def test_where_no_rank_can_be_read_the_first_error_is_raised(config: RunConfig, tmp_path: Path) -> None:
    for name in ("a.sqlite", "b.sqlite"):
        (tmp_path / name).write_text("no database")
    with pytest.raises(InputError, match=r"a\.sqlite: expected a SQLite export"):
        run_tasks(plan([tmp_path / "a.sqlite", tmp_path / "b.sqlite"], config, 1), Workers(), lambda _: None)


@pytest.mark.parametrize("no_network", [None])  # with Dask installed, this machine is asked and refuses
def test_a_scheduler_that_does_not_answer_is_named(
    no_network: None,  # noqa: ARG001
    paths: list[Path],
    config: RunConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(survey_workers, "_CONNECTING_S", 0.2)
    with pytest.raises(UsageError, match="--scheduler: "):
        run_tasks(plan(paths, config), Workers(scheduler="tcp://127.0.0.1:9"), lambda _: None)


_INTERRUPTED = """
import os, signal, sys, threading
from pathlib import Path
from three_walls.cli.signals import Terminated, finish_loading, handle_signals
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.survey.rank_survey import SurveyTask
from three_walls.trace.run_request import Workers
from three_walls.step.survey.survey_workers import run_tasks

def interrupt(_):
    os.kill(os.getpid(), signal.SIGINT)

if __name__ == "__main__":
    handle_signals(); finish_loading()
    tasks = [SurveyTask(((place, Path(path)),), RunConfig(), None) for place, path in enumerate(sys.argv[1:])]
    try:
        run_tasks(tasks * 20, Workers(jobs=2), interrupt)
    except Terminated as error:
        sys.exit(error.exit_code)
"""


@pytest.mark.slow
def test_an_interrupt_leaves_no_process_behind(paths: list[Path], tmp_path: Path) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(_INTERRUPTED)
    process = subprocess.Popen(
        [sys.executable, script, *paths[:2]], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    deadline = time.monotonic() + 10
    while (left := _list_processes_of_session(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def _list_processes_of_session(session: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            found += [int(path.name)] if os.getsid(int(path.name)) == session else []
    return found
