"""Lines of a progress file -> its jobs: what each one's last checkpoint says."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from three_walls.inputs.log.lines import Value
from three_walls.model.training_log import ProgressJob

MOST_JOBS = 1_000
"""Of one file; the latest are kept."""
_START = "Starting job"
_OF_CHECKPOINT = frozenset({"iteration", "job", "cumulative", "tokens"})


@dataclass(slots=True)
class JobList:
    """The jobs of one file, in its order."""

    jobs: deque[ProgressJob] = field(default_factory=lambda: deque(maxlen=MOST_JOBS))

    def add(self, values: Mapping[str, Value]) -> None:
        """Takes one line: a job's start, or a checkpoint of the job that started last.

        A checkpoint before any start, or by another number of GPUs, is of a job whose start was torn.
        """
        gpus, what = int(values["gpus"]), values["what"]
        if what == _START or not self.jobs or self.jobs[-1].gpus != gpus:
            self.jobs.append(ProgressJob(gpus, started_at=str(values["said_at"]) if what == _START else ""))
        if values.keys() >= _OF_CHECKPOINT:
            self.jobs[-1] = _with_checkpoint(self.jobs[-1], values)


def _with_checkpoint(job: ProgressJob, values: Mapping[str, Value]) -> ProgressJob:
    return replace(
        job,
        saves_count=job.saves_count + 1,
        last_iteration=int(values["iteration"]),
        job_tflops_per_gpu=float(values["job"]),
        cumulative_tflops_per_gpu=float(values["cumulative"]),
        tokens_count=int(values["tokens"]),
    )


def jobs_of_run(jobs: Sequence[ProgressJob], world: int | None) -> tuple[ProgressJob, ...]:
    """The jobs with as many GPUs as the run, in their order; where its number is not known, as the last one."""
    gpus = world or (jobs[-1].gpus if jobs else None)
    return tuple(job for job in jobs if job.gpus == gpus)
