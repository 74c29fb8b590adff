"""What the progress file of the checkpoint directory says of the run's jobs."""

from __future__ import annotations

from collections.abc import Sequence

from three_walls.inputs.log.same_run import jobs_of_run
from three_walls.model.fact import FactValue
from three_walls.model.report import ProgressSummary
from three_walls.model.training_log import ProgressJob

Known = tuple[FactValue, str | None]

PROGRESS_FACTS = ("log_job_tflops_per_gpu", "log_cumulative_tflops_per_gpu", "log_restarts_count")


def summarize_progress(jobs: Sequence[ProgressJob], world: int | None) -> ProgressSummary | None:
    """The jobs with as many GPUs as the run has, together; None where there is none.

    Megatron starts its cumulative throughput anew when the number of GPUs changes, so jobs before such a change count
    as others of the same number of GPUs do: what the last checkpoint prints is Megatron's own sum.
    """
    own = jobs_of_run(jobs, world)
    if not own:
        return None
    saved = [job for job in own if job.saves_count]
    last = saved[-1] if saved else own[-1]
    return ProgressSummary(
        gpus=own[0].gpus,
        jobs=len(own),
        restarts=len(own) - 1,
        saves=sum(job.saves_count for job in own),
        last_iteration=last.last_iteration,
        tokens=last.tokens_count,
        job_tflops_per_gpu=last.job_tflops_per_gpu,
        cumulative_tflops_per_gpu=last.cumulative_tflops_per_gpu,
        other_gpus=tuple(sorted({job.gpus for job in jobs} - {own[0].gpus})),
    )


def progress_facts(jobs: Sequence[ProgressJob], progress: ProgressSummary | None) -> dict[str, Known]:
    """The facts of ``progress``, or why there is none."""
    if progress is None:
        others = ", ".join(map(str, sorted({job.gpus for job in jobs})))
        reason = (
            f"the progress file is of jobs with {others} GPUs, which the run does not have"
            if jobs
            else "no progress file was given (progress.txt of the checkpoint directory, --log-progress)"
        )
        return dict.fromkeys(PROGRESS_FACTS, (None, reason))
    no_save = "the progress file holds no checkpoint of the run's jobs"
    return {
        "log_job_tflops_per_gpu": _or_missing(progress.job_tflops_per_gpu, no_save),
        "log_cumulative_tflops_per_gpu": _or_missing(progress.cumulative_tflops_per_gpu, no_save),
        "log_restarts_count": (progress.restarts, None),
    }


def _or_missing(value: float | None, reason: str) -> Known:
    return (value, None) if value is not None else (None, reason)
