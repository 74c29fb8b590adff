"""Work that a fused kernel, or a setting, would take over: found by the operators around it, not by kernel names.

Unfused, the loss, the rotary embedding or the router's top-k is a series of general pointwise kernels whose names
reveal nothing. The range around a launch does, or the shapes of the tensors it works on. Found so, each sum is an upper
bound: it contains other work on tensors of that kind, and a fused kernel keeps some of it. Where no shapes were
recorded, the order of the operators identifies the rotary embedding and the router (``operator_sequences.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import polars as pl

from three_walls.facts import fact_thresholds
from three_walls.facts.step_facts import HOST_LAUNCHES
from three_walls.layers.attention_passes import FORWARD
from three_walls.layers.operator_sequences import FusedPart, Sequences, find_sequences, is_operator
from three_walls.lib.declare import artifact, duration, fact
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.intervals import DURATION, intersect, mask_of, merge_overlapping
from three_walls.step.operators import Operators, Sizes
from three_walls.step.ownership import LABELS
from three_walls.step.step_tables import Operations, Slices
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import COMMUNICATION_CATEGORIES, COMPUTE_CATEGORIES, GEMM_CATEGORIES
from three_walls.tables.nvtx_ranges import BARRIER, LOSS, WGRAD_ACCUMULATION, torch_operators

ROPE, ROUTER_TOPK, BIAS_DROPOUT_ADD = "rope", "router_topk", "bias_dropout_add"

_OPS = (ROPE, LOSS, WGRAD_ACCUMULATION, ROUTER_TOPK, BIAS_DROPOUT_ADD)
_FOUND_IN_ORDER = (ROPE, ROUTER_TOPK)
"""Operations that the order of the operators identifies where shapes do not."""

NO_OPERATORS = "no ranges of PyTorch's operators were recorded (recapture with --profile and -t cuda,nvtx)"
_RECORD_SHAPES = "(recapture with --profile; Megatron-Bridge also needs profiling.record_shapes=true)"
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


UnfusedOperations = Annotated[
    Operations,
    {
        "op": pl.String,  # null for other work
        "fused_kernel": pl.Int64,  # number of the fused kernel that would take it over; null if not known
        "part_range": pl.Int64,  # index of the operator of a sequence that launched it
    },
]


@dataclass(frozen=True, slots=True)
class UnfusedWork:
    """The unfused work among the operations of one rank."""

    operations: UnfusedOperations
    shapes_known_fraction: float
    """Of the pointwise work: launched inside of a range with shapes."""
    sequences: Sequences | None
    """None where shapes identify the work."""

    def started_in(self, window: tuple[int, int]) -> UnfusedWork:
        """The same without the operations that started before the step of ``window``."""
        started = self.operations.filter(pl.col("start_ns").is_between(*window, closed="left"))
        return replace(self, operations=started)


@dataclass(frozen=True, slots=True)
class UnfusedTime:
    """Time of one unfused operation."""

    kernels_ns: int
    """With nothing else computing."""
    launch_starved_ns: int
    """Before the kernels, with what the profiler added."""

    def starved_without_profiler_ns(self, launch_starved_ns: int, recoverable_ns: int) -> int:
        """The launch-starved part without what the profiler is taken to have added.

        ``recoverable_ns``: what of the step's ``launch_starved_ns`` is not the profiler's; each part loses the same
        fraction.
        """
        if not launch_starved_ns:
            return self.launch_starved_ns
        return self.launch_starved_ns * recoverable_ns // launch_starved_ns


@dataclass(frozen=True, slots=True)
class FusedFractions:
    """What remains of the time of unfused kernels if one fused kernel takes over each sequence of operators."""

    likely: float
    least: float
    most: float


UnfusedTimes = Mapping[str, Measurement[UnfusedTime]]


@artifact
def unfused_work(step: StepView, operators: Operators) -> UnfusedWork:
    """The unfused work among the operations of the step."""
    return classify_unfused(step.operations, operators, step.config)


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
    return {op: measure_fused(op, named_work, operators) for op in _FOUND_IN_ORDER}


def _measure_time(op: str, work: UnfusedWork, step: StepView) -> Measurement[UnfusedTime]:
    with_shapes = f"{100 * work.shapes_known_fraction:.0f}%"
    few_shapes = f"operators with recorded shapes launched only {with_shapes} of the pointwise work {_RECORD_SHAPES}"
    reason = None
    if not (work.operations["op"] == op).any():
        reason = f"no kernel of this operation ({op.replace('_', ' ')}) was found in the step"
    if op in _FOUND_BY_SHAPE and work.sequences is not None:
        if op in work.sequences.ambiguous:
            reason = f"{few_shapes}, and the order of the operators is ambiguous: {work.sequences.ambiguous[op]}"
        elif op not in _FOUND_IN_ORDER:
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

    def starved_ns(
        unfused_times: UnfusedTimes, launch_starved_ns: int, launch_starved_recoverable_ns: int
    ) -> Measurement[int]:
        shares = launch_starved_ns, launch_starved_recoverable_ns
        return unfused_times[op].map(lambda time: time.starved_without_profiler_ns(*shares))

    def total_ns(
        unfused_times: UnfusedTimes, launch_starved_ns: int, launch_starved_recoverable_ns: int
    ) -> Measurement[int]:
        shares = launch_starved_ns, launch_starved_recoverable_ns
        return unfused_times[op].map(lambda time: time.kernels_ns + time.starved_without_profiler_ns(*shares))

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


def classify_unfused(operations: Operations, operators: Operators, config: RunConfig) -> UnfusedWork:
    """Which work ``operations`` of one rank are, by ``operators`` of its process around their launches.

    Where the shapes of too little of the pointwise work were recorded, the order of the operators decides.
    """
    launches = operations.select(pl.col("category").cast(pl.String), "launch_thread", "launch_start_ns")
    inside = [
        None if thread is None or at_ns is None else operators.innermost(thread, at_ns)
        for _, thread, at_ns in launches.iter_rows()
    ]
    nearest = [_nearest_shapes(index, operators) for index in inside]
    plain = [shapes is not None for shapes, kind in zip(nearest, launches["category"], strict=True) if kind in _PLAIN]
    shapes_known = sum(plain) / len(plain) if plain else 1.0
    rules, sequences = _shape_rules(config), None
    if shapes_known < fact_thresholds.MINIMUM_SHAPED_FRACTION:
        rules = {op: rule for op, rule in rules.items() if op not in _FOUND_IN_ORDER}
        sequences = _find_sequences(operations, inside, operators, config)
    parts = sequences.parts if sequences else {}
    works: dict[str, tuple[str, ...]] = {}
    ops: list[str | None] = []
    kernels: list[int | None] = []
    ranges: list[int | None] = []
    for category, index, shapes in zip(launches["category"], inside, nearest, strict=True):
        # The range around that is an operator of a sequence, or a node of its backward pass.
        part_range = next((around for around in operators.around(index) if around in parts), None)
        work, fused_kernel = _find_work(category, index, operators, works)
        if part_range is not None:
            part = parts[part_range]
            work, fused_kernel = part.work, part.number
        elif work is None and shapes is not None:
            work = next((op for op, rule in rules.items() if rule.fits(category, *shapes)), None)
        elif category in GEMM_CATEGORIES:
            work = None
        ops.append(work)
        kernels.append(fused_kernel if work is not None else None)
        ranges.append(part_range)
    with_work = operations.with_columns(
        op=pl.Series(ops, dtype=pl.String),
        fused_kernel=pl.Series(kernels, dtype=pl.Int64),
        part_range=pl.Series(ranges, dtype=pl.Int64),
    )
    return UnfusedWork(with_work, shapes_known, sequences)


def _find_sequences(
    operations: Operations, inside: Sequence[int | None], operators: Operators, config: RunConfig
) -> Sequences:
    """The sequences of ``operators``, without the rotary embedding of latent attention, which no such kernel fuses."""
    phases = operations["phase"].cast(pl.String) if "phase" in operations.columns else [None] * operations.height
    attention = {index for index, phase in zip(inside, phases, strict=True) if index is not None and phase == FORWARD}
    sequences = find_sequences(operators, attention)
    if config.get("multi_latent_attention") is not True:
        return sequences
    parts = {index: part for index, part in sequences.parts.items() if part.work != ROPE}
    return Sequences(parts, sequences.ambiguous)


def measure_fused(op: str, work: UnfusedWork, operators: Operators) -> Measurement[FusedFractions]:
    """What remains of the kernels of ``op`` if one kernel takes over each part of the sequences.

    It takes as long as an operator of the part that moves the same bytes (``Pace``), or at most as long as the slowest
    operator. A backward kernel reads and writes what the forward one does.
    """
    own = work.operations.filter((pl.col("op") == op) & pl.col("part_range").is_not_null())
    if work.sequences is None or not own.height:
        return missing("no such sequence of operators was looked for, or none was found")
    paces = {
        name: pace
        for sequence in torch_operators().sequences
        if sequence.work == op
        for name, pace in sequence.paces.items()
    }
    duration_ns: dict[FusedPart, dict[int, int]] = {}
    for index, ns in own.select("part_range", DURATION).iter_rows():
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


def _find_work(
    category: str, index: int | None, operators: Operators, works: dict[str, tuple[str, ...]]
) -> tuple[str | None, int | None]:
    """The work that a range around the range ``index`` surrounds. An exchange can be part of a barrier alone.

    Of the loss with the outermost such range, which a fused kernel takes over. ``works``: by name of a range what it
    surrounds, for the names met so far.
    """
    is_exchange = category in COMMUNICATION_CATEGORIES
    innermost_work: str | None = None
    outermost: int | None = None
    for around in operators.around(index):
        name = operators.found[around].name
        if name not in works:
            works[name] = tuple(row.work for row in torch_operators().unfused if row.inside.search(name))
        for work in works[name]:
            if (work == BARRIER) == is_exchange and innermost_work in (None, work):
                innermost_work, outermost = work, around
    return innermost_work, outermost if innermost_work == LOSS else None


def _nearest_shapes(index: int | None, operators: Operators) -> tuple[str, Sizes] | None:
    """Name and shapes of the innermost range around that recorded any."""
    around = (operators.found[place] for place in operators.around(index))
    return next(((each.name, each.sizes) for each in around if each.sizes and each.sizes[0]), None)


def _time_alone(op: str, operations: Operations, window: tuple[int, int]) -> int:
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


def _launch_starved_time(op: str, operations: Operations, slices: Slices) -> int:
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
