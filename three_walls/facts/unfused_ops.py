"""Work that a fused kernel, or a setting, would take over: found by the operators around it, not by kernel names.

Unfused, the loss, the rotary embedding or the router's top-k is a series of general pointwise kernels whose names
reveal nothing. The range around a launch does, or the shapes of the tensors it works on. Found so, each sum is an upper
bound: it contains other work on tensors of that kind, and a fused kernel keeps some of it. Where no shapes were
recorded, the order of the operators identifies the rotary embedding and the router (``operator_sequences.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from three_walls.facts import fact_thresholds
from three_walls.facts.cuda_graphs import LAUNCH_STARVED_PARENTS
from three_walls.facts.step_facts import HOST_LAUNCHES
from three_walls.layers.attention_passes import FORWARD
from three_walls.layers.operator_sequences import FusedPart, Sequences, find_sequences, is_operator
from three_walls.lib.fact import FactDefinition, FactGroup, FactValue, Measurements, Pool
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.lib.text import in_percent
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.intervals import DURATION, intersect, mask_of, merge_overlapping
from three_walls.step.operators import Operators, Sizes
from three_walls.step.ownership import LABELS
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import COMMUNICATION_CATEGORIES, COMPUTE_CATEGORIES, GEMM_CATEGORIES
from three_walls.tables.nvtx_ranges import BARRIER, LOSS, WGRAD_ACCUMULATION, torch_operators

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


@dataclass(frozen=True, slots=True)
class FusedFractions:
    """What remains of the time of unfused kernels if one fused kernel takes over each sequence of operators."""

    likely: FactDefinition
    least: FactDefinition
    most: FactDefinition


def _define_fused(op: str, label: str) -> FusedFractions:
    meaning = (
        f"Fraction of the time of the {label} kernels that the fused kernels would take, {{how}}. Known where the "
        "order of the operators identifies them."
    )
    whole = f"the kernels of the {label}"
    return FusedFractions(
        facts.fact(
            f"{op}_fused_fraction",
            "fraction",
            f"{label} time left if fused",
            meaning.format(how="halfway between the least and the most"),
            whole=whole,
        ),
        facts.fact(
            f"{op}_fused_least_fraction",
            "fraction",
            f"least {label} time left if fused",
            meaning.format(
                how="at the pace of a kernel of the sequence that moves the same bytes, or that is as short as any"
            ),
            whole=whole,
        ),
        facts.fact(
            f"{op}_fused_most_fraction",
            "fraction",
            f"most {label} time left if fused",
            meaning.format(how="if each takes as long as the slowest operator that it replaces"),
            whole=whole,
        ),
    )


FUSED_FRACTIONS: Mapping[str, FusedFractions] = {
    ROPE: _define_fused(ROPE, "unfused rotary embedding"),
    ROUTER_TOPK: _define_fused(ROUTER_TOPK, "unfused router top-k"),
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
    if not any(map(is_operator, operators.found)):
        definitions = [definition for op in UNFUSED_OPS.values() for definition in (op.kernels, op.launch_starved)]
        definitions += [definition for op in FUSED_FRACTIONS.values() for definition in (op.likely, op.least, op.most)]
        return dict.fromkeys([*definitions, BARRIER_EXPOSED], missing(NO_OPERATORS))
    work = classify_unfused(step.operations, operators, step.config)
    with_shapes = in_percent(work.shapes_known_fraction, 0)
    few_shapes = f"operators with recorded shapes launched only {with_shapes} of the pointwise work {_RECORD_SHAPES}"
    measured: dict[FactDefinition, Measurement[FactValue]] = {}
    for op, op_facts in UNFUSED_OPS.items():
        reason = None
        if not (work.operations["op"] == op).any():
            reason = f"no kernel of this operation ({op.replace('_', ' ')}) was found in the step"
        if op in _FOUND_BY_SHAPE and work.sequences is not None:
            if op in work.sequences.ambiguous:
                reason = f"{few_shapes}, and the order of the operators is ambiguous: {work.sequences.ambiguous[op]}"
            elif op not in FUSED_FRACTIONS:
                reason = few_shapes
            elif reason:
                reason = f"{few_shapes}, and its operators were not found in their known order"
        if reason:
            measured |= dict.fromkeys((op_facts.kernels, op_facts.launch_starved), missing(reason))
            continue
        measured[op_facts.kernels] = known(_time_alone(op, work.operations, step.window))
        measured[op_facts.launch_starved] = known(_launch_starved_time(op, work.operations, step.slices))
    measured[BARRIER_EXPOSED] = known(_time_alone(BARRIER, work.operations, step.window))
    for op, fractions in FUSED_FRACTIONS.items():
        measured |= _measure_fused_fractions(op, fractions, work, operators)
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


@dataclass(frozen=True, slots=True)
class UnfusedWork:
    """The unfused work among the operations of one rank."""

    operations: pl.DataFrame
    """With ``op`` (null for other work), ``fused_kernel`` (number of the fused kernel that would take it over; null
    where that is not known), and ``part_range`` (index of the operator of a sequence that launched it)."""
    shapes_known_fraction: float
    """Of the pointwise work: launched inside of a range with shapes."""
    sequences: Sequences | None
    """None where shapes identify the work."""


def classify_unfused(operations: pl.DataFrame, operators: Operators, config: RunConfig) -> UnfusedWork:
    """Which work ``operations`` of one rank are, by ``operators`` of its process around their launches.

    Where the shapes of too little of the pointwise work were recorded, the order of the operators decides.
    """
    launches = operations.select(pl.col("category").cast(pl.String), "launch_thread", "launch_start_ns")
    inside = [
        None if thread is None or at_ns is None else operators.innermost(thread, at_ns)
        for _, thread, at_ns in launches.iter_rows()
    ]
    nearest = [next(_nearest_shapes(index, operators), None) for index in inside]
    plain = [shapes is not None for shapes, kind in zip(nearest, launches["category"], strict=True) if kind in _PLAIN]
    shapes_known = sum(plain) / len(plain) if plain else 1.0
    rules, sequences = _shape_rules(config), None
    if shapes_known < fact_thresholds.MINIMUM_SHAPED_FRACTION:
        rules = {op: rule for op, rule in rules.items() if op not in FUSED_FRACTIONS}
        sequences = _find_sequences(operations, inside, operators, config)
    works: dict[str, tuple[str, ...]] = {}
    ops: list[str | None] = []
    kernels: list[int | None] = []
    ranges: list[int | None] = []
    for category, index, shapes in zip(launches["category"], inside, nearest, strict=True):
        part_range = None if sequences is None else _find_part(sequences, index, operators)
        work, fused_kernel = _find_work(category, index, operators, works)
        if sequences is not None and part_range is not None:
            part = sequences.parts[part_range]
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
    operations: pl.DataFrame, inside: Sequence[int | None], operators: Operators, config: RunConfig
) -> Sequences:
    """The sequences of ``operators``, without the rotary embedding of latent attention, which no such kernel fuses."""
    phases = operations["phase"].cast(pl.String) if "phase" in operations.columns else [None] * operations.height
    attention = {index for index, phase in zip(inside, phases, strict=True) if index is not None and phase == FORWARD}
    found = find_sequences(operators, attention)
    if config.get("multi_latent_attention") is not True:
        return found
    return Sequences({index: part for index, part in found.parts.items() if part.work != ROPE}, found.ambiguous)


def _find_part(sequences: Sequences, index: int | None, operators: Operators) -> int | None:
    """The range around the range ``index`` that is an operator of a sequence, or a node of its backward pass."""
    return next((around for around in operators.around(index) if around in sequences.parts), None)


def _measure_fused_fractions(
    op: str, fractions: FusedFractions, work: UnfusedWork, operators: Operators
) -> dict[FactDefinition, Measurement[FactValue]]:
    """What remains of the kernels of ``op`` if one kernel takes over each part of the sequences.

    It takes as long as an operator of the part that moves the same bytes (``Pace``), or at most as long as the slowest
    operator. A backward kernel reads and writes what the forward one does.
    """
    definitions = (fractions.likely, fractions.least, fractions.most)
    own = work.operations.filter((pl.col("op") == op) & pl.col("part_range").is_not_null())
    if work.sequences is None or not own.height:
        return dict.fromkeys(definitions, missing("no such sequence of operators was looked for, or none was found"))
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
        return dict.fromkeys(definitions, missing("the kernels of the sequences take no time"))
    values = ((least + most) / 2 / total, least / total, most / total)
    return {definition: known(value) for definition, value in zip(definitions, values, strict=True)}


def _find_work(
    category: str, index: int | None, operators: Operators, works: dict[str, tuple[str, ...]]
) -> tuple[str | None, int | None]:
    """The work that a range around the range ``index`` surrounds; an exchange is a barrier's or nobody's.

    Of the loss with the outermost such range, which a fused kernel takes over. ``works``: by name of a range what it
    surrounds, for the names met so far.
    """
    is_exchange = category in COMMUNICATION_CATEGORIES
    found: str | None = None
    outermost: int | None = None
    for around in operators.around(index):
        name = operators.found[around].name
        if name not in works:
            works[name] = tuple(row.work for row in torch_operators().unfused if row.inside.search(name))
        for work in works[name]:
            if (work == BARRIER) == is_exchange and found in (None, work):
                found, outermost = work, around
    return found, outermost if found == LOSS else None


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
