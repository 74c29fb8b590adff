"""What a run of half the tensor-parallel size would look like on the same GPUs, at the same global batch size.

There are then twice as many replicas. Each runs half as many micro-batches, and a rank computes twice as much of each:
with sequence parallelism every rank of a tensor-parallel group holds its part of the tokens. Experts that are not split
stay where they are.
"""

from __future__ import annotations

from dataclasses import replace

from three_walls.facts.memory_estimate import MEMORY_PEAK, count_dense_parameters, estimate_stages, find_fullest
from three_walls.facts.run_layout import halve_microbatches
from three_walls.facts.token_exchange import EP_FASTEST
from three_walls.facts.transport import DP_FASTEST, TP_FASTEST
from three_walls.lib.fact import FactGroup, Measurements
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.lib.plain_data import ConfigData
from three_walls.lib.units import NS_PER_S
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.step.step_view import RunView, StepView

facts = FactGroup()

HALF_TENSOR_PARALLEL = facts.fact(
    "half_tensor_parallel_size",
    "count",
    "half the tensor-parallel size",
    "Half the tensor-parallel size; missing where half as many micro-batches would not fill the pipeline.",
)
MEMORY_PEAK_HALF_TENSOR_PARALLEL = facts.fact(
    "memory_peak_half_tensor_parallel_ratio",
    "ratio",
    "halved tensor parallelism's peak over device memory",
    "Peak of allocated memory by the log, with the estimated parameters, gradients, optimizer state and activations "
    "replaced by those with half the tensor-parallel size, over device memory.",
    "A measured peak: above 1 such a run would not fit.",
)
HALF_TENSOR_PARALLEL_EXCHANGE = facts.fact(
    "half_tensor_parallel_exchange_ratio",
    "ratio",
    "halved tensor parallelism's gradient exchange over the optimizer",
    "Time in which a replica would exchange gradients and parameters outside of experts with the one that half the "
    "tensor-parallel size adds, at the fastest bandwidth of this run, over the time of the optimizer's kernels. 0 "
    "where there are several replicas already: then the exchange that they have grows.",
)


def measure_half_tensor_parallel(run: RunView, step: StepView | None, measured: Measurements) -> Measurements:
    """Every fact of this group. ``measured``: with the peak of memory and the fastest bandwidths."""
    size, config = _halve(run), step.config_as_run if step else run.config
    half = _halved(config, size.value) if size.value else None
    return {
        HALF_TENSOR_PARALLEL: size,
        MEMORY_PEAK_HALF_TENSOR_PARALLEL: _measure_peak(run, config, half, measured),
        HALF_TENSOR_PARALLEL_EXCHANGE: _measure_exchange(run, half, step, measured),
    }


def _halve(run: RunView) -> Measurement[int]:
    size = run.layout.tensor
    if size is None:
        return missing("the tensor-parallel size is not known")
    if size % 2:
        return missing(f"a tensor-parallel size of {size} cannot be halved")
    halved = halve_microbatches(run.config, run.layout)
    return known(size // 2) if halved.value else missing(str(halved.missing_reason))


def _halved(config: RunConfig, size: int) -> RunConfig:
    """``config`` with tensor-parallel ``size``; the experts stay as they are."""
    values: dict[str, ConfigData] = {"tensor_model_parallel_size": size}
    if size == 1:
        values["sequence_parallel"] = False
    source = "with half the tensor-parallel size"
    return replace(config, values={**config.values, **{key: ConfigValue(to, source) for key, to in values.items()}})


_NO_HALF = "tensor parallelism cannot be halved here"


def _measure_peak(
    run: RunView, config: RunConfig, half: RunConfig | None, measured: Measurements
) -> Measurement[float]:
    peak = measured[MEMORY_PEAK]
    device_bytes = run.device.memory_bytes if run.device else None
    if half is None or peak.whole is None or not device_bytes:
        return missing(str(peak.missing_reason) if half else _NO_HALF)
    now, then = _total(config), _total(half)
    if now.value is None or then.value is None:
        return missing(str(now.missing_reason or then.missing_reason))
    return known((peak.whole + then.value - now.value) / device_bytes)


def _total(config: RunConfig) -> Measurement[int]:
    stages = estimate_stages(config)
    if stages.value is None:
        return missing(str(stages.missing_reason))
    stage = find_fullest(stages.value)
    return missing(str(stage.activations.missing_reason)) if stage.activations.is_missing else known(stage.total)


def _measure_exchange(
    run: RunView, half: RunConfig | None, step: StepView | None, measured: Measurements
) -> Measurement[float]:
    if half is None or step is None:
        return missing(_NO_HALF if half is None else "there is no step")
    if run.layout.data != 1:
        return known(0.0) if run.layout.data else missing("the data-parallel size is not known")
    rates = [rate.value for name in (EP_FASTEST, DP_FASTEST, TP_FASTEST) if (rate := measured[name]).value]
    parameters = count_dense_parameters(half)
    if parameters.value is None:
        return missing(str(parameters.missing_reason))
    updating_ns = step.owned_ns("optimizer")
    if not rates or not updating_ns:
        return missing("no bandwidth between the GPUs was measured" if updating_ns else "no optimizer was recorded")
    # Of two replicas each sends half of the gradients and half of the parameters.
    gradient_bytes = 2 if run.config.get("grad_reduce_in_fp32") is False else 4
    sent = parameters.value * (gradient_bytes + 2) / 2
    return known(sent / max(float(rate) for rate in rates if isinstance(rate, int | float)) * NS_PER_S / updating_ns)
