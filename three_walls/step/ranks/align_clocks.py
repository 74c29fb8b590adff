"""A common clock for all ranks, and how far it can be trusted.

Captures on one host share a hardware clock. Each records the UTC time of its own time 0, so the differences are exact
(on four H200s of one host the ends of matched all-reduces agree within 2 us, those of all-to-alls within 20 us, which
comes from the exchange and not from the clock).

Clocks of different hosts are milliseconds apart, so the offset is fitted: ranks leave a collective together, and the
median difference of their ends is the difference of their clocks. If the *ends* of one rank were constantly late (by
tens of microseconds at most), that would be taken for an offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from three_walls.step.ranks.match_calls import MatchedCalls
from three_walls.step.step_rows import Alignment
from three_walls.step.step_tables import CLOCKS, Clocks, CollectiveCalls, CommonIntervals, RankIntervals
from three_walls.trace.read_trace import Capture

MINIMUM_COMMON_ENDS = 4
"""Matched ends that two captures need before a clock is fitted. With fewer matched ends a median means nothing; hosts
often share one or two calls per step only."""
BETTER_CLOCK_FRACTION = 0.5
"""A fitted clock replaces a simpler one only if it brings the 95th percentile of the residual below this share of what
the simpler clock leaves."""
MAXIMUM_SAME_HOST_ERROR_NS = 1_000_000
"""Error of session clocks up to which two captures are taken to be of one host. Session clocks of one host agree to
microseconds. A larger residual that a fit removes means that it is not one host after all: containers on different
machines often share a host name."""

SESSION_CLOCKS = "session clocks"
FITTED = "fitted on collective ends (offset)"
FITTED_WITH_DRIFT = "fitted on collective ends (offset and drift)"
NOT_RESOLVABLE = "not resolvable"

SIMULTANEOUS = ("data_parallel", "tensor_parallel", "all_reduce", "all_gather", "reduce_scatter")
"""Collectives that no member can leave before all have arrived, and that all leave together. An all-to-all is none of
them: it ends earlier where fewer tokens arrive."""


@dataclass(frozen=True, slots=True)
class ClockSource:
    """Where a rank's times come from: its capture, and the host and clock that the capture records."""

    rank_index: int
    rank: int
    capture_id: int
    host: str | None
    session_start_ns: int | None


@dataclass(frozen=True, slots=True)
class CommonClock:
    """How to convert the times of every rank to the clock of the lowest rank."""

    per_rank: Clocks
    """rank_index and the columns of CLOCKS."""
    alignment: Alignment | None
    """How the clocks were aligned, and the error that is left; None with a single rank."""

    @property
    def is_resolved(self) -> bool:
        """Whether times of different ranks can be compared."""
        return self.alignment is not None and self.alignment.method != NOT_RESOLVABLE

    @property
    def is_exact(self) -> bool:
        """Whether all times are of one hardware clock. Its residual then comes from uneven ends, not from the clock."""
        return self.alignment is not None and self.alignment.method == SESSION_CLOCKS

    @property
    def error_ns(self) -> int:
        """Differences between two ranks that are not larger than this mean nothing."""
        return (self.alignment.residual_ns_p95 or 0) if self.alignment else 0

    def add_common_times(self, frame: RankIntervals) -> CommonIntervals:
        """``frame`` with its times on the common clock."""
        return _on_common_clock(frame, self.per_rank).drop("capture_id", "offset_ns", "drift", "pivot_ns")


def list_clock_sources(traces: Sequence[Capture]) -> list[ClockSource]:
    """The source of every rank's times, by rank number."""
    sources = [
        ClockSource(rank.rank_index, rank.rank, trace.capture_id, rank.host, trace.session_start_ns)
        for trace in traces
        for rank in trace.ranks
    ]
    return sorted(sources, key=lambda source: (source.rank, source.rank_index))


