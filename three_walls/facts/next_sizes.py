"""The next smaller or larger size that a run may take, where arithmetic decides: micro-batch, expert parallelism."""

from __future__ import annotations

from three_walls.model.config import RunConfig
from three_walls.model.fact import FactValue

Known = tuple[FactValue, str | None]


def derive_next_sizes(config: RunConfig, world: int | None, micro_batches: int | None) -> dict[str, Known]:
    """Fact name -> (value, None) or (None, why there is none). ``micro_batches``: those of a step and rank."""
    return {
        "smaller_micro_batch_size": _smaller_micro_batch(config),
        "larger_micro_batch_size": _larger_micro_batch(config, micro_batches),
        "larger_expert_parallel_size": _larger_expert_parallel(config, world),
    }


def _smaller_micro_batch(config: RunConfig) -> Known:
    """The largest proper divisor: whatever global batch the old size divides, it divides as well."""
    size = config.size("micro_batch_size")
    if size is None:
        return None, "the config does not say micro_batch_size"
    if size == 1:
        return None, "a micro-batch of one sequence has no smaller one"
    return next(size // factor for factor in range(2, size + 1) if size % factor == 0), None


def _larger_micro_batch(config: RunConfig, micro_batches: int | None) -> Known:
    """Twice the size at half as many micro-batches, of which a pipeline wants at least (virtual: a multiple of) p."""
    size, stages = config.size("micro_batch_size"), config.size("pipeline_model_parallel_size")
    if size is None or micro_batches is None or stages is None:
        return None, "needs micro and global batch size, the parallel sizes and WORLD_SIZE"
    if micro_batches % 2:
        return None, f"{micro_batches} micro-batches per step cannot be halved"
    left = micro_batches // 2
    is_virtual = config.size("virtual_pipeline_model_parallel_size") is not None
    if left < stages or (is_virtual and left % stages):
        return None, f"{left} micro-batches would not keep {stages} pipeline stages busy"
    return 2 * size, None


def _larger_expert_parallel(config: RunConfig, world: int | None) -> Known:
    """Twice the size, where it divides the experts, and stages x expert tensor x expert parallel the world."""
    size, experts = config.size("expert_model_parallel_size"), config.size("num_moe_experts")
    stages = config.size("pipeline_model_parallel_size")
    tensor = config.size("expert_tensor_parallel_size") or config.size("tensor_model_parallel_size")
    if size is None or experts is None or stages is None or tensor is None or world is None:
        return None, "needs the number of experts, the parallel sizes and WORLD_SIZE"
    if experts % (2 * size):
        return None, f"{experts} experts cannot be split over {2 * size} ranks"
    if world % (stages * tensor * 2 * size):
        return None, f"{world} ranks cannot hold expert groups of {2 * size}"
    return 2 * size, None
