"""Of a very long capture only the steps to attribute are read, with the same report as if all were."""

from __future__ import annotations

import lzma
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.lockstep import MS, Behaviour, Run, simulate
from tests.step.ranks.test_attributed_steps import STEP_NS, attribute_few, attributed, equal_steps
from tests.step.ranks.test_capture_start import cut
from tests.step.test_run_in_parts import busy_steps
from tests.trace_builder import ADAM, GEMM, TraceBuilder, merge
from three_walls import analyze, pipeline
from three_walls.lib.report_warning import UNREADABLE
from three_walls.report.json_report import render_json
from three_walls.report.report import Report
from three_walls.step import selected_steps
from three_walls.step.ranks import steps_to_read
from three_walls.trace import api_calls, nsys_export
from three_walls.trace.read_tables import WantedRanges
from three_walls.trace.read_trace import Trace, read_trace
from three_walls.trace.spans import Device, StepsToRead, are_within, condition_of

pytestmark = pytest.mark.slow

STEPS = 20


def make_long(monkeypatch: pytest.MonkeyPatch, operations: int) -> None:
    """Makes captures of more than twice so many operations long ones, which are read in small parts."""
    attribute_few(monkeypatch, operations)
    monkeypatch.setattr(nsys_export, "_ROWS_AT_ONCE", 16)  # less than a step
    monkeypatch.setattr(selected_steps, "LARGEST_MARGIN", 1)


