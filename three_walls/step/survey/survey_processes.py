"""Runs the tasks of a survey in new processes of this machine."""

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
from threading import Thread

import polars as pl

from three_walls.step.survey.rank_survey import RankSurvey, SurveyTask, survey_captures


def run_in_processes(
    tasks: Sequence[SurveyTask],
    jobs: int,
    most_handed_out: int,
    finish: Callable[[SurveyTask, RankSurvey | None], None],
) -> None:
    """Runs ``tasks`` in ``jobs`` processes. Where one dies, the tasks that were handed out are not finished.

    ``finish`` is called with each task and its survey, or None where it is not finished.
    """
    waiting = deque(tasks)
    while waiting:
        handed_out: dict[Future[RankSurvey], SurveyTask] = {}
        with _open_pool(min(jobs, len(waiting))) as pool, suppress(BrokenProcessPool):
            while waiting or handed_out:
                while waiting and len(handed_out) < most_handed_out:
                    future = pool.submit(_run_inside_polars, survey_captures, waiting[0])
                    handed_out[future] = waiting.popleft()
                for future in wait(handed_out, return_when=FIRST_COMPLETED).done:
                    survey = future.result()
                    finish(handed_out.pop(future), survey)
        for task in handed_out.values():
            finish(task, None)


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


def _run_inside_polars(survey: Callable[[SurveyTask], RankSurvey], task: SurveyTask) -> RankSurvey:
    """``survey`` of ``task``, called from within an operation of polars.

    There polars does what it is asked at once. Elsewhere it hands an operation over to a thread of its own, also where
    it has only one, and waits for it: a thousand times per rank, 70 instead of 74 ms of CPU for one of 6 MB where all
    cores are busy, and 77 instead of 102 where the two threads run on different cores.
    """
    outcome = Future[RankSurvey]()

    def run(nothing: pl.DataFrame) -> pl.DataFrame:
        try:
            outcome.set_result(survey(task))
        except BaseException as error:  # polars would raise an error of its own instead
            outcome.set_exception(error)
        return nothing

    pl.LazyFrame().map_batches(run).collect(engine="streaming")  # the other engine hands over here, too
    return outcome.result()
