"""What the same GPUs would hold with other parallel sizes, at the same global batch size, or with less recompute.

Half the tensor-, context- or pipeline-parallel size leaves twice as many replicas, of which each runs half as many
micro-batches. Half the expert-parallel size leaves twice as many replicas of each expert. A group that is larger than
an NVLink domain fits into one where more pipeline stages hold the layers between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import gcd

from three_walls.facts.run_layout import gpus_of_domain
from three_walls.lib.declare import artifact, fact
from three_walls.lib.measurement import GIVE_CONFIG, Measurement, known, missing
from three_walls.lib.plain_data import ConfigData
from three_walls.megatron.model_shape import find_moe_layers
from three_walls.megatron.parallel_layout import halve_microbatches, has_uneven_stages
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.megatron.stage_memory import estimate_stages, find_fullest
from three_walls.step.step_view import RunView

_FITTING_RATIO = 0.90
"""Peak over device memory up to which a run is taken to fit, as the rules on parallel sizes and recompute ask."""
_SPREAD_WITHOUT_STAGES = 4
"""Times as many experts on a rank as many runs can hold; more need stages, where no log shows the memory."""


PeakWith = Callable[..., Measurement[float]]


@artifact
def peak_with(
    config_as_run: RunConfig,
    memory_peak_bytes: Measurement[int],
    memory_estimated_peak_bytes: Measurement[int],
    usable_bytes: Measurement[int],
) -> PeakWith:
    """For other settings: the peak by the log, with its estimate replaced by theirs, over the memory that the run can
    have of its device."""

    def peak_ratio(**values: ConfigData) -> Measurement[float]:
        if usable_bytes.value is None:
            return missing(str(usable_bytes.missing_reason))
        changed = {key: ConfigValue(to, "with other settings") for key, to in values.items()}
        then = _total(replace(config_as_run, values={**config_as_run.values, **changed}))
        peak, now = memory_peak_bytes, memory_estimated_peak_bytes
        if peak.value is None or now.value is None or then.value is None:
            return missing(str(peak.missing_reason or now.missing_reason or then.missing_reason))
        return known((peak.value + then.value - now.value) / usable_bytes.value)

    return peak_ratio


@fact("count", "half the tensor-parallel size")
def half_tensor_parallel_size(run: RunView) -> Measurement[int]:
    """Half the tensor-parallel size; missing where half as many micro-batches would not fill the pipeline."""
    return _if_spread(run, _halve(run.layout.tensor, "tensor-parallel size"), run.layout.pipeline)


@fact("count", "half the context-parallel size")
def half_context_parallel_size(run: RunView) -> Measurement[int]:
    """Half the context-parallel size; missing where half as many micro-batches would not fill the pipeline."""
    return _if_spread(run, _halve(run.layout.context, "context-parallel size"), run.layout.pipeline)


@fact("count", "half the pipeline stages")
def half_pipeline_parallel_size(run: RunView) -> Measurement[int]:
    """Half the pipeline stages; missing where half as many micro-batches would not fill them, or where settings state
    what each stage holds."""
    if has_uneven_stages(run.config):
        return missing("settings state what each pipeline stage holds")
    half = _halve(run.layout.pipeline, "number of pipeline stages")
    return _if_spread(run, half, half.value)


@fact("count", "half the virtual stages")
def half_virtual_pipeline_size(run: RunView) -> Measurement[int]:
    """Half the virtual stages of each pipeline stage; 1 stands for none."""
    return _halve(run.layout.virtual, "number of virtual stages")


@fact("count", "half the expert-parallel size")
def half_expert_parallel_size(run: RunView) -> Measurement[int]:
    """Half the expert-parallel size."""
    return _halve(run.layout.expert, "expert-parallel size")


@fact("fraction", "token copies that half the ranks still send", whole="the copies that ranks send")
def half_expert_sent_fraction(run: RunView, half_expert_parallel_size: int) -> Measurement[float]:
    """Fraction of the token copies between ranks that half the expert-parallel size still sends, with uniform routing:
    of N ranks, each sends k(N-1)/N copies of a token with alltoall, and (N-1)(1-(1-1/N)^k) with a flex dispatcher."""
    top_k, dispatcher = run.config.whole_number("moe_router_topk"), run.config.get("moe_token_dispatcher_type")
    if not top_k or dispatcher not in ("alltoall", "flex"):
        return missing(f"needs top-k and the alltoall or a flex dispatcher {GIVE_CONFIG}")

    def sent(ranks: int) -> float:
        if dispatcher == "alltoall":
            return top_k * (ranks - 1) / ranks
        return (ranks - 1) * (1 - (1 - 1 / ranks) ** top_k)

    return known(sent(half_expert_parallel_size) / sent(2 * half_expert_parallel_size))


@fact("count", "the tensor-parallel size that fits NVLink")
def nvlink_tensor_parallel_size(run: RunView) -> Measurement[int]:
    """The largest tensor-parallel size that divides both the run's and the GPUs of an NVLink domain."""
    size, domain = run.layout.tensor, gpus_of_domain(run)
    if size is None or domain is None:
        return missing("the tensor-parallel size or the NVLink domain is not known")
    return known(gcd(size, domain))


