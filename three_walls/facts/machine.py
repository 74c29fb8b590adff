"""The GPU of the run, as recorded and as the hardware table has it."""

from __future__ import annotations

from three_walls.facts.step_view import RunView
from three_walls.model.fact import FactGroup, Measurements, known_or_missing

facts = FactGroup("Machine")

GPU_NAME = facts.fact("gpu.name", "text", "GPU model as the driver names it.")
GPU_SM = facts.fact("gpu.sm", "text", "Compute capability, as sm_90.")
GPU_FAMILY = facts.fact("gpu.family", "text", "Row of the hardware table (H100, H200, B200, GB200, ...).")
GPU_NVLINK_DOMAIN = facts.fact("gpu.nvlink_domain_gpus", "count", "GPUs joined by one NVLink domain.")
GPU_MEMORY = facts.fact("gpu.memory_bytes", "bytes", "Device memory.")


def measure_machine(run: RunView) -> Measurements:
    """Every fact of this group."""
    device, gpu = run.device, run.gpu
    not_recorded = "the trace does not say, or ranks differ (TARGET_INFO_GPU)"
    no_row = "the GPU is not in tables/hardware.yaml"
    no_domain = "what NVLink joins is not known of this board" if gpu else no_row
    return {
        GPU_NAME: known_or_missing(device.name if device else None, not_recorded),
        GPU_SM: known_or_missing((device.sm or None) if device else None, not_recorded),
        GPU_MEMORY: known_or_missing((device.memory_bytes or None) if device else None, not_recorded),
        GPU_FAMILY: known_or_missing(gpu.family if gpu else None, no_row),
        GPU_NVLINK_DOMAIN: known_or_missing((gpu.nvlink_domain_gpus or None) if gpu else None, no_domain),
    }
