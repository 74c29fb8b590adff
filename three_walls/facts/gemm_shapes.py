"""GEMMs by shape: what each reaches of the GPU's peak in the representative step.

Shapes are those that PyTorch's operators were called with, so routing is as it was, and a replay is distinguished from
the forward pass. Only the names of the weights come from the config.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from three_walls.facts.fact_rows import GemmShape
from three_walls.facts.token_balance import EXPERT_INPUT, EXPERT_OUTPUT, ExpertPass, find_expert_passes
from three_walls.lib.declare import artifact, fact
from three_walls.lib.measurement import NS_PER_S, Measurement, known, missing
from three_walls.megatron.count_flops import precision_of
from three_walls.megatron.model_shape import ModelShape
from three_walls.megatron.parallel_layout import CompleteLayout
from three_walls.step.attribute_steps import Attribution
from three_walls.step.build_timeline import Timeline
from three_walls.step.gemms import Gemm, find_gemms, gemms_of_launches
from three_walls.step.operators import Operators, read_operators
from three_walls.step.step_tables import Operations
from three_walls.step.step_view import StepView, view_other_rank
from three_walls.tables.buckets import GEMM_CATEGORIES
from three_walls.tables.hardware import GpuModel
from three_walls.tables.kernel_names import peak_of, precision_of_kernel
from three_walls.tables.nvtx_ranges import torch_operators
from three_walls.trace.read_inputs import Inputs

NO_SHAPES = (
    "no range around the GEMMs has the shapes of its arguments (recapture with --profile and -t cuda,nvtx; "
    "Megatron-Bridge also needs profiling.record_shapes=true)"
)

SCORES = "attention scores"
"""GEMMs of many small matrices at once: unfused attention's."""


@dataclass(slots=True)
class _Row:
    """GEMMs of one row of the table."""

    role: str | None
    gemms: list[Gemm] = field(default_factory=list)
    ns_of_kernel: dict[str, int] = field(default_factory=dict)
    """Time per kernel name."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Names of the weights that one GPU holds, by (outputs, inputs).

    Weights of experts see as many tokens as are routed to them, all others ``tokens``.
    """

    of_layers: Mapping[tuple[int, int], Sequence[str]]
    of_experts: Mapping[tuple[int, int], Sequence[str]]
    tokens: int | None

    def role_of(self, size: tuple[int, int], tokens: int | None) -> str | None:
        """The weight of ``size`` that multiplied ``tokens`` rows; "a or b" where several fit."""
        of_layers = self.of_layers.get(size, ()) if tokens == self.tokens or None in (tokens, self.tokens) else ()
        return " or ".join((*of_layers, *self.of_experts.get(size, ()))) or None


NO_WEIGHTS = Weights({}, {}, None)


@dataclass(frozen=True, slots=True)
class LaunchedGemms:
    """GEMM kernels of a step, and for each the index of the GEMM that launched it; None where its shape is unknown."""

    kernels: Operations
    gemms: Mapping[int, Gemm]
    ranges: Sequence[int | None]


@artifact
def launched_gemms(step: StepView, operators: Operators) -> LaunchedGemms:
    """The step's GEMM kernels with the operators that launched them."""
    return find_launched_gemms(step, operators)


@artifact
def weights(model_shape: Measurement[ModelShape], complete_layout: Measurement[CompleteLayout]) -> Weights:
    """Names of the weights, by the sizes that the config gives; none where it does not."""
    shape, layout = model_shape.value, complete_layout.value
    if shape is None or layout is None:
        return NO_WEIGHTS
    tokens = shape.sequence * layout.micro_batch // layout.context
    return name_weights(shape, layout.tensor, layout.expert_tensor, tokens)


@artifact
def gemm_table(
    step: StepView, launched_gemms: LaunchedGemms, weights: Weights
) -> tuple[tuple[GemmShape, ...], float | None]:
    """The step's GEMMs by shape, and the share of their time that the rows hold."""
    return tabulate_gemms(step, launched_gemms, weights, precision_of(step.config).value)


