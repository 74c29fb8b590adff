"""The ranks of a run compared: which calls are the same collective, on which common clock, and who waited in it.

Made from the timelines of all ranks; it finishes them (step numbers, kept steps) before attribution. ``match_ranks`` is
the list of what is worked out, in order:

- ``capture_start.py`` numbers the steps alike on all ranks, and finds steps that the start of profiling distorts.
- ``rank_groups.py``: which ranks call a collective together, from the parallel sizes.
- ``match_calls.py``: calls matched by their order; ``pipeline_pairs.py``: pipeline exchanges matched by the schedule.
- ``align_clocks.py``: the clocks of the ranks aligned.
- ``end_time_matching.py``: calls that order could not match, matched by when they end.
- ``measure_arrivals``, here: the part of each call that is waiting for peers.
- ``refuse_other_work``, here: ranks of two runs refused, by what their steps hold.

A call transfers data from the moment its last member arrives (the start of its kernel there) to its end; until then the
kernels of the other members wait. So per call and rank wait = latest arrival - own arrival, and transfer = own end -
latest arrival (OSDI'25, arXiv 2505.05713); they sum to the call's duration exactly. Without a common clock, or with
members missing, the shortest participant of a call stands for its transfer. That is too high if the last member to
arrive was not captured, and too low for an all-to-all whose shortest participant received least.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from three_walls.lib.report_warning import ReportWarning
from three_walls.lib.text import in_ms
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.build_timeline import Timeline
from three_walls.step.find_steps import STEP
from three_walls.step.intervals import DURATION, find_window
from three_walls.step.ranks.align_clocks import SIMULTANEOUS, CommonClock, align_clocks, list_clock_sources
from three_walls.step.ranks.capture_start import drop_skewed_steps, find_capture_start_skew, number_steps
from three_walls.step.ranks.end_time_matching import MAXIMUM_END_SPREAD_NS, match_by_end_time
from three_walls.step.ranks.match_calls import STEP_AND_CLASS, MatchedCalls, RankOutline, match_calls, outline_ranks
from three_walls.step.ranks.pipeline_pairs import pair_by_order, pair_by_time
from three_walls.step.ranks.rank_groups import Pipeline, captures_everyone, find_members, find_pipeline, list_groups
from three_walls.step.step_rows import StepSource
from three_walls.step.step_tables import Arrivals, ClassSplits, Operations, StepKeys, Steps
from three_walls.tables.buckets import TOKEN_EXCHANGES
from three_walls.trace.identity import Rank
from three_walls.trace.read_inputs import of_two_runs
from three_walls.trace.read_trace import Capture

MAXIMUM_STEP_RATIO = 1.25
"""The shortest kept step of a rank to the longest of another one, beyond which they are of two runs. The medians of
ranks of one run differ by 1.3 percent at most (28 runs), and host-bound steps of one rank by 15."""
MAXIMUM_APART_RATIO = 1.15
"""The same where the collectives of the two ranks do not meet in time: they may show other steps of a host-bound run,
which differ by 15 percent."""
MINIMUM_MEETING_FRACTION = 0.5
"""Of the collectives that two ranks have in common: how many have to meet in time. All do in each of 57 runs, at most 3
of 10 where the ranks are of two runs."""
MAXIMUM_OWN_FRACTION = 0.5
"""Of the collectives of a rank in a step: how many others of its run may lack. All run equally many in 53 runs. A log
or a checkpoint may take some of one rank alone, but most are of the layers and the gradients."""
MAXIMUM_LOST_FRACTION = 0.03
"""Of a kind of operations: by how many a rank may have more than another one of its run. One layer of 32 makes as many;
a capture that drops one event in 200 lost two of 96 token exchanges in each step."""
MINIMUM_RESOLVED_FRACTION = 0.9
"""Of a class's time: the part whose calls have to match before the class is split into wait and transfer. A few calls
of a class can run on another communicator than the rest. With more than a tenth of its time in calls that do not match,
splitting the whole class would be a guess."""
_KINDS = {
    "attention": "attention kernels",
    "attention_unfused": "kernels of unfused attention",
    **dict.fromkeys(TOKEN_EXCHANGES, "token exchanges"),
    "quantize": "casts to FP8",
    **dict.fromkeys(SIMULTANEOUS, "collectives other than token exchanges"),
}
"""Categories of which all ranks without a pipeline run equally many operations in each step, with words for them."""
_MOST_UNLIKE = {_KINDS["all_reduce"]: MAXIMUM_OWN_FRACTION}
"""Of a kind: by how many ranks of one run may differ; MAXIMUM_LOST_FRACTION of the others."""
_UNEVEN = _KINDS["quantize"]
"""Of these all ranks run some, or none does: how many depends on the weights that a rank updates."""


@dataclass(frozen=True, slots=True)
class MatchedRanks:
    """The ranks of a run, with their calls matched and their times on a common clock."""

    ranks: tuple[Rank, ...]
    steps: Steps
    """Every step of every rank. Those of a timeline may be fewer (steps_to_read.py, attributed_steps.py)."""
    matched: MatchedCalls
    clock: CommonClock
    pipeline: Pipeline | None
    arrivals: Arrivals
    """measure_arrivals, without the calls that any of their members made in a skewed step."""
    class_splits: ClassSplits
    skewed: StepKeys
    """Steps that began before the profiler of the last rank had started."""
    start_skew_ns: int | None
    """From the start of the first rank's profiler to the start of the last; None where the clocks do not show it."""
    warnings: tuple[ReportWarning, ...]

    @property
    def rank_of(self) -> Mapping[int, int]:
        """Rank number by rank index."""
        return {rank.rank_index: rank.rank for rank in self.ranks}


