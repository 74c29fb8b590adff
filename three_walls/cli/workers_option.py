"""``--jobs`` and ``--scheduler``: how many traces are read at a time, and where many ranks are surveyed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from three_walls.model.workers import Workers

Command = TypeVar("Command", bound=Callable[..., Any])


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
