"""Pauses of the host: stretches in which no thread of a rank that launches does anything, for far longer than usual.

Most gaps between two launches are Python that an edit may shorten or leave out. A pause is not: no fused kernel
collects garbage, reads the next batch or writes a checkpoint faster. So it belongs to no time that edits share out.

A place is a pair of kernels that are launched one after the other. Its gaps over layers, micro-batches, steps and ranks
are of one kind. A gap is a pause where it stands out among these, or where the program is silent there in every step
for longer than Python takes anywhere. Calls and ranges inside a gap interrupt the silence, but for calls that stall.
Long silences with next to nothing between them are one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import numpy as np
import polars as pl

from three_walls.step.build_timeline import Timeline, take_rank
from three_walls.step.find_steps import STEP
from three_walls.step.intervals import DURATION, gaps_within, merge_overlapping
from three_walls.step.operators import ASKS_FOR_BATCH, is_place, read_operator_text
from three_walls.step.stalled_calls import Stalls, find_stalls
from three_walls.step.step_rows import StepSource
from three_walls.step.step_tables import PAUSES, Pauses
from three_walls.trace.read_tables import read_os_calls_between, read_ranges_between
from three_walls.trace.read_trace import Trace
from three_walls.trace.schemas import AnyTable, Int64Array

MINIMUM_PAUSE_NS = 5_000_000
"""A shorter gap between launches is Python at work: hosts are silent for up to 4 ms in layers. In optimizers it is up
to 11 ms, which the bounds below leave out."""
MINIMUM_PAUSE_FRACTION = 0.02
"""Of the step: a shorter gap is no pause by itself, because a replay of the step may be off by more."""
MINIMUM_PAUSES_FRACTION = 0.05
"""Of a step, which all its gaps that stand out have to take together where each is shorter than that."""
MINIMUM_PAUSE_DEVIATIONS = 10
"""Median absolute deviations above the median gap of a place from which on a gap stands out. Gaps have a long tail: in
four runs 6 to 14 percent of them are beyond three, the usual bound, and 1 to 2 percent beyond ten, nearly all short."""
MINIMUM_PAUSE_RATIO = 2
"""Of the median gap of a place, likewise: of few gaps the deviation may be 0."""
MINIMUM_REGULAR_PAUSE_FRACTION = 0.05
"""Of the step: shorter gaps of a place are together no pause where it has the like in every step. Optimizers in Python
take up to 4 percent without a CUDA call in real steps, and 2.4 without a range."""
MOST_INTERRUPTED_FRACTION = 0.05
"""Of a pause, for what the host does between its silences: a process that waits looks now and then whether it is time.
"""
MOST_LONG_GAPS = 1024
"""Gaps that are looked into, the longest first: ranges are read from the trace for each, which takes a hundredth of a
second. Of ten captures of one to four ranks none has more than 57."""

_Gaps = Annotated[
    pl.DataFrame,
    {
        "rank_index": pl.Int64,
        "step": pl.Int64,  # of the operation whose launch ends the gap; null outside of steps
        "capture_id": pl.Int64,
        "process": pl.Int64,
        "thread": pl.Int64,
        "end_ns": pl.Int64,  # when that launch begins
        "gap_ns": pl.Int64,  # since all earlier launches have returned
        "place": pl.Int64,
        "is_first": pl.Boolean,  # whether it is the first launch of its step
    },
]
"""The time before every launch of every rank."""


class _Silence(NamedTuple):
    start_ns: int
    end_ns: int
    range: str = ""
    call: str = ""

    @property
    def ns(self) -> int:
        return self.end_ns - self.start_ns


def find_pauses(timeline: Timeline, traces: Sequence[Trace]) -> tuple[Pauses, int]:
    """The pauses in kept steps, by rank and time, and how many long gaps were not looked into.

    Reads the traces again around those that are likely.

    Raises InputError where a trace cannot be read any more.
    """
    by_capture = {trace.capture_id: trace for trace in traces}
    gaps = _list_gaps(timeline, by_capture)
    stalls = find_stalls(timeline.operations, timeline.api_calls)
    # The first step of a capture may hold the start of the program. Alone it is compared within itself, unless it is
    # all that was recorded.
    is_first = pl.col("start_ns") == pl.col("start_ns").min().over("rank_index")
    whole = [rank_index for rank_index, source in timeline.sources.items() if source is StepSource.ONE_WINDOW]
    is_alone = (pl.col("kept").sum().over("rank_index") == 1) & ~pl.col("rank_index").is_in(whole)
    compared = timeline.steps.filter("kept", ~is_first | is_alone)
    kept = compared.group_by("rank_index").agg(step_ns=DURATION.median())
    gap_ns = pl.col("gap_ns")
    usual = gaps.group_by("rank_index").agg(common_ns=gap_ns.median(), most_ns=gap_ns.quantile(0.9))
    long = (
        gaps.join(compared, on=STEP, how="semi")
        .join(kept, on="rank_index")
        .join(usual, on="rank_index")
        .filter(gap_ns >= MINIMUM_PAUSE_NS)
        .filter(_is_long(gap_ns) | _take_much(gap_ns))
        .sort("gap_ns", "rank_index", "end_ns", descending=[True, False, False])
    )
    rows = []
    for gap in long.head(MOST_LONG_GAPS).iter_rows(named=True):
        same_place = gaps.filter(
            pl.col("place") == gap["place"],
            (pl.col("rank_index") != gap["rank_index"]) | (pl.col("end_ns") != gap["end_ns"]),
        )
        found = _look_into(gap, same_place, timeline, stalls, by_capture[gap["capture_id"]])
        if found is not None:
            silence, usual_ns = found
            rows.append({**gap, **silence._asdict(), "launch_ns": gap["end_ns"], "usual_ns": usual_ns})
    pauses = pl.DataFrame(rows, schema={**PAUSES, "step_ns": pl.Float64})
    is_long = _is_long(DURATION)  # one long pause makes no pauses of a step's short gaps
    longest = pauses.filter(is_long | _take_much(DURATION * ~is_long)).select(*PAUSES).sort("rank_index", "start_ns")
    return longest, max(0, long.height - MOST_LONG_GAPS)


def _is_long(pause_ns: pl.Expr) -> pl.Expr:
    return pause_ns >= MINIMUM_PAUSE_FRACTION * pl.col("step_ns")


def _take_much(pause_ns: pl.Expr) -> pl.Expr:
    """Whether all ``pause_ns`` of a step together are long for a step of ``step_ns``."""
    return pause_ns.sum().over(STEP) >= MINIMUM_PAUSES_FRACTION * pl.col("step_ns")


def _list_gaps(timeline: Timeline, traces: Mapping[int, Trace]) -> _Gaps:
    of_captures, numbers = [], dict[str | None, int]()  # names have ids of their own in each capture
    for (capture,), operations in timeline.operations.group_by("capture_id", maintain_order=True):
        assert isinstance(capture, int)
        names = {name_id: traces[capture].names.get(name_id) for name_id in operations["name_id"].unique().drop_nulls()}
        number_of = {name_id: numbers.setdefault(name, len(numbers)) for name_id, name in names.items()}
        launched = operations.filter(pl.col("launch_start_ns").is_not_null())
        of_captures.append(
            launched.select(
                "rank_index",
                "capture_id",
                "process",
                "start_ns",
                "launch_start_ns",
                "launch_end_ns",
                thread="launch_thread",
                kernel=pl.col("name_id").replace_strict(number_of, default=-1, return_dtype=pl.Int64),
            )
        )
    launches = (
        pl.concat(of_captures)
        .sort("rank_index", "start_ns")
        .join_asof(
            timeline.steps.select(*STEP, pl.col("start_ns"), until_ns="end_ns").sort("start_ns"),
            on="start_ns",
            by="rank_index",
            check_sortedness=False,
        )
        .with_columns(step=pl.when(pl.col("start_ns") < pl.col("until_ns")).then("step"))
        .sort("rank_index", "launch_start_ns", "start_ns")
        .unique(["rank_index", "launch_start_ns"], keep="first", maintain_order=True)
    )
    returned_ns = pl.col("launch_end_ns").cum_max().shift(1).over("rank_index")
    return launches.select(
        *STEP,
        "capture_id",
        "process",
        "thread",
        end_ns="launch_start_ns",
        gap_ns=pl.col("launch_start_ns") - returned_ns,
        place=pl.col("kernel").shift(1).over("rank_index") * (len(numbers) + 1) + pl.col("kernel"),
        is_first=pl.col("launch_start_ns") == pl.col("launch_start_ns").min().over(STEP),
    ).drop_nulls("gap_ns")


def _look_into(
    gap: Mapping[str, int], same_place: _Gaps, timeline: Timeline, stalls: Stalls, trace: Trace
) -> tuple[_Silence, int] | None:
    """The pause in ``gap``, and what such a gap usually takes; None where it holds none.

    ``same_place``: the other gaps of its place.
    """
    threads = take_rank(timeline.operations, gap["rank_index"])["launch_thread"].drop_nulls().unique()
    silence = _Silence(gap["end_ns"] - gap["gap_ns"], gap["end_ns"])
    calls = timeline.api_calls.during({gap["capture_id"]: [(silence.start_ns, silence.end_ns)]}).frame()
    of_rank = stalls.filter(pl.col("rank_index") == gap["rank_index"])
    silence = _between_calls(silence, calls.filter(pl.col("thread").is_in(threads.implode())), of_rank)
    if _find_usual(silence.ns, same_place, gap) is None:
        return None
    silence = _between_ranges(silence, gap["process"], threads, trace)
    usual_ns = _find_usual(silence.ns, same_place, gap)
    # A data loader that is waited for within the step has a pace of its own (``replay/loader_waits.py``).
    is_paced = silence.range.startswith(ASKS_FOR_BATCH) and not gap["is_first"]
    return None if usual_ns is None or is_paced else (silence, usual_ns)


def _find_usual(ns: int, same_place: _Gaps, gap: Mapping[str, int]) -> int | None:
    """What a gap of ``ns`` usually takes at its place; None where it is no pause.

    ``same_place``: the other gaps there. The rank that takes least shows what is usual. Where all are long, it is what
    gaps of the program take anywhere.
    """
    if ns < MINIMUM_PAUSE_NS:
        return None
    gap_ns = pl.col("gap_ns")
    of_ranks = same_place.group_by("rank_index").agg(
        usual_ns=gap_ns.median(), deviation_ns=(gap_ns - gap_ns.median()).abs().median()
    )
    for usual_ns, deviation_ns in of_ranks.select("usual_ns", "deviation_ns").sort("usual_ns").head(1).iter_rows():
        most_ns = usual_ns + MINIMUM_PAUSE_DEVIATIONS * deviation_ns
        if ns > max(most_ns, MINIMUM_PAUSE_RATIO * usual_ns):
            return int(usual_ns)
    beyond_ns = MINIMUM_PAUSE_RATIO * gap["most_ns"]  # of few launches all are far apart
    is_like = (pl.col("rank_index") == gap["rank_index"]) & (pl.col("step") == gap["step"]) & (2 * gap_ns >= ns)
    in_step = 1 + same_place.filter(is_like).height  # a pause in each layer is short, and all of them are long
    least_ns = max(MINIMUM_REGULAR_PAUSE_FRACTION * gap["step_ns"] / in_step, beyond_ns)
    return int(gap["common_ns"]) if ns >= least_ns else None


def _between_calls(silence: _Silence, calls: AnyTable, stalls: Stalls) -> _Silence:
    """The longest part of ``silence`` in which none of ``calls`` goes on, with the one that stalls in it longest."""
    own = merge_overlapping(calls, ["thread"])
    busy = gaps_within(stalls, own, ["thread"]).sort("start_ns")
    longest = _take_longest(silence, busy["start_ns"].to_numpy(), busy["end_ns"].to_numpy())
    inside_ns = pl.min_horizontal("end_ns", longest.end_ns) - pl.max_horizontal("start_ns", longest.start_ns)
    inside = stalls.filter(inside_ns > 0).sort(inside_ns, descending=True)
    return longest._replace(call=inside["call"][0] if inside.height else "")


def _between_ranges(silence: _Silence, process: int, threads: pl.Series, trace: Trace) -> _Silence:
    """The longest part of ``silence`` in which no such thread opens or closes a range, with what it is inside of."""
    window = silence.start_ns, silence.end_ns
    ranges = read_ranges_between(trace.path, process, *window).filter(pl.col("thread").is_in(threads.implode()))
    events = np.sort(pl.concat([ranges["start_ns"], ranges["end_ns"].drop_nulls()]).to_numpy())
    events = events[(events > silence.start_ns) & (events < silence.end_ns)]
    longest = _take_longest(silence, events, events)
    is_around = (pl.col("start_ns") <= longest.start_ns) & (
        pl.col("end_ns").is_null() | (pl.col("end_ns") >= longest.end_ns)
    )
    texts = ranges.filter(is_around).sort("start_ns")["text"].to_list()
    inside = [read_operator_text(text)[0] for text in texts if is_place(text)]
    os_calls = read_os_calls_between(trace.path, process, longest.start_ns, longest.end_ns)
    return longest._replace(range=inside[-1] if inside else "", call=longest.call or next(iter(os_calls), ""))


def _take_longest(silence: _Silence, starts: Int64Array, ends: Int64Array) -> _Silence:
    """The longest part of ``silence`` outside of intervals, which are sorted by their starts.

    If such parts of a pause's length have little between the first and the last, it is from that to this.
    """
    begins = np.maximum.accumulate(np.append(silence.start_ns, ends))
    untils = np.append(starts, silence.end_ns)
    lengths = untils - begins
    long = np.flatnonzero(lengths >= MINIMUM_PAUSE_NS)
    if len(long):
        begin_ns, until_ns = int(begins[long[0]]), int(untils[long[-1]])
        if lengths[long].sum() >= (1 - MOST_INTERRUPTED_FRACTION) * (until_ns - begin_ns):
            return silence._replace(start_ns=begin_ns, end_ns=until_ns)
    longest = int(np.argmax(lengths))
    begin_ns = int(begins[longest])
    return silence._replace(start_ns=begin_ns, end_ns=begin_ns + max(0, int(lengths[longest])))
