"""Programs are measured with their children, and a peer that fails is shown with its reason."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks import run
from benchmarks.floor import COLUMNS, read_floor
from benchmarks.processes import FailedProgramError, Use, measure
from tests.paths import SAMPLES

SAMPLE = SAMPLES / "wide-nvlink-alltoall.sqlite"
WORK = "sum(range(10**7))"


def test_the_time_of_a_child_counts() -> None:
    alone = measure([sys.executable, "-c", "pass"])
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{WORK}'])"
    assert measure([sys.executable, "-c", child]).cpu_s > alone.cpu_s + 0.05


def test_the_last_line_of_a_failed_program_is_its_reason() -> None:
    with pytest.raises(FailedProgramError, match=r"^ValueError: no such report$"):
        measure([sys.executable, "-c", "raise ValueError('no such report')"])


def test_a_program_that_failed_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def fail(trace: Path, folder: Path) -> Use:
        tried.append((trace.name, list(folder.iterdir())))
        raise FailedProgramError("no module named nsysstats")

    seconds = iter([3.0, 2.0, 4.0])
    monkeypatch.setattr(run, "KEPT", tmp_path)
    programs = {"analyze": lambda *_: Use(next(seconds), 1.0, 2_000_000, ""), "stats": fail}
    best, failed = run.measure_trace(SAMPLE, programs, 3)
    assert best.best is not None
    assert best.best.cpu_s == 2.0
    assert failed.error == "no module named nsysstats"
    assert tried == [(SAMPLE.name, [])]


def test_the_table_has_ratios_and_the_stages_of_the_best_run() -> None:
    stages = "stage   CPU s\nstart    0.50\ntotal    6.00"
    measured = [
        run.Measured("analyze", Use(6.0, 4.0, 300_000_000, f"a warning\n{stages}\n")),
        run.Measured("floor", Use(2.0, 2.5, 90_000_000, "")),
        run.Measured("nsys stats nvtx_sum", None, "no module"),
    ]
    lines = run.render_trace(SAMPLE, measured)
    assert "| analyze | 6.00 | 4.00 | 300 | 3.00 | 1.00 |" in lines
    assert "| floor | 2.00 | 2.50 | 90 | 1.00 | 0.33 |" in lines
    assert "| nsys stats nvtx_sum | failed: no module | | | | |" in lines
    assert lines[-3:] == [stages, "```", ""]


def test_the_floor_reads_every_row_but_operators() -> None:
    with closing(sqlite3.connect(SAMPLE)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")} & set(COLUMNS)
        rows = sum(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)
        operators = connection.execute("SELECT count(*) FROM NVTX_EVENTS WHERE text GLOB 'aten::*'").fetchone()[0]
    assert operators > 10_000
    assert read_floor(SAMPLE) == rows - operators