def match_ranks(
    timeline: Timeline, traces: Sequence[Capture], config: RunConfig, outline: RankOutline | None = None
) -> tuple[Timeline, MatchedRanks]:
    """Finishes ``timeline``, and compares its ranks.

    With ``outline``, the timeline needs no operations but communication.

    In the finished timeline steps that ran at the same time have the same number on all ranks, and steps that began
    before the profiler of the last rank had started are not kept.

    Raises InputError where the ranks cannot be of one run.
    """
    outline = outline or outline_ranks(timeline.operations)
    ranks = tuple(rank for trace in traces for rank in trace.ranks)
    clocks = list_clock_sources(traces)
    numbered, every_step = timeline, timeline.steps
    if outline.unread is None:
        every_step = number_steps(every_step, timeline.sources, clocks)
        numbered = timeline.with_steps(every_step)
    else:
        every_step = pl.concat([every_step, outline.unread]).sort("rank_index", "start_ns", "step")
    pipeline = find_pipeline(ranks, config)
    all_captured = captures_everyone(ranks, config)
    by_order = match_calls(numbered, find_members(ranks, config), outline.roles, all_captured=all_captured)
    pairs = pair_by_order(by_order, pipeline)
    clock = align_clocks(clocks, pairs)
    matched = match_by_end_time(pair_by_time(pairs, pipeline, clock), list_groups(ranks, config), clock)
    arrivals = measure_arrivals(matched, clock)
    skew = find_capture_start_skew(every_step, outline.begins, arrivals, clock)
    # A call that one member made in a skewed step shows nothing about the others either.
    skewed_calls = arrivals.join(skew.steps, on=["rank_index", "step"], how="semi").select("instance").unique()
    usable_arrivals = arrivals.join(skewed_calls, on="instance", how="anti")
    steps = drop_skewed_steps(every_step, skew.steps)
    matched_ranks = MatchedRanks(
        ranks=ranks,
        steps=steps,
        matched=matched,
        clock=clock,
        pipeline=pipeline,
        arrivals=usable_arrivals,
        class_splits=split_classes(matched, usable_arrivals),
        skewed=skew.steps,
        start_skew_ns=skew.skew_ns,
        warnings=skew.warnings,
    )
    read = steps if outline.unread is None else steps.join(numbered.steps, on=STEP, how="semi", maintain_order="left")
    has_stages = (config.size("pipeline_model_parallel_size") or 1) > 1
    refuse_other_work(timeline.operations, read, timeline.sources, arrivals, ranks, has_stages=has_stages)
    return numbered.with_steps(read), matched_ranks