@artifact
def gemm_shapes(gemm_table: tuple[tuple[GemmShape, ...], float | None]) -> tuple[GemmShape, ...]:
    """The step's GEMMs by shape."""
    return gemm_table[0]


@artifact
def expert_passes(
    launched_gemms: LaunchedGemms, weights: Weights, gemm_shapes: tuple[GemmShape, ...]
) -> Measurement[tuple[ExpertPass, ...]]:
    """The passes of the rank's experts; missing where no shape shows their tokens."""
    passes = _find_passes(launched_gemms, weights)
    if any(each.total for each in passes):
        return known(passes)
    unrecognized = "no GEMM could be recognized as an expert's by the size of its weight"
    return missing(unrecognized if gemm_shapes else NO_SHAPES)


@artifact
def received_by_rank(
    step: StepView,
    inputs: Inputs,
    timeline: Timeline,
    attribution: Attribution,
    weights: Weights,
    received_tokens_count: Measurement[int],
) -> tuple[int | None, ...]:
    """Tokens that the experts of each captured rank got in its median step; empty where not every rank was read."""
    if inputs.surveyed:
        return ()
    if received_tokens_count.value is None:
        return (None,) * len(step.run.ranks)
    counts: list[int | None] = []
    for trace in inputs.with_kernels:
        for rank in trace.ranks:
            if rank.rank_index == step.rank_index:
                counts.append(received_tokens_count.value)
            elif (view := view_other_rank(step, trace, rank, timeline, attribution.median_of)) is not None:
                operators = read_operators(trace, rank.process, view.operations)
                passes = _find_passes(find_launched_gemms(view, operators), weights)
                counts.append(sum(each.total for each in passes) or None)
    return tuple(counts)


@fact("fraction", "GEMM time with recorded shapes", whole="all GEMM time")
def gemm_shapes_known_fraction(gemm_table: tuple[tuple[GemmShape, ...], float | None]) -> Measurement[float]:
    """Fraction of the GEMMs' time whose shapes were recorded by the operators around their launches."""
    _, fraction = gemm_table
    return known(fraction) if fraction else missing(NO_SHAPES)


def _find_passes(launched: LaunchedGemms, weights: Weights) -> tuple[ExpertPass, ...]:
    in_order = sorted({index for index in launched.ranges if index is not None})
    gemms = (launched.gemms[index] for index in in_order)
    return find_expert_passes(
        (gemm, weights.role_of(gemm.weight, gemm.tokens) if gemm.weight is not None else None) for gemm in gemms
    )


def find_launched_gemms(step: StepView, operators: Operators) -> LaunchedGemms:
    """The step's GEMM kernels with the operators that launched them."""
    config = step.config
    kernels = step.operations.filter(
        pl.col("category").cast(pl.String).is_in(GEMM_CATEGORIES) & (pl.col("kind").cast(pl.String) == "kernel")
    )
    # With sequence parallelism linear layers may gather the tokens that it spread.
    may_gather_tokens = config.size("tensor_model_parallel_size") != 1 and config.get("sequence_parallel") is not False
    gemms = find_gemms(operators, torch_operators(), may_gather_tokens)
    launches = kernels.select("launch_thread", "launch_start_ns").rows()
    return LaunchedGemms(kernels, gemms, gemms_of_launches(operators, gemms, launches))


