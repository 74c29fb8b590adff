"""Work that a fused kernel, or a setting, would take over: found by the operators around it, not by kernel names.

Unfused, the loss, the rotary embedding or the router's top-k is a series of general pointwise kernels whose names
reveal nothing. The range around a launch does, or the shapes of the tensors it works on. Each sum is an upper bound:
it contains other work on tensors of that kind, and a fused kernel keeps some of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from three_walls.attribution.ownership import LABELS
from three_walls.facts.cuda_graphs import LAUNCH_STARVED_PARENTS
from three_walls.facts.step import HOST_LAUNCHES
from three_walls.facts.step_view import StepView
from three_walls.model.buckets import COMMUNICATION_CATEGORIES, COMPUTE_CATEGORIES, GEMM_CATEGORIES
from three_walls.model.config import RunConfig
from three_walls.model.fact import FactDefinition, FactGroup, FactValue, Measurement, Measurements, Pool, known, missing
from three_walls.tables.nvtx_ranges import BARRIER, LOSS, WGRAD_ACCUMULATION, torch_operators
from three_walls.tables.thresholds import fact_thresholds
from three_walls.timeline.intervals import DURATION, intersect, mask_of, merge_overlapping
from three_walls.timeline.operators import Operators, Sizes

ROPE, ROUTER_TOPK, BIAS_DROPOUT_ADD = "rope", "router_topk", "bias_dropout_add"

facts = FactGroup()


@dataclass(frozen=True, slots=True)
class UnfusedFacts:
    """The facts of one unfused operation."""

    kernels: FactDefinition
    launch_starved: FactDefinition
    total: FactDefinition
    """Both together."""


def _define(op: str, label: str, kernels: str, categories: tuple[str, ...] = ("elementwise_ns",)) -> UnfusedFacts:
    """Facts of ``op``: time of its ``kernels``, launch-starved time before them, and both together.

    ``categories``: facts that contain the time of its kernels.
    """
    alone = "Only what runs while nothing else computes counts."
    return UnfusedFacts(
        facts.duration(
            f"{op}_kernels_ns",
            f"{label} kernel time",
            f"Time per step that {kernels} take. {alone}",
            needs=HOST_LAUNCHES,
            pool=Pool(part_of=(f"{op}_ns", *categories, "compute_busy_ns")),
        ),
        facts.duration(
            f"{op}_launch_starved_ns",
            f"{label} launch-starved time",
            f"Time per step that is launch-starved and ends with one of {kernels}, less a proportional share of what "
            "the profiler is taken to have added.",
            needs=HOST_LAUNCHES,
            pool=Pool(part_of=(f"{op}_ns", *LAUNCH_STARVED_PARENTS), is_device_busy=False),
        ),
        facts.duration(
            f"{op}_ns",
            f"{label} time per step",
            f"Time per step that {kernels} take, with the launch-starved time before them. {alone}",
            needs=HOST_LAUNCHES,
            share=label,
        ),
    )


UNFUSED_OPS: Mapping[str, UnfusedFacts] = {
    ROPE: _define(
        ROPE,
        "unfused rotary embedding",
        "the pointwise kernels on tensors of queries' or keys' shape (the unfused rotary embedding, and copies)",
    ),
    LOSS: _define(
        LOSS, "unfused cross-entropy loss", "the pointwise kernels of the unfused loss (forward and backward)"
    ),
    WGRAD_ACCUMULATION: _define(
        WGRAD_ACCUMULATION,
        "unfused gradient accumulation",
        "the kernels that add the gradient of each weight to the gradient buffer after its GEMM",
    ),
    ROUTER_TOPK: _define(
        ROUTER_TOPK,
        "unfused router top-k",
        "the kernels on scores and maps of the experts (the choice of experts and the balancing loss)",
        categories=(),
    ),
    BIAS_DROPOUT_ADD: _define(
        BIAS_DROPOUT_ADD,
        "unfused bias, dropout and add",
        "the additions, dropout and scales on hidden states (the unfused residual path)",
    ),
}

BARRIER_EXPOSED = facts.duration(
    "barrier_exposed_ns",
    "exposed barrier time per step",
    "Time per step in which barriers of ranks (sums of one element) run and no compute kernel does.",
    needs=HOST_LAUNCHES,
    pool=Pool(part_of=("collective_wait_exposed_ns", "collective_exposed_ns", "wait_exposed_ns")),
)

NO_OPERATORS = "no ranges of PyTorch's operators were recorded (recapture with --profile and -t cuda,nvtx)"
_RECORD_SHAPES = "(recapture with --profile; Megatron-Bridge also needs profiling.record_shapes=true)"
_PYTORCH_PREFIXES = ("aten::", "c10d::", "nccl:", "autograd::")

_PLAIN = ("elementwise", "unclassified")
_POINTWISE = ("elementwise", "permute", "copy_d2d", "memset", "unclassified")
_ROUTING = ("router", *_POINTWISE)
_RESIDUAL_OPERATORS = ("aten::add", "aten::add_", "aten::mul", "aten::div", "aten::dropout", "aten::native_dropout")

_FOUND_BY_SHAPE = (ROPE, ROUTER_TOPK, BIAS_DROPOUT_ADD)
"""Operations measured only where enough of the pointwise work has recorded shapes."""

_STARVED = mask_of(["launch_starved"], LABELS)


@dataclass(frozen=True, slots=True)
class _ShapeRule:
    """Operations of ``categories`` whose operator ``matches``, by its name and the shapes of its arguments."""

    categories: tuple[str, ...]
    matches: Callable[[str, Sizes], bool]

    def fits(self, category: str, name: str, shapes: Sizes) -> bool:
        return category in self.categories and self.matches(name, shapes)


def measure_unfused_ops(step: StepView, operators: Operators) -> Measurements:
    """Per unfused operation its time on the device with nothing else computing, and the launch-starved time before it.

    ``operators``: of the rank's process, around the launches of the step. Launch-starved time belongs to the operation
    whose kernel ends it. :func:`finish_unfused` adds the facts of both together.
    """
    # emit_nvtx wrote a range whose operator has a namespace, or whose autograd function has a number or shapes.
    if not any(
        operator.sizes is not None or operator.sequence is not None or operator.name.startswith(_PYTORCH_PREFIXES)
        for operator in operators.found
    ):
        definitions = [definition for op in UNFUSED_OPS.values() for definition in (op.kernels, op.launch_starved)]
        return dict.fromkeys([*definitions, BARRIER_EXPOSED], missing(NO_OPERATORS))
    operations = classify_unfused(step.operations, operators, step.config)
    pointwise = operations.filter(pl.col("category").cast(pl.String).is_in(_PLAIN))
    shapes_known = int(pointwise["has_shapes"].sum()) / pointwise.height if pointwise.height else 1.0
    with_shapes = f"{100 * shapes_known:.0f}%"
    few_shapes = f"operators with recorded shapes launched only {with_shapes} of the pointwise work {_RECORD_SHAPES}"
    measured: dict[FactDefinition, Measurement[int]] = {}
    for op, op_facts in UNFUSED_OPS.items():
        reason = None
        if op in _FOUND_BY_SHAPE and shapes_known < fact_thresholds().minimum_shaped_fraction:
            reason = few_shapes
        elif not (operations["op"] == op).any():
            reason = f"no kernel of this operation ({op.replace('_', ' ')}) was found in the step"
        if reason:
            measured |= dict.fromkeys((op_facts.kernels, op_facts.launch_starved), missing(reason))
            continue
        measured[op_facts.kernels] = known(_time_alone(op, operations, step.window))
        measured[op_facts.launch_starved] = known(_launch_starved_time(op, operations, step.slices))
    measured[BARRIER_EXPOSED] = known(_time_alone(BARRIER, operations, step.window))
    return measured


def finish_unfused(measured: Measurements, launch_starved_ns: int | None, recoverable_ns: int | None) -> Measurements:
    """The launch-starved parts without what the profiler is taken to have added, and the sums with the kernels.

    ``measured``: by :func:`measure_unfused_ops`. ``recoverable_ns``: what of the step's ``launch_starved_ns`` is not
    taken to be the profiler's; each part loses the same fraction.
    """
    finished: dict[FactDefinition, Measurement[FactValue]] = {}
    for op in UNFUSED_OPS.values():
        kernels, starved = measured[op.kernels], measured[op.launch_starved]
        if starved.whole is not None and launch_starved_ns and recoverable_ns is not None:
            starved = known(starved.whole * recoverable_ns // launch_starved_ns)
        reason = kernels.missing_reason or starved.missing_reason
        total = missing(reason) if reason else known((kernels.whole or 0) + (starved.whole or 0))
        finished |= {op.launch_starved: starved, op.total: total}
    return finished


def _shape_rules(config: RunConfig) -> dict[str, _ShapeRule]:
    """What identifies operations by the tensors they work on; only those whose shapes the config gives."""
    rules: dict[str, _ShapeRule] = {}
    hidden, experts = config.whole_number("hidden_size"), config.whole_number("num_moe_experts")
    top_k, rotated = config.whole_number("moe_router_topk"), _rotated_dimensions(config)
    if rotated:
        heads, channels = rotated
        # Tokens x batch x heads x channels of queries or keys: all channels, or the half that is rotated.
        rules[ROPE] = _ShapeRule(
            _POINTWISE, lambda _, shapes: len(shapes[0]) == 4 and shapes[0][2] in heads and shapes[0][3] in channels
        )
    if experts and top_k:
        # Tokens (x batch) x experts, or x chosen experts: scores, maps of the choice, probabilities.
        rules[ROUTER_TOPK] = _ShapeRule(
            _ROUTING,
            lambda _, shapes: 2 <= len(shapes[0]) <= 3 and shapes[0][-1] in (experts, top_k) and shapes[0][0] > experts,
        )
    if hidden:
        rules[BIAS_DROPOUT_ADD] = _ShapeRule(
            _PLAIN,
            lambda name, shapes: name in _RESIDUAL_OPERATORS and len(shapes[0]) == 3 and shapes[0][-1] == hidden,
        )
    return rules


def _rotated_dimensions(config: RunConfig) -> tuple[frozenset[int], frozenset[int]] | None:
    """(numbers of heads, channels of a head) of tensors that the rotary embedding works on; None where not known."""
    heads, tensor = config.whole_number("num_attention_heads"), config.whole_number("tensor_model_parallel_size")
    hidden = config.whole_number("hidden_size")
    if not heads or not tensor or not hidden or config.get("multi_latent_attention") is True:
        return None
    groups = config.whole_number("num_query_groups") or heads
    channels = config.whole_number("kv_channels") or hidden // heads
    percent = config.get("rotary_percent")
    part = round(channels * percent) if isinstance(percent, float) else channels
    return frozenset((heads // tensor, max(1, groups // tensor), 1)), frozenset((channels, part, part // 2))


def classify_unfused(operations: pl.DataFrame, operators: Operators, config: RunConfig) -> pl.DataFrame:
    """``operations`` with ``op`` (null for other work) and ``has_shapes`` (whether a range around it has shapes).

    ``operations``: of one rank. ``operators``: of its process, around their launches.
    """
    rules = _shape_rules(config)
    works: dict[str, tuple[str, ...]] = {}
    launches = operations.select(pl.col("category").cast(pl.String), "launch_thread", "launch_start_ns").iter_rows()
    ops: list[str | None] = []
    has_shapes: list[bool] = []
    for category, thread, at_ns in launches:
        index = None if thread is None or at_ns is None else operators.innermost(thread, at_ns)
        work = _find_work(category, index, operators, works)
        nearest = next(_nearest_shapes(index, operators), None)
        if work is None and nearest is not None:
            ops.append(next((op for op, rule in rules.items() if rule.fits(category, *nearest)), None))
        else:
            ops.append(None if category in GEMM_CATEGORIES else work)
        has_shapes.append(nearest is not None)
    return operations.with_columns(
        op=pl.Series(ops, dtype=pl.String), has_shapes=pl.Series(has_shapes, dtype=pl.Boolean)
    )


def _find_work(category: str, index: int | None, operators: Operators, works: dict[str, tuple[str, ...]]) -> str | None:
    """The work that a range around the range ``index`` surrounds; an exchange is a barrier's or nobody's.

    ``works``: by name of a range what it surrounds, for the names met so far.
    """
    is_exchange = category in COMMUNICATION_CATEGORIES
    for around in operators.around(index):
        name = operators.found[around].name
        if name not in works:
            works[name] = tuple(row.work for row in torch_operators().unfused if row.inside.search(name))
        for work in works[name]:
            if (work == BARRIER) == is_exchange:
                return work
    return None


def _nearest_shapes(index: int | None, operators: Operators) -> Iterator[tuple[str, Sizes]]:
    """Name and shapes of the innermost range around that recorded any."""
    for around in operators.around(index):
        shapes = operators.found[around].sizes
        if shapes and shapes[0]:
            yield operators.found[around].name, shapes
            return


def _time_alone(op: str, operations: pl.DataFrame, window: tuple[int, int]) -> int:
    """Time of the step in which a kernel of ``op`` runs and no other work computes."""
    kernels = operations.filter(pl.col("op") == op)
    is_other = (pl.col("op").is_null() | (pl.col("op") != op)) & pl.col("category").cast(pl.String).is_in(
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


def _launch_starved_time(op: str, operations: pl.DataFrame, slices: pl.DataFrame) -> int:
    """Launch-starved time after which the next operation to start is one of ``op``."""
    starved = slices.filter((pl.col("active") & _STARVED) != 0)
    next_started = (
        starved.select("end_ns", ns=DURATION)
        .sort("end_ns")
        .join_asof(
            operations.select("start_ns", "op").sort("start_ns", "op"),
            left_on="end_ns",
            right_on="start_ns",
            strategy="forward",
        )
    )
    return int(next_started.filter(pl.col("op") == op)["ns"].sum())
