"""``benchmarks/stages.py``: a line for every stage on stderr, and the command is that of the user."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.processes import OWN, REPOSITORY
from benchmarks.stages import Timings
from tests.called import call
from tests.paths import SAMPLES

SAMPLE = SAMPLES / "wide-nvlink-alltoall.sqlite"
ROW = re.compile(r"^(.+?) +(\d+\.\d\d) +(\d+\.\d\d) +(\d+)$")


def _rows(table: str) -> dict[str, tuple[float, float, float]]:
    found = [ROW.match(line) for line in table.splitlines()[1:]]
    assert all(found)
    return {row[1]: (float(row[2]), float(row[3]), float(row[4])) for row in found if row}


@pytest.mark.parametrize(
    ("stages", "rows"),
    [
        (
            ["reading a.sqlite (1 of 2)", "reading b.sqlite (2 of 2)", "judging rules"],
            ["reading inputs", "judging rules"],
        ),
        (["surveying 1,024 ranks", "surveyed 16 of 1,024 ranks"], ["surveying the ranks"]),
    ],
)
def test_the_stages_of_several_files_are_one(stages: list[str], rows: list[str]) -> None:
    timings = Timings()
    for stage in stages:
        timings.begin(stage)
    assert list(_rows(timings.render())) == ["start", *rows, "total"]


def test_seconds_of_a_child_process_count_to_the_stage_that_waits_for_it() -> None:
    timings = Timings()
    timings.begin("alone")
    timings.begin("with a child")
    subprocess.run([sys.executable, "-c", "sum(range(10**7))"], check=True)
    rows = _rows(timings.render())
    assert rows["with a child"][0] > rows["alone"][0] + 0.05


def _run_stages(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, REPOSITORY / "benchmarks" / "stages.py", *arguments]
    return subprocess.run(command, cwd=cwd, env=OWN, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_table_is_on_stderr_and_the_command_that_of_the_user(tmp_path: Path) -> None:
    done = _run_stages(SAMPLE, "--quiet", cwd=tmp_path)
    assert done.stdout == call("analyze", SAMPLE, "--quiet", cwd=tmp_path).stdout
    rows = _rows(done.stderr)
    assert {"start", "reading inputs", "attributing every nanosecond", "judging rules", "total"} <= set(rows)
    assert rows["start"][0] > 0.04  # with the imports: Python alone takes 0.01 to 0.02
    assert rows["total"][0] == pytest.approx(sum(cpu_s for cpu_s, _, _ in [*rows.values()][:-1]), abs=0.1)
    assert rows["total"][2] == max(peak for _, _, peak in rows.values())


@pytest.mark.slow
def test_a_command_that_fails_has_its_table_too(tmp_path: Path) -> None:
    error, *table = _run_stages("none.sqlite", cwd=tmp_path).stderr.splitlines()
    assert "no such file" in error
    assert "total" in _rows("\n".join(table))
