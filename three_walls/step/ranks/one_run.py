"""Whether all ranks are of one run, by what their steps hold: a step is no mean of two runs' steps.

All ranks wait for each other in every step, so their steps take equally long. Without a pipeline all run the same
layers, too. Ranks of pipeline stages differ by design, and a capture that began late or ended early has other steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from three_walls.lib.text import in_ms
from three_walls.step.find_steps import STEP
from three_walls.step.intervals import DURATION, find_window
from three_walls.step.ranks import rank_thresholds
from three_walls.step.step_rows import StepSource
from three_walls.step.step_tables import Operations, Steps
from three_walls.tables.buckets import TOKEN_EXCHANGES
from three_walls.trace.identity import Rank
from three_walls.trace.read_inputs import of_two_runs

_KINDS = {
    "attention": "attention kernels",
    "attention_unfused": "kernels of unfused attention",
    **dict.fromkeys(TOKEN_EXCHANGES, "token exchanges"),
    "quantize": "casts to FP8",
}
"""Categories of which all ranks without a pipeline run equally many operations in each step, with words for them."""
_UNEVEN = _KINDS["quantize"]
"""Of these all ranks run some, or none does: how many depends on the weights that a rank updates."""


def refuse_other_work(
    operations: Operations, steps: Steps, sources: Mapping[int, StepSource], ranks: Sequence[Rank], *, has_stages: bool
) -> None:
    """Raises InputError where the kept ``steps`` of two of the ``ranks`` cannot be of one run.

    ``sources``: see Timeline. ``has_stages``: whether the run is known to have pipeline stages.
    """
    name_of = {rank.rank_index: rank.input_name for rank in ranks}
    kept = steps.filter("kept").filter(pl.len().over("rank_index") > 1)  # a single one may be distorted or cut off
    unlike = [*_list_other_lengths(kept, sources)]
    if not has_stages and operations.filter(pl.col("category") == "pipeline_p2p").is_empty():
        unlike += _list_other_numbers(operations, kept)
    for first, other, difference in unlike[:1]:
        raise of_two_runs(f"{name_of[first]} and {name_of[other]}", difference)


def _list_other_lengths(kept: Steps, sources: Mapping[int, StepSource]) -> Iterator[tuple[int, int, str]]:
    """Two ranks of which every step of one is longer than any of the other, if there are such, and both lengths."""
    lengths = kept.group_by("rank_index").agg(shortest=DURATION.min(), longest=DURATION.max())
    source = pl.col("rank_index").replace_strict(dict(sources), default=None, return_dtype=pl.String)
    by_source = lengths.with_columns(source=source).sort("source", "rank_index")
    for _, alike in by_source.group_by("source", maintain_order=True):
        quick = alike.sort("longest", maintain_order=True).row(0, named=True)
        slow = alike.sort("shortest", maintain_order=True).row(-1, named=True)
        if slow["shortest"] > rank_thresholds.MAXIMUM_STEP_RATIO * quick["longest"]:
            stated = f"{in_ms(quick['longest'])} in the first and {in_ms(slow['shortest'])} in the second"
            yield quick["rank_index"], slow["rank_index"], f"a step takes {stated}"


def _list_other_numbers(operations: Operations, kept: Steps) -> Iterator[tuple[int, int, str]]:
    """Two ranks whose steps hold unlike numbers of operations of a kind, if there are such, and both numbers.

    Steps of one rank that differ among themselves prove nothing, nor do few operations: a capture may lose events.
    """
    of_kinds = operations.filter(pl.col("category").is_in(list(_KINDS))).select(
        "rank_index", "start_ns", "end_ns", "category"
    )
    kind = pl.col("category").cast(pl.String).replace_strict(_KINDS, return_dtype=pl.String)
    counts = (
        of_kinds.select("rank_index", kept["step"].gather(find_window(of_kinds, kept, ["rank_index"])), kind=kind)
        .drop_nulls("step")
        .group_by(*STEP, "kind")
        .agg(count=pl.len().cast(pl.Int64))
    )
    in_steps = (
        kept.select(STEP)
        .join(counts.select("kind").unique(), how="cross")
        .join(counts, on=[*STEP, "kind"], how="left")
        .with_columns(pl.col("count").fill_null(0))
    )
    of_ranks = in_steps.group_by("rank_index", "kind").agg(pl.col("count").first(), numbers=pl.col("count").n_unique())
    steady = of_ranks.filter(pl.col("numbers") == 1).sort("kind", "rank_index")
    for (name,), of_kind in steady.group_by("kind", maintain_order=True):
        (first, count), *others = of_kind.select("rank_index", "count").iter_rows()
        for other, other_count in others:
            is_other = abs(other_count - count) > rank_thresholds.MAXIMUM_LOST_FRACTION * max(count, other_count)
            if is_other and (name != _UNEVEN or not other_count or not count):
                yield first, other, f"a step has {count:,} {name} in the first and {other_count:,} in the second"
