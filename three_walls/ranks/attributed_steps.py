"""Which steps of a long capture are attributed: enough for every median, and the longest ones.

The others are listed with their lengths and dropped: what they hold takes neither time nor memory.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from three_walls.inputs.nsys.schemas import Numbers
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
    if 2 * count >= common.height:  # leaving out fewer than half saves little
        return timeline, matched_ranks
    numbers = set(common["step"].gather(_choose_places(common["longest_ns"].to_numpy(), count)).to_list())
    chosen = excerpt(timeline, numbers)
    reason = (
        f"{LEFT_OUT}: of {common.height:,} steps {len(numbers)} are attributed, in {limits.attributed_stretches} "
        f"stretches from all over the capture, and the {limits.longest_attributed_steps} longest"
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


def _choose_places(length_ns: Numbers, count: int) -> Numbers:
    """Places of about ``count`` steps, of those with ``length_ns`` in their order, and of the longest.

    The stretches of equal length and distance whose median is nearest to that of all.
    """
    limits = attribution_thresholds()
    of_stretch = np.arange(count // limits.attributed_stretches)
    last = len(length_ns) - len(of_stretch)
    begins = np.linspace(0, last, limits.attributed_stretches).round().astype(np.int64)
    longest = np.argsort(-length_ns, kind="stable")[: limits.longest_attributed_steps]
    room = max(0, int(begins[1]) - len(of_stretch)) // 2
    median_ns = np.median(length_ns)

    def choose(shift: int) -> Numbers:
        shifted = np.clip(begins + shift, 0, last)
        return np.union1d(shifted[:, None] + of_stretch, longest)

    def miss_ns(shift: int) -> float:
        return abs(float(np.median(length_ns[choose(shift)]) - median_ns))

    return choose(min(range(-room, room + 1), key=lambda shift: (miss_ns(shift), abs(shift), shift)))


def _restrict(rows: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    return rows.join(steps.select(STEP), on=STEP, how="semi", maintain_order="left")