@pytest.fixture
def read_few(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Makes captures of more than twice so many operations long ones; gives how many are read of each trace."""

    def prepare(operations: int) -> list[int]:
        heights: list[int] = []

        def build_timeline(traces: Sequence[Trace], *arguments: object) -> object:
            heights.extend(trace.operations.height for trace in traces)
            return build(traces, *arguments)

        make_long(monkeypatch, operations)
        build: Callable[..., object] = pipeline.build_timeline
        monkeypatch.setattr(pipeline, "build_timeline", build_timeline)
        return heights

    return prepare


def analyze_whole(monkeypatch: pytest.MonkeyPatch, path: Path) -> Report:
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "choose_steps_to_read", lambda *_, **__: {})
        return analyze(path)


def choose(*paths: Path) -> Mapping[Path, Mapping[Device, StepsToRead]]:
    return steps_to_read.choose_steps_to_read(paths, len(paths), None, lambda _: None)


def late_captures(*starts: float, steps: int = 20, delays_ms: Sequence[int] = ()) -> Run:
    """A run whose rank r was captured from step ``starts[r]`` on, or whose profiler starts ``delays_ms[r]`` late."""
    behaviours = [Behaviour(capture_delay_ns=delay * MS) for delay in delays_ms or [0] * len(starts)]
    run = simulate(behaviours, steps=steps, group=len(behaviours))
    return cut(run, starts) if any(starts) else run


def marked_steps(
    rank: int = 0, text: str = "training_step_{}", late: int = 0, *, with_launches: bool = True
) -> TraceBuilder:
    """Steps 5 to 24, each marked where the host launches it. It runs ``late`` ns after that."""
    builder = TraceBuilder(device=rank).launched_as("train", RANK=str(rank), WORLD_SIZE="2")
    for step in range(5, 5 + STEPS):
        at = 1 + step * STEP_NS
        builder.nvtx(text.format(step), at - 1, at + STEP_NS - 2)
        launched = (at, at + 10) if with_launches else (None, None)
        builder.kernel(GEMM, at + late, at + late + 800, launched=launched[0])
        builder.kernel(ADAM, at + late + 800, at + late + 900 + 50 * (step == 12), launched=launched[1])
    return builder


def test_steps_that_no_range_marks_are_read_as_if_all_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_few: Callable[[int], list[int]]
) -> None:
    path = equal_steps(STEPS, long=9).write(tmp_path / "t.sqlite")
    heights = read_few(8)
    report = analyze(path)
    assert attributed(report) == [1, 2, 9, 17, 18]
    assert (report.step.left_out, len(report.ranks[0].steps)) == (13, STEPS)
    assert render_json(report) == render_json(analyze_whole(monkeypatch, path))
    assert heights == [2 * 15, 2 * STEPS]  # steps 0 to 4, 7 to 11 and 15 to 19


def test_no_more_is_read_of_a_capture_of_ten_times_as_many_steps(
    tmp_path: Path, read_few: Callable[[int], list[int]]
) -> None:
    heights = read_few(8)
    for steps in (40, 400):
        analyze(equal_steps(steps, long=9).write(tmp_path / f"{steps}.sqlite"))
    assert heights[0] == heights[1] == 2 * 15


def test_event_records_are_those_of_the_calls_that_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_few: Callable[[int], list[int]]
) -> None:
    builder = equal_steps(400, long=9)
    for step in range(400):
        builder.record_event(step + 1, 7, step * STEP_NS + 100)
    path = builder.write(tmp_path / "t.sqlite")
    read_few(8)
    monkeypatch.setattr(api_calls, "_ROWS_PER_PART", 16)
    ((_, to_read),) = choose(path).items()
    trace = read_trace(path, 0, 0, WantedRanges(()), re.compile("graph"), to_read=to_read)
    whole = read_trace(path, 0, 0, WantedRanges(()), re.compile("graph"))
    calls = set(trace.api_calls.frame()["correlation"])
    assert whole.event_records.height == 400
    records = set(trace.event_records["correlation"])
    assert records & calls == set(whole.event_records["correlation"]) & calls
    assert 12 < len(records) < 30


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (3, 4))])
def test_busy_streams_are_read_as_if_all_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_few: Callable[[int], list[int]], seed: int
) -> None:
    path = busy_steps(seed).write(tmp_path / "t.sqlite")
    some, whole = read_few(60), analyze_whole(monkeypatch, path)
    assert render_json(analyze(path)) == render_json(whole)
    assert some[1] < some[0]


def test_marked_steps_are_read_of_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_few: Callable[[int], list[int]]
) -> None:
    for rank in range(2):
        marked_steps(rank).write(tmp_path / f"rank{rank}.sqlite")
    heights = read_few(16)
    report = analyze(tmp_path)
    assert attributed(report, 0) == attributed(report, 1)
    assert max(heights) < 2 * STEPS
    whole = analyze_whole(monkeypatch, tmp_path)
    assert attributed(whole) == attributed(report)
    for rank, same in zip(report.ranks, whole.ranks, strict=True):
        assert [step for step in rank.steps if step.budget] == [step for step in same.steps if step.budget]
        assert len(rank.steps) == len(same.steps) == STEPS
    assert report.step.left_out == whole.step.left_out


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(late_captures(0, 0), marks=pytest.mark.exhaustive),
        late_captures(0.3, 0.6, 1.1, 2.4),
        pytest.param(late_captures(0, 7.5), marks=pytest.mark.exhaustive),
        pytest.param(late_captures(0, 0, delays_ms=(0, 900)), marks=pytest.mark.exhaustive),
    ],
    ids=["together", "in different steps", "seven steps late", "profilers that start late"],
)
def test_steps_of_several_ranks_that_no_range_marks_are_read_as_if_all_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_few: Callable[[int], list[int]], run: Run
) -> None:
    directory, ranks = run.write(tmp_path), len(run.builders)
    heights = read_few(250)
    report = analyze(directory)
    assert render_json(report) == render_json(analyze_whole(monkeypatch, directory))
    for some, every in zip(heights[:ranks], heights[ranks:], strict=True):
        assert some < 0.8 * every


@pytest.mark.parametrize("starts", [pytest.param((0, 0), marks=pytest.mark.exhaustive), (0.3, 2.4)])
def test_ranks_that_share_a_capture_are_read_as_if_all_their_steps_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_few: Callable[[int], list[int]], starts: Sequence[float]
) -> None:
    path = merge(tmp_path / "t.sqlite", *late_captures(*starts).builders)
    heights = read_few(250)
    report = analyze(path)
    assert render_json(report) == render_json(analyze_whole(monkeypatch, path))
    some, every = heights
    assert some < 0.8 * every


@pytest.mark.parametrize("suffix", [".xz", ".zst"])
def test_a_compressed_capture_is_read_as_the_plain_one(
    tmp_path: Path, read_few: Callable[[int], list[int]], suffix: str
) -> None:
    heights, path = read_few(8), equal_steps(STEPS, long=9).write(tmp_path / "t.sqlite")
    plain, packed = analyze(path), tmp_path / f"t.sqlite{suffix}"
    packed.write_bytes(lzma.compress(path.read_bytes()) if suffix == ".xz" else zstandard.compress(path.read_bytes()))
    assert analyze(packed).budget == plain.budget
    assert heights == [2 * 15] * 2


def test_a_damaged_capture_and_one_without_kernels_cost_the_others_nothing(
    tmp_path: Path, read_few: Callable[[int], list[int]]
) -> None:
    heights = read_few(16)
    for rank in range(2):
        marked_steps(rank).write(tmp_path / f"rank{rank}.sqlite")
    TraceBuilder().write(tmp_path / "rank2.sqlite")
    (tmp_path / "rank3.sqlite").write_bytes((tmp_path / "rank0.sqlite").read_bytes()[:4096])
    report = analyze(tmp_path)
    assert [warning.code for warning in report.warnings if "rank3" in warning.message] == [UNREADABLE]
    assert len(heights) == 2 and max(heights) < 2 * STEPS


def test_the_users_ranges_mark_steps_too(tmp_path: Path, read_few: Callable[[int], list[int]]) -> None:
    path = marked_steps(text="iteration {} of 99").write(tmp_path / "t.sqlite")
    heights = read_few(8)
    report = analyze(path, step_range="iteration")
    assert len(report.ranks[0].steps) == STEPS
    assert heights[0] < 2 * STEPS


@pytest.mark.parametrize(
    "trace",
    [marked_steps(late=8 * STEP_NS), marked_steps(late=4_500), marked_steps(with_launches=False)],
    ids=["eight steps late", "four and a half", "launches that were not recorded"],
)
def test_a_capture_whose_steps_run_far_from_their_ranges_is_read_again_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_few: Callable[[int], list[int]], trace: TraceBuilder
) -> None:
    path = trace.write(tmp_path / "t.sqlite")
    heights = read_few(8)
    report = analyze(path)
    assert heights[0] < heights[1] == 2 * STEPS
    assert render_json(report) == render_json(analyze_whole(monkeypatch, path))


@pytest.mark.parametrize(
    ("traces", "operations"),
    [
        ([equal_steps(STEPS)], 20),  # not long
        ([equal_steps(STEPS), marked_steps()], 8),  # steps that some ranges mark, and others not
        ([marked_steps(text="training_step_7")], 8),  # every step has the same number
        ([TraceBuilder().kernel(GEMM, 1, 2).kernel(GEMM, 3, 4)], 0),  # no steps
        ([equal_steps(STEPS), TraceBuilder().kernel(GEMM, 1, 2).kernel(GEMM, 3, 4)], 8),
        ([TraceBuilder()], 0),
    ],
)
def test_any_other_capture_is_read_whole(
    tmp_path: Path, read_few: Callable[[int], list[int]], traces: list[TraceBuilder], operations: int
) -> None:
    read_few(operations)
    paths = [trace.write(tmp_path / f"{place}.sqlite") for place, trace in enumerate(traces)]
    assert choose(*paths) == {}


@pytest.mark.parametrize("column", ["globalPid", "deviceId"])
def test_a_capture_with_kernels_of_no_known_rank_is_read_whole(
    tmp_path: Path, read_few: Callable[[int], list[int]], column: str
) -> None:
    read_few(8)
    path = equal_steps(STEPS).write(tmp_path / "t.sqlite")
    assert list(choose(path)) == [path]
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET {column} = NULL WHERE rowid = 5")
    assert choose(path) == {}


def test_a_capture_of_copies_alone_is_read_whole(tmp_path: Path, read_few: Callable[[int], list[int]]) -> None:
    read_few(8)
    path = equal_steps(STEPS).write(tmp_path / "t.sqlite")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO CUPTI_ACTIVITY_KIND_MEMSET")
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL AS SELECT * FROM CUPTI_ACTIVITY_KIND_MEMSET LIMIT 0")
    assert choose(path) == {}


def test_what_is_damaged_is_left_to_reading(tmp_path: Path, read_few: Callable[[int], list[int]]) -> None:
    read_few(8)
    damaged = equal_steps(STEPS).write(tmp_path / "t.sqlite")
    damaged.write_bytes(damaged.read_bytes()[:4096])
    assert choose(damaged) == {}


@given(
    bounds=st.lists(st.integers(-50, 50), unique=True, min_size=2, max_size=12).filter(lambda each: len(each) % 2 == 0),
    start=st.none() | st.integers(-60, 60),
)
def test_sqlite_and_polars_find_what_lies_in_a_span(bounds: list[int], start: int | None) -> None:
    spans = list(zip(sorted(bounds)[::2], sorted(bounds)[1::2], strict=True))
    expected = start is not None and any(begin <= start < end for begin, end in spans)
    with closing(sqlite3.connect(":memory:")) as database:
        ((found,),) = database.execute(f"SELECT {condition_of(spans)} FROM (SELECT ? AS start)", (start,)).fetchall()
    assert bool(found) == expected
    assert are_within(spans, pl.Series([start], dtype=pl.Int64)).to_list() == [expected]
