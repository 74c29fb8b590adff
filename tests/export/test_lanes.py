"""The lanes of a small step as tracks, computed by head. Times are in us."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.replay.small_graphs import GraphBuilder
from tests.trace_builder import ADAM, GEMM, POINTWISE, TraceBuilder
from three_walls.export.chrome_trace import RankTracks, lay_out
from three_walls.export.lanes import find_path, list_operations_on
from three_walls.lib.errors import UsageError
from three_walls.pipeline import export_step
from three_walls.trace.run_request import RunRequest

US = 1_000


def build(gemm: str = GEMM, text: str = "forward") -> TraceBuilder:
    """Five steps of 1,000 us. Of each the first kernel's launch is recorded, the second's is not.

    A range of the host begins 110 before a step, which begins with its first kernel: a GEMM launched at -10 and running
    0-390; an addition 390-490; nothing until the update, launched at 780 and running 790-890; nothing until 1,000.
    """
    builder = TraceBuilder()
    for number in range(5):
        at = (1 + number) * 1_000 * US
        builder.nvtx(f"training_step_{number}", at, at + 1_000 * US)
        builder.nvtx(text, at + 50 * US, at + 300 * US)
        builder.kernel(gemm, at + 110 * US, at + 500 * US, launched=at + 100 * US)
        builder.kernel(POINTWISE, at + 500 * US, at + 600 * US)
        builder.kernel(ADAM, at + 900 * US, at + 1_000 * US, launched=at + 890 * US)
    return builder


def export(folder: Path, builder: TraceBuilder, *ranks: int) -> RankTracks:
    (rank,) = export_step(RunRequest((builder.write(folder / "rank0.sqlite"),)), ranks).ranks
    return rank


def find_track(rank: RankTracks, name: str) -> pl.DataFrame:
    """The slices of the track, in us."""
    (slices,) = (track.slices for track in rank.tracks if track.name == name)
    return slices.with_columns(pl.col("^.*_ns$") / US)


def test_an_arrow_leads_from_a_launch_to_its_kernel_and_none_to_a_kernel_without_one(tmp_path: Path) -> None:
    rank = export(tmp_path, build())
    operations = find_track(rank, "stream 7")
    (arrow,) = rank.arrows  # the GEMM that begins the step was launched before it
    from_track, from_ns, to_track, to_ns = arrow
    assert (rank.tracks[from_track].name, rank.tracks[to_track].name) == ("thread 1: CUDA calls", "stream 7")
    assert (from_ns / US, to_ns / US) == (780, operations["start_ns"][2])
    assert operations["launch_to_start_ns"].to_list() == [10, None, 10]


def test_the_budget_track_covers_the_step_once(tmp_path: Path) -> None:
    budget = find_track(export(tmp_path, build()), "budget")
    assert budget["start_ns"].to_list() == [0, *budget["end_ns"][:-1]]
    assert budget["end_ns"][-1] == 1_000
    gemm = budget.filter(pl.col("bucket") == "gemm")
    assert (gemm["end_ns"] - gemm["start_ns"]).sum() == 390


def test_a_gap_has_its_cause(tmp_path: Path) -> None:
    gaps = find_track(export(tmp_path, build()), "why no compute ran")
    starved = gaps.filter(pl.col("cause") == "starved_nothing_visible")
    assert 290 in (starved["end_ns"] - starved["start_ns"]).to_list()


def test_a_path_in_a_range_is_not_exported(tmp_path: Path) -> None:
    names = find_track(export(tmp_path, build(text="load /home/brunhild/data.bin")), "thread 1: NVTX")["name"].to_list()
    assert "load <path>" in names
    assert not [name for name in names if "brunhild" in name]


def test_a_rank_that_was_not_captured_is_refused(tmp_path: Path) -> None:
    assert export(tmp_path, build(), 0).rank == 0
    with pytest.raises(UsageError, match=r"--rank: expected a rank that captured step \d \(0\), found 7"):
        export_step(RunRequest((tmp_path / "rank0.sqlite",)), [7])


def test_slices_that_overlap_without_nesting_are_on_tracks_of_their_own() -> None:
    def slices(*times: tuple[int, int]) -> pl.DataFrame:
        rows = [(start, end, f"{start}-{end}") for start, end in times]
        return pl.DataFrame(rows, schema=["start_ns", "end_ns", "name"], orient="row")

    outer, inner, crossing, later = (0, 10), (2, 4), (8, 12), (12, 13)
    tracks = lay_out("stream 7", slices(later, crossing, inner, outer))
    assert [(track.name, track.slices.select("start_ns", "end_ns").rows()) for track in tracks] == [
        ("stream 7", [outer, inner, later]),
        ("stream 7 (2)", [crossing]),
    ]
    assert lay_out("stream 7", slices(outer).clear()) == []


def test_a_step_that_ends_before_it_begins_once_it_is_replayed_has_no_critical_path() -> None:
    builder = GraphBuilder()
    builder.operation(builder.call(think=10, took=5), duration=100)
    graph = builder.build()
    window: Any = SimpleNamespace(rank=SimpleNamespace(rank_index=0))
    assert list_operations_on(find_path(graph, window)) == [0]
    late = replace(graph, rank_start_ns=np.array([1_000]))  # as of a damaged trace, whose operations are missing
    assert find_path(late, window) is None
