"""Ranks surveyed by a Dask cluster: the same result, and a worker that dies costs the rank that kills it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from lockstep import Behaviour, simulate

from three_walls.inputs.read_inputs import InputRequest, read_inputs
from three_walls.model.config import RunConfig
from three_walls.model.workers import Workers
from three_walls.survey import cluster
from three_walls.survey.rank_survey import RankSurvey, SurveyTask, survey_captures
from three_walls.survey.workers import run_tasks
from three_walls.tables.kernels import load_api_patterns, union_of
from three_walls.timeline.timeline import wanted_ranges

DEADLY = "rank2.sqlite"


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return simulate([Behaviour()] * 6, steps=3).write(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def config(paths: list[Path]) -> RunConfig:
    graph_launch = union_of(load_api_patterns(), "graph_launch")
    return read_inputs(InputRequest(paths), wanted_ranges(None), graph_launch, lambda _: None).config


def plan(paths: list[Path], config: RunConfig) -> list[SurveyTask]:
    numbered = list(enumerate(paths))
    return [SurveyTask(tuple(numbered[first : first + 2]), config, None) for first in range(0, len(numbered), 2)]


def die_at_the_deadly_rank(task: SurveyTask) -> RankSurvey:
    if any(path.name == DEADLY for _, path in task.captures):
        os.kill(os.getpid(), signal.SIGKILL)
    return survey_captures(task)


def test_the_cluster_gives_what_this_process_gives(scheduler: str, paths: list[Path], config: RunConfig) -> None:
    stages: list[str] = []
    alone = run_tasks(plan(paths, config), Workers(), lambda _: None)
    together = run_tasks(plan(paths, config), Workers(scheduler=scheduler), stages.append)
    assert together.captures == alone.captures
    for name in ("steps", "calls", "exposed", "budget", "exposure", "compute", "spreads"):
        assert getattr(together, name).equals(getattr(alone, name)), name
    assert stages[-1] == "surveyed 6 of 6 ranks"


def test_a_worker_of_the_cluster_that_dies_costs_the_rank_that_kills_it_alone(
    scheduler: str, paths: list[Path], config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "survey_captures", die_at_the_deadly_rank)
    survey = run_tasks(plan(paths, config), Workers(scheduler=scheduler), lambda _: None)
    assert [lost.path.name for lost in survey.lost] == [DEADLY]
    assert [rank.rank for rank in survey.ranks] == [0, 1, 3, 4, 5]
