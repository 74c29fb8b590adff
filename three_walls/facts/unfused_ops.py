"""The time of work that a fused kernel, or a setting, would take over (``layers/unfused_work.py``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import polars as pl

from three_walls.facts.recoverable import ProfilersPart
from three_walls.facts.step_facts import HOST_LAUNCHES
from three_walls.layers.labels import LabelledOperations
from three_walls.layers.operator_sequences import FusedPart, is_operator
from three_walls.layers.unfused_work import FOUND_IN_ORDER, MINIMUM_SHAPED_FRACTION, UnfusedOperations, UnfusedWork
from three_walls.lib.declare import artifact, duration, fact
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.step.intervals import DURATION, intersect, mask_of, merge_overlapping
from three_walls.step.operators import Operators
from three_walls.step.ownership import LABELS
from three_walls.step.step_tables import Slices
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import COMPUTE_CATEGORIES
from three_walls.tables.model_parts import (
    BARRIER,
    BIAS_DROPOUT_ADD,
    EXPERT,
    LOSS,
    MLP,
    ROPE,
    ROUTER_TOPK,
    SHARED_EXPERT,
    WGRAD_ACCUMULATION,
)
from three_walls.tables.nvtx_ranges import torch_operators

_OPS = (ROPE, LOSS, WGRAD_ACCUMULATION, ROUTER_TOPK, BIAS_DROPOUT_ADD)
NO_OPERATORS = "no ranges of PyTorch's operators were recorded (recapture with --profile and -t cuda,nvtx)"
_RECORD_SHAPES = "(recapture with --profile; Megatron-Bridge also needs profiling.record_shapes=true)"
_FOUND_BY_SHAPE = (ROPE, ROUTER_TOPK, BIAS_DROPOUT_ADD)
"""Operations measured only where enough of the pointwise work has recorded shapes."""

_STARVED = mask_of(["launch_starved"], LABELS)


@dataclass(frozen=True, slots=True)
class UnfusedTime:
    """Time of one unfused operation."""

    kernels_ns: int
    """With nothing else computing."""
    launch_starved_ns: int
    """Before the kernels, with what the profiler added."""


@dataclass(frozen=True, slots=True)
class FusedFractions:
    """What remains of the time of unfused kernels if one fused kernel takes over each sequence of operators."""

    likely: float
    least: float
    most: float


UnfusedTimes = Mapping[str, Measurement[UnfusedTime]]


@artifact
def named_work(operators: Operators, unfused_work: UnfusedWork) -> Measurement[UnfusedWork]:
    """The unfused work; missing where no operators were recorded, which name it."""
    return known(unfused_work) if any(map(is_operator, operators.found)) else missing(NO_OPERATORS)


@artifact
def unfused_times(step: StepView, named_work: UnfusedWork) -> UnfusedTimes:
    """Per unfused operation its time. Launch-starved time belongs to the operation whose kernel ends it."""
    return {op: _measure_time(op, named_work, step) for op in _OPS}


@artifact
def fused_fractions(named_work: UnfusedWork, operators: Operators) -> Mapping[str, Measurement[FusedFractions]]:
    """What fused kernels would leave, per operation that the order of the operators identifies."""
    return {op: measure_fused(op, named_work, operators) for op in FOUND_IN_ORDER}


def _measure_time(op: str, work: UnfusedWork, step: StepView) -> Measurement[UnfusedTime]:
    with_shapes = f"{100 * work.shapes_known_fraction:.0f}%"
    few_shapes = f"operators with recorded shapes launched only {with_shapes} of the pointwise work {_RECORD_SHAPES}"
    reason = None
    if not (work.operations["operator"] == op).any():
        reason = f"no kernel of this operation ({op.replace('_', ' ')}) was found in the step"
    if op in _FOUND_BY_SHAPE and work.sequences is not None and work.shapes_known_fraction < MINIMUM_SHAPED_FRACTION:
        if op in work.sequences.ambiguous:
            reason = f"{few_shapes}, and the order of the operators is ambiguous: {work.sequences.ambiguous[op]}"
        elif op not in FOUND_IN_ORDER:
            reason = few_shapes
        elif reason:
            reason = f"{few_shapes}, and its operators were not found in their known order"
    if reason:
        return missing(reason)
    starved_ns = _launch_starved_time(op, work.operations, step.slices)
    return known(UnfusedTime(_time_alone(op, work.operations, step.window), starved_ns))


def _declare_times(op: str, label: str, kernels: str) -> None:
    """Facts of ``op``: time of its ``kernels``, launch-starved time before them, and both together."""
    alone = "Only what runs while nothing else computes counts."

    def kernels_ns(unfused_times: UnfusedTimes) -> Measurement[int]:
        return unfused_times[op].map(lambda time: time.kernels_ns)

    def starved_ns(unfused_times: UnfusedTimes, profilers_part: ProfilersPart) -> Measurement[int]:
        return unfused_times[op].map(lambda time: profilers_part.leave(time.launch_starved_ns))

    def total_ns(unfused_times: UnfusedTimes, profilers_part: ProfilersPart) -> Measurement[int]:
        return unfused_times[op].map(lambda time: time.kernels_ns + profilers_part.leave(time.launch_starved_ns))

    duration(
        f"{label} kernel time",
        name=f"{op}_kernels_ns",
        meaning=f"Time per step that {kernels} take. {alone}",
        needs=HOST_LAUNCHES,
    )(kernels_ns)
    duration(
        f"{label} launch-starved time",
        name=f"{op}_launch_starved_ns",
        meaning=f"Time per step that is launch-starved and ends with one of {kernels}, less a proportional share of "
        "what the profiler is taken to have added.",
        needs=HOST_LAUNCHES,
    )(starved_ns)
    duration(
        f"{label} time per step",
        name=f"{op}_ns",
        meaning=f"Time per step that {kernels} take, with the launch-starved time before them. {alone}",
        needs=HOST_LAUNCHES,
        share=label,
    )(total_ns)


_declare_times(
    ROPE,
    "unfused rotary embedding",
    "the pointwise kernels on tensors of queries' or keys' shape (the unfused rotary embedding, and copies)",
)
_declare_times(LOSS, "unfused cross-entropy loss", "the pointwise kernels of the unfused loss (forward and backward)")
_declare_times(
    WGRAD_ACCUMULATION,
    "unfused gradient accumulation",
    "the kernels that add the gradient of each weight to the gradient buffer after its GEMM",
)
_declare_times(
    ROUTER_TOPK,
    "unfused router top-k",
    "the kernels on scores and maps of the experts (the choice of experts and the balancing loss)",
)
_declare_times(
    BIAS_DROPOUT_ADD,
    "unfused bias, dropout and add",
    "the additions, dropout and scales on hidden states (the unfused residual path)",
)


def _declare_fused(op: str, label: str) -> None:
    """Facts of ``op``: the fraction of its kernels' time that fused kernels would take."""

    def declare(name: str, of: str, how: str, read: Callable[[FusedFractions], float]) -> None:
        def fraction(fused_fractions: Mapping[str, Measurement[FusedFractions]]) -> Measurement[float]:
            return fused_fractions[op].map(read)

        fact(
            "fraction",
            f"{of}{label} time left if fused",
            name=name,
            meaning=f"Fraction of the time of the {label} kernels that the fused kernels would take, {how}. Known "
            "where the order of the operators identifies them.",
            whole=f"the kernels of the {label}",
        )(fraction)

    slowest = "if each takes as long as the slowest operator that it replaces"
    pace = "at the pace of a kernel of the sequence that moves the same bytes, or that is as short as any"
    halfway = "halfway between the least and the most"
    declare(f"{op}_fused_fraction", "", halfway, lambda fused: fused.likely)
    declare(f"{op}_fused_least_fraction", "least ", pace, lambda fused: fused.least)
    declare(f"{op}_fused_most_fraction", "most ", slowest, lambda fused: fused.most)


