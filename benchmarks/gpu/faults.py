"""Faults that a case puts into a training, and parts of its step that it takes out: costs known by construction.

faults:
  late_host: {rank: 1, ms: 10}          rank 1's host is busy for 10 ms before each forward pass of a micro-batch
  shared_gpu: {rank: 1}                 another process multiplies matrices on rank 1's GPU
  gpu_memory: {fraction: 0.31}          PyTorch may allocate no more than this fraction of the GPU's memory
  local_exchange: true                  all-to-alls become copies of the same size inside each GPU
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
        torch.distributed.all_to_all_single = copy_locally
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


def copy_locally(output: Any, sent: Any, *_: Any, **__: Any) -> None:
    """Takes the place of torch.distributed.all_to_all_single: what fits of what is sent goes to the output."""
    rows = min(len(output), len(sent))
    output[:rows].copy_(sent[:rows])