def align_clocks(sources: Sequence[ClockSource], matched: MatchedCalls) -> CommonClock:
    """The clock of the lowest rank as the common clock of all.

    Session clocks where they are plausible, else a clock fitted on the ends of ``matched`` calls.
    """
    rank_indices = pl.DataFrame(
        [(source.rank_index, source.capture_id) for source in sources],
        schema={"rank_index": pl.Int64, "capture_id": pl.Int64},
        orient="row",
    )
    tiers = _rank_ends_by_trust(matched.calls, rank_indices)
    session = _session_clocks(sources)
    by_session = None
    if session is not None:
        ends = next((tier for tier in tiers if tier.height), tiers[-1])
        by_session = _finish(session, rank_indices, ends, SESSION_CLOCKS, single=len(sources) == 1)
        # A single capture has a single clock: uneven ends in it are calls of different groups, which no fit removes.
        plausible = by_session.error_ns <= MAXIMUM_SAME_HOST_ERROR_NS
        if rank_indices["capture_id"].n_unique() == 1 or plausible:
            return by_session
    by_ends = _fit_on_ends(tiers, rank_indices, sources[0].capture_id)
    if by_session is None or (by_ends.is_resolved and _is_clearly_better(by_ends, by_session)):
        return by_ends
    return by_session


def _is_clearly_better(clock: CommonClock, simpler: CommonClock) -> bool:
    return clock.error_ns < BETTER_CLOCK_FRACTION * simpler.error_ns


def _fit_on_ends(tiers: Sequence[pl.DataFrame], rank_indices: pl.DataFrame, reference: int) -> CommonClock:
    """The clock from the most trustworthy ends that reach every capture, with drift where that is clearly better."""
    captures = rank_indices["capture_id"].n_unique()
    for ends in tiers:
        clocks = _fit(ends, reference, with_drift=False)
        if clocks.height == captures:
            with_offset = _finish(clocks, rank_indices, ends, FITTED)
            with_drift = _finish(_fit(ends, reference, with_drift=True), rank_indices, ends, FITTED_WITH_DRIFT)
            return with_drift if _is_clearly_better(with_drift, with_offset) else with_offset
    return _finish(_fit(tiers[-1], reference, with_drift=False), rank_indices, tiers[-1].clear(), NOT_RESOLVABLE)


def _session_clocks(sources: Sequence[ClockSource]) -> Clocks | None:
    """CLOCKS from session starts; None if a capture lacks its start, or they are not known to be of a single host."""
    captures = {source.capture_id: source for source in sources}
    if len(captures) == 1:
        return pl.DataFrame([(sources[0].capture_id, 0.0, 0.0, 0.0)], schema=CLOCKS, orient="row")
    first = sources[0].session_start_ns
    if len({source.host for source in sources}) > 1 or sources[0].host is None or first is None:
        return None
    rows = []
    for source in captures.values():
        if source.session_start_ns is None:
            return None
        rows.append((source.capture_id, float(source.session_start_ns - first), 0.0, 0.0))
    return pl.DataFrame(rows, schema=CLOCKS, orient="row")


def _rank_ends_by_trust(calls: CollectiveCalls, rank_indices: pl.DataFrame) -> list[pl.DataFrame]:
    """Ends of matched calls in four choices, the most trustworthy first.

    Ends are best where the group is sure and all members leave together.
    """
    ends = calls.join(rank_indices, on="rank_index").select(
        "instance", "rank_index", "capture_id", "class", "sure", "start_ns", "end_ns"
    )
    simultaneous = pl.col("class").is_in(list(SIMULTANEOUS))
    choices = (simultaneous & pl.col("sure"), pl.col("sure"), simultaneous, pl.lit(value=True))
    return [ends.filter(choice) for choice in choices]


