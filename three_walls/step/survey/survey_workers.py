"""Runs the tasks of a survey: in this process, in one process per core, or on a Dask cluster.

A worker that dies takes only the captures with it that kill it: the captures of the tasks that ran at the time are read
again, each by itself, and the ones during which a worker dies again are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from three_walls.lib.errors import InputError, UsageError
from three_walls.step.survey.rank_survey import LostCapture, RankSurvey, SurveyTask, join_surveys, survey_captures
from three_walls.trace.read_inputs import Progress
from three_walls.trace.run_request import Workers

_CONNECTING_S = 20
_LOOKING_S = 10
"""After so long without a result it is seen whether there still are workers."""
_LOST_WORKER = "the process that read it died, which happens if it takes more memory than there is"


def run_tasks(tasks: Sequence[SurveyTask], workers: Workers, progress: Progress) -> RankSurvey:
    """The survey of all captures of ``tasks``. ``progress`` is told how many ranks are surveyed.

    Raises InputError where no capture can be read, and UsageError where the cluster cannot be reached.
    """
    total = sum(len(task.captures) for task in tasks)
    surveys: list[RankSurvey] = []
    suspects: list[SurveyTask] = []

    def finish(task: SurveyTask, survey: RankSurvey | None) -> None:
        if survey is None:
            suspects.extend(replace(task, captures=(capture,)) for capture in task.captures)
            return
        surveys.append(survey)
        done = sum(len(survey.captures) + len(survey.lost) for survey in surveys)
        progress(f"surveyed {done:,} of {total:,} ranks")

    def finish_alone(task: SurveyTask, survey: RankSurvey | None) -> None:
        surveys.append(survey or _lose(task))

    progress(f"surveying {total:,} ranks")
    if workers.scheduler is not None:
        _run_on_cluster(tasks, workers.scheduler, finish)
        # One after the other: of two at the same time, the one that is read where a worker dies would be lost too.
        for suspect in suspects:
            _run_on_cluster([suspect], workers.scheduler, finish_alone)
    elif workers.jobs > 1:
        from three_walls.step.survey.survey_processes import run_in_processes  # which most runs do not need

        # One more than there are processes, so that none waits; and few, because all of them are suspects.
        run_in_processes(tasks, workers.jobs, workers.jobs + 1, finish)
        run_in_processes(suspects, 1, 1, finish_alone)
    else:
        for task in tasks:
            finish(task, survey_captures(task))
    return join_surveys(surveys)


def _run_on_cluster(
    tasks: Sequence[SurveyTask], address: str, finish: Callable[[SurveyTask, RankSurvey | None], None]
) -> None:
    """Runs ``tasks`` on the workers of the scheduler at ``address``.

    ``finish`` is called with each task and its survey, or None where its workers died. Raises UsageError where the
    cluster cannot be used, and InputError where the connection to it is lost.
    """
    try:
        from distributed import Client, KilledWorker, wait
    except ImportError as error:
        raise UsageError("--scheduler: needs dask; install it with: pip install 'three-walls[cluster]'") from error
    try:
        client = Client(address, timeout=_CONNECTING_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:  # a TimeoutError is an OSError; tls:// without Dask's settings
        raise UsageError(f"--scheduler: no Dask scheduler answers at {address} ({error})") from error
    with client, client.as_current():
        try:
            client.wait_for_workers(1, timeout=_CONNECTING_S)
            submitted = {client.submit(survey_captures, task, pure=False): task for task in tasks}
            while submitted:
                try:
                    completed = wait(list(submitted), timeout=_LOOKING_S, return_when="FIRST_COMPLETED").done
                except TimeoutError:  # tasks take long, or all workers are gone, for which nobody tells
                    client.wait_for_workers(1, timeout=_CONNECTING_S)
                    continue
                for future in sorted(completed, key=lambda each: each.key):
                    try:
                        survey = future.result()
                    except KilledWorker:
                        survey = None
                    finish(submitted.pop(future), survey)
                    future.release()
        except RuntimeError as error:  # a task cannot be unpacked there
            raise UsageError(
                f"--scheduler: the scheduler and the workers of {address} need the same three-walls and Python as "
                f"this machine ({error})"
            ) from error
        except OSError as error:
            raise InputError(f"--scheduler: {address} has no workers, or the connection was lost ({error})") from error


def _lose(task: SurveyTask) -> RankSurvey:
    capture_id, path = task.captures[0]
    lost = LostCapture(capture_id, path, f"{path}: {_LOST_WORKER}")
    return replace(survey_captures(replace(task, captures=())), lost=(lost,))
