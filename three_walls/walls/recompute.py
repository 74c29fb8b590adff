"""Recompute seen in the trace: attention computed forward more often than backward.

Every layer runs attention forward once and backward once per micro-batch; under recompute it runs forward twice.
So the surplus of forward passes counts the replayed layers. With *full* recompute a replay costs what a forward
layer costs, which is the spacing of consecutive forward layers; selective recompute replays only parts, of which
the count says nothing.
"""

from __future__ import annotations

import polars as pl

from three_walls.vocabulary.config import RunConfig
from three_walls.walls.representative import Representative

RECOMPUTES_RATIO = 1.25
"""Below this ratio no layer is taken to be replayed: every layer replayed gives 2, a quarter of them 1.25."""


def count_attention_passes(operations: pl.DataFrame, chosen: Representative, step: tuple[int, int]) -> tuple[int, int]:
    """(forward, backward) passes of attention that start in the step [start, end)."""
    passes = _passes(operations, chosen, step)
    counts = dict(passes.group_by("phase").len().rows())
    return int(counts.get("forward", 0)), int(counts.get("backward", 0))


def estimate_recompute_ns(
    operations: pl.DataFrame, chosen: Representative, step: tuple[int, int], config: RunConfig
) -> tuple[int | None, str | None]:
    """(ns of the step spent replaying forward layers, None) or (None, why it cannot be told)."""
    forward, backward = count_attention_passes(operations, chosen, step)
    if not forward or not backward:
        if config.knows("recompute_granularity") and config.get("recompute_granularity") is None:
            return 0, None
        return None, "no attention kernel with a known direction was recorded"
    replays = forward - backward
    if forward < RECOMPUTES_RATIO * backward:
        return 0, None
    granularity = config.get("recompute_granularity")
    if granularity != "full":
        said = granularity if config.knows("recompute_granularity") else "not known"
        return None, (
            f"attention runs {forward} times forward and {backward} backward, but recompute granularity is {said}: "
            "only with full recompute does a replay cost a forward layer"
        )
    spacing = _forward_spacing_ns(_passes(operations, chosen, step))
    if spacing is None:
        return None, "no two forward layers follow one another in the step"
    return min(replays * spacing, chosen.step_ns), None


def _passes(operations: pl.DataFrame, chosen: Representative, step: tuple[int, int]) -> pl.DataFrame:
    return operations.filter(
        (pl.col("track") == chosen.track)
        & pl.col("phase").is_not_null()
        & pl.col("start_ns").is_between(step[0], step[1], closed="left")
    ).sort("start_ns")


def _forward_spacing_ns(passes: pl.DataFrame) -> int | None:
    """Median distance between attention forward passes with no backward pass in between."""
    after_forward = (pl.col("phase") == "forward") & (pl.col("phase").shift(1) == "forward")
    distances = passes.with_columns(distance_ns=pl.col("start_ns").diff()).filter(after_forward)["distance_ns"]
    return int(distances.quantile(0.5, interpolation="lower") or 0) if distances.len() else None
