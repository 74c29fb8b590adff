"""What GEMMs and fused attention reach of the GPU's peak, in the representative step.

Operations are counted from the config for the layers that the rank's pipeline stage holds, replays included; times are
those of the budget (an instant of several products counts once). Tokens are taken to be spread evenly over experts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from three_walls.facts.activation_bytes import is_attention_unfused
from three_walls.facts.model_flops import STEP_PER_FORWARD, ForwardFlops, count_forward
from three_walls.facts.model_shape import ModelShape
from three_walls.facts.moe_parts import EXPERT_GEMM
from three_walls.inputs.config.parallel_layout import CompleteLayout
from three_walls.model.config import RunConfig
from three_walls.model.report import Efficiency, MoePart
from three_walls.model.units import NS_PER_S
from three_walls.tables.hardware import BF16, FP8, NVFP4, GpuModel

GEMMS_ROLE, EXPERTS_ROLE, OTHER_ROLE, ATTENTION_ROLE = (
    "GEMMs",
    "expert GEMMs",
    "other GEMMs",
    "fused attention",
)

_BESIDE_EACH_OTHER = ("overlap_moe_expert_parallel_comm", "moe_shared_expert_overlap", "delay_wgrad_compute")
"""With one of these, products of several parts run at the same time or away from their layer."""


@dataclass(frozen=True, slots=True)
class ExecutedFlops:
    """Operations that one GPU runs in a step, as kernels run them."""

    experts: int
    other_gemms: int
    """All other GEMMs; with unfused attention also its two, which a mask does not shorten."""
    fused_attention: int
    """Below the causal diagonal; 0 where attention is unfused."""

    @property
    def products(self) -> int:
        return self.experts + self.other_gemms


def precision_of(config: RunConfig) -> tuple[str | None, str | None]:
    """(the precision of most GEMMs, None), or (None, what the config does not say)."""
    if config.get("fp4"):
        return NVFP4, None
    if config.get("fp8"):
        return FP8, None
    if not config.knows("fp8"):
        return None, "the config does not say fp8"
    if config.get("bf16") is True or config.get("fp16") is True:
        return BF16, None
    return None, "the config does not say that GEMMs run in bf16 or fp16"


def count_executed(
    shape: ModelShape, layout: CompleteLayout, config: RunConfig, rank: int
) -> tuple[ExecutedFlops | None, str | None]:
    """(operations of one step on global ``rank``, None), or (None, why they cannot be counted)."""
    stages = layout.layers_by_stage(config, shape.layers)
    if stages is None:
        return None, "the pipeline's stages hold unequal numbers of layers"
    stage = layout.stage_of(rank)
    is_last = stage == layout.pipeline - 1
    forward = count_forward(shape, stages[stage], has_output=is_last)
    replay = _replayed(count_forward(shape, stages[stage], has_output=False), config, len(stages[stage]), layout)
    batch = config.whole_number("global_batch_size") or 0
    gpus = layout.world // layout.pipeline
    tokens = batch * shape.sequence

    def per_gpu(*fields: str) -> int:
        per_token = sum(STEP_PER_FORWARD * getattr(forward, name) + getattr(replay, name) for name in fields)
        return int(per_token) * tokens // gpus

    other = per_gpu("projections", "dense_mlp", "shared_experts", "router", "logits", "prediction")
    attention = per_gpu("attention")
    unfused = is_attention_unfused(config)
    return ExecutedFlops(
        experts=per_gpu("experts"),
        other_gemms=other + (2 * attention if unfused else 0),
        fused_attention=0 if unfused else attention,
    ), None


def _replayed(forward: ForwardFlops, config: RunConfig, layers: int, layout: CompleteLayout) -> ForwardFlops:
    """What recompute runs again of a stage's ``layers``, per token."""
    granularity = config.get("recompute_granularity")
    if granularity == "full":
        if config.get("recompute_method") == "block":
            representative = min(layers, (config.whole_number("recompute_num_layers") or 0) * layout.virtual)
            return _scaled(forward, representative, layers)
        return forward
    modules = config.get("recompute_modules")
    if granularity != "selective" or not isinstance(modules, tuple):
        return ForwardFlops()
    moe = "moe" in modules
    return ForwardFlops(
        attention=forward.attention if "core_attn" in modules else 0,
        dense_mlp=forward.dense_mlp if "mlp" in modules else 0,
        experts=forward.experts if moe else 0,
        router=forward.router if moe else 0,
        shared_experts=forward.shared_experts if moe or "shared_experts" in modules else 0,
    )


def _scaled(forward: ForwardFlops, part: int, whole: int) -> ForwardFlops:
    names = ("projections", "attention", "dense_mlp", "experts", "shared_experts", "router")
    return ForwardFlops(**{name: getattr(forward, name) * part // whole for name in names})


def tabulate(
    executed: ExecutedFlops,
    budget_ns: Mapping[str, int],
    parts: Sequence[MoePart],
    config: RunConfig,
    gpu: GpuModel | None,
) -> tuple[Efficiency, ...]:
    """One row per role with time of its own. ``budget_ns``: bucket -> ns of the step; ``parts``: of its MoE ledger."""
    precision, _ = precision_of(config)
    peak = gpu.peak_flops(precision) if gpu is not None and precision is not None else None
    attention_peak = gpu.bf16_dense_flops if gpu is not None else None  # attention stays in bf16 under FP8 recipes
    gemms_ns = budget_ns.get("gemm", 0) + budget_ns.get("grouped_gemm", 0)
    balance = "" if config.get("moe_router_force_load_balancing") is True else "routing taken to be balanced"
    rows = [_row(GEMMS_ROLE, executed.products, gemms_ns, peak, balance)]
    experts_ns = _sum_of_layers(part for part in parts if part.part == EXPERT_GEMM)
    if experts_ns and not any(config.get(key) is True for key in _BESIDE_EACH_OTHER):
        rows.append(_row(EXPERTS_ROLE, executed.experts, experts_ns, peak, balance))
        unfused = ", scores of unfused attention" if is_attention_unfused(config) else ""
        note = f"projections, logits, router, dense and shared MLPs{unfused}"
        rows.append(_row(OTHER_ROLE, executed.other_gemms, gemms_ns - experts_ns, peak, note))
    rows.append(
        _row(
            ATTENTION_ROLE,
            executed.fused_attention,
            budget_ns.get("attention", 0),
            attention_peak,
            "causal half; its backward pass also computes the scores again, which is not counted",
        )
    )
    return tuple(row for row in rows if row.ns > 0 and row.flops > 0)


def _sum_of_layers(parts: Iterable[MoePart]) -> int:
    """Time over all layers: what is said of all together counts alone."""
    found = tuple(parts)
    together = {part.direction for part in found if part.layer is None}
    return sum(part.ns for part in found if part.layer is None or part.direction not in together)


def _row(role: str, flops: int, ns: int, peak: int | None, note: str) -> Efficiency:
    achieved = flops * NS_PER_S / ns if ns > 0 else None
    fraction = achieved / peak if achieved is not None and peak else None
    return Efficiency(role, flops, ns, achieved, peak, fraction, note)
