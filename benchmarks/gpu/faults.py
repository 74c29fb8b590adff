"""Faults that a case puts into a training, and parts of its step that it takes out: costs known by construction.

faults:
  late_host: {rank: 1, ms: 10}          rank 1's host is busy for 10 ms before each forward pass of a micro-batch
  shared_gpu: {rank: 1}                 another process multiplies matrices on rank 1's GPU
  gpu_memory: {fraction: 0.31}          PyTorch may allocate no more than this fraction of the GPU's memory
  local_exchange: true                  the experts' all-to-alls become copies inside each GPU
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MULTIPLY = """
import os, torch
a = torch.randn(8192, 8192, device="cuda:{device}", dtype=torch.bfloat16)
while os.getppid() == {parent}:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
"""


@contextlib.contextmanager
def injected(faults: Mapping[str, Any], rank: int) -> Iterator[None]:
    """What surrounds a whole training."""
    torch: Any = importlib.import_module("torch")
    if "gpu_memory" in faults:
        torch.cuda.set_per_process_memory_fraction(faults["gpu_memory"]["fraction"], rank)
    if faults.get("local_exchange"):
        torch.distributed.all_to_all_single = exchange_locally(torch.distributed.all_to_all_single, find_experts_group)
    if faults.get("shared_gpu", {}).get("rank") != rank:
        yield
        return
    rival = subprocess.Popen([sys.executable, "-c", MULTIPLY.format(device=rank, parent=os.getpid())])
    try:
        yield
    finally:
        rival.kill()


def delayed(forward_step: Callable[..., Any], faults: Mapping[str, Any], rank: int) -> Callable[..., Any]:
    """The forward step, behind a busy host where the case delays this rank."""
    late = faults.get("late_host")
    if late is None or late["rank"] != rank:
        return forward_step

    @functools.wraps(forward_step)  # Megatron-Bridge reads the signature
    def delayed_step(*arguments: Any, **keywords: Any) -> Any:
        end = time.perf_counter() + late["ms"] / 1000
        while time.perf_counter() < end:
            pass
        return forward_step(*arguments, **keywords)

    return delayed_step


def exchange_locally(exchange: Callable[..., Any], experts_group: Callable[[], Any]) -> Callable[..., Any]:
    """``exchange`` (torch.distributed.all_to_all_single), but what the experts' group sends stays on the GPU.

    What fits of it is copied to the output. Other groups exchange: a sharded optimizer may add gradients that way.
    """

    @functools.wraps(exchange)
    def exchange_or_copy(
        output: Any,
        input: Any,  # noqa: A002 - PyTorch's name: callers may pass it by name
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        group: Any = None,
        async_op: bool = False,
    ) -> Any:
        if group is not experts_group():
            return exchange(output, input, output_split_sizes, input_split_sizes, group, async_op)
        rows = min(len(output), len(input))
        output[:rows].copy_(input[:rows])
        return Copied() if async_op else None

    return exchange_or_copy


class Copied:
    """The handle of a copy. Megatron waits on the stream on which it exchanges: the copy is before the wait."""

    def wait(self) -> bool:
        return True


def find_experts_group() -> Any:
    """Megatron's group of ranks that share the experts; fails where none is made, so that no edit does nothing."""
    return importlib.import_module("megatron.core.parallel_state").get_expert_model_parallel_group()
