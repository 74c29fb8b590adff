"""A trace with more steps, or with more ranks, is one that the program reads as it reads the base."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.inflate import CALLS, inflate, main
from tests.analyzed_samples import analyze_sample, reads_sample
from tests.paths import SAMPLES
from three_walls import analyze
from three_walls.lib.errors import UsageError
from three_walls.report.report import Report

BASE = SAMPLES / "wide-nvlink-alltoall.sqlite"
pytestmark = reads_sample(BASE.name)  # and the long trace is made once


def _count(trace: Path, sql: str) -> int:
    with closing(sqlite3.connect(trace)) as connection:
        return int(connection.execute(sql).fetchone()[0])


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    path = tmp_path_factory.mktemp("long") / "long.sqlite"
    inflate(BASE, path, 4)
    return path, analyze(path)


@pytest.mark.exhaustive
def test_a_repeated_step_has_the_budget_of_the_step(long: tuple[Path, Report]) -> None:
    steps = [step for step in long[1].ranks[0].steps if step.kept]
    before = [step for step in analyze_sample(BASE.name).ranks[0].steps if step.kept]
    assert len(steps) == len(before) + 3
    assert [step.budget for step in steps[-4:]] == [before[-1].budget] * 4


@pytest.mark.exhaustive
def test_repeated_calls_and_operators_are_new_ones(long: tuple[Path, Report]) -> None:
    path, _ = long
    calls = f"SELECT count(*) - count(DISTINCT correlationId) FROM {CALLS}"
    assert _count(path, calls) == _count(BASE, calls)
    texts = "SELECT count(*) - count(DISTINCT text) FROM NVTX_EVENTS WHERE text GLOB '*op_id = *'"
    assert _count(path, texts) == _count(BASE, texts)
    assert _count(path, "SELECT count(*) FROM NVTX_EVENTS") > 2 * _count(BASE, "SELECT count(*) FROM NVTX_EVENTS")


@pytest.mark.exhaustive
def test_the_same_arguments_give_the_same_file(long: tuple[Path, Report], tmp_path: Path) -> None:
    inflate(BASE, tmp_path / "again.sqlite", 4)
    assert (tmp_path / "again.sqlite").read_bytes() == long[0].read_bytes()


@pytest.mark.exhaustive
def test_every_rank_has_its_own_number_and_the_straggler_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, [str(BASE), str(tmp_path / "ranks"), "--ranks", "9", "--straggler", "2"])
    assert result.exit_code == 0, result.output
    report = analyze(tmp_path / "ranks")
    found = [(rank.rank, rank.host, rank.device) for rank in report.ranks]
    assert found == [(rank, f"node{rank // 8:04d}", rank % 8) for rank in range(9)]
    assert [straggler.rank for straggler in report.stragglers] == [2]


@pytest.mark.exhaustive
def test_a_trace_of_several_ranks_is_no_base(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a trace of one rank, found 2 ranks"):
        inflate(SAMPLES / "two-processes-one-report.sqlite.xz", tmp_path / "out.sqlite", 2)
    assert not (tmp_path / "out.sqlite").exists()
