"""Ranks surveyed by a Dask cluster: the same result, and a worker that dies costs the rank that kills it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.step.survey.cluster.conftest import running
from tests.step.survey.six_ranks import DEADLY, FRAMES, die_at_the_deadly_rank, plan, take_long
from three_walls.lib.errors import InputError
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.survey import survey_workers
from three_walls.step.survey.survey_workers import run_tasks
from three_walls.trace.run_request import Workers


def test_the_cluster_gives_what_this_process_gives(scheduler: str, paths: list[Path], config: RunConfig) -> None:
    stages: list[str] = []
    alone = run_tasks(plan(paths, config), Workers(), lambda _: None)
    together = run_tasks(plan(paths, config), Workers(scheduler=scheduler), stages.append)
    assert together.captures == alone.captures
    for name in FRAMES:
        assert getattr(together, name).equals(getattr(alone, name)), name
    assert stages[-1] == "surveyed 6 of 6 ranks"


def test_a_worker_of_the_cluster_that_dies_costs_the_rank_that_kills_it_alone(
    scheduler: str, paths: list[Path], config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey_workers, "survey_captures", die_at_the_deadly_rank)
    survey = run_tasks(plan(paths, config), Workers(scheduler=scheduler), lambda _: None)
    assert [lost.path.name for lost in survey.lost] == [DEADLY]
    assert [rank.rank for rank in survey.ranks] == [0, 1, 3, 4, 5]


def test_a_cluster_whose_workers_are_all_gone_is_not_waited_for(
    tmp_path: Path, paths: list[Path], config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey_workers, "survey_captures", take_long)
    monkeypatch.setattr(survey_workers, "_LOOKING_S", 1)
    monkeypatch.setattr(survey_workers, "_CONNECTING_S", 2)
    with running(tmp_path, "--no-nanny") as (address, workers):
        for worker in workers:
            threading.Timer(3, worker.kill).start()
        with pytest.raises(InputError, match="has no workers"):
            run_tasks(plan(paths, config), Workers(scheduler=address), lambda _: None)
