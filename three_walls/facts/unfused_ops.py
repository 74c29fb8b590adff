"""Work that a fused kernel, or a setting, would take over: told by the operators around it, not by kernel names.

Unfused, the loss, the rotary embedding or the choice of experts is a row of general pointwise kernels whose names say
nothing. The range around a launch does, or the sizes of the tensors it works on. Each sum is a ceiling: it holds what
else works on tensors of that kind, and a fused kernel keeps some of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from three_walls.attribution.ownership import LABELS
from three_walls.model.buckets import COMMUNICATION_CATEGORIES, COMPUTE_CATEGORIES
from three_walls.model.config import RunConfig
from three_walls.model.fact import FactValue
from three_walls.tables.torch_operators import BARRIER, LOSS, WGRAD_ACCUMULATION, TorchOperators
from three_walls.timeline.intervals import intersect, mask_of, merge_overlapping
from three_walls.timeline.operators import Operator, Operators, Sizes

ROPE, ROUTER_TOPK, BIAS_DROPOUT_ADD = "rope", "router_topk", "bias_dropout_add"
UNFUSED_OPS = (LOSS, WGRAD_ACCUMULATION, ROPE, ROUTER_TOPK, BIAS_DROPOUT_ADD)
BARRIER_FACT = "barrier_exposed_ns"

NO_OPERATORS = "no ranges of PyTorch's operators were recorded (recapture with --profile and -t cuda,nvtx)"
_RECORD_SIZES = "(recapture with --profile; Megatron-Bridge also needs profiling.record_shapes=true)"
_OF_PYTORCH = ("aten::", "c10d::", "nccl:", "autograd::")

_POINTWISE = ("elementwise", "permute", "copy_d2d", "memset", "unclassified")
_PLAIN = ("elementwise", "unclassified")
_CHOOSING = ("router", *_POINTWISE)
_ADDING = ("aten::add", "aten::add_", "aten::mul", "aten::div", "aten::dropout", "aten::native_dropout")
_MOSTLY = 0.9
"""Work told by sizes is known where so many of the pointwise operations have them: else some of it is not seen."""
_STARVED = mask_of(["launch_starved"], LABELS)

Known = tuple[FactValue, str | None]
Fits = Callable[[str, Sizes], bool]


@dataclass(frozen=True, slots=True)
class _BySize:
    """Operations of ``categories`` whose operator ``fits``, by its name and the sizes of its arguments."""

    categories: tuple[str, ...]
    fits: Fits


def unfused_facts() -> tuple[str, ...]:
    """Names of the facts measured here."""
    return (
        *(name for work in UNFUSED_OPS for name in (f"{work}_kernels_ns", f"{work}_launch_starved_ns")),
        BARRIER_FACT,
    )


def measure_unfused_ops(
    operations: pl.DataFrame,
    slices: pl.DataFrame,
    operators: Operators,
    table: TorchOperators,
    config: RunConfig,
    step: tuple[int, int],
) -> dict[str, Known]:
    """``<work>_kernels_ns`` and ``<work>_launch_starved_ns`` per work, each with the reason where it is not told.

    ``operations`` and ``slices``: of one rank's step [start, end). The first is time in which nothing else computes,
    the second launch-starved time that ends with an operation of that work.
    """
    if not any(_is_of_pytorch(operator) for operator in operators.found):
        return dict.fromkeys(unfused_facts(), (None, NO_OPERATORS))
    by_size = _size_rules(config)
    marked = _mark(operations, operators, table, by_size)
    has_sizes = _have_sizes(marked)
    facts: dict[str, Known] = {}
    for work in UNFUSED_OPS:
        mine = marked.filter(pl.col("work") == work)
        reason = None if mine.height else f"no operation of it ({work}) ran in the step, or none could be told"
        if work in (ROPE, ROUTER_TOPK, BIAS_DROPOUT_ADD) and has_sizes < _MOSTLY:
            reason = f"operators of known sizes launched only {has_sizes:.0%} of the pointwise work {_RECORD_SIZES}"
        facts[f"{work}_kernels_ns"] = (None, reason) if reason else (_alone(mine, marked, work, step), None)
        facts[f"{work}_launch_starved_ns"] = (None, reason) if reason else (_starved(work, marked, slices), None)
    barriers = marked.filter(pl.col("work") == BARRIER)
    facts[BARRIER_FACT] = _alone(barriers, marked, BARRIER, step), None
    return facts


def _is_of_pytorch(operator: Operator) -> bool:
    """Whether emit_nvtx wrote the range: its operators have a namespace, its autograd functions a number or sizes."""
    return operator.sizes is not None or operator.sequence is not None or operator.name.startswith(_OF_PYTORCH)


def _mark(
    operations: pl.DataFrame, operators: Operators, table: TorchOperators, by_size: Mapping[str, _BySize]
) -> pl.DataFrame:
    """``operations`` with ``work`` (null for other work) and ``has_sizes`` (whether a range around says sizes)."""
    rows = operations.select(pl.col("category").cast(pl.String), "launch_thread", "launch_start_ns").iter_rows()
    works: list[str | None] = []
    sized: list[bool] = []
    for category, thread, at in rows:
        index = None if thread is None or at is None else operators.innermost(thread, at)
        works.append(_tell(category, index, operators, table, by_size))
        sized.append(next(_nearest_sizes(index, operators), None) is not None)
    return operations.with_columns(work=pl.Series(works, dtype=pl.String), has_sizes=pl.Series(sized, dtype=pl.Boolean))


def _have_sizes(marked: pl.DataFrame) -> float:
    """Share of the pointwise operations that an operator of known sizes launched; 1 without any."""
    pointwise = marked.filter(pl.col("category").cast(pl.String).is_in(_PLAIN))
    return int(pointwise["has_sizes"].sum()) / pointwise.height if pointwise.height else 1.0


def _tell(
    category: str, index: int | None, operators: Operators, table: TorchOperators, by_size: Mapping[str, _BySize]
) -> str | None:
    """The work that an operation of ``category`` belongs to, launched inside the range ``index``."""
    is_exchange = category in COMMUNICATION_CATEGORIES
    for name in (operators.found[one].name for one in operators.around(index)):
        for row in table.unfused:
            if (row.work == BARRIER) == is_exchange and row.inside.search(name):
                return None if category in ("gemm", "grouped_gemm") else row.work
    for name, sizes in _nearest_sizes(index, operators):
        for work, rule in by_size.items():
            if category in rule.categories and rule.fits(name, sizes):
                return work
    return None


def _nearest_sizes(index: int | None, operators: Operators) -> Iterator[tuple[str, Sizes]]:
    """Name and sizes of the innermost range around that has any."""
    for one in operators.around(index):
        sizes = operators.found[one].sizes
        if sizes and sizes[0]:
            yield operators.found[one].name, sizes
            return


def _size_rules(config: RunConfig) -> dict[str, _BySize]:
    """What tells work by the tensors it is done on; only what the config gives the sizes of."""
    rules: dict[str, _BySize] = {}
    hidden, experts = config.whole_number("hidden_size"), config.whole_number("num_moe_experts")
    top_k, rotated = config.whole_number("moe_router_topk"), _rotated(config)
    if rotated:
        rules[ROPE] = _BySize(_POINTWISE, lambda _, sizes: _is_rotated(sizes[0], rotated))
    if experts and top_k:
        rules[ROUTER_TOPK] = _BySize(_CHOOSING, lambda _, sizes: _is_choice(sizes[0], experts, top_k))
    if hidden:
        rules[BIAS_DROPOUT_ADD] = _BySize(
            _PLAIN, lambda name, sizes: name in _ADDING and len(sizes[0]) == 3 and sizes[0][-1] == hidden
        )
    return rules


def _rotated(config: RunConfig) -> tuple[frozenset[int], frozenset[int]] | None:
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


def _is_rotated(size: Sequence[int], rotated: tuple[frozenset[int], frozenset[int]]) -> bool:
    """Tokens x batch x heads x channels of queries or keys, whole or the half that is turned."""
    heads, channels = rotated
    return len(size) == 4 and size[2] in heads and size[3] in channels


def _is_choice(size: Sequence[int], experts: int, top_k: int) -> bool:
    """Tokens (x batch) x experts, or x experts chosen: scores, maps of the choice, probabilities."""
    return 2 <= len(size) <= 3 and size[-1] in (experts, top_k) and size[0] > experts


def _alone(mine: pl.DataFrame, marked: pl.DataFrame, work: str, step: tuple[int, int]) -> int:
    """Time of the step in which an operation of ``mine`` runs and no other work computes."""
    is_other = (pl.col("work").is_null() | (pl.col("work") != work)) & pl.col("category").cast(pl.String).is_in(
        COMPUTE_CATEGORIES
    )
    bounds = {"start_ns": pl.lit(step[0], dtype=pl.Int64), "end_ns": pl.lit(step[1], dtype=pl.Int64)}
    window = mine.select("rank_index").unique().with_columns(**bounds)
    own = merge_overlapping(
        intersect(mine.select("rank_index", "start_ns", "end_ns"), window, ["rank_index"]), ["rank_index"]
    )
    beside = intersect(own, merge_overlapping(marked.filter(is_other), ["rank_index"]), ["rank_index"])
    return _length(own) - _length(beside)


def _length(intervals: pl.DataFrame) -> int:
    return int(intervals.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item())


def _starved(work: str, marked: pl.DataFrame, slices: pl.DataFrame) -> int:
    """Launch-starved time after which the next operation to start is one of ``work``."""
    waits = slices.filter((pl.col("active") & _STARVED) != 0).select("end_ns", ns=pl.col("end_ns") - pl.col("start_ns"))
    next_started = waits.sort("end_ns").join_asof(
        marked.select("start_ns", "work").sort("start_ns", "work"),
        left_on="end_ns",
        right_on="start_ns",
        strategy="forward",
    )
    return int(next_started.filter(pl.col("work") == work)["ns"].sum())
