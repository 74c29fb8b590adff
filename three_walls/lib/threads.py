"""Reads files in threads: SQLite, polars, hashing and unpacking leave Python's lock to others most of the time.

After an interrupt, or an error elsewhere, the result of a thread is not needed. The thread then ends by itself: long
work calls :func:`check_is_wanted` between its parts. An error raised in it from outside may hit a thread that still
starts, and then its starter waits for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")

_MOST_THREADS = 4
"""More would wait for Python's lock: it is held for a quarter of the time that a file takes."""
_LONGEST_WAIT_S = 0.1
"""A signal that arrives just before the main thread begins to wait is not seen until the wait is over."""


class _UnwantedError(BaseException):
    """The result of this thread is not needed."""


@dataclass(slots=True)
class _Task:
    """What some threads do together; a part of what the thread does that started them."""

    whole: _Task | None
    is_left: bool = False

    @property
    def is_unwanted(self) -> bool:
        """Whether it, or what it is a part of, was left."""
        return self.is_left or (self.whole is not None and self.whole.is_unwanted)


_own_task: ContextVar[_Task | None] = ContextVar("_own_task", default=None)
"""What the current thread does; the threads of a program that uses this one as a library do nothing here."""


def check_is_wanted() -> None:
    """Ends the current thread's work if its result is not needed, by an error that only this module knows."""
    task = _own_task.get()
    if task is not None and task.is_unwanted:
        raise _UnwantedError


def read_each(read: Callable[[S], T], files: Sequence[S], jobs: int, begin: Callable[[int], None]) -> list[T]:
    """``read`` of each of ``files``, several at a time in up to ``jobs`` threads; with 1 in this thread alone.

    ``begin`` is called, in this thread, with the place of the file that is waited for. The first error in the order of
    files is raised. It ends the reading of the others, as an interrupt does.
    """
    results = []
    if jobs == 1 or len(files) == 1:
        for place, file in enumerate(files):
            begin(place)
            results.append(read(file))
    else:
        with _start(read, files, min(jobs, _MOST_THREADS)) as outcomes:
            for place, outcome in enumerate(outcomes):
                begin(place)
                results.append(_wait_for(outcome))
    return results


@contextmanager
def work_meanwhile(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Does ``work`` in a thread of its own within the block; gives what waits for its result, or raises its error.

    An error or an interrupt of the block ends the work, too.
    """
    with _start(lambda _: work(), [None], 1) as (outcome,):
        yield lambda: _wait_for(outcome)


@contextmanager
def _start(read: Callable[[S], T], files: Sequence[S], jobs: int) -> Iterator[list[Future[T]]]:
    """Begins to read ``files``. Where the block ends with an error, what is being read is left and closed.

    The threads have the variables of the context in which the block begins.
    """
    outcomes = [Future[T]() for _ in files]
    waiting = iter(list(zip(files, outcomes, strict=True)))  # which all threads take from
    task = _Task(_own_task.get())

    def work() -> None:
        _own_task.set(task)
        for file, outcome in waiting:
            try:
                check_is_wanted()
                outcome.set_result(read(file))
            except BaseException as error:  # for whoever waits
                outcome.set_exception(error)

    threads = [threading.Thread(target=copy_context().run, args=(work,), daemon=True) for _ in files[:jobs]]
    try:
        for thread in threads:
            thread.start()
        yield outcomes
    except BaseException:
        task.is_left = True
        raise
    finally:
        for thread in threads:
            while thread.is_alive():
                thread.join(_LONGEST_WAIT_S)


def _wait_for(outcome: Future[T]) -> T:
    while True:
        try:
            return outcome.result(_LONGEST_WAIT_S)
        except TimeoutError:
            if outcome.done():  # an error of the work itself
                raise
