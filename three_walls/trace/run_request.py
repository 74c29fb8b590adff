"""What a user asks for: the files of a run, and how they are read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

EXPORTS = "three-walls-exports"
"""Directory of the exports of reports that are made here, in the current directory or beside the report."""


@dataclass(frozen=True, slots=True)
class Workers:
    """How many traces are read at a time, and where the ranks of a run with many are surveyed."""

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


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run to read and measure."""

    traces: tuple[Path, ...]
    """Exports or reports of Nsight Systems, or directories of them."""
    logs: tuple[Path, ...] = ()
    """Training logs, or directories of them."""
    config: Path | None = None
    """A saved configuration (``run_config.yaml``)."""
    unclear_logs: str = ""
    """Why logs beside the traces were not taken for those of this run; empty where none lie there, or one was."""
    settings: tuple[str, ...] = ()
    """``key=value`` each; they take precedence over every other source."""
    memory_snapshot: Path | None = None
    """A snapshot of PyTorch's allocator of one rank."""
    step_range: str | None = None
    """Regular expression for the NVTX ranges that are steps."""
    bridge_version: str | None = None
    """Megatron-Bridge release whose recipes count and that overrides are spelled for; by default the run's."""
    kernel_names: Path | None = None
    """Names of kernels in addition to those of the program."""
    rules: Path | None = None
    """Directory of rules in addition to those of the program."""
    exports: Path = Path(EXPORTS)
    """Directory of the exports of reports (``.nsys-rep``)."""
    workers: Workers = THIS_PROCESS
