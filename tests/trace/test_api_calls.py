"""API calls are kept in few bytes, and come back as they were recorded."""

from __future__ import annotations

import polars as pl
import pytest

from three_walls.step.build_timeline import find_launches
from three_walls.trace import api_calls
from three_walls.trace.api_calls import ApiCalls, pack_calls
from three_walls.trace.schemas import API_CALLS, distinct_rows, share_constants

PROCESS = 7 << 24
FAR = 1 << 40

Call = tuple[int, int, int, int | None, str | None]


def made_of(*calls: Call, process: int = PROCESS, capture_id: int = 0) -> pl.DataFrame:
    """Calls (start, end, thread, correlation, name) as ApiCalls.frame gives them."""
    rows = [
        (process, process + thread, start, end, correlation, name, capture_id)
        for start, end, thread, correlation, name in calls
    ]
    return pl.DataFrame(rows, schema={**API_CALLS, "capture_id": pl.Int64}, orient="row")


def keep(calls: pl.DataFrame) -> ApiCalls:
    """``calls`` as ApiCalls."""
    texts = calls["name"].unique().drop_nulls().cast(pl.String).sort()
    name_id = pl.col("name").cast(pl.String).replace_strict(texts, range(len(texts)), default=None)
    parts = calls.with_columns(name_id=name_id.cast(pl.Int64)).partition_by(
        "capture_id", as_dict=True, maintain_order=True
    )
    return ApiCalls.join(
        ApiCalls(pack_calls(capture_id, rows)).with_names(dict(enumerate(texts)))
        for (capture_id,), rows in parts.items()
    )


CALLS = made_of(
    (5, 9, 1, 1, "cudaLaunchKernel"),
    (2, FAR, 2, None, None),
    (FAR, FAR + 3, 1, FAR, "cudaMalloc"),
    (FAR, FAR, 1, -3, ""),
)
OTHERS = made_of((4, 6, 1, 1, "cudaMalloc"), process=2 * PROCESS, capture_id=1)


@pytest.mark.parametrize("rows_per_part", [1, 3, 100])
def test_calls_come_back_as_they_were(monkeypatch: pytest.MonkeyPatch, rows_per_part: int) -> None:
    monkeypatch.setattr(api_calls, "_ROWS_PER_PART", rows_per_part)
    both = keep(pl.concat([CALLS, OTHERS]))
    assert both.frame().equals(pl.concat([CALLS, OTHERS]))
    assert both.height == 5
    assert both.processes == {PROCESS, 2 * PROCESS}
    assert both.of_captures([1]).frame("name", "process").rows() == [("cudaMalloc", 2 * PROCESS)]


def test_close_numbers_take_few_bytes_and_distant_ones_as_many_as_they_need() -> None:
    close, distant = (
        made_of(*((at, at + 5, 1, at, "cudaLaunchKernel") for at in (FAR, FAR + far))) for far in (9, FAR)
    )
    assert keep(close).parts[0].packed.estimated_size() == 2 * 5
    assert keep(distant).parts[0].packed.estimated_size() == 2 * (8 + 1 + 1 + 8 + 1)


@pytest.mark.parametrize("rows_per_part", [1, 100])
def test_calls_between_two_times_are_those_that_are_open_then(
    monkeypatch: pytest.MonkeyPatch, rows_per_part: int
) -> None:
    monkeypatch.setattr(api_calls, "_ROWS_PER_PART", rows_per_part)
    calls = keep(CALLS)
    assert calls.during({0: [(0, 2)]}).height == 0
    assert calls.during({0: [(0, 3)]}).frame("start_ns")["start_ns"].to_list() == [2]
    assert calls.during({0: [(9, 10)]}).frame("start_ns")["start_ns"].to_list() == [5, 2]
    assert calls.during({0: [(10, FAR)]}).frame("start_ns")["start_ns"].to_list() == [2]
    assert calls.during({0: [(FAR + 1, FAR + 2)]}).frame("end_ns")["end_ns"].to_list() == [FAR + 3]


def test_calls_are_chosen_by_name_and_those_without_one_never_are() -> None:
    calls = ApiCalls.join([keep(CALLS), keep(OTHERS)])
    assert calls.named(lambda name: name == "cudaMalloc").frame("start_ns")["start_ns"].to_list() == [FAR, 4]
    assert calls.named(lambda _: True).height == 4
    assert calls.named(lambda _: False).frame().equals(CALLS.clear())


def launches_of(calls: pl.DataFrame, *correlations: int | None, process: int = PROCESS) -> list[tuple[int | None, ...]]:
    operations = pl.DataFrame(
        {"process": [process] * len(correlations), "correlation": correlations},
        schema={"process": pl.Int64, "correlation": pl.Int64},
    )
    return find_launches(operations, keep(calls)).rows()


@pytest.mark.parametrize("rows_per_part", [1, 100])
def test_the_first_of_the_calls_with_its_id_launched_an_operation(
    monkeypatch: pytest.MonkeyPatch, rows_per_part: int
) -> None:
    monkeypatch.setattr(api_calls, "_ROWS_PER_PART", rows_per_part)
    calls = made_of((30, 35, 1, 8, "a"), (20, 25, 2, 8, "a"), (20, 26, 3, 8, "a"), (10, 15, 1, 9, "a"))
    assert launches_of(calls, 9, 8, 8) == [(10, 15, PROCESS + 1), (20, 25, PROCESS + 2), (20, 25, PROCESS + 2)]


def test_an_operation_without_a_call_of_its_process_has_no_launch() -> None:
    calls = made_of((10, 15, 1, 9, "a"), (1, 2, 1, None, "a"))
    assert launches_of(calls, 8, None) == [(None, None, None)] * 2
    assert launches_of(calls, 9, process=2 * PROCESS) == [(None, None, None)]
    assert launches_of(calls.clear(), 9) == [(None, None, None)]


def test_constant_columns_keep_their_values_and_types() -> None:
    frame = pl.DataFrame({"same": [3, 3, 3], "none": [None] * 3, "ends": [1, 2, 1], "gap": [1, None, 1]})
    assert share_constants(frame).equals(frame)
    assert share_constants(frame).schema == frame.schema
    assert share_constants(frame.clear()).equals(frame.clear())


def test_distinct_rows_are_found_in_parts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("three_walls.trace.schemas.ROWS_AT_ONCE", 2)
    frame = pl.DataFrame({"a": [1, 2, 1, None, 1], "b": ["x", "y", "x", None, "z"]})
    assert sorted(distinct_rows(frame).rows(), key=str) == sorted(set(frame.rows()), key=str)