def measure_arrivals(matched: MatchedCalls, clock: CommonClock) -> Arrivals:
    """Adds to each row of ``matched.calls`` (a rank's call) its times on the common clock and who arrived when.

    A call is resolved where all members are on one clock and their times fit a single collective. Waiting and transfer
    are split by latest arrival if it is resolved, else by shortest participant. Of members of which some were not
    captured, the last is known where it takes less time than the others waited for it: it waited for none.
    """
    calls = clock.add_common_times(matched.calls)
    arrival = pl.col("common_start_ns")
    per_instance = calls.group_by("instance").agg(
        latest_ns=arrival.max(),
        second_ns=arrival.bottom_k(pl.len() - 1).max(),
        last=pl.col("rank_index").get(arrival.fill_null(0).arg_max()),
        first_end_ns=pl.col("common_end_ns").min(),
        end_spread_ns=pl.col("common_end_ns").max() - pl.col("common_end_ns").min(),
        shortest_ns=DURATION.min(),
        last_took_ns=DURATION.get(arrival.fill_null(0).arg_max()),
        has_clock=arrival.is_not_null().all(),
    )
    # No member leaves a collective before the last has arrived. Where the class can run in several groups, calls of
    # different groups may have been matched: only leaving together shows that they are the same collective.
    maximum_spread_ns = MAXIMUM_END_SPREAD_NS
    overlaps = pl.col("first_end_ns") + min(clock.error_ns, maximum_spread_ns) >= pl.col("latest_ns")
    leave_together = pl.col("end_spread_ns") <= maximum_spread_ns
    fits = overlaps & (pl.col("sure") | leave_together)
    compared = (pl.lit(clock.is_resolved) & pl.col("has_clock") & fits).fill_null(value=False)
    by_arrival = (pl.col("latest_ns") - arrival).clip(lower_bound=0)
    lead_ns = pl.col("latest_ns") - pl.col("second_ns")
    is_last = (lead_ns > clock.error_ns) & (pl.col("complete") | (lead_ns > pl.col("last_took_ns")))
    return (
        calls.join(per_instance, on="instance", maintain_order="left")
        .with_columns(resolved=compared & pl.col("complete"))
        .with_columns(
            wait_ns=pl.when("resolved")
            .then(pl.min_horizontal(by_arrival, DURATION))
            .otherwise(DURATION - pl.col("shortest_ns")),
            last=pl.when(compared & is_last).then("last"),
        )
        .with_columns(transfer_ns=DURATION - pl.col("wait_ns"))
        .drop("first_end_ns", "end_spread_ns", "shortest_ns", "last_took_ns", "has_clock")
    )


def split_classes(matched: MatchedCalls, arrivals: Arrivals) -> ClassSplits:
    """Waiting and transfer per rank, step and class."""
    total = matched.communication.group_by(STEP_AND_CLASS).agg(total_ns=DURATION.sum())
    split = arrivals.group_by(STEP_AND_CLASS).agg(
        pl.col("wait_ns").sum(),
        matched_ns=DURATION.sum(),
        resolved_ns=DURATION.filter("resolved").sum(),
        captured=pl.col("captured").first(),
        size=pl.col("size").first(),
        complete=pl.col("complete").first(),
    )
    enough = MINIMUM_RESOLVED_FRACTION * pl.col("total_ns")
    return (
        total.join(split, on=STEP_AND_CLASS, how="left")
        .with_columns(pl.col("matched_ns", "resolved_ns").fill_null(0))
        .with_columns(
            resolved=(pl.col("resolved_ns") >= enough) & (pl.col("resolved_ns") > 0),
            wait_ns=pl.when((pl.col("matched_ns") >= enough) & (pl.col("matched_ns") > 0)).then("wait_ns"),
        )
        .drop("matched_ns")
        .sort(STEP_AND_CLASS)
    )


