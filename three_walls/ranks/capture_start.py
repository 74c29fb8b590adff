"""Profilers that started at different moments: the first captured collectives wait for the last of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from three_walls.model.report import ReportWarning
from three_walls.model.units import ns_to_ms
from three_walls.ranks.alignment import CommonClock
from three_walls.tables.thresholds import RankThresholds


@dataclass(frozen=True, slots=True)
class CaptureStart:
    """``affected``: steps (track, step) during which some rank's capture had not begun yet; ``warnings`` about it.

    ``skew_ns``: from the first rank's first operation to that of the last; None where the clocks do not tell.
    """

    affected: pl.DataFrame
    warnings: tuple[ReportWarning, ...]
    skew_ns: int | None = None


def find_capture_start_skew(
    operations: pl.DataFrame,
    steps: pl.DataFrame,
    arrivals: pl.DataFrame,
    clock: CommonClock,
    thresholds: RankThresholds,
) -> CaptureStart:
    """Compares when the captures of the ranks begin with the length of a step. ``arrivals``: see measure_arrivals."""
    nothing = CaptureStart(steps.select("rank_index", "step").clear(), ())
    if not clock.is_resolved:
        return nothing
    first = clock.put(operations.group_by("rank_index").agg(pl.col("start_ns").min(), pl.col("end_ns").min()))
    begin, last_begin = first.select(pl.col("common_start_ns").min(), last=pl.col("common_start_ns").max()).row(0)
    skew_ns = int(last_begin) - int(begin)
    step_ns = _median_length(steps)
    nothing = replace(nothing, skew_ns=skew_ns)
    if step_ns is None or skew_ns <= max(thresholds.minimum_start_skew_fraction * step_ns, clock.error_ns):
        return nothing
    windows = clock.put(steps)
    # An edge that is the last capture's own beginning is not before it, but for the error of the clocks.
    began_before = pl.col("common_start_ns") + clock.error_ns < last_begin
    affected = windows.filter(began_before)
    if affected.is_empty():
        return nothing
    kept = affected.filter("kept")
    return CaptureStart(affected.select("rank_index", "step"), (_warn(skew_ns, arrivals, affected, kept),), skew_ns)


def without_affected(steps: pl.DataFrame, affected: pl.DataFrame) -> pl.DataFrame:
    """``steps`` with kept ones that the skew touches dropped, unless a rank would have no step left."""
    marked = steps.join(
        affected.with_columns(hit=pl.lit(value=True)), on=["rank_index", "step"], how="left", maintain_order="left"
    ).with_columns(hit=pl.col("hit").fill_null(value=False) & pl.col("kept"))
    others = (pl.col("kept") & ~pl.col("hit")).any().over("rank_index")
    said = "began before the last rank's capture did: its first collectives wait for that profiler's start"
    return marked.with_columns(
        kept=pl.col("kept") & ~(pl.col("hit") & others),
        reason=pl.when("hit").then(pl.lit(said)).otherwise("reason"),
    ).drop("hit")


def _warn(skew_ns: int, arrivals: pl.DataFrame, affected: pl.DataFrame, kept: pl.DataFrame) -> ReportWarning:
    hit = arrivals.join(affected.select("rank_index", "step"), on=["rank_index", "step"], how="semi")
    # The first steps often hold uneven numbers of calls, then nothing is matched there and nothing known of waits.
    longest = hit.select(pl.col("wait_ns").max()).item() if hit.height else None
    waited = f", and a collective there waits up to {ns_to_ms(longest):.0f} ms" if longest else ""
    state = "kept steps are among them and compare no ranks" if kept.height else "all are dropped already"
    return ReportWarning(
        "capture-start-skew",
        f"the ranks' captures begin {ns_to_ms(skew_ns):.0f} ms apart{waited}: that is the profilers' start, not the "
        f"run; {affected.height} steps begin before the last capture does ({state})",
    )


def _median_length(steps: pl.DataFrame) -> float | None:
    lengths = steps.filter("kept").select(ns=pl.col("end_ns") - pl.col("start_ns"))["ns"]
    middle = lengths.median()
    return float(middle) if isinstance(middle, int | float) else None
