"""Reads files in threads: SQLite, polars, hashing and unpacking leave Python's lock to others most of the time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import Thread
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")

_MOST_THREADS = 4
"""More would wait for Python's lock: it is held for a quarter of the time that a file takes."""


class _UnwantedError(BaseException):
    """What a thread reads is no longer wanted. As an interrupt in the main thread, it is raised anywhere."""


def read_each(read: Callable[[S], T], files: Sequence[S], jobs: int, begin: Callable[[int], None]) -> list[T]:
    """``read`` of each of ``files``, several at a time in up to ``jobs`` threads; with 1 in this thread alone.

    ``begin`` is called, in this thread, with the place of the file that is waited for. The first error in the order of
    files is raised. It ends the reading of the others, as an interrupt does.
    """
    found = []
    if jobs == 1 or len(files) == 1:
        for place, file in enumerate(files):
            begin(place)
            found.append(read(file))
    else:
        with _start(read, files, min(jobs, _MOST_THREADS)) as outcomes:
            for place, outcome in enumerate(outcomes):
                begin(place)
                found.append(outcome.result())
    return found


@contextmanager
def work_meanwhile(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Does ``work`` in a thread of its own within the block; gives what waits for its result, or raises its error.

    An interrupt of the block ends the work, too. An ordinary error waits for it: a thread that is broken off may leave
    a file open.
    """
    found = None
    with _start(lambda _: work(), [None], 1) as (outcome,):
        try:
            yield outcome.result
        except Exception as error:
            found = error
    if found is not None:
        raise found


@contextmanager
def _start(read: Callable[[S], T], files: Sequence[S], jobs: int) -> Iterator[list[Future[T]]]:
    """Begins to read ``files``. Where the block ends with an error, what is being read is left and closed."""
    outcomes = [Future[T]() for _ in files]
    waiting = iter(list(zip(files, outcomes, strict=True)))  # which all threads take from

    def work() -> None:
        with suppress(_UnwantedError):
            for file, outcome in waiting:
                try:
                    outcome.set_result(read(file))
                except Exception as error:
                    outcome.set_exception(error)

    threads = [Thread(target=work, daemon=True) for _ in files[:jobs]]
    try:
        for thread in threads:
            thread.start()
        yield outcomes
    except BaseException:
        list(waiting)
        for thread in threads:
            if thread.ident is not None and thread.is_alive():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.ident), ctypes.py_object(_UnwantedError)
                )
        raise
    finally:
        for thread in threads:
            if thread.ident is not None:
                thread.join()
