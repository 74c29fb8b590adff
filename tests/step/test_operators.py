"""PyTorch's operators, as read from NVTX ranges, and how they nest."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trace_builder import PROCESS, TraceBuilder
from three_walls.step import operators as module
from three_walls.step.build_timeline import wanted_ranges
from three_walls.step.operators import Operators, nest_operators, read_operator_text, read_operators, read_range_times
from three_walls.tables.kernel_names import load_api_patterns, union_of
from three_walls.trace.read_trace import Trace, read_trace
from three_walls.trace.schemas import HOST_RANGES


def nest(*rows: tuple[str, int, int | None, int]) -> Operators:
    """Rows of (text, start, end, thread)."""
    ordered = sorted(rows, key=lambda row: (row[3], row[1], -(2**62 if row[2] is None else row[2])))
    columns = [(1, thread, start, end, text) for text, start, end, thread in ordered]
    return nest_operators(pl.DataFrame(columns, schema=HOST_RANGES, orient="row"))


def name_at(operators: Operators, at: int, thread: int = 1) -> str | None:
    index = operators.innermost(thread, at)
    return None if index is None else operators.found[index].name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "aten::mm, seq = 12, op_id = 3, sizes = [[4, 8], [8, 2]], input_op_ids = [(2,0), (1,-1)]",
            ("aten::mm", ((4, 8), (8, 2)), 12),
        ),
        ("aten::mm, op_id = 3, sizes = [[4, 8], [8, 2]]", ("aten::mm", ((4, 8), (8, 2)), None)),
        ("aten::item, op_id = 3, sizes = [[]], input_op_ids = [(2,0)]", ("aten::item", ((),), None)),
        ("_LinearBackward, seq = 7, op_id = 9, sizes = []", ("_LinearBackward", (), 7)),
        ("autograd::engine: AddBackward0, op_id = 5", ("autograd::engine: AddBackward0", None, None)),
        ("training_step_7", ("training_step_7", None, None)),
        ("a, b", ("a, b", None, None)),
        ("aten::cat, seq = 3, op_id = 1, sizes = [[4, 8], [8", ("aten::cat", None, 3)),
        ("aten::mm, op_id = 1, sizes = [[4.5, 8]]", ("aten::mm", None, None)),
        ("aten::mm, op_id = 1, sizes = [[true, 8]]", ("aten::mm", None, None)),
    ],
)  # fmt: skip
def test_a_text_gives_name_sizes_and_sequence_number(text: str, expected: tuple[object, ...]) -> None:
    assert read_operator_text(text) == expected
    assert nest((text, 0, 1, 1)).found[0] == (*expected, None)


@given(st.text(max_size=200))
def test_any_other_text_is_a_name(text: str) -> None:
    name, _, _ = read_operator_text(text)
    assert text.startswith(name)


@given(
    st.lists(
        st.sampled_from(["aten::mm", "\u00e9\u4f60", ", ", "seq = ", "op_id = 1", "sizes = [", "[4, 8]", "]", "7"])
    )
)
def test_texts_are_read_together_as_they_are_one_by_one(parts: list[str]) -> None:
    text = "".join(parts)
    assert nest((text, 0, 1, 1)).found[0] == (*read_operator_text(text), None)


def test_the_innermost_open_range_counts_and_its_end_no_longer_belongs_to_it() -> None:
    operators = nest(("outer", 0, 100, 1), ("inner", 10, 20, 1), ("later", 30, 40, 1))
    assert [name_at(operators, at) for at in (5, 10, 19, 20, 35, 40, 99)] == [
        "outer", "inner", "inner", "outer", "later", "outer", "outer",
    ]  # fmt: skip
    assert name_at(operators, 100) is None


def test_a_range_of_another_thread_is_not_around() -> None:
    operators = nest(("outer", 0, 100, 1), ("elsewhere", 10, 20, 2))
    assert (name_at(operators, 15), name_at(operators, 15, thread=2), name_at(operators, 25, thread=2)) == (
        "outer", "elsewhere", None,
    )  # fmt: skip
    assert name_at(operators, 15, thread=3) is None


def test_a_range_still_open_at_the_end_of_the_capture_is_around_all_that_follows() -> None:
    assert name_at(nest(("step", 5, None, 1)), 10**9) == "step"


def test_ranges_around_are_named_from_the_inside_out() -> None:
    operators = nest(("a", 0, 100, 1), ("b", 10, 90, 1), ("c", 20, 30, 1))
    assert [operators.found[index].name for index in operators.around(operators.innermost(1, 25))] == ["c", "b", "a"]
    assert list(operators.around(None)) == []


LAUNCHES = pl.DataFrame({"launch_start_ns": [1000, 1400], "start_ns": [1001, 1401], "end_ns": [1002, 1402]})


def trace_with_ranges(path: Path) -> Trace:
    builder = TraceBuilder().steps(1)
    builder.nvtx("aten::mm, sizes = [[2, 2]]", 1010, 1300).nvtx("after the launches", 1450, 1460)
    builder.nvtx("long after them", 1900, 2000).nvtx("before them", 1, 9)
    graph_launch = union_of(load_api_patterns(), "graph_launch")
    return read_trace(builder.write(path / "t.sqlite"), 0, 0, wanted_ranges(None), graph_launch)


def test_ranges_around_launches_and_their_times_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = trace_with_ranges(tmp_path)
    reads = []
    read = module.read_ranges_between
    monkeypatch.setattr(module, "read_ranges_between", lambda *window: reads.append(window) or read(*window))
    assert [operator.name for operator in read_operators(trace, PROCESS, LAUNCHES).found] == ["aten::mm"]
    times = read_range_times(trace, PROCESS, LAUNCHES, 1455)
    assert times.select("start_ns", "has_shapes").rows() == [(1010, True), (1450, False)]
    assert len(reads) == 1


def test_times_of_ranges_long_after_the_launches_are_read_too(tmp_path: Path) -> None:
    times = read_range_times(trace_with_ranges(tmp_path), PROCESS, LAUNCHES, 1900)
    assert times["start_ns"].to_list() == [1010, 1450, 1900]


def test_times_until_before_a_range_begins_are_without_it(tmp_path: Path) -> None:
    times = read_range_times(trace_with_ranges(tmp_path), PROCESS, LAUNCHES, 1449)
    assert times["start_ns"].to_list() == [1010]