_declare_fused(ROPE, "unfused rotary embedding")
_declare_fused(ROUTER_TOPK, "unfused router top-k")


@duration(
    "exposed barrier time per step",
    needs=HOST_LAUNCHES,
)
def barrier_exposed_ns(step: StepView, named_work: UnfusedWork) -> int:
    """Time per step in which barriers of ranks (sums of one element) run and no compute kernel does."""
    return _time_alone(BARRIER, named_work.operations, step.window)


def measure_fused(op: str, work: UnfusedWork, operators: Operators) -> Measurement[FusedFractions]:
    """What remains of the kernels of ``op`` if one kernel takes over each part of the sequences.

    It takes as long as an operator of the part that moves the same bytes (``Pace``), or at most as long as the slowest
    operator. A backward kernel reads and writes what the forward one does.
    """
    own = work.operations.filter((pl.col("operator") == op) & pl.col("operator_range").is_not_null())
    if work.sequences is None or not own.height:
        return missing("no such sequence of operators was looked for, or none was found")
    paces = {
        name: pace
        for sequence in torch_operators().sequences
        if sequence.work == op
        for name, pace in sequence.paces.items()
    }
    duration_ns: dict[FusedPart, dict[int, int]] = {}
    for index, ns in own.select("operator_range", DURATION).iter_rows():
        of_operator = duration_ns.setdefault(work.sequences.parts[index], {})
        of_operator[index] = of_operator.get(index, 0) + ns
    fastest_ns: dict[int, float] = {}
    for part, of_operator in duration_ns.items():
        pace = paces[part.part]
        timed = [ns for index, ns in of_operator.items() if operators.found[index].name == pace.operator]
        if part.number == part.forward and timed:
            fastest_ns[part.forward] = pace.fraction * sum(timed) / len(timed)
    least = most = total = 0.0
    for part, of_operator in duration_ns.items():
        slowest_ns = max(of_operator.values())
        total += sum(of_operator.values())
        most += slowest_ns
        least += min(slowest_ns, fastest_ns.get(part.forward, slowest_ns))
    if not total:
        return missing("the kernels of the sequences take no time")
    return known(FusedFractions((least + most) / 2 / total, least / total, most / total))


