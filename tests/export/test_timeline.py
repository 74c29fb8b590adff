"""The timeline of a small step, and how it is thinned. Times are in us."""

from __future__ import annotations

import re
from itertools import accumulate
from pathlib import Path

import polars as pl
import pytest

from tests.analyzed_samples import analyze_sample, reads_sample
from tests.trace_builder import ADAM, GEMM, POINTWISE, TraceBuilder
from three_walls import analyze
from three_walls.export.step_detail_rows import StepTimeline, TimelineLane
from three_walls.export.step_timeline import MOST_COUNTER_PARTS, thin
from three_walls.tables.buckets import COMMUNICATION_CATEGORIES

US = 1_000


def build() -> TraceBuilder:
    """Five steps of 1,000 us: a GEMM launched 10 before it begins, an addition 390-490, an update 790-890."""
    builder = TraceBuilder()
    for number in range(5):
        at = (1 + number) * 1_000 * US
        builder.nvtx(f"training_step_{number}", at, at + 1_000 * US)
        builder.nvtx("layers.3.mlp", at + 20 * US, at + 250 * US).nvtx("aten::mm", at + 90 * US, at + 120 * US)
        builder.kernel(GEMM, at + 110 * US, at + 500 * US, launched=at + 100 * US)
        builder.kernel(POINTWISE, at + 500 * US, at + 600 * US, stream=9, launched=at + 300 * US)
        builder.kernel(ADAM, at + 900 * US, at + 1_000 * US, launched=at + 890 * US)
    return builder


@pytest.fixture(scope="module")
def timeline(tmp_path_factory: pytest.TempPathFactory) -> StepTimeline:
    drawn = analyze(build().write(tmp_path_factory.mktemp("small") / "rank0.sqlite")).timeline
    assert drawn is not None
    return drawn


def items(timeline: StepTimeline, kind: str, name: str = "") -> list[tuple[int, int, str]]:
    """Start, length and text of the lane's items."""
    (lane,) = (lane for lane in timeline.ranks[0].lanes if (lane.kind, lane.name) == (kind, name) and not lane.depth)
    texts = [timeline.texts[place] for place in lane.text]
    return list(zip(accumulate(lane.start_ns), lane.length_ns, texts, strict=True))