def tabulate_gemms(
    step: StepView, launched: LaunchedGemms, weights: Weights, precision: str | None
) -> tuple[tuple[GemmShape, ...], float | None]:
    """(rows by falling time, share of the GEMMs' time that they hold); the share is None without GEMMs.

    ``weights``: what weights of a size are called. ``precision``: of GEMMs whose kernel's name does not state it.
    """
    kernels, gemms, ranges = launched.kernels, launched.gemms, launched.ranges
    rows: dict[tuple[str, str | None, tuple[int, ...]], _Row] = {}
    counted: set[int] = set()
    known_ns = total_ns = 0
    for index, (start, end, name_id) in zip(
        ranges, kernels.select("start_ns", "end_ns", "name_id").rows(), strict=True
    ):
        total_ns += end - start
        if index is None or not gemms[index].flops:
            continue
        known_ns += end - start
        gemm, kernel = gemms[index], step.names.get(name_id, "")
        # GEMMs of one row share their weight, whatever the number of tokens, or all dimensions.
        sizes: tuple[int, ...]
        if gemm.weight is not None:
            role, sizes = weights.role_of(gemm.weight, gemm.tokens), (*gemm.weight, gemm.count)
        else:
            role, sizes = SCORES if gemm.batch > 1 else None, (gemm.batch, gemm.m, gemm.n, gemm.k)
        row = rows.setdefault((gemm.direction, role, sizes), _Row(role))
        row.ns_of_kernel[kernel] = row.ns_of_kernel.get(kernel, 0) + end - start
        if index not in counted:
            counted.add(index)
            row.gemms.append(gemm)
    shapes = [_summarize(row, step.gpu, precision) for row in rows.values() if sum(row.ns_of_kernel.values())]
    shapes.sort(key=lambda shape: (-shape.ns, shape.direction, shape.batch, shape.m, shape.n, shape.k))
    return tuple(shapes), known_ns / total_ns if total_ns else None


def _summarize(row: _Row, gpu: GpuModel | None, default_precision: str | None) -> GemmShape:
    first = row.gemms[0]
    flops = sum(gemm.flops for gemm in row.gemms)
    ns = sum(row.ns_of_kernel.values())
    kernel = min(row.ns_of_kernel, key=lambda name: (-row.ns_of_kernel[name], name))
    precision = precision_of_kernel(kernel, default_precision)
    peak = peak_of(gpu, precision)
    achieved = flops * NS_PER_S / ns
    return GemmShape(
        role=row.role,
        direction=first.direction,
        batch=first.batch,
        m=(min(gemm.m for gemm in row.gemms), max(gemm.m for gemm in row.gemms)),
        n=(min(gemm.n for gemm in row.gemms), max(gemm.n for gemm in row.gemms)),
        k=(min(gemm.k for gemm in row.gemms), max(gemm.k for gemm in row.gemms)),
        calls=sum(gemm.count for gemm in row.gemms),
        flops=flops,
        ns=ns,
        achieved_flops_per_s=achieved,
        precision=precision,
        peak_flops_per_s=peak,
        fraction=achieved / peak if peak else None,
        kernel=kernel,
    )


def name_weights(shape: ModelShape, tensor: int, expert_tensor: int, tokens: int | None) -> Weights:
    """Names of the weights of a model by their size; matrices of latent attention are left out.

    ``tensor`` and ``expert_tensor``: sizes of tensor parallelism of layers and of experts. ``tokens``: of one
    micro-batch on one GPU.
    """
    gate = 2 if shape.is_gated else 1
    of_layers: dict[tuple[int, int], list[str]] = defaultdict(list)
    of_experts: dict[tuple[int, int], list[str]] = defaultdict(list)
    if shape.latent is None:
        projected = shape.query + shape.key + shape.value
        of_layers[projected // tensor, shape.hidden].append("query, key and value")
        of_layers[shape.hidden, shape.context // tensor].append("attention output")
    if shape.moe_layers:
        of_layers[shape.experts, shape.hidden].append("router")
        of_experts[gate * shape.expert_ffn // expert_tensor, shape.expert_hidden].append(EXPERT_INPUT)
        of_experts[shape.expert_hidden, shape.expert_ffn // expert_tensor].append(EXPERT_OUTPUT)
    if shape.moe_layers and shape.shared_ffn:
        of_layers[gate * shape.shared_ffn // tensor, shape.hidden].append("shared expert input")
        of_layers[shape.hidden, shape.shared_ffn // tensor].append("shared expert output")
    if len(shape.moe_layers) < shape.layers:
        of_layers[gate * shape.dense_ffn // tensor, shape.hidden].append("MLP input")
        of_layers[shape.hidden, shape.dense_ffn // tensor].append("MLP output")
    of_layers[shape.vocabulary // tensor, shape.hidden].append("logits")
    return Weights(of_layers, of_experts, tokens)
