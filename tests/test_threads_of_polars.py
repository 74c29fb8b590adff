"""``choose_threads``: a second thread of polars only where traces are long enough for it to shorten the run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from three_walls.cli.options import choose_threads

MB = 1024 * 1024


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_MAX_THREADS", "")  # so that it is restored afterwards
    monkeypatch.delenv("POLARS_MAX_THREADS")


def make_trace(path: Path, size_bytes: int) -> Path:
    """A file of that size that takes no room on the disk."""
    with path.open("wb") as file:
        file.truncate(size_bytes)
    return path


def test_a_small_trace_gets_one_thread(tmp_path: Path) -> None:
    choose_threads([make_trace(tmp_path / "small.sqlite", 6 * MB)])
    assert os.environ["POLARS_MAX_THREADS"] == "1"


def test_traces_that_are_large_together_get_all_threads(tmp_path: Path) -> None:
    choose_threads([make_trace(tmp_path / f"rank{rank}.sqlite", 40 * MB) for rank in range(2)])
    assert "POLARS_MAX_THREADS" not in os.environ


@pytest.mark.parametrize(("size_bytes", "is_one"), [(40 * MB, True), (70 * MB, False)])
def test_the_files_of_a_directory_count(tmp_path: Path, size_bytes: int, is_one: bool) -> None:
    make_trace(tmp_path / "rank0.sqlite", size_bytes)
    choose_threads([tmp_path])
    assert ("POLARS_MAX_THREADS" in os.environ) == is_one


@pytest.mark.parametrize(("size_bytes", "is_one"), [(10 * MB, True), (20 * MB, False)])
def test_a_compressed_trace_counts_as_long_as_it_will_be(tmp_path: Path, size_bytes: int, is_one: bool) -> None:
    choose_threads([make_trace(tmp_path / "rank0.sqlite.xz", size_bytes)])
    assert ("POLARS_MAX_THREADS" in os.environ) == is_one


def test_the_callers_own_choice_counts_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_MAX_THREADS", "2")
    choose_threads([make_trace(tmp_path / "small.sqlite", MB)])
    assert os.environ["POLARS_MAX_THREADS"] == "2"


def test_a_trace_that_is_not_there_changes_nothing(tmp_path: Path) -> None:
    choose_threads([tmp_path / "gone.sqlite"])
    assert "POLARS_MAX_THREADS" not in os.environ