def test_a_lane_per_stream_has_every_operation_at_its_time(timeline: StepTimeline) -> None:
    assert [(start // US, length // US) for start, length, _ in items(timeline, "operations", "stream 7 compute")] == [
        (0, 390),
        (790, 100),
    ]
    ((start, length, text),) = items(timeline, "operations", "stream 9 compute")
    assert (start, length, text) == (390 * US, 100 * US, "vectorized_elementwise_kernel<CUDAFunctor_add<float>>")
    lane = next(lane for lane in timeline.ranks[0].lanes if lane.name == "stream 9 compute")
    assert lane.launch_ns == (200 * US,)
    assert (lane.count, lane.busy_ns) == ((), ())


def test_the_owners_cover_the_step_and_gaps_have_a_cause(timeline: StepTimeline) -> None:
    owners = items(timeline, "budget")
    assert [start for start, _, _ in owners][1:] == [start + length for start, length, _ in owners][:-1]
    assert sum(length for _, length, _ in owners) == timeline.ranks[0].length_ns == 1_000 * US
    lane = next(lane for lane in timeline.ranks[0].lanes if lane.kind == "gaps")
    assert "starved_nothing_visible" in {timeline.texts[place] for place in lane.category}
    assert sum(lane.length_ns) == 410 * US


def test_ranges_nest_and_lose_the_number_of_their_layer(timeline: StepTimeline) -> None:
    ranges = [lane for lane in timeline.ranks[0].lanes if lane.kind == "ranges"]
    texts = {lane.depth: {timeline.texts[place] for place in lane.text} for lane in ranges}
    assert "layers.*.mlp" in texts[1]
    assert texts[2] == {"aten::mm"}


def test_the_longest_gap_states_what_comes_next_and_the_time_of_the_capture(timeline: StepTimeline) -> None:
    gap = timeline.worst_gaps[0]
    assert (gap.start_ns, gap.ns, gap.cause) == (490 * US, 300 * US, "starved_nothing_visible")
    assert gap.next_name.startswith("multi_tensor_apply_kernel")
    assert gap.clock_ns - gap.start_ns == timeline.ranks[0].clock_ns
    assert timeline.exposed_intervals == ()
    assert {stretch.cause for stretch in timeline.longest} >= {"gemm", "elementwise", "starved_nothing_visible"}


def many(count: int) -> pl.DataFrame:
    """``count`` GEMMs of 2 ns, every 10 ns; each tenth is an addition, and one in the middle takes 9,000 ns."""
    starts = [10 * place if place <= count // 2 else 10 * place + 9_000 for place in range(count)]
    return pl.DataFrame(
        {
            "start_ns": starts,
            "end_ns": [start + (9_000 if place == count // 2 else 2) for place, start in enumerate(starts)],
            "text": [f"kernel {place}" for place in range(count)],
            "category": ["elementwise" if place % 10 == 0 else "gemm" for place in range(count)],
            "module": [""] * count,
            "launch_ns": [5] * count,
            "wait_ns": [1] * count,
            "on_path": [place == 7 for place in range(count)],
        }
    )


@pytest.mark.parametrize("most", [10, 100, 500])
def test_short_neighbours_are_joined_and_their_time_is_kept(most: int) -> None:
    thinned = thin(many(2_001), most)
    assert thinned.height <= most
    assert thinned["busy_ns"].sum() == 2_000 * 2 + 9_000
    assert thinned["count"].sum() == thinned["wait_ns"].sum() == 2_001
    assert thinned["start_ns"].is_sorted()
    assert set(thinned.filter(pl.col("count") > 1)["category"]) == {"gemm"}
    assert thinned.filter("on_path").height == 1
    if most > 10:
        assert (1, 9_000) in thinned.select("count", "busy_ns").rows()  # a long one is kept as it is


def test_what_fits_is_left_as_it_is() -> None:
    assert thin(many(101), 101)["count"].to_list() == [1] * 101
    assert thin(many(1).clear(), 10).height == 0


def test_a_lane_is_a_row_of_columns_of_equal_length(timeline: StepTimeline) -> None:
    def lengths(lane: TimelineLane) -> set[int]:
        columns = (
            lane.start_ns,
            lane.length_ns,
            lane.text,
            lane.category,
            lane.count,
            lane.module,
            lane.launch_ns,
            lane.wait_ns,
        )
        return {len(column) for column in (*columns, lane.wait_ns) if column}

    assert all(len(lengths(lane)) == 1 for lane in timeline.ranks[0].lanes)


def test_counters_are_averages_of_equal_parts_of_the_step(tmp_path: Path) -> None:
    tensor, read, write = (
        f"{name} [Throughput %]" for name in ("Tensor Active", "DRAM Read Bandwidth", "DRAM Write Bandwidth")
    )
    metrics = {tensor: [80] * 4 + [0] * 6, read: [30] * 10, write: [20] * 5 + [60] * 5}
    repeated = {name: values * 5 for name, values in metrics.items()}
    timeline = analyze(build().samples(repeated, 1_110 * US, 100 * US).write(tmp_path / "rank0.sqlite")).timeline
    assert timeline is not None
    assert {counter.name: counter.percent for counter in timeline.ranks[0].counters} == {
        "tensor pipes": (80,) * 4 + (0,) * 6,
        "memory": (50,) * 5 + (90,) * 5,
    }


def test_counters_of_many_samples_are_thinned_and_holes_stay_holes(tmp_path: Path) -> None:
    """500 samples of 1 us in the first half of each step, none in the second."""
    builder = build()
    for number in range(5):
        builder.samples({"SMs Active [Throughput %]": [10, 30] * 250}, (1_110 + number * 1_000) * US, US)
    timeline = analyze(builder.write(tmp_path / "rank0.sqlite")).timeline
    assert timeline is not None
    (counter,) = timeline.ranks[0].counters
    assert counter.name == "SMs"
    assert len(counter.percent) == MOST_COUNTER_PARTS
    assert set(counter.percent[:199]) <= {18, 20, 22}
    assert set(counter.percent[202:]) == {None}


def test_no_counters_are_drawn_where_none_were_sampled(timeline: StepTimeline) -> None:
    assert timeline.ranks[0].counters == ()


def test_a_thread_is_called_what_it_calls_itself(tmp_path: Path, timeline: StepTimeline) -> None:
    builder = build()
    builder.add("ThreadNames", nameId=builder.string("pt_main_thread"), priority=20, globalTid=builder.thread)
    named = analyze(builder.write(tmp_path / "rank0.sqlite")).timeline
    assert named is not None
    names = {lane.name for lane in named.ranks[0].lanes if lane.kind in ("ranges", "calls")}
    assert [name.split()[2:] for name in names] == [["pt_main_thread"]]
    unnamed = [lane.name for lane in timeline.ranks[0].lanes if lane.kind == "calls"]
    assert all(re.fullmatch(r"thread \d+", name) for name in unnamed)


@pytest.mark.slow
@reads_sample("wide-nvlink-alltoall.sqlite")
def test_everything_of_a_real_step_is_there_on_the_axis_of_its_rank_with_the_entries_of_the_plan() -> None:
    report = analyze_sample("wide-nvlink-alltoall.sqlite")
    timeline = report.timeline
    assert timeline is not None
    rank = timeline.ranks[0]
    assert rank.begin_ns == 0
    assert not any(lane.count for lane in rank.lanes)
    shown = [len(lane.start_ns) for lane in rank.lanes if lane.kind in ("ranges", "calls", "operations")]
    assert sum(shown) == rank.items
    fused = next(step for step in report.plan if step.rule == "fused-attention")
    places = next(entry for entry in timeline.entries if entry.order == fused.order)
    assert {stretch.cause for stretch in places.longest} == {"attention_unfused"}
    lane = next(lane for lane in rank.lanes if lane.name == f"entry {fused.order}")
    assert max(lane.length_ns) == places.longest[0].ns
    larger = next(step for step in report.plan if step.rule == "larger-micro-batch")  # changes the whole step
    assert next(entry for entry in timeline.entries if entry.order == larger.order).longest == ()
    lane = next(lane for lane in rank.lanes if lane.name == f"entry {larger.order}")
    assert (lane.start_ns, lane.length_ns) == ((0,), (rank.length_ns,))


@pytest.mark.slow
@reads_sample("two-pipeline-stages")
def test_an_entry_that_builds_on_earlier_ones_has_places_of_its_own() -> None:
    report = analyze_sample("two-pipeline-stages")
    assert report.timeline is not None
    step = next(step for step in report.plan if step.rule == "cuda-graph-attention")
    assert step.needs == ("fused-attention", "cuda-graph-moe-scopes")  # alone its setting changes nothing
    places = next(entry for entry in report.timeline.entries if entry.order == step.order)
    assert len(places.longest) == 3


@pytest.mark.slow
@reads_sample("slow-gpu")
def test_a_collective_waits_for_no_longer_than_it_takes_and_nothing_else_waits() -> None:
    timeline = analyze_sample("slow-gpu").timeline
    assert timeline is not None
    waiting: dict[str, int] = {}
    for lane in (lane for rank in timeline.ranks for lane in rank.lanes if lane.wait_ns):
        for place, wait_ns, length_ns in zip(lane.category, lane.wait_ns, lane.length_ns, strict=True):
            assert 0 <= wait_ns <= length_ns
            waiting[timeline.texts[place]] = waiting.get(timeline.texts[place], 0) + wait_ns
    assert {name for name, ns in waiting.items() if ns} <= set(COMMUNICATION_CATEGORIES)
    assert sum(waiting.values()) > 0
