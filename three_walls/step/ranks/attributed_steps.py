"""Which steps of a long capture are attributed: enough for every median, and the longest ones.

The others are listed with their lengths and dropped: what they hold takes neither time nor memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import polars as pl

from three_walls.step.build_timeline import Timeline
from three_walls.step.find_steps import STEP
from three_walls.step.intervals import DURATION
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.selected_steps import select_steps
from three_walls.step.step_tables import StepKeys, Steps
from three_walls.trace.schemas import Int64Array
from three_walls.trace.spans import StepsToRead

MOST_ATTRIBUTED_OPERATIONS = 800_000
"""Operations of all ranks up to which all steps are attributed; of more, steps with about as many. Attributing an
operation takes about 4 us. So many take three seconds, and are 150 steps of a small model whose host launches 5,250
operations per step: their median is known ten times better than the steps vary."""
FEWEST_ATTRIBUTED_STEPS = 24
"""Steps that are attributed however many operations they have. However large steps are, their median is then known four
times better than they vary; and few captures are longer."""
ATTRIBUTED_STRETCHES = 8
"""Stretches of consecutive steps that these are. Clocks, memory and routing drift in the course of minutes, so the
steps are taken from all over the capture. Each stretch also needs the operations next to it."""
LONGEST_ATTRIBUTED_STEPS = 4
"""The longest steps, which are attributed besides. An outlier has a cause of its own (a checkpoint, garbage
collection), which the others do not show."""

LEFT_OUT = "left out of a long capture"
"""Begins the reason of a step that is dropped although conclusions could rest on it."""


def choose_steps(
    timeline: Timeline, matched_ranks: MatchedRanks, to_read: Mapping[int, StepsToRead] = MappingProxyType({})
) -> tuple[Timeline, MatchedRanks]:
    """The run with the steps that are attributed, and with the operations and calls that these rest on.

    ``timeline``: finished by match_ranks. Both results are the arguments where all steps are attributed: in any capture
    but a long one. Of a long one, stretches of consecutive steps are, evenly spread, and the longest steps; the same of
    all ranks. ``MatchedRanks.steps`` still lists the others, as dropped. ``to_read``: by rank index, the steps that
    were chosen before the rest was read. Raises UnreadStepError where they did not run where they were expected.
    """
    steps = matched_ranks.steps
    if to_read:
        if not set(timeline.steps["rank_index"].unique()) <= set(to_read):
            raise UnreadStepError
        check_are_kept(timeline.steps, to_read)
        numbers = next(iter(to_read.values())).attributed
    elif (chosen := choose_numbers(steps, timeline.operations.height)) is not None:
        numbers = chosen
    else:
        return timeline, matched_ranks
    count = _list_common(steps).height
    steps = leave_out(steps, pl.col("step").is_in(sorted(numbers)), count, len(numbers))
    chosen_run, matched = select_steps(timeline, numbers), matched_ranks.matched
    return chosen_run, replace(
        matched_ranks,
        steps=steps,
        matched=replace(
            matched,
            communication=_restrict(matched.communication, chosen_run.steps),
            calls=_restrict(matched.calls, chosen_run.steps),
        ),
        arrivals=_restrict(matched_ranks.arrivals, chosen_run.steps),
        class_splits=_restrict(matched_ranks.class_splits, chosen_run.steps),
    )


def leave_out(steps: Steps, are_attributed: pl.Expr, all_count: int, attributed_count: int) -> Steps:
    """``steps`` with only those kept that are attributed: ``attributed_count`` of ``all_count``."""
    reason = (
        f"{LEFT_OUT}: of {all_count:,} steps {attributed_count} are attributed, "
        f"in {ATTRIBUTED_STRETCHES} stretches from all over the capture, "
        f"and the {LONGEST_ATTRIBUTED_STEPS} longest"
    )
    is_left_out = pl.col("kept") & ~are_attributed
    return steps.with_columns(
        kept=pl.col("kept") & ~is_left_out, reason=pl.when(is_left_out).then(pl.lit(reason)).otherwise("reason")
    )


def choose_numbers(steps: Steps, operations: int) -> frozenset[int] | None:
    """Numbers of the steps that are attributed of ``steps`` with so many ``operations``; None: all are."""
    if operations <= MOST_ATTRIBUTED_OPERATIONS:
        return None
    common = _list_common(steps)
    per_step = max(1, operations // steps["step"].n_unique())
    count = max(FEWEST_ATTRIBUTED_STEPS, MOST_ATTRIBUTED_OPERATIONS // per_step)
    if 2 * count >= common.height:  # leaving out fewer than half saves little
        return None
    return frozenset(common["step"].gather(_choose_places(common["longest_ns"].to_numpy(), count)).to_list())


def _list_common(steps: Steps) -> pl.DataFrame:
    """The steps that are kept of all ranks, in order, each with its length on the rank where it is longest."""
    kept_steps = steps.filter("kept")
    of_all_ranks = pl.len() == kept_steps["rank_index"].n_unique()
    lengths = kept_steps.group_by("step").agg(longest_ns=DURATION.max(), is_common=of_all_ranks)
    return lengths.filter("is_common").sort("step")


class UnreadStepError(Exception):
    """A step that was chosen before the rest was read did not run where it was expected."""


def check_are_kept(steps: Steps, to_read: Mapping[int, StepsToRead]) -> None:
    """Raises UnreadStepError unless every rank in ``to_read`` kept the steps that are to be attributed.

    Steps run in order, so those to attribute are whole if the others that were read, some of which follow, are there.
    """
    for rank_index, read in to_read.items():
        of_rank = steps.filter(pl.col("rank_index") == rank_index)
        is_there = read.read <= set(of_rank["step"].to_list())
        if not is_there or not read.attributed <= set(of_rank.filter("kept")["step"].to_list()):
            raise UnreadStepError


def _choose_places(length_ns: Int64Array, count: int) -> Int64Array:
    """Places of about ``count`` steps, of those with ``length_ns`` in their order, and of the longest.

    The stretches of equal length and distance whose median is nearest to that of all.
    """
    of_stretch = np.arange(count // ATTRIBUTED_STRETCHES)
    last = len(length_ns) - len(of_stretch)
    begins = np.linspace(0, last, ATTRIBUTED_STRETCHES).round().astype(np.int64)
    longest = np.argsort(-length_ns, kind="stable")[:LONGEST_ATTRIBUTED_STEPS]
    room = max(0, int(begins[1]) - len(of_stretch)) // 2
    median_ns = np.median(length_ns)

    def choose(shift: int) -> Int64Array:
        shifted = np.clip(begins + shift, 0, last)
        return np.union1d(shifted[:, None] + of_stretch, longest)

    def miss_ns(shift: int) -> float:
        return abs(float(np.median(length_ns[choose(shift)]) - median_ns))

    return choose(min(range(-room, room + 1), key=lambda shift: (miss_ns(shift), abs(shift), shift)))


def _restrict(rows: StepKeys, steps: Steps) -> pl.DataFrame:
    return rows.join(steps.select(STEP), on=STEP, how="semi", maintain_order="left")