def _time_alone(op: str, operations: UnfusedOperations, window: tuple[int, int]) -> int:
    """Time of the step in which a kernel of ``op`` runs and no other work computes."""
    kernels = operations.filter(pl.col("operator") == op)
    is_other = (pl.col("operator").is_null() | (pl.col("operator") != op)) & pl.col("category").cast(pl.String).is_in(
        COMPUTE_CATEGORIES
    )
    step = (
        kernels.select("rank_index")
        .unique()
        .with_columns(start_ns=pl.lit(window[0], dtype=pl.Int64), end_ns=pl.lit(window[1], dtype=pl.Int64))
    )
    busy = merge_overlapping(
        intersect(kernels.select("rank_index", "start_ns", "end_ns"), step, ["rank_index"]), ["rank_index"]
    )
    shared = intersect(busy, merge_overlapping(operations.filter(is_other), ["rank_index"]), ["rank_index"])
    busy_ns, shared_ns = (int(intervals.select(DURATION.sum()).item()) for intervals in (busy, shared))
    return busy_ns - shared_ns


def _launch_starved_time(op: str, operations: UnfusedOperations, slices: Slices) -> int:
    """Launch-starved time after which the next operation to start is one of ``op``."""
    starved = slices.filter((pl.col("active") & _STARVED) != 0)
    next_started = (
        starved.select("end_ns", ns=DURATION)
        .sort("end_ns")
        .join_asof(
            operations.select("start_ns", "operator").sort("start_ns", "operator"),
            left_on="end_ns",
            right_on="start_ns",
            strategy="forward",
        )
    )
    return int(next_started.filter(pl.col("operator") == op)["ns"].sum())


@duration("activation function time per step", share="the activation function")
def activation_ns(labelled_step: LabelledOperations) -> Measurement[int]:
    """Time per step that pointwise kernels take between the GEMMs of experts and dense MLPs: the activation function,
    its gate, and the probabilities of the router that it is multiplied by.

    Not the same as: Work that is named otherwise, such as the accumulation of weight gradients.
    """
    if labelled_step["pass"].null_count() == labelled_step.height:
        return missing("the step's layers cannot be told apart")
    is_pointwise = pl.col("category").cast(pl.String) == "elementwise"
    is_between = pl.col("part").is_in([EXPERT, SHARED_EXPERT]) | (pl.col("module") == MLP)
    found = labelled_step.filter(is_pointwise & is_between & pl.col("operator").is_null())
    return known(int(found.select(DURATION).sum().item()))