def _fit(ends: pl.DataFrame, reference: int, *, with_drift: bool) -> pl.DataFrame:
    """CLOCKS of all captures that share enough calls with ``reference``, directly or through other captures."""
    clocks = pl.DataFrame([(reference, 0.0, 0.0, 0.0)], schema=CLOCKS, orient="row")
    while True:
        per_rank = ends.select("rank_index", "capture_id").unique().join(clocks, on="capture_id")
        aligned = _on_common_clock(ends.drop("capture_id"), per_rank)
        targets = (
            aligned.drop_nulls("common_end_ns").group_by("instance").agg(target_ns=pl.col("common_end_ns").median())
        )
        differences = (
            ends.join(clocks, on="capture_id", how="anti")
            .join(targets, on="instance")
            .with_columns(difference_ns=pl.col("target_ns") - pl.col("end_ns"))
        )
        new_clocks = _clock_per_capture(differences, with_drift=with_drift)
        if new_clocks.is_empty():
            return clocks
        clocks = pl.concat([clocks, new_clocks])


def _clock_per_capture(differences: pl.DataFrame, *, with_drift: bool) -> pl.DataFrame:
    """CLOCKS. Offset: the median difference. Drift: the slope between the medians of the first and the last third."""
    third = (pl.col("end_ns").rank("ordinal").over("capture_id") - 1) * 3 // pl.len().over("capture_id")
    slopes = (
        differences.with_columns(third=third)
        .group_by("capture_id")
        .agg(
            rise=_median_of_third("difference_ns", 2) - _median_of_third("difference_ns", 0),
            run=_median_of_third("end_ns", 2) - _median_of_third("end_ns", 0),
            pivot_ns=pl.col("end_ns").median(),
            ends=pl.len(),
        )
    )
    minimum_ends = MINIMUM_COMMON_ENDS
    drift = pl.when(pl.lit(with_drift) & (pl.col("run") > 0)).then(pl.col("rise") / pl.col("run")).otherwise(0.0)
    level = pl.col("difference_ns") - pl.col("drift") * (pl.col("end_ns") - pl.col("pivot_ns"))
    return (
        differences.join(
            slopes.filter(pl.col("ends") >= minimum_ends).with_columns(drift=drift),
            on="capture_id",
        )
        .group_by("capture_id", "drift", "pivot_ns")
        .agg(offset_ns=level.median())
        .select(pl.col(name).cast(dtype) for name, dtype in CLOCKS.items())
        .sort("capture_id")
    )


def _median_of_third(column: str, which: int) -> pl.Expr:
    return pl.col(column).filter(pl.col("third") == which).median()


def _finish(
    clocks: Clocks, rank_indices: pl.DataFrame, ends: pl.DataFrame, method: str, *, single: bool = False
) -> CommonClock:
    """The clock of every rank, with the residuals that it leaves: |end - end of the lowest rank of the same call|."""
    per_rank = rank_indices.join(clocks, on="capture_id")
    common = _on_common_clock(ends.drop("capture_id"), per_rank).sort("instance", "rank_index")
    first_end = pl.col("common_end_ns").first().over("instance")
    is_first = pl.col("rank_index") == pl.col("rank_index").first().over("instance")
    residuals = common.with_columns(residual=(pl.col("common_end_ns") - first_end).abs()).filter(~is_first)["residual"]
    quantiles = [residuals.quantile(share, interpolation="higher") for share in (0.5, 0.95)]
    p50, p95 = (None if quantile is None else round(quantile) for quantile in quantiles)
    return CommonClock(per_rank, None if single else Alignment(method, p50, p95))


def _on_common_clock(frame: pl.DataFrame, per_rank: Clocks) -> pl.DataFrame:
    def common(name: str) -> pl.Expr:
        correction = pl.col("offset_ns") + pl.col("drift") * (pl.col(name) - pl.col("pivot_ns"))
        return pl.col(name) + correction.round().cast(pl.Int64)

    return frame.join(per_rank, on="rank_index", how="left", maintain_order="left").with_columns(
        common_start_ns=common("start_ns"), common_end_ns=common("end_ns")
    )