@fact("count", "stages that replace tensor parallelism between NVLink domains")
def nvlink_tensor_pipeline_size(run: RunView, nvlink_tensor_parallel_size: int) -> Measurement[int]:
    """Pipeline stages with which a tensor-parallel group that fits an NVLink domain leaves as many ranks per replica as
    there are; missing where layers or micro-batches do not suffice."""
    return _more_stages(run, (run.layout.tensor or 0) // nvlink_tensor_parallel_size, run.layout.microbatches)


@fact("count", "stages with expert groups inside NVLink")
def nvlink_expert_pipeline_size(run: RunView, peak_with: PeakWith) -> Measurement[int]:
    """Pipeline stages with which the experts of groups inside NVLink domains fit: those of the run where its peak of
    memory shows that they suffice, or where no peak is known and a rank gets at most four times as many experts; else
    as many times more as a group is smaller."""
    size, domain, stages = run.layout.expert, gpus_of_domain(run), run.layout.pipeline
    if not size or not domain or not stages or size % domain:
        return missing("the expert-parallel size is no multiple of the NVLink domain, or not known")
    times, peak = size // domain, peak_with(expert_model_parallel_size=domain).value
    fits = times <= _SPREAD_WITHOUT_STAGES if peak is None else peak <= _FITTING_RATIO
    if fits:
        return known(stages)
    # The stages come from replicas, so each of those that are left runs as many more micro-batches.
    replicas, microbatches = run.layout.data or 1, run.layout.microbatches
    return _more_stages(run, times, None if replicas % times or not microbatches else times * microbatches)


@fact("ratio", "halved tensor parallelism's peak over device memory")
def memory_peak_half_tensor_parallel_ratio(peak_with: PeakWith, half_tensor_parallel_size: int) -> Measurement[float]:
    """Peak of allocated memory by the log, with the estimated parameters, gradients, optimizer state and activations
    replaced by those with half the tensor-parallel size, over device memory.

    Not the same as: A measured peak: above 1 such a run would not fit.
    """
    no_sequence = {"sequence_parallel": False} if half_tensor_parallel_size == 1 else {}
    return peak_with(tensor_model_parallel_size=half_tensor_parallel_size, **no_sequence)


@fact("ratio", "halved context parallelism's peak over device memory")
def memory_peak_half_context_parallel_ratio(peak_with: PeakWith, half_context_parallel_size: int) -> Measurement[float]:
    """Peak of allocated memory by the log, with its estimate replaced by that with half the context-parallel size, over
    device memory."""
    return peak_with(context_parallel_size=half_context_parallel_size)


@fact("ratio", "halved pipeline's peak over device memory")
def memory_peak_half_pipeline_parallel_ratio(
    peak_with: PeakWith, half_pipeline_parallel_size: int
) -> Measurement[float]:
    """Peak of allocated memory by the log, with its estimate replaced by that with half the pipeline stages, over
    device memory."""
    no_virtual = {"virtual_pipeline_model_parallel_size": None} if half_pipeline_parallel_size == 1 else {}
    return peak_with(pipeline_model_parallel_size=half_pipeline_parallel_size, **no_virtual)


@fact("ratio", "halved expert parallelism's peak over device memory")
def memory_peak_half_expert_parallel_ratio(peak_with: PeakWith, half_expert_parallel_size: int) -> Measurement[float]:
    """Peak of allocated memory by the log, with its estimate replaced by that with half the expert-parallel size, over
    device memory."""
    return peak_with(expert_model_parallel_size=half_expert_parallel_size)


@fact("ratio", "NVLink-sized tensor groups' peak over device memory")
def memory_peak_nvlink_tensor_ratio(
    peak_with: PeakWith, nvlink_tensor_parallel_size: int, nvlink_tensor_pipeline_size: int
) -> Measurement[float]:
    """Peak of allocated memory by the log, with its estimate replaced by that with tensor-parallel groups inside NVLink
    domains and the pipeline stages for it, over device memory."""
    return peak_with(
        tensor_model_parallel_size=nvlink_tensor_parallel_size,
        pipeline_model_parallel_size=nvlink_tensor_pipeline_size,
    )


@fact("ratio", "NVLink-sized expert groups' peak over device memory")
def memory_peak_nvlink_expert_ratio(
    run: RunView, peak_with: PeakWith, nvlink_expert_pipeline_size: int
) -> Measurement[float]:
    """Peak of allocated memory by the log, with its estimate replaced by that with expert-parallel groups inside NVLink
    domains and the pipeline stages for it, over device memory."""
    return peak_with(
        expert_model_parallel_size=gpus_of_domain(run), pipeline_model_parallel_size=nvlink_expert_pipeline_size
    )


@fact("config", "the narrow modules whose recompute suffices")
def sufficient_recompute_modules(config_as_run: RunConfig, peak_with: PeakWith) -> tuple[str, ...]:
    """The fewest modules to recompute with which the run fits into 90% of device memory, all that the model has if that
    is not enough, and the first where no peak is known. They are the activation between grouped experts' GEMMs, the
    up-projections of multi-latent attention, the norms and the MLPs of dense layers, in this order."""
    # By what they cost where they were measured (skill:nemo-mbridge-perf-activation-recompute/SKILL.md:119-133).
    layers = config_as_run.whole_number("num_layers") or 0
    with_experts = find_moe_layers(config_as_run, layers).value
    is_there = {
        "moe_act": config_as_run.get("moe_grouped_gemm") is True,
        "mla_up_proj": config_as_run.get("multi_latent_attention") is True,
        "layernorm": True,
        "mlp": with_experts is not None and len(with_experts) < layers,
    }
    modules = tuple(name for name, has in is_there.items() if has)
    for count in range(1, len(modules)):
        peak = peak_with(**_selective(modules[:count])).value
        if peak is None or peak <= _FITTING_RATIO:
            return modules[:count]
    return modules


@fact("ratio", "the peak with narrow recompute over device memory")
def memory_peak_sufficient_recompute_ratio(
    peak_with: PeakWith, sufficient_recompute_modules: tuple[str, ...]
) -> Measurement[float]:
    """Peak of allocated memory by the log, with its estimate replaced by that with recompute of the narrow modules that
    suffice, over device memory.

    Not the same as: A measured peak: above 1 such a run would not fit.
    """
    return peak_with(**_selective(sufficient_recompute_modules))


def _selective(modules: tuple[str, ...]) -> dict[str, ConfigData]:
    return {"recompute_granularity": "selective", "recompute_modules": modules}


def _halve(size: int | None, name: str) -> Measurement[int]:
    if size is None:
        return missing(f"the {name} is not known")
    return missing(f"a {name} of {size} cannot be halved") if size % 2 else known(size // 2)


def _if_spread(run: RunView, half: Measurement[int], stages: int | None) -> Measurement[int]:
    """``half`` where twice as many replicas keep ``stages`` busy with half as many micro-batches each."""
    if half.value is None:
        return half
    return halve_microbatches(run.config, replace(run.layout, pipeline=stages)).map(lambda _: half.value or 0)


def _more_stages(run: RunView, times: int, microbatches: int | None) -> Measurement[int]:
    """``times`` as many pipeline stages, for ``microbatches`` of a replica; missing where layers or micro-batches do
    not suffice."""
    layers, layout = run.config.size("num_layers"), run.layout
    if not layers or not layout.pipeline or not microbatches:
        return missing(f"needs the layers, and batch and parallel sizes that divide WORLD_SIZE {GIVE_CONFIG}")
    stages = layout.pipeline * times
    if has_uneven_stages(run.config) or layers % (stages * layout.virtual):
        return missing(f"the layers are not known to divide by {stages} pipeline stages")
    if microbatches < stages:
        return missing(f"{microbatches} micro-batches would not keep {stages} pipeline stages busy")
    return known(stages)


def _total(config: RunConfig) -> Measurement[int]:
    stages = estimate_stages(config)
    if stages.value is None:
        return missing(str(stages.missing_reason))
    stage = find_fullest(stages.value)
    return missing(str(stage.activations.missing_reason)) if stage.activations.is_missing else known(stage.total)
