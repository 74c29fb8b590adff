"""Whether a log is of the traced run, and which jobs of a progress file are."""

from __future__ import annotations

from collections.abc import Sequence

from three_walls.model.config import RunConfig
from three_walls.model.training_log import ProgressJob, TrainingLog

_PARALLEL_SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
)
_MODEL_SIZES = ("num_layers", "hidden_size", "seq_length", "micro_batch_size", "global_batch_size")


def find_other_sizes(log: TrainingLog, config: RunConfig) -> str:
    """A size that differs between ``log`` and the trace's own ``config``, as a sentence; empty if none does.

    A log whose sizes differ is of another run.
    """
    if log.contradictions:
        return f"its own lines differ in {', '.join(log.contradictions)} (logs of several runs?)"
    world = config.environment.get("WORLD_SIZE")
    sizes: list[tuple[str, object, object]] = [
        ("world_size", log.layout.world_size, None if world is None else world.value)
    ]
    sizes += [(name, getattr(log.layout, name), config.get(name)) for name in _PARALLEL_SIZES]
    arguments = dict(log.argument_block)
    sizes += [(name, arguments.get(name), config.get(name)) for name in _MODEL_SIZES]
    for name, logged, traced in sizes:
        if logged not in (None, "None") and traced is not None and str(logged) != str(traced):
            return f"{name} is {logged} in the log and {traced} in the trace"
    return ""


def jobs_of_run(jobs: Sequence[ProgressJob], world: int | None) -> tuple[ProgressJob, ...]:
    """The jobs with as many GPUs as the run (as the last job, where that number is unknown), in their order."""
    gpus = world or (jobs[-1].gpus if jobs else None)
    return tuple(job for job in jobs if job.gpus == gpus)
