"""Passes through MoE layers, found by the order of token exchanges and attention passes on the device.

One pass exchanges tokens twice: *dispatch* is what it exchanges before its expert GEMMs, *combine* what it exchanges
after them, in either direction. Between the attention of two forward layers lies one forward pass; between the
attention of two backward layers one backward pass; between the last forward and the first backward one of each. A
replayed pass stands before its backward pass. Exchanges that do not fit this order (those of different layers
interleave) are not assigned to any layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import polars as pl

from three_walls.layers.attention_passes import BACKWARD, FORWARD, RECOMPUTE, AttentionPasses, Replays
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.step_tables import Operations
from three_walls.tables.buckets import GEMM_CATEGORIES, TOKEN_EXCHANGES

DISPATCH, COMBINE = "dispatch", "combine"
ROUTER, PERMUTE, EXPERT_GEMM, UNPERMUTE = "router", "permute", "expert_gemm", "unpermute"
SHARED_EXPERT = "shared_expert"
PARTS = (ROUTER, PERMUTE, DISPATCH, EXPERT_GEMM, COMBINE, UNPERMUTE, SHARED_EXPERT)

LAYER_CATEGORIES = (*TOKEN_EXCHANGES, *GEMM_CATEGORIES, "norm", "router", "permute")
"""Categories of the operations that the passes and their parts are made of."""

_BOUNDARIES = (*GEMM_CATEGORIES, "norm")
"""What stands between the permutation of tokens and other layers: no GEMM or norm runs inside it."""

NO_EXCHANGES = "no token exchange of expert parallelism was recorded, or none could be distinguished from others"
NO_ATTENTION = "the attention passes, which separate layers, were not recorded, or replays could not be distinguished"
NO_FORWARD_PAIR = "no two forward MoE layers follow one another in the step"
INTERLEAVED = "exchanges of different MoE layers interleave (as expert-parallel overlap does), or some are missing"

_PART = {"pass": pl.Int64, "part": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64}

MoePasses = Annotated[
    pl.DataFrame,
    {
        "pass": pl.Int64,
        "direction": pl.String,
        "partner": pl.Int64,  # number of the step's forward attention pass that it belongs to; null if unknown
        "route_from_ns": pl.Int64,  # between these the pass routes its tokens
        "route_until_ns": pl.Int64,
    },
]
"""Passes through MoE layers in order. Found by order, they have from_ns and until_ns: attention or pass around it."""

Exchanges = Annotated[pl.DataFrame, {**_PART, "position": pl.Int64}]
"""Token exchanges: ``part`` is dispatch or combine, ``position`` that in the pass."""

PartOperations = Annotated[pl.DataFrame, _PART]
"""Operations of a part of a pass."""


@dataclass(frozen=True, slots=True)
class LayerPasses:
    """The passes through MoE layers of one step; all frames are empty where ``reason`` states why none were found."""

    passes: MoePasses = field(default_factory=pl.DataFrame)
    exchanges: Exchanges = field(default_factory=pl.DataFrame)
    operations: PartOperations = field(default_factory=pl.DataFrame)
    """Exchanges included."""
    reason: str | None = None


def find_passes_in_order(
    operations: Operations, attention: AttentionPasses, replays: Replays | None, config: RunConfig
) -> LayerPasses:
    """Groups the token exchanges among ``operations`` into passes by their order on the device.

    ``operations``: one rank's of the step, of LAYER_CATEGORIES. Without ``replays`` a replay lasts
    until the dispatch of its backward pass.
    """
    if attention.is_empty() or attention["direction"].null_count():
        return LayerPasses(reason=NO_ATTENTION)
    exchanges = operations.filter(pl.col("category").is_in(TOKEN_EXCHANGES)).select("start_ns", "end_ns")
    if exchanges.is_empty():
        return LayerPasses(reason=NO_EXCHANGES)
    gemms = operations.filter(pl.col("category").is_in(GEMM_CATEGORIES))
    if config.get("moe_shared_expert_overlap") is True:
        # Shared experts then run on a stream of their own during the exchanges: no GEMM of theirs ends a dispatch.
        gemms = gemms.filter(pl.col("stream").is_in(attention["stream"].unique().to_list()))
    placed = _place_between_attention(exchanges, attention, gemms)
    forward, backward = _usual_exchanges(placed, FORWARD), _usual_exchanges(placed, BACKWARD)
    if forward is None:
        return LayerPasses(reason=NO_FORWARD_PAIR)
    size, first_forward = forward
    # Backward mirrors forward: where no pair of backward layers shows it, the exchanges of forward combine come first.
    first_backward = backward[1] if backward and backward[0] == size else size - first_forward
    numbered = _number_passes(placed, size)
    if numbered is None or not 0 < first_forward < size or not 0 < first_backward < size:
        return LayerPasses(reason=INTERLEAVED)
    first = pl.when(pl.col("direction") == BACKWARD).then(first_backward).otherwise(first_forward)
    parts = numbered.with_columns(
        part=pl.when(pl.col("position") < first).then(pl.lit(DISPATCH)).otherwise(pl.lit(COMBINE))
    )
    passes = _bound_passes(parts, attention)
    if replays is not None:
        passes = _end_with_replays(passes, replays)
    goes_back = pl.col("direction") == BACKWARD
    passes = passes.with_columns(
        route_from_ns=pl.when(goes_back).then("combine_end_ns").otherwise("from_ns"),
        route_until_ns=pl.when(goes_back).then("until_ns").otherwise("dispatch_start_ns"),
    )
    part_operations = _assign_operations(operations, passes)
    return LayerPasses(
        passes,
        parts.select("pass", "part", "position", "start_ns", "end_ns"),
        pl.concat([part_operations, parts.select("pass", "part", "start_ns", "end_ns")]),
    )


def _place_between_attention(exchanges: pl.DataFrame, attention: pl.DataFrame, gemms: Operations) -> pl.DataFrame:
    """Exchanges with the attention pass before and after, and how many GEMMs began before (``gemms_before``)."""
    gaps = attention.select(
        "start_ns", gap=pl.int_range(pl.len(), dtype=pl.Int64), previous="direction", previous_partner="partner"
    ).with_columns(next=pl.col("previous").shift(-1), next_partner=pl.col("previous_partner").shift(-1))
    gemm_counts = gemms.select("start_ns").sort("start_ns").with_row_index("gemms_before", offset=1)
    return (
        exchanges.sort("start_ns", "end_ns")
        .join_asof(gaps.sort("start_ns"), on="start_ns", strategy="backward")
        .join_asof(gemm_counts, on="start_ns", strategy="backward")
        .with_columns(pl.col("gemms_before").fill_null(0))
    )


def _usual_exchanges(placed: pl.DataFrame, direction: str) -> tuple[int, int] | None:
    """(exchanges of a pass, those before its expert GEMMs): the usual gap between two layers of ``direction``."""
    pairs = placed.filter((pl.col("previous") == direction) & (pl.col("next") == direction))
    is_first = pl.col("gemms_before") == pl.col("gemms_before").min()
    sizes = pairs.group_by("gap").agg(size=pl.len(), first=is_first.sum().cast(pl.Int64))
    usual = sizes.group_by("size", "first").len().sort("len", "size", "first", descending=[True, False, False])
    return (int(usual["size"][0]), int(usual["first"][0])) if usual.height else None


def _number_passes(placed: pl.DataFrame, size: int) -> pl.DataFrame | None:
    """Exchanges with pass (from 0), position in it, direction, partner; None where a gap holds no whole passes."""
    within = pl.int_range(pl.len(), dtype=pl.Int64).over("gap")
    split = placed.with_columns(
        order=within // size, position=within % size, passes=(pl.len().over("gap") // size).cast(pl.Int64)
    )
    counts = split.group_by("gap").agg(pl.len().alias("count"))
    starts_forward = pl.col("previous").is_in([FORWARD, RECOMPUTE]) & (pl.col("order") == 0)
    ends_backward = (pl.col("next") == BACKWARD) & (pl.col("order") == pl.col("passes") - 1)
    is_replay = (pl.col("next") == BACKWARD) & (pl.col("order") == pl.col("passes") - 2)
    directed = split.with_columns(
        direction=pl.when(starts_forward)
        .then("previous")
        .when(ends_backward)
        .then(pl.lit(BACKWARD))
        .when(is_replay)
        .then(pl.lit(RECOMPUTE)),
        partner=pl.when(starts_forward).then("previous_partner").otherwise("next_partner"),
    )
    is_whole = counts.filter(pl.col("count") % size != 0).is_empty()
    if not is_whole or directed["direction"].null_count() or directed["gap"].null_count():
        return None
    return directed.with_columns(((pl.col("position") == 0).cast(pl.Int64).cum_sum() - 1).alias("pass"))


def _bound_passes(exchanges: pl.DataFrame, attention: pl.DataFrame) -> pl.DataFrame:
    """One row per pass: direction, partner, from_ns, until_ns, and where dispatch and combine begin and end."""
    is_dispatch = pl.col("part") == DISPATCH
    passes = (
        exchanges.group_by("pass", maintain_order=True)
        .agg(
            pl.col("gap", "direction", "partner").first(),
            dispatch_start_ns=pl.col("start_ns").filter(is_dispatch).min(),
            dispatch_end_ns=pl.col("end_ns").filter(is_dispatch).max(),
            combine_start_ns=pl.col("start_ns").filter(~is_dispatch).min(),
            combine_end_ns=pl.col("end_ns").filter(~is_dispatch).max(),
        )
        .sort("pass")
    )
    edges = attention.select(
        gap=pl.int_range(pl.len(), dtype=pl.Int64), opened_ns="end_ns", closed_ns=pl.col("start_ns").shift(-1)
    )
    # A gap's passes share it: each reaches from the end of the one before to the start of the one after.
    return (
        passes.join(edges, on="gap", how="left", maintain_order="left")
        .with_columns(
            from_ns=pl.max_horizontal("opened_ns", pl.col("combine_end_ns").shift(1)),
            until_ns=pl.min_horizontal("closed_ns", pl.col("dispatch_start_ns").shift(-1)),
        )
        .drop("gap", "opened_ns", "closed_ns")
    )


def _end_with_replays(passes: pl.DataFrame, replays: pl.DataFrame) -> pl.DataFrame:
    """``passes`` with replays ending where measured: no GEMM or norm separates a replay from its backward."""
    ends = replays.select("partner", replay_end_ns="end_ns").unique("partner", keep="first", maintain_order=True)
    with_ends = passes.join(ends, on="partner", how="left", maintain_order="left")
    is_replay = pl.col("direction") == RECOMPUTE
    fits = pl.col("replay_end_ns").is_between("combine_end_ns", "until_ns")
    end = pl.when(is_replay & fits).then("replay_end_ns")
    return with_ends.with_columns(
        until_ns=pl.coalesce(end, "until_ns"), from_ns=pl.max_horizontal("from_ns", end.shift(1))
    ).drop("replay_end_ns")


def _assign_operations(operations: Operations, passes: pl.DataFrame) -> pl.DataFrame:
    """Operations of the parts that compute: pass, part, start_ns, end_ns.

    Of a pass, *expert_gemm* is every GEMM between dispatch and combine. *permute* is what permutes tokens from the last
    GEMM or norm before dispatch to the first expert GEMM, *unpermute* from there to the next GEMM or norm after
    combine. *router* is router work anywhere between the attention (or pass) before and the one after.
    """
    bounds = _find_bounds(operations, passes)
    windows = [
        bounds.select("pass", part=pl.lit(part), begin=begin, until=until, wanted=pl.lit(wanted))
        for part, begin, until, wanted in (
            (ROUTER, pl.col("from_ns"), pl.col("until_ns"), "router"),
            (PERMUTE, pl.col("opens_ns"), pl.col("first_gemm_ns"), "permute"),
            (EXPERT_GEMM, pl.col("dispatch_end_ns"), pl.col("combine_start_ns"), "gemm"),
            (UNPERMUTE, pl.col("first_gemm_ns"), pl.col("closes_ns"), "permute"),
        )
    ]
    kinds = operations.with_columns(
        wanted=pl.when(pl.col("category").is_in(GEMM_CATEGORIES)).then(pl.lit("gemm")).otherwise("category")
    ).select("wanted", "start_ns", "end_ns")
    return (
        kinds.sort("start_ns")
        .join_asof(
            pl.concat(windows).sort("begin"),
            left_on="start_ns",
            right_on="begin",
            by="wanted",
            strategy="backward",
            check_sortedness=False,
        )
        .filter(pl.col("start_ns") < pl.col("until"))
        .select("pass", "part", "start_ns", "end_ns")
    )


def _find_bounds(operations: Operations, passes: pl.DataFrame) -> pl.DataFrame:
    """Passes with opens_ns, first_gemm_ns and closes_ns: the bounds of the windows in _assign_operations."""
    boundaries = operations.filter(pl.col("category").is_in(_BOUNDARIES)).select("category", at="start_ns").sort("at")
    gemms = boundaries.filter(pl.col("category").is_in(GEMM_CATEGORIES))

    def nearest(
        passes: pl.DataFrame, to: str, marks: pl.DataFrame, strategy: Literal["backward", "forward"], name: str
    ) -> pl.DataFrame:
        times = marks.select(pl.col("at").alias(name))
        return passes.sort(to).join_asof(times, left_on=to, right_on=name, strategy=strategy)

    joined = nearest(passes, "dispatch_start_ns", boundaries, "backward", "opens_ns")
    joined = nearest(joined, "dispatch_end_ns", gemms, "forward", "first_gemm_ns")
    joined = nearest(joined, "combine_end_ns", boundaries, "forward", "closes_ns")
    return joined.with_columns(
        opens_ns=pl.max_horizontal("opens_ns", "from_ns"),
        first_gemm_ns=pl.min_horizontal("first_gemm_ns", "combine_start_ns"),
        # A pass is always followed by attention, so until_ns is known; a GEMM or norm may not follow.
        closes_ns=pl.min_horizontal("closes_ns", "until_ns"),
    ).sort("pass")
