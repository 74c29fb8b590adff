"""``nsys recipe three_walls`` with this machine's nsys. ``make test-nsys`` installs the packages that nsys needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from trace_builder import TraceBuilder

from tests.paths import REPOSITORY
from three_walls.cli.recipe import install_recipe

pytestmark = pytest.mark.slow
OWN_RECIPE = "cuda_api_sum"
"""Every nsys with recipes has it: where its help fails, no recipe runs."""


def nsys(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"NSYS_RECIPE_PATH": str(folder / "recipes")}
    command: Sequence[str] = ("nsys", *arguments)
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if shutil.which("nsys") is None:
        pytest.skip("nsys is not installed")
    tried = nsys("recipe", OWN_RECIPE, "--help", folder=tmp_path)
    if tried.returncode:
        last = (tried.stderr.strip() or tried.stdout.strip() or "no message").splitlines()[-1]
        pytest.skip(f"nsys runs no recipe here: {last}")
    install_recipe(tmp_path / "recipes")
    return tmp_path


def test_the_report_is_that_of_analyze(folder: Path) -> None:
    (folder / "profiles").mkdir()
    TraceBuilder().steps(4).write(folder / "profiles" / "rank0.sqlite")
    done = nsys("recipe", "three_walls", "--input", "profiles", "--output", "report", folder=folder)
    assert done.returncode == 0, done.stderr
    command = [sys.executable, "-m", "three_walls", "analyze", "profiles", "--out", "expected", "--quiet"]
    subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, check=True)
    for name in ("report.html", "report.json", "overrides.txt"):
        assert (folder / "report" / name).read_bytes() == (folder / "expected" / name).read_bytes()


def test_a_report_of_nsys_is_exported_and_one_without_kernels_is_refused_in_one_line(folder: Path) -> None:
    program = [sys.executable, "-c", "pass"]
    made = nsys("profile", "--trace=nvtx", "--sample=none", "--output=rank0", *program, folder=folder)
    if made.returncode:
        pytest.skip("nsys profiles nothing here")
    done = nsys("recipe", "three_walls", "--input", ".", folder=folder)
    assert done.returncode != 0
    assert (folder / "rank0.sqlite").exists()
    assert "three-walls: error: rank0.sqlite: expected CUDA kernels, found none" in " ".join(
        (done.stdout + done.stderr).split()
    )
    assert not (folder / "three_walls-1").exists()
