"""How many threads and processes a command uses; ``--jobs`` and ``--scheduler``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from three_walls.model.workers import Workers

Command = TypeVar("Command", bound=Callable[..., Any])
_SMALL_BYTES = 64 * 1024 * 1024
"""Of plain exports. A second thread of polars makes a run of 6 to 24 MB no shorter, and costs a tenth more CPU time to
wake and to wait; of 106 MB it saves a twentieth of the wall time."""
_UNPACKED_TIMES = 5
"""How much longer the exports of sample_traces are than their .xz."""


def workers_options(command: Command) -> Command:
    """Adds both options to ``command``, as ``jobs`` and ``scheduler``."""
    jobs = click.option(
        "--jobs",
        metavar="N",
        type=click.IntRange(min=1),
        help="Traces that are read at a time: by threads, of a run with more than 32 traces by processes.  "
        "[default: one per core]",
    )
    scheduler = click.option(
        "--scheduler",
        metavar="ADDRESS",
        help="Survey a run with more than 32 traces on the Dask cluster of this scheduler (tcp://host:port) instead; "
        "its workers must see the traces under the same paths. Needs three-walls[cluster].",
    )
    return jobs(scheduler(command))


def make_workers(jobs: int | None, scheduler: str | None) -> Workers:
    """What the options ask for."""
    return Workers(jobs or Workers.per_core().jobs, scheduler)


def choose_threads(traces: Iterable[Path]) -> None:
    """Lets polars compute on one thread where ``traces`` are small. Works only before polars is imported.

    The caller's own ``POLARS_MAX_THREADS`` counts more.
    """
    with suppress(OSError):  # what cannot be read is reported where it is read
        files = [file for path in traces for file in (path.iterdir() if path.is_dir() else (path,))]
        if not any(file.is_dir() for file in files) and sum(map(_count_bytes, files)) <= _SMALL_BYTES:
            os.environ.setdefault("POLARS_MAX_THREADS", "1")


def _count_bytes(file: Path) -> int:
    from three_walls.inputs.nsys.source import COMPRESSED_SUFFIXES

    return file.stat().st_size * (_UNPACKED_TIMES if file.suffix in COMPRESSED_SUFFIXES else 1)
