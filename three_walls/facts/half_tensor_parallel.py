"""What a run of half the tensor-parallel size would look like on the same GPUs, at the same global batch size.

There are then twice as many replicas. Each runs half as many micro-batches, and a rank computes twice as much of each:
with sequence parallelism every rank of a tensor-parallel group holds its part of the tokens. Experts that are not split
stay where they are.
"""

from __future__ import annotations

from dataclasses import replace

from three_walls.facts.memory_estimate import NO_DEVICE_MEMORY
from three_walls.lib.declare import artifact, fact
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.lib.plain_data import ConfigData
from three_walls.lib.units import NS_PER_S
from three_walls.megatron.parallel_layout import halve_microbatches
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.megatron.stage_memory import count_dense_parameters, estimate_stages, find_fullest
from three_walls.step.step_view import RunView, StepView


@artifact
def half_config(half_tensor_parallel_size: Measurement[int], config_as_run: RunConfig) -> Measurement[RunConfig]:
    """The settings with half the tensor-parallel size; the experts stay as they are."""
    size = half_tensor_parallel_size.value
    if size is None:
        return missing("tensor parallelism cannot be halved here")
    values: dict[str, ConfigData] = {"tensor_model_parallel_size": size}
    if size == 1:
        values["sequence_parallel"] = False
    source = "with half the tensor-parallel size"
    halved = {key: ConfigValue(to, source) for key, to in values.items()}
    return known(replace(config_as_run, values={**config_as_run.values, **halved}))


@fact("count", "half the tensor-parallel size")
def half_tensor_parallel_size(run: RunView) -> Measurement[int]:
    """Half the tensor-parallel size; missing where half as many micro-batches would not fill the pipeline."""
    size = run.layout.tensor
    if size is None:
        return missing("the tensor-parallel size is not known")
    if size % 2:
        return missing(f"a tensor-parallel size of {size} cannot be halved")
    return halve_microbatches(run.config, run.layout).map(lambda _: size // 2)


@fact("ratio", "halved tensor parallelism's peak over device memory")
def memory_peak_half_tensor_parallel_ratio(
    run: RunView, half_config: RunConfig, memory_peak_bytes: int, memory_estimated_peak_bytes: Measurement[int]
) -> Measurement[float]:
    """Peak of allocated memory by the log, with the estimated parameters, gradients, optimizer state and activations
    replaced by those with half the tensor-parallel size, over device memory.

    Not the same as: A measured peak: above 1 such a run would not fit.
    """
    device_bytes = run.device.memory_bytes if run.device else None
    if not device_bytes:
        return missing(NO_DEVICE_MEMORY)
    now, then = memory_estimated_peak_bytes, _total(half_config)
    if now.value is None or then.value is None:
        return missing(str(now.missing_reason or then.missing_reason))
    return known((memory_peak_bytes + then.value - now.value) / device_bytes)


@fact("ratio", "halved tensor parallelism's gradient exchange over the optimizer")
def half_tensor_parallel_exchange_ratio(
    half_config: RunConfig,
    step: Measurement[StepView],
    ep_fastest_bytes_per_s: Measurement[float],
    dp_fastest_bytes_per_s: Measurement[float],
    tp_fastest_bytes_per_s: Measurement[float],
) -> Measurement[float]:
    """Time in which a replica would exchange gradients and parameters outside of experts with the one that half the
    tensor-parallel size adds, at the fastest bandwidth of this run, over the time of the optimizer's kernels. 0 where
    there are several replicas already: then the exchange that they have grows."""
    if step.value is None:
        return missing("there is no step")
    layout, config = step.value.layout, step.value.config
    if layout.data != 1:
        return known(0.0) if layout.data else missing("the data-parallel size is not known")
    fastest = (ep_fastest_bytes_per_s, dp_fastest_bytes_per_s, tp_fastest_bytes_per_s)
    rates = [rate.value for rate in fastest if rate.value]
    parameters = count_dense_parameters(half_config)
    if parameters.value is None:
        return missing(str(parameters.missing_reason))
    updating_ns = step.value.owned_ns("optimizer")
    if not rates or not updating_ns:
        return missing("no bandwidth between the GPUs was measured" if updating_ns else "no optimizer was recorded")
    # Of two replicas each sends half of the gradients and half of the parameters.
    gradient_bytes = 2 if config.get("grad_reduce_in_fp32") is False else 4
    sent = parameters.value * (gradient_bytes + 2) / 2
    return known(sent / max(rates) * NS_PER_S / updating_ns)


def _total(config: RunConfig) -> Measurement[int]:
    stages = estimate_stages(config)
    if stages.value is None:
        return missing(str(stages.missing_reason))
    stage = find_fullest(stages.value)
    return missing(str(stage.activations.missing_reason)) if stage.activations.is_missing else known(stage.total)