def refuse_other_work(
    operations: Operations,
    steps: Steps,
    sources: Mapping[int, StepSource],
    arrivals: Arrivals,
    ranks: Sequence[Rank],
    *,
    has_stages: bool,
) -> None:
    """Raises InputError where the kept ``steps`` of two of the ``ranks`` cannot be of one run.

    All ranks wait for each other in every step, so their steps take equally long. Without a pipeline all run the same
    layers, too. Ranks of pipeline stages differ by design, and a capture that began late or ended early has other
    steps.

    ``sources``: see Timeline. ``arrivals``: see measure_arrivals. ``has_stages``: whether the run is known to have
    pipeline stages.
    """
    name_of = {rank.rank_index: rank.input_name for rank in ranks}
    all_kept = steps.filter("kept")
    kept = all_kept.filter(pl.len().over("rank_index") > 1)  # a single one may be distorted or cut off
    unlike = [*_list_other_lengths(kept, sources), *_list_unmet(all_kept, sources, arrivals)]
    if not has_stages and operations.filter(pl.col("category") == "pipeline_p2p").is_empty():
        unlike += _list_other_numbers(operations, kept)
    for first, other, difference in unlike[:1]:
        raise of_two_runs(f"{name_of[first]} and {name_of[other]}", difference)


def _list_other_lengths(kept: Steps, sources: Mapping[int, StepSource]) -> Iterator[tuple[int, int, str]]:
    """Two ranks of which every step of one is longer than any of the other, if there are such, and both lengths."""
    for quick, slow in _list_extremes(kept, sources):
        if slow["shortest"] > MAXIMUM_STEP_RATIO * quick["longest"]:
            yield quick["rank_index"], slow["rank_index"], _state_lengths(quick, slow)


def _list_unmet(kept: Steps, sources: Mapping[int, StepSource], arrivals: Arrivals) -> Iterator[tuple[int, int, str]]:
    """The same of two ranks whose collectives do not meet in time: no member leaves one before the last arrives."""
    for quick, slow in _list_extremes(kept, sources):
        if slow["shortest"] <= MAXIMUM_APART_RATIO * quick["longest"]:
            continue
        first, second = (
            arrivals.filter("kept", pl.col("rank_index") == rank["rank_index"]).select(
                "instance", "common_start_ns", "common_end_ns"
            )
            for rank in (quick, slow)
        )
        meet = pl.max_horizontal("common_start_ns", "common_start_ns_right") <= pl.min_horizontal(
            "common_end_ns", "common_end_ns_right"
        )
        are_met = first.drop_nulls().join(second.drop_nulls(), on="instance").select(meet=meet)["meet"]
        if are_met.sum() < MINIMUM_MEETING_FRACTION * are_met.len():
            stated = f"{are_met.sum():,} of {are_met.len():,} collectives meet in time"
            yield quick["rank_index"], slow["rank_index"], f"{_state_lengths(quick, slow)}, and {stated}"


def _list_extremes(
    kept: Steps, sources: Mapping[int, StepSource]
) -> Iterator[tuple[Mapping[str, int], Mapping[str, int]]]:
    """The rank whose longest step is the shortest, and the one whose shortest step is the longest; of each source."""
    lengths = kept.group_by("rank_index").agg(shortest=DURATION.min(), longest=DURATION.max())
    source = pl.col("rank_index").replace_strict(dict(sources), default=None, return_dtype=pl.String)
    by_source = lengths.with_columns(source=source).sort("source", "rank_index")
    for _, alike in by_source.group_by("source", maintain_order=True):
        yield (
            alike.sort("longest", maintain_order=True).row(0, named=True),
            alike.sort("shortest", maintain_order=True).row(-1, named=True),
        )


def _state_lengths(quick: Mapping[str, int], slow: Mapping[str, int]) -> str:
    stated = f"{in_ms(quick['longest'])} in the first and {in_ms(slow['shortest'])} in the second"
    return f"a step takes {stated}"


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
            most_unlike = _MOST_UNLIKE.get(str(name), MAXIMUM_LOST_FRACTION)
            is_other = abs(other_count - count) > most_unlike * max(count, other_count)
            if is_other and (name != _UNEVEN or not other_count or not count):
                yield first, other, f"a step has {count:,} {name} in the first and {other_count:,} in the second"
