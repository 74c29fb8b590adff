"""What GEMMs and fused attention reach of the GPU's peak in the representative step.

Operations are counted from the config for the layers that the rank's pipeline stage holds, replays included. Times are
those of the budget: an instant in which several GEMMs run counts once. Tokens are taken to be spread evenly over the
experts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from three_walls.facts.fact_rows import Efficiency, MoePart
from three_walls.facts.run_layout import UNKNOWN_GPU
from three_walls.lib.declare import artifact, fact
from three_walls.lib.measurement import NS_PER_S, Measurement, known, known_or_missing, missing
from three_walls.megatron.activations import is_attention_unfused
from three_walls.megatron.count_flops import STEP_PER_FORWARD, ForwardFlops, count_forward, precision_of
from three_walls.megatron.model_shape import ModelShape
from three_walls.megatron.parallel_layout import CompleteLayout
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.step_view import StepView
from three_walls.tables.hardware import GpuModel
from three_walls.tables.model_parts import EXPERT_GEMM

GEMMS_ROLE, EXPERTS_ROLE, OTHER_ROLE, ATTENTION_ROLE = ("GEMMs", "expert GEMMs", "other GEMMs", "fused attention")
_GEMMS_OVERLAP = ("overlap_moe_expert_parallel_comm", "moe_shared_expert_overlap", "delay_wgrad_compute")
"""With one of these, GEMMs of several parts run at the same time, or apart from their layer."""
_FEWER_TOKENS = "with balanced routing they were above the peak of the GPU, so this rank computes fewer tokens"
_GROUPED_BY_STREAMS = "grouped: one cuBLAS GEMM per expert, over several streams"
"""How Transformer Engine runs the experts of a grouped layer where it has no grouped kernel."""


@dataclass(frozen=True, slots=True)
class ExecutedFlops:
    """Operations that one GPU runs in a step, as kernels run them."""

    experts: int
    other_gemms: int
    """All other GEMMs; with unfused attention also its two, whose operations a mask does not reduce."""
    fused_attention: int
    """Below the causal diagonal; 0 where attention is unfused."""

    @property
    def gemms(self) -> int:
        return self.experts + self.other_gemms


@artifact
def executed_flops(
    step: StepView, model_shape: ModelShape, complete_layout: CompleteLayout, config_as_run: RunConfig
) -> Measurement[ExecutedFlops]:
    """Operations of the step on the rank."""
    if complete_layout.pipeline > 1 and step.rank.rank_source != "environment":
        return missing("the pipeline stage is not known: the trace does not hold the launcher's RANK")
    return count_executed(model_shape, complete_layout, config_as_run, step.rank.rank)


@artifact
def efficiency(
    step: StepView,
    executed_flops: Measurement[ExecutedFlops],
    moe_layers: Measurement[tuple[MoePart, ...]],
    config_as_run: RunConfig,
) -> tuple[Efficiency, ...]:
    """One row per role with time of its own."""
    if executed_flops.value is None:
        return ()
    return tabulate_roles(executed_flops.value, step.budget_ns, moe_layers.value or (), config_as_run, step.gpu)


@fact("fraction", "the efficiency of the GEMMs")
def gemm_efficiency_fraction(
    efficiency: tuple[Efficiency, ...], executed_flops: Measurement[ExecutedFlops]
) -> Measurement[float]:
    """Fraction of the GPU's peak that GEMMs reach while one runs: operations of the rank's layers (replays and unfused
    scores included) over the time of its GEMMs, grouped ones included.

    Not the same as: Utilization of the step: time without a GEMM does not count here.
    """
    return _find_fraction(GEMMS_ROLE, efficiency, executed_flops)


@fact("fraction", "the efficiency of the expert GEMMs")
def expert_gemm_efficiency_fraction(
    efficiency: tuple[Efficiency, ...], executed_flops: Measurement[ExecutedFlops]
) -> Measurement[float]:
    """Fraction of the GPU's peak that expert GEMMs reach while one runs: operations of the rank's experts (replays
    included, routing taken to be balanced) over the time of the GEMMs between dispatch and combine."""
    return _find_fraction(EXPERTS_ROLE, efficiency, executed_flops)


def _find_fraction(role: str, rows: Sequence[Efficiency], executed: Measurement[ExecutedFlops]) -> Measurement[float]:
    row = next((row for row in rows if row.role == role), None)
    if row is None:
        return missing(executed.missing_reason or f"the time that {role} take could not be separated")
    return known_or_missing(row.fraction, _FEWER_TOKENS if row.peak_flops_per_s else UNKNOWN_GPU)


def count_executed(
    shape: ModelShape, layout: CompleteLayout, config: RunConfig, rank: int
) -> Measurement[ExecutedFlops]:
    """Operations of one step on global ``rank``."""
    stages = layout.layers_by_stage(config, shape.layers)
    if stages is None:
        return missing("the pipeline's stages hold unequal numbers of layers")
    stage = layout.stage_of(rank)
    layers = stages[stage]
    forward = count_forward(shape, layers, has_output=stage == layout.pipeline - 1)
    replay = _count_replayed(count_forward(shape, layers, has_output=False), config, len(layers), layout.virtual)
    gpus = layout.world // layout.pipeline
    tokens = layout.global_batch * shape.sequence

    def per_gpu(*terms: str) -> int:
        per_token = sum(STEP_PER_FORWARD * getattr(forward, term) + getattr(replay, term) for term in terms)
        return int(per_token) * tokens // gpus

    other = per_gpu("projections", "dense_mlp", "shared_experts", "router", "logits", "prediction")
    attention = per_gpu("attention")
    is_unfused = is_attention_unfused(config)
    return known(
        ExecutedFlops(
            experts=per_gpu("experts"),
            other_gemms=other + (2 * attention if is_unfused else 0),
            fused_attention=0 if is_unfused else attention,
        )
    )


def _count_replayed(forward: ForwardFlops, config: RunConfig, layers: int, virtual: int) -> ForwardFlops:
    """Operations per token that recompute runs again for a stage's ``layers``."""
    granularity = config.get("recompute_granularity")
    if granularity == "full":
        if config.get("recompute_method") != "block":
            return forward
        replayed = min(layers, (config.whole_number("recompute_num_layers") or 0) * virtual)
        terms = ("projections", "attention", "dense_mlp", "experts", "shared_experts", "router")
        return ForwardFlops(**{term: getattr(forward, term) * replayed // layers for term in terms})
    modules = config.get("recompute_modules")
    if granularity != "selective" or not isinstance(modules, tuple):
        return ForwardFlops()
    has_moe = "moe" in modules
    return ForwardFlops(
        attention=forward.attention if "core_attn" in modules else 0,
        dense_mlp=forward.dense_mlp if "mlp" in modules else 0,
        experts=forward.experts if has_moe else 0,
        router=forward.router if has_moe else 0,
        shared_experts=forward.shared_experts if has_moe or "shared_experts" in modules else 0,
    )


def tabulate_roles(
    executed: ExecutedFlops,
    budget_ns: Mapping[str, int],
    parts: Sequence[MoePart],
    config: RunConfig,
    gpu: GpuModel | None,
) -> tuple[Efficiency, ...]:
    """One row per role with time of its own. ``budget_ns``: bucket -> ns of the step; ``parts``: of its MoE ledger."""
    precision = precision_of(config).value
    peak = gpu.peak_flops(precision) if gpu is not None and precision is not None else None
    attention_peak = gpu.bf16_dense_flops if gpu is not None else None  # attention stays in bf16 under FP8 recipes
    gemms_ns = budget_ns.get("gemm", 0) + budget_ns.get("grouped_gemm", 0)
    balance = "" if config.get("moe_router_force_load_balancing") is True else "routing taken to be balanced"
    rows = [_rate(GEMMS_ROLE, executed.gemms, gemms_ns, peak, balance)]
    experts_ns = _sum_over_layers([part for part in parts if part.part == EXPERT_GEMM])
    if experts_ns and not any(config.get(key) is True for key in _GEMMS_OVERLAP):
        is_split = config.get("moe_grouped_gemm") is True and not budget_ns.get("grouped_gemm", 0)
        notes = (_GROUPED_BY_STREAMS if is_split else "", balance)
        rows.append(_rate(EXPERTS_ROLE, executed.experts, experts_ns, peak, "; ".join(filter(None, notes))))
        unfused = ", scores of unfused attention" if is_attention_unfused(config) else ""
        note = f"projections, logits, router, dense and shared MLPs{unfused}"
        rows.append(_rate(OTHER_ROLE, executed.other_gemms, gemms_ns - experts_ns, peak, note))
    note = "causal half; its backward pass also computes the scores again, which is not counted"
    attention_ns = budget_ns.get("attention", 0)
    rows.append(_rate(ATTENTION_ROLE, executed.fused_attention, attention_ns, attention_peak, note))
    return tuple(row for row in rows if row.ns > 0 and row.flops > 0)


def _sum_over_layers(parts: Sequence[MoePart]) -> int:
    """Time over all layers; where a direction has a row of all layers together, that row alone counts."""
    summed_directions = {part.direction for part in parts if part.layer is None}
    return sum(part.ns for part in parts if part.layer is None or part.direction not in summed_directions)


def _rate(role: str, flops: int, ns: int, peak: int | None, note: str) -> Efficiency:
    achieved = flops * NS_PER_S / ns if ns > 0 else None
    fraction = achieved / peak if achieved is not None and peak else None
    if fraction is not None and fraction > 1:
        fraction, note = None, _FEWER_TOKENS
    return Efficiency(role, flops, ns, achieved, peak, fraction, note)
