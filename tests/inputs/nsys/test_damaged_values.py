"""Exports whose pages or values are damaged: read as far as they can be, or refused in one line."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from trace_builder import TraceBuilder

from three_walls import analyze
from three_walls.captures.doctor import examine
from three_walls.model.errors import InputError

pytestmark = pytest.mark.slow


def _damaged(path: Path, *statements: str) -> Path:
    builder = TraceBuilder(session_start_ns=1_700_000_000_000_000_000).launched_as("pretrain_gpt.py", RANK="0")
    builder.steps(5).nvtx("training_step_1", 1001, 2000).write(path)
    database = sqlite3.connect(path)
    for statement in statements:
        database.execute(statement)
    database.commit()
    database.close()
    return path


@pytest.mark.parametrize("value", ["NULL", "5", "1.5", "x'ff00'"])
def test_a_name_that_is_no_text_is_an_unknown_kernel_not_a_crash(tmp_path: Path, value: str) -> None:
    path = _damaged(tmp_path / "rank0.sqlite", f"UPDATE StringIds SET value = {value}")
    assert analyze(path).step.source == "one window"
    assert examine([path]).ranks


@pytest.mark.parametrize("number", ["'x y'", "x'ff00'", "9e999"])
def test_ids_of_strings_that_are_no_numbers_are_left_out_of_every_query(tmp_path: Path, number: str) -> None:
    path = _damaged(tmp_path / "rank0.sqlite", f"UPDATE StringIds SET id = {number} WHERE value = 'training_step_1'")
    assert analyze(path).step.kept == 3


@pytest.mark.parametrize("value", ["'x y'", "x'ff00'", "9e999"])
def test_a_size_or_a_clock_that_is_no_number_is_unknown(tmp_path: Path, value: str) -> None:
    path = _damaged(
        tmp_path / "rank0.sqlite",
        f"UPDATE TARGET_INFO_GPU SET totalMemory = {value}",
        f"UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = {value}",
    )
    assert analyze(path).step.source == "nvtx training_step"
    assert examine([path]).ranks


def test_a_range_without_a_start_marks_no_step(tmp_path: Path) -> None:
    path = _damaged(tmp_path / "rank0.sqlite", "UPDATE NVTX_EVENTS SET start = NULL")
    assert analyze(path).step.kept == 3
    assert examine([path]).ranks


@pytest.mark.parametrize("rank", ["\u00b2", "-1", "9" * 5000])
def test_a_rank_that_is_no_number_is_not_the_launchers(tmp_path: Path, rank: str) -> None:
    builder = TraceBuilder().launched_as("pretrain_gpt.py", RANK=rank, WORLD_SIZE=rank)
    path = builder.steps(5).write(tmp_path / "rank0.sqlite")
    assert [rank.rank for rank in analyze(path).ranks] == [0]
    assert examine([path]).ranks


def test_a_damaged_page_in_the_middle_is_refused_in_one_line(tmp_path: Path) -> None:
    path = TraceBuilder().steps(3000).write(tmp_path / "rank0.sqlite")
    content = bytearray(path.read_bytes())
    middle = len(content) // 4096 // 2 * 4096
    for page in range(4096 * 8, middle, 4096 * 8):
        content[page : page + 4096] = b"\xa5" * 4096
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match="found a damaged database") as caught:
        analyze(path)
    assert "\n" not in str(caught.value)
