"""A run of six ranks, the tasks that survey it, and what happens where a worker dies of a rank."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.survey.rank_survey import RankSurvey, SurveyTask, survey_captures

DEADLY = "rank2.sqlite"

FRAMES = ("steps", "calls", "exposed", "budget", "exposure", "compute", "spreads")
"""Of a RankSurvey."""


def plan(paths: Sequence[Path], config: RunConfig, together: int = 2) -> list[SurveyTask]:
    numbered = list(enumerate(paths))
    return [
        SurveyTask(tuple(numbered[first : first + together]), config, None)
        for first in range(0, len(numbered), together)
    ]


def take_long(_: SurveyTask) -> RankSurvey:
    time.sleep(600)
    raise AssertionError


def die_at_the_deadly_rank(task: SurveyTask) -> RankSurvey:
    if any(path.name == DEADLY for _, path in task.captures):
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where memory runs out
    return survey_captures(task)
