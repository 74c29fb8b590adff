"""How many traces are read at a time, and where the ranks of a run with many are surveyed."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workers:
    """The threads and processes, or the cluster, that read them."""

    jobs: int = 1
    """Threads that read the traces of few ranks, and processes on this machine that survey those of many; 1: all is
    read by this process, one after the other."""
    scheduler: str | None = None
    """Address of the scheduler of a Dask cluster, whose workers see the captures under the same paths."""

    @staticmethod
    def per_core() -> Workers:
        """One thread or process for each core that this process may use."""
        return Workers(len(os.sched_getaffinity(0)))


THIS_PROCESS = Workers()
