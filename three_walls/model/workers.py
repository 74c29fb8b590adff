"""Where the ranks of a run with many are surveyed."""

from __future__ import annotations

import os

from three_walls.model.record import dataclass


@dataclass(frozen=True, slots=True)
class Workers:
    """The processes or the cluster that read them."""

    jobs: int = 1
    """Processes on this machine; 1: this process alone."""
    scheduler: str | None = None
    """Address of the scheduler of a Dask cluster, whose workers see the captures under the same paths."""

    @staticmethod
    def per_core() -> Workers:
        """One process for each core that this process may use."""
        return Workers(len(os.sched_getaffinity(0)))


THIS_PROCESS = Workers()
