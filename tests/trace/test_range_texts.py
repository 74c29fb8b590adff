"""The numbers that emit_nvtx writes after an operator's name are left out of the ranges that all steps need."""

from __future__ import annotations

import polars as pl
import pytest

from three_walls.trace.read_tables import WantedRanges

WANTED = WantedRanges(("_AllToAll", "training_step_"), numbered="training_step_")


@pytest.mark.parametrize(
    "text",
    [
        "_AllToAll, seq = 12",
        "_AllToAll, op_id = 345",
        "_AllToAll, seq = 17184, op_id = 529, sizes = [[32768, 2048], []], input_op_ids = [(520,0), (0,-1)]",
        "_AllToAll, op_id = 532, sizes = [[1, 2], [], ",
    ],
)
def test_operators_that_differ_in_their_numbers_have_one_text(text: str) -> None:
    assert WANTED.shorten(pl.Series([text])).to_list() == ["_AllToAll, op_id"]


@pytest.mark.parametrize(
    "text",
    [
        "_AllToAll",
        "attn forward",
        "training_step_7",
        "training_step_, seq = 5",
        "_AllToAll, seq = 12, then more",
        "vector<int, 3>, unknown = 4",
    ],
)
def test_other_texts_stay_whole(text: str) -> None:
    assert WANTED.shorten(pl.Series([text])).to_list() == [text]


def test_all_texts_stay_whole_where_an_expression_may_search_for_numbers() -> None:
    by_expression = WantedRanges(("_AllToAll",), expression=r"op_id = \d+$")
    assert by_expression.shorten(pl.Series(["_AllToAll, op_id = 345"])).to_list() == ["_AllToAll, op_id = 345"]
