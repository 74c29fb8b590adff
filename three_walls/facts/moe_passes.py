"""Passes through MoE layers, told by the order of token exchanges and attention passes in a step.

One pass exchanges tokens twice: *dispatch* is what it exchanges before its experts' products, *combine* what it
exchanges after them, in either direction. Between the attention of two forward layers lies one forward pass; between
the attention of two backward layers one backward pass; between the last forward and the first backward one of each;
and a replayed pass stands before its backward. Whatever does not fit this order (exchanges of different layers that
interleave) is not guessed at.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from three_walls.facts.attention_passes import BACKWARD, FORWARD, RECOMPUTE

EXCHANGES = ("ep_all_to_all", "ep_dispatch_combine")
DISPATCH, COMBINE = "dispatch", "combine"

NO_FORWARD_PAIR = "no two forward MoE layers follow one another in the step"
INTERLEAVED = "exchanges of different MoE layers interleave (as expert-parallel overlap does), or some are missing"


@dataclass(frozen=True, slots=True)
class LayerPasses:
    """``passes``: one row per pass in order; ``exchanges``: every token exchange of it. Both None with ``reason``.

    passes: pass, direction, partner (attention pass of the step's forward that it belongs to), from_ns and until_ns
    (the attention or pass before and after), dispatch_start_ns, dispatch_end_ns, combine_start_ns, combine_end_ns.
    exchanges: pass, part, position (in the pass), start_ns, end_ns.
    """

    passes: pl.DataFrame | None
    exchanges: pl.DataFrame | None
    reason: str | None = None


def find_layer_passes(
    exchanges: pl.DataFrame, products: pl.DataFrame, attention: pl.DataFrame, replays: pl.DataFrame | None = None
) -> LayerPasses:
    """Groups ``exchanges`` (start_ns, end_ns of one step) into passes.

    ``products``: start_ns of the GEMMs. ``attention``: the step's passes (attention_passes.PASSES).
    ``replays``: where replayed layers end (recompute.REPLAYS); without it a replay reaches to its backward's dispatch.
    """
    if attention.is_empty() or attention["direction"].null_count():
        return LayerPasses(None, None, "attention passes, which tell layers apart, were not recorded or not told apart")
    if exchanges.is_empty():
        return LayerPasses(
            None, None, "no token exchange of expert parallelism was recorded, or told from other exchanges"
        )
    placed = _between_attention(exchanges, attention, products)
    shapes = {direction: _shape(placed, direction) for direction in (FORWARD, BACKWARD)}
    forward, backward = shapes[FORWARD], shapes[BACKWARD]
    if forward is None:
        return LayerPasses(None, None, NO_FORWARD_PAIR)
    size, first_forward = forward
    # Backward mirrors forward; where no plain pair of backward layers shows it, a forward's combine goes first.
    first_backward = backward[1] if backward and backward[0] == size else size - first_forward
    numbered = _number(placed, size)
    if numbered is None or not 0 < first_forward < size or not 0 < first_backward < size:
        return LayerPasses(None, None, INTERLEAVED)
    directed = numbered.with_columns(
        part=pl.when(
            pl.col("position") < pl.when(pl.col("direction") == BACKWARD).then(first_backward).otherwise(first_forward)
        )
        .then(pl.lit(DISPATCH))
        .otherwise(pl.lit(COMBINE))
    )
    passes = _passes(directed, attention)
    bounded = passes if replays is None else _end_with_replay(passes, replays)
    return LayerPasses(bounded, directed.select("pass", "part", "position", "start_ns", "end_ns"))


def _between_attention(exchanges: pl.DataFrame, attention: pl.DataFrame, products: pl.DataFrame) -> pl.DataFrame:
    """Exchanges with the attention pass before and after, and how many products ran before."""
    before = attention.select(
        "start_ns", gap=pl.int_range(pl.len(), dtype=pl.Int64), previous="direction", previous_partner="partner"
    ).with_columns(next=pl.col("previous").shift(-1), next_partner=pl.col("previous_partner").shift(-1))
    counted = products.select("start_ns").sort("start_ns").with_row_index("products", offset=1)
    return (
        exchanges.sort("start_ns", "end_ns")
        .join_asof(before.sort("start_ns"), on="start_ns", strategy="backward")
        .join_asof(counted, on="start_ns", strategy="backward")
        .with_columns(pl.col("products").fill_null(0))
    )


def _shape(placed: pl.DataFrame, direction: str) -> tuple[int, int] | None:
    """(exchanges of a pass, those before its experts' products): the usual gap between two layers of ``direction``."""
    pairs = placed.filter((pl.col("previous") == direction) & (pl.col("next") == direction))
    shapes = pairs.group_by("gap").agg(
        size=pl.len(), first=(pl.col("products") == pl.col("products").min()).sum().cast(pl.Int64)
    )
    usual = shapes.group_by("size", "first").len().sort("len", "size", "first", descending=[True, False, False])
    return (int(usual["size"][0]), int(usual["first"][0])) if usual.height else None


def _number(placed: pl.DataFrame, size: int) -> pl.DataFrame | None:
    """Exchanges with pass (from 0), position in it, direction, partner; None where a gap holds no whole passes."""
    within = pl.int_range(pl.len(), dtype=pl.Int64).over("gap")
    split = placed.with_columns(
        order=within // size, position=within % size, passes=(pl.len().over("gap") // size).cast(pl.Int64)
    )
    counts = split.group_by("gap").agg(pl.len().alias("count"))
    starts_forward = pl.col("previous").is_in([FORWARD, RECOMPUTE]) & (pl.col("order") == 0)
    ends_backward = (pl.col("next") == BACKWARD) & (pl.col("order") == pl.col("passes") - 1)
    replays = (pl.col("next") == BACKWARD) & (pl.col("order") == pl.col("passes") - 2)
    told = split.with_columns(
        direction=pl.when(starts_forward)
        .then("previous")
        .when(ends_backward)
        .then(pl.lit(BACKWARD))
        .when(replays)
        .then(pl.lit(RECOMPUTE)),
        partner=pl.when(starts_forward).then("previous_partner").otherwise("next_partner"),
    )
    whole = counts.filter(pl.col("count") % size != 0).is_empty()
    if not whole or told["direction"].null_count() or told["gap"].null_count():
        return None
    return told.with_columns(((pl.col("position") == 0).cast(pl.Int64).cum_sum() - 1).alias("pass"))


def _passes(exchanges: pl.DataFrame, attention: pl.DataFrame) -> pl.DataFrame:
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


def _end_with_replay(passes: pl.DataFrame, replays: pl.DataFrame) -> pl.DataFrame:
    """No product or norm stands between a replay and its backward: the replay's measured end parts their work."""
    ends = replays.select("partner", replay_end_ns="end_ns").unique("partner", keep="first", maintain_order=True)
    joined = passes.join(ends, on="partner", how="left", maintain_order="left")
    replayed = pl.col("direction") == RECOMPUTE
    fits = pl.col("replay_end_ns").is_between("combine_end_ns", "until_ns")
    end = pl.when(replayed & fits).then("replay_end_ns")
    return joined.with_columns(
        until_ns=pl.coalesce(end, "until_ns"), from_ns=pl.max_horizontal("from_ns", end.shift(1))
    ).drop("replay_end_ns")
