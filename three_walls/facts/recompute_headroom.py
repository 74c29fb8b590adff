"""What the peak of memory would be without recompute."""

from __future__ import annotations

from dataclasses import replace

from three_walls.facts.memory_estimate import estimate_memory
from three_walls.model.config import ConfigValue, RunConfig
from three_walls.model.fact import FactValue

Known = tuple[FactValue, str | None]


def peak_without_recompute(config: RunConfig, gpu_memory_bytes: int | None, peak: Known) -> Known:
    """Measured ``peak``, with the estimated activations exchanged for those without recompute, over device memory.

    The estimate counts twice, once against itself: what it leaves out (fragments, workspaces) is in the measured part.
    """
    peak_bytes, reason = peak
    if not isinstance(peak_bytes, int):
        return None, reason
    if not gpu_memory_bytes:
        return None, "the trace does not say how much memory the GPU has"
    plain = replace(config, values={**config.values, "recompute_granularity": ConfigValue(None, "without recompute")})
    found = [estimate_memory(one, gpu_memory_bytes, peak_bytes)["memory_activations_bytes"] for one in (config, plain)]
    (now, reason), (then, reason_then) = found
    if not isinstance(now, int) or not isinstance(then, int):
        return None, reason or reason_then
    return (peak_bytes + then - now) / gpu_memory_bytes, None
