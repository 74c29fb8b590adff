"""Runs the tasks of a survey: in this process, in one process per core, or on a Dask cluster.

A worker that dies takes only the captures with it that kill it: the captures of the tasks that ran at the time are read
again, each by itself, and the ones during which a worker dies again are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from three_walls.step.survey.rank_survey import LostCapture, RankSurvey, SurveyTask, join_surveys, survey_captures
from three_walls.trace.read_inputs import Progress
from three_walls.trace.run_request import Workers

_LOST_WORKER = "the process that read it died, which happens if it takes more memory than there is"


def run_tasks(tasks: Sequence[SurveyTask], workers: Workers, progress: Progress) -> RankSurvey:
    """The survey of all captures of ``tasks``. ``progress`` is told how many ranks are surveyed.

    Raises InputError where no capture can be read, and UsageError where the cluster cannot be reached.
    """
    total = sum(len(task.captures) for task in tasks)
    surveys: list[RankSurvey] = []
    suspects: list[SurveyTask] = []

    def finish(place: int, survey: RankSurvey | None) -> None:
        if survey is None:
            suspects.extend(replace(tasks[place], captures=(capture,)) for capture in tasks[place].captures)
            return
        surveys.append(survey)
        done = sum(len(survey.captures) + len(survey.lost) for survey in surveys)
        progress(f"surveyed {done:,} of {total:,} ranks")

    def finish_alone(place: int, survey: RankSurvey | None) -> None:
        surveys.append(survey or _lose(suspects[place]))

    progress(f"surveying {total:,} ranks")
    # What most runs do not need is imported where it is used.
    if workers.scheduler is not None:
        from three_walls.step.survey.dask_cluster import run_on_cluster

        run_on_cluster(tasks, workers.scheduler, finish)
        # One after the other: of two at the same time, the one that is read where a worker dies would be lost too.
        for place, suspect in enumerate(suspects):
            run_on_cluster([suspect], workers.scheduler, partial(_finish_at, place, finish_alone))
    elif workers.jobs > 1:
        from three_walls.step.survey.survey_processes import run_in_processes

        # One more than there are processes, so that none waits; and few, because all of them are suspects.
        run_in_processes(tasks, workers.jobs, workers.jobs + 1, finish)
        run_in_processes(suspects, 1, 1, finish_alone)
    else:
        for place, task in enumerate(tasks):
            finish(place, survey_captures(task))
    return join_surveys(surveys)


def _finish_at(place: int, finish: Callable[[int, RankSurvey | None], None], _: int, survey: RankSurvey | None) -> None:
    """Calls ``finish`` for the task at ``place`` of more than were run."""
    finish(place, survey)


def _lose(task: SurveyTask) -> RankSurvey:
    capture_id, path = task.captures[0]
    lost = LostCapture(capture_id, path, f"{path}: {_LOST_WORKER}")
    return replace(survey_captures(replace(task, captures=())), lost=(lost,))
