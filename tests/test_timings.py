"""``--timings``: a line for every stage on stderr, and nothing else changes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.called import call
from tests.paths import REPOSITORY, SAMPLES
from three_walls.cli.timings import Timings

SAMPLE = SAMPLES / "wide-nvlink-alltoall.sqlite"
ROW = re.compile(r"^(.+?) +(\d+\.\d\d) +(\d+\.\d\d) +(\d+)$")


def _rows(table: str) -> dict[str, tuple[float, float, float]]:
    found = [ROW.match(line) for line in table.splitlines()[1:]]
    assert all(found)
    return {row[1]: (float(row[2]), float(row[3]), float(row[4])) for row in found if row}


def test_the_stages_of_several_files_are_one() -> None:
    timings = Timings()
    for stage in ("reading a.sqlite (1 of 2)", "reading b.sqlite (2 of 2)", "judging rules"):
        timings.begin(stage)
    assert list(_rows(timings.render())) == ["start", "reading inputs", "judging rules", "total"]


def test_the_stages_of_a_survey_are_one() -> None:
    timings = Timings()
    for stage in ("surveying 1,024 ranks", "surveyed 16 of 1,024 ranks", "surveyed 32 of 1,024 ranks"):
        timings.begin(stage)
    assert list(_rows(timings.render())) == ["start", "surveying the ranks", "total"]


def test_seconds_of_a_child_process_count_to_the_stage_that_waits_for_it() -> None:
    timings = Timings()
    timings.begin("alone")
    timings.begin("with a child")
    subprocess.run([sys.executable, "-c", "sum(range(10**7))"], check=True)
    rows = _rows(timings.render())
    assert rows["with a child"][0] > rows["alone"][0] + 0.05


@pytest.mark.slow
def test_the_table_is_on_stderr_and_the_report_is_the_same(tmp_path: Path) -> None:
    done = call("analyze", SAMPLE, "--timings", "--quiet", cwd=tmp_path)
    assert done.stdout == call("analyze", SAMPLE, "--quiet", cwd=tmp_path).stdout
    rows = _rows(done.stderr)
    assert {"start", "reading inputs", "attributing every nanosecond", "judging rules", "total"} <= set(rows)
    assert rows["total"][0] == pytest.approx(sum(cpu_s for cpu_s, _, _ in [*rows.values()][:-1]), abs=0.1)
    assert rows["total"][2] == max(peak for _, _, peak in rows.values())


@pytest.mark.slow
def test_imports_are_in_the_first_stage(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "three_walls", "analyze", tmp_path / "none.sqlite", "--timings"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    *table, error = done.stderr.splitlines()
    assert "no such file" in error
    assert _rows("\n".join(table))["start"][0] > 0.04  # Python alone takes 0.01 to 0.02
