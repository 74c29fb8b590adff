"""Lines as the frameworks print them."""

from __future__ import annotations

from pathlib import Path

from three_walls.log.read_log import read_logs
from three_walls.log.training_log import TrainingLog


def iteration(number: int, ms: float, batch: int = 8, skipped: int = 0, printed_at: str = "2026-07-25 10:11:12") -> str:
    return (
        f" [{printed_at}] iteration {number:8d}/{50:8d} | consumed samples: {number * batch:12d} | "
        f"elapsed time per iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 61.4 | "
        f"learning rate: 2.999000E-04 | global batch size: {batch:5d} | lm loss: 7.968678E+00 | loss scale: 1.0 | "
        f"grad norm: 1.040 | number of skipped iterations: {skipped:3d} | number of nan iterations:   0 |"
    )


def rank_timers(timers: dict[str, dict[int, float]]) -> list[str]:
    """What ``timing_log_option all`` prints."""
    lines = ["INFO:megatron.core.timers:times across ranks (ms):"]
    for name, ranks in timers.items():
        lines += [f"  {name}:", *(f"     rank {rank:2d}: {ms:.2f}" for rank, ms in ranks.items())]
    return lines


MEMORY_MB = (
    "[Rank 3] (after 2 iterations) memory (MB) | allocated: 100.00 | max allocated: 300.50 | reserved: 400.00 "
    "| max reserved: 512.00"
)
MEMORY_GB = (
    "[Rank 0] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 12.345 | mem-active-gigabytes: 12.4 | "
    "mem-inactive-gigabytes: 0.5 | mem-reserved-gigabytes: 15.0 | mem-max-allocated-gigabytes: 14.25 | "
    "mem-max-reserved-gigabytes: 16.0 | mem-alloc-retires: 2 | mem-allocated-count: 1234"
)
OOM = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of "
    "79.00 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of "
    "the allocated memory 69.00 GiB is allocated by PyTorch, with 2.00 GiB allocated in private pools (e.g., CUDA "
    "Graphs), and 5.00 GiB is reserved by PyTorch but unallocated."
)
ARGUMENTS = [
    "------------------------ arguments ------------------------",
    "  tensor_model_parallel_size ...................... 2",
    "  expert_model_parallel_size ...................... 4",
    "  cuda_graph_scope ................................ [<CudaGraphScope.attn: 1>, 'x']",
    "  inference_dynamic_batching_cuda_graph_max_tokens  16384",
    "  profile ......................................... True",
    "  profile_step_start .............................. 8",
    "  profile_step_end ................................ 10",
    "-------------------- end of arguments ---------------------",
]
SUMMARY = [
    "",
    "=" * 70,
    "Configuration Summary (Non-Default Values vs Megatron Core)",
    "=" * 70,
    "",
    "[model] Non-default values (vs Mcore TransformerConfig):",
    "  num_layers: 48  (Mcore default: 0)",
    "  expert_model_parallel_size: 8  (Mcore default: 1)",
    "",
    "-" * 70,
    "Other Configuration Values:",
    "-" * 70,
    "",
    "[train]:",
    "  micro_batch_size: 2",
    "",
    "=" * 70,
    "  this_is: not part of it",
]


def read(tmp_path: Path, *lines: str, name: str = "train.log") -> TrainingLog:
    """The log of one file with these lines."""
    path = tmp_path / name
    path.write_text("".join(f"{line}\n" for line in lines))
    return read_logs([path])
