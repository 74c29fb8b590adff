"""Which steps of a long capture are attributed: enough for every median, and the longest ones.

The others are listed with their lengths and dropped: what they hold takes neither time nor memory.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from three_walls.ranks.matched_ranks import MatchedRanks
from three_walls.tables.thresholds import attribution_thresholds
from three_walls.timeline.excerpt import excerpt
from three_walls.timeline.intervals import DURATION
from three_walls.timeline.steps import STEP
from three_walls.timeline.timeline import Timeline

LEFT_OUT = "left out of a long capture"
"""Begins the reason of a step that is dropped although conclusions could rest on it."""


def choose_steps(timeline: Timeline, matched_ranks: MatchedRanks) -> tuple[Timeline, MatchedRanks]:
    """The run with the steps that are attributed, and with the operations and calls that these rest on.

    ``timeline``: finished by match_ranks. Both results are the arguments where all steps are attributed: in any capture
    but a long one. Of a long one, stretches of consecutive steps are, evenly spread, and the longest steps; the same of
    all ranks. ``MatchedRanks.steps`` still lists the others, as dropped.
    """
    limits = attribution_thresholds()
    if timeline.operations.height <= limits.most_attributed_operations:
        return timeline, matched_ranks
    kept = timeline.steps.filter("kept")
    of_all_ranks = pl.len() == kept["rank_index"].n_unique()
    common = (
        kept.group_by("step").agg(longest_ns=DURATION.max(), is_common=of_all_ranks).filter("is_common").sort("step")
    )
    per_step = max(1, timeline.operations.height // timeline.steps["step"].n_unique())
    count = max(limits.fewest_attributed_steps, limits.most_attributed_operations // per_step)
    if count + limits.longest_attributed_steps >= common.height:
        return timeline, matched_ranks
    length = count // limits.attributed_stretches
    begins = np.linspace(0, common.height - length, limits.attributed_stretches).round().astype(np.int64)
    spread = np.unique(begins[:, None] + np.arange(length))
    longest = common.sort(["longest_ns", "step"], descending=[True, False]).head(limits.longest_attributed_steps)
    numbers = {*common["step"].gather(spread).to_list(), *longest["step"].to_list()}
    chosen = excerpt(timeline, numbers)
    reason = (
        f"{LEFT_OUT}: of {common.height:,} steps {len(numbers)} are attributed, {len(spread)} in "
        f"{limits.attributed_stretches} stretches from all over the capture, and the "
        f"{limits.longest_attributed_steps} longest"
    )
    is_left_out = pl.col("kept") & ~pl.col("step").is_in(sorted(numbers))
    steps = timeline.steps.with_columns(
        kept=pl.col("kept") & ~is_left_out, reason=pl.when(is_left_out).then(pl.lit(reason)).otherwise("reason")
    )
    matched = matched_ranks.matched
    communication = _restrict(matched.communication, chosen.steps)
    return chosen, replace(
        matched_ranks,
        steps=steps,
        matched=replace(matched, communication=communication, calls=_restrict(matched.calls, chosen.steps)),
        arrivals=_restrict(matched_ranks.arrivals, chosen.steps),
        class_splits=_restrict(matched_ranks.class_splits, chosen.steps),
    )


def _restrict(rows: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    return rows.join(steps.select(STEP), on=STEP, how="semi", maintain_order="left")
