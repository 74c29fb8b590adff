"""Work that a fused kernel, or a setting, would take over: found by the operators around it, not by kernel names.

Unfused, the loss, the rotary embedding or the router's top-k is a series of general pointwise kernels whose names
reveal nothing. The range around a launch does, or the shapes of the tensors it works on. Found so, each sum is an upper
bound: it contains other work on tensors of that kind, and a fused kernel keeps some of it. Where no shapes were
recorded, the order of the operators identifies the rotary embedding and the router (``operator_sequences.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import polars as pl

from three_walls.layers.labels import LABELS
from three_walls.layers.operator_sequences import Sequences, find_sequences
from three_walls.lib.declare import artifact
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.operators import Operators, Sizes
from three_walls.step.step_tables import Operations
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import COMMUNICATION_CATEGORIES, GEMM_CATEGORIES
from three_walls.tables.model_parts import BARRIER, BIAS_DROPOUT_ADD, FORWARD, LOSS, ROPE, ROUTER_TOPK
from three_walls.tables.nvtx_ranges import torch_operators

MINIMUM_SHAPED_FRACTION = 0.9
"""Of the pointwise operations: the part that must have recorded shapes before unfused work is identified by tensor
shapes. With fewer, some of that work is not seen."""
FOUND_IN_ORDER = (ROPE, ROUTER_TOPK)
"""Operations that the order of the operators identifies where shapes do not."""

_PLAIN = ("elementwise", "unclassified")
_POINTWISE = ("elementwise", "permute", "copy_d2d", "memset", "unclassified")
_ROUTING = ("router", *_POINTWISE)
_RESIDUAL_OPERATORS = ("aten::add", "aten::add_", "aten::mul", "aten::div", "aten::dropout", "aten::native_dropout")


@dataclass(frozen=True, slots=True)
class _ShapeRule:
    """Operations of ``categories`` whose operator ``matches``, by its name and the shapes of its arguments."""

    categories: tuple[str, ...]
    matches: Callable[[str, Sizes], bool]

    def fits(self, category: str, name: str, shapes: Sizes) -> bool:
        return category in self.categories and self.matches(name, shapes)


UnfusedOperations = Annotated[
    Operations, {name: LABELS[name] for name in ("operator", "fused_kernel", "operator_range")}
]
"""Operations with what a fused kernel would take over; null for other work."""


@dataclass(frozen=True, slots=True)
class UnfusedWork:
    """The unfused work among the operations of one rank."""

    operations: UnfusedOperations
    shapes_known_fraction: float
    """Of the pointwise work: launched inside of a range with shapes."""
    sequences: Sequences | None
    """None where shapes identify all of the work."""


@artifact
def unfused_work(step: StepView, operators: Operators) -> UnfusedWork:
    """The unfused work among the operations that start in the step."""
    return classify_unfused(step.started, operators, step.config)


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

    Where the shapes of too little of the pointwise work were recorded, the order of the operators decides; of latent
    attention it does always, since its tensors have many shapes.
    """
    launches = operations.select(pl.col("category").cast(pl.String), "launch_thread", "launch_start_ns")
    inside = [operators.innermost(thread, at_ns) for _, thread, at_ns in launches.iter_rows()]
    nearest = [_nearest_shapes(index, operators) for index in inside]
    plain = [shapes is not None for shapes, kind in zip(nearest, launches["category"], strict=True) if kind in _PLAIN]
    shapes_known = sum(plain) / len(plain) if plain else 1.0
    rules, sequences = _shape_rules(config), None
    if shapes_known < MINIMUM_SHAPED_FRACTION:
        rules = {op: rule for op, rule in rules.items() if op not in FOUND_IN_ORDER}
        sequences = _find_sequences(operations, inside, operators, config)
    elif config.get("multi_latent_attention") is True:
        found = _find_sequences(operations, inside, operators, config)
        ropes = {index: part for index, part in found.parts.items() if part.work == ROPE}
        sequences = Sequences(ropes, {})
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
        operator=pl.Series(ops, dtype=pl.String),
        fused_kernel=pl.Series(kernels, dtype=pl.Int64),
        operator_range=pl.Series(ranges, dtype=pl.Int64),
    )
    return UnfusedWork(with_work, shapes_known, sequences)


def _find_sequences(
    operations: Operations, inside: Sequence[int | None], operators: Operators, config: RunConfig
) -> Sequences:
    """The sequences of ``operators``, without the rotary embedding of latent attention that no kernel fuses."""
    phases = operations["phase"].cast(pl.String) if "phase" in operations.columns else [None] * operations.height
    attention = {index for index, phase in zip(inside, phases, strict=True) if index is not None and phase == FORWARD}
    sequences = find_sequences(operators, attention)
    if config.get("multi_latent_attention") is not True or config.get("rope_type") == "yarn":
        return sequences
    parts = {index: part for index, part in sequences.parts.items() if part.work != ROPE}
    return Sequences(parts, sequences.ambiguous)


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
