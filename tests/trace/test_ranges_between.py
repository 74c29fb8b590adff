"""The NVTX ranges of one stretch of time, read from the file again."""

from __future__ import annotations

from pathlib import Path

from tests.trace_builder import PROCESS, TraceBuilder
from three_walls.trace.read_tables import read_ranges_between


def texts_between(path: Path, begin: int, until: int, process: int = PROCESS) -> list[str]:
    return read_ranges_between(path, process, begin, until)["text"].to_list()


def test_ranges_that_were_open_at_some_time_of_the_window_are_read_outer_before_inner(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.nvtx("before", 1, 9).nvtx("inner", 20, 30).nvtx("outer", 20, 90).nvtx("after", 101, 120)
    assert texts_between(trace.write(tmp_path / "t.sqlite"), 10, 100) == ["outer", "inner"]


def test_a_range_that_was_still_open_at_the_end_of_the_capture_counts(tmp_path: Path) -> None:
    path = TraceBuilder().nvtx("open", 5, None).write(tmp_path / "t.sqlite")
    assert texts_between(path, 10, 100) == ["open"]


def test_texts_stand_in_the_row_or_in_the_string_table(tmp_path: Path) -> None:
    path = TraceBuilder().nvtx("in the row", 5, 50, inline=True).nvtx("apart", 6, 40).write(tmp_path / "t.sqlite")
    assert texts_between(path, 10, 100) == ["in the row", "apart"]


def test_ranges_of_another_process_are_not_read(tmp_path: Path) -> None:
    path = TraceBuilder().nvtx("own", 5, 50).write(tmp_path / "t.sqlite")
    assert texts_between(path, 10, 100, process=PROCESS + (1 << 24)) == []


def test_an_export_without_ranges_has_none(tmp_path: Path) -> None:
    assert texts_between(TraceBuilder().steps(1).write(tmp_path / "t.sqlite"), 0, 100) == []


def test_ranges_that_were_started_and_ended_rather_than_pushed_and_popped_are_left_out(tmp_path: Path) -> None:
    trace = TraceBuilder().nvtx("pushed", 5, 50).nvtx("started", 6, 60)
    trace.rows["NVTX_EVENTS"][-1]["eventType"] = 60
    assert texts_between(trace.write(tmp_path / "t.sqlite"), 10, 100) == ["pushed"]
