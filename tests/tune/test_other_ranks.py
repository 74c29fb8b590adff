"""``tune`` started on every rank by srun: the first rank decides, and each rank runs its part of every run."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tune.test_tune_command import (
    EFFECTS,
    PATIENCE_S,
    TRAINER,
    command,
    environment,
    list_processes,
    results,
)

pytestmark = pytest.mark.slow
RANKS = 3


def srun(folder: Path, *options: str, **told: object) -> list[subprocess.Popen[str]]:
    """What ``srun -n 3 three-walls tune`` starts."""
    words = command(folder, *options, told=EFFECTS | told)
    job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": str(RANKS), "SLURM_NNODES": str(RANKS)}
    return [
        subprocess.Popen(
            words, cwd=folder, env=environment(folder) | job | {"SLURM_PROCID": str(rank)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(RANKS)
    ]  # fmt: skip


def finish(ranks: list[subprocess.Popen[str]]) -> list[str]:
    errors = [rank.communicate(timeout=PATIENCE_S)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * RANKS, errors
    return errors


def runs_of(folder: Path) -> list[list[str]]:
    """The overrides that each rank's program was started with."""
    return [(folder / f"told.runs{rank or ''}").read_text().splitlines() for rank in range(RANKS)]


def test_every_rank_runs_what_the_first_decides(tmp_path: Path) -> None:
    errors = finish(srun(tmp_path))
    assert "a=1" in results(tmp_path)["overrides"]
    assert errors[1] == errors[2] == ""
    first, *others = runs_of(tmp_path)
    assert others == [first, first]
    assert list_processes(tmp_path) == []
    finish(srun(tmp_path, "--resume"))
    assert runs_of(tmp_path)[2] == first  # it was finished


@pytest.mark.exhaustive
def test_a_rank_that_fails_ends_the_run_on_all(tmp_path: Path) -> None:
    code = (
        "import os, runpy, sys, time\n"
        "if 'c=1' in sys.argv: sys.exit(3) if os.environ['SLURM_PROCID'] == '1' else time.sleep(3)\n"
        f"runpy.run_path({str(TRAINER)!r}, run_name='__main__')"
    )
    finish(srun(tmp_path, "--space", "space.yaml", "--runs", "6", "--", sys.executable, "-c", code))
    failed = [each for each in results(tmp_path)["runs"] if each["failure"]]
    assert {each["failure"] for each in failed} == {"rank 1 ended with exit code 3"}
    assert all("c=1" in each["overrides"] for each in failed)
    assert list_processes(tmp_path) == []


@pytest.mark.exhaustive
def test_a_first_rank_that_is_killed_takes_the_others_with_it_and_is_gone_on_from(tmp_path: Path) -> None:
    ranks = srun(tmp_path, pause_s=0.05)
    journal = tmp_path / "tuned" / "journal.jsonl"
    while not journal.exists() or '"kind": "run"' not in journal.read_text():
        time.sleep(0.1)
    for rank in ranks:
        rank.send_signal(signal.SIGKILL)
    for rank in ranks:
        rank.communicate()
    end_s = time.monotonic() + 20
    while list_processes(tmp_path) and time.monotonic() < end_s:
        time.sleep(0.1)
    assert list_processes(tmp_path) == []
    finish(srun(tmp_path, "--resume"))
    assert "a=1" in results(tmp_path)["overrides"]


def test_a_command_that_starts_all_ranks_itself_is_started_by_the_first_alone(tmp_path: Path) -> None:
    fake = tmp_path / "srun"
    fake.write_text('#!/bin/sh\nexec "$@"\n')
    fake.chmod(0o755)
    words = (
        "--space",
        "space.yaml",
        "--runs",
        "3",
        "--",
        str(fake),
        "env",
        "SLURM_NTASKS=1",
        sys.executable,
        str(TRAINER),
    )
    errors = finish(srun(tmp_path, *words))
    assert "rank 1 has nothing to do" in errors[1]
    assert not (tmp_path / "told.runs1").exists()
