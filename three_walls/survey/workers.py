"""Runs the tasks of a survey: in this process, in one process per core, or on a Dask cluster.

A worker that dies takes only the captures with it that kill it: the captures of the tasks that ran at the time are read
again, each by itself, and the ones during which a worker dies again are lost.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from threading import Thread

from three_walls.inputs.read_inputs import Progress
from three_walls.model.errors import InputError, UsageError
from three_walls.survey.rank_survey import LostCapture, RankSurvey, SurveyTask, join_surveys, survey_captures

_CONNECTING_S = 20
_LOST_WORKER = "the process that read it died, which happens if it takes more memory than there is"


@dataclass(frozen=True, slots=True)
class Workers:
    """Where the tasks run."""

    jobs: int = 1
    """Processes on this machine; 1: this process alone."""
    scheduler: str | None = None
    """Address of the scheduler of a Dask cluster, whose workers see the captures under the same paths."""


THIS_PROCESS = Workers()

Finished = Callable[[int, RankSurvey | None], None]
"""Called with the place of a task and its survey, or None where its worker died."""


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

    if workers.scheduler is not None:
        _run_on_cluster(tasks, workers.scheduler, finish)
        _run_on_cluster(suspects, workers.scheduler, finish_alone)
    elif workers.jobs > 1:
        # One more than there are processes, so that none waits; and few, because all of them are suspects.
        _run_in_processes(tasks, workers.jobs, workers.jobs + 1, finish)
        _run_in_processes(suspects, 1, 1, finish_alone)
    else:
        for place, task in enumerate(tasks):
            finish(place, survey_captures(task))
    return join_surveys(surveys)


def _lose(task: SurveyTask) -> RankSurvey:
    capture_id, path = task.captures[0]
    lost = LostCapture(capture_id, path.name, f"{path}: {_LOST_WORKER}")
    return replace(survey_captures(replace(task, captures=())), lost=(lost,))


def _run_in_processes(tasks: Sequence[SurveyTask], jobs: int, most_handed_out: int, finish: Finished) -> None:
    """Runs ``tasks`` in ``jobs`` processes. Where one dies, the tasks that were handed out are not finished."""
    waiting = deque(range(len(tasks)))
    while waiting:
        handed_out: dict[Future[RankSurvey], int] = {}
        with _open_pool(min(jobs, len(waiting))) as pool, suppress(BrokenProcessPool):
            while waiting or handed_out:
                while waiting and len(handed_out) < most_handed_out:
                    future = pool.submit(survey_captures, tasks[waiting[0]])
                    handed_out[future] = waiting.popleft()
                for future in wait(handed_out, return_when=FIRST_COMPLETED).done:
                    survey = future.result()
                    finish(handed_out.pop(future), survey)
        for place in handed_out.values():
            finish(place, None)


@contextmanager
def _open_pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of ``jobs`` new processes. They are ended with the block, however it ends.

    They are not forked: polars has threads. Each computes on one thread, because there is one process per core.
    """
    threads = os.environ.get("POLARS_MAX_THREADS")
    before = multiprocessing.active_children()
    os.environ["POLARS_MAX_THREADS"] = "1"
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin_worker)
    try:
        yield pool
    except BaseException:
        for process in multiprocessing.active_children():
            if process not in before:
                process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        os.environ.pop("POLARS_MAX_THREADS")
        if threads is not None:
            os.environ["POLARS_MAX_THREADS"] = threads


def _begin_worker() -> None:
    """Leaves Ctrl-C to the process that started this one, and ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(100_000, 20, 20)  # as in __main__.py
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_on_cluster(tasks: Sequence[SurveyTask], address: str, finish: Finished) -> None:
    try:
        from distributed import Client, KilledWorker, as_completed
    except ImportError as error:
        raise UsageError("--scheduler: needs dask; install it with: pip install 'three-walls[cluster]'") from error
    try:
        client = Client(address, timeout=_CONNECTING_S, set_as_default=False)
    except (OSError, ValueError) as error:  # a TimeoutError is an OSError
        raise UsageError(f"--scheduler: no Dask scheduler answers at {address} ({error})") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=_CONNECTING_S)
            places = {client.submit(survey_captures, task, pure=False): place for place, task in enumerate(tasks)}
            for future in as_completed(list(places), loop=client.loop):
                try:
                    survey = future.result()
                except KilledWorker:
                    survey = None
                finish(places.pop(future), survey)
                future.release()
        except RuntimeError as error:  # a task cannot be unpacked there
            raise UsageError(
                f"--scheduler: the scheduler and the workers of {address} need the same three-walls and Python as "
                f"this machine ({error})"
            ) from error
        except OSError as error:
            raise InputError(f"--scheduler: {address} has no workers, or the connection was lost ({error})") from error
