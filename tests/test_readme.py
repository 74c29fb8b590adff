"""The README's commands do what they are listed for, as they are printed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from trace_builder import TraceBuilder

from tests.called import call
from tests.paths import REPOSITORY, SAMPLES

pytestmark = pytest.mark.slow

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    word for line in README.splitlines() if line.startswith("| ") for word in re.findall(r"`(three-walls [^`]+)`", line)
]
"""Those of the table, but the one that ``torchrun`` starts."""
SERVES = "three-walls mcp "
TUNES = "three-walls tune "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands name: captures, a log, a configuration, runs."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "profiles").mkdir()
    (folder / "DIR").mkdir()
    trace = TraceBuilder().steps(4).write(folder / "rank0.sqlite")
    shutil.copy(trace, folder / "profiles")
    for name in ("train.log", "run_config.yaml"):
        shutil.copy(SAMPLES / "te-host-bound" / name, folder)
    runs = SAMPLES / "te-host-bound-runs"
    for name, source in (("before", runs / "00-base"), ("after", runs / "01-micro-batch-2"), ("runs", runs)):
        shutil.copytree(source, folder / name)
    return folder


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "three_walls", *words]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def test_the_table_lists_the_commands_once() -> None:
    assert len(COMMANDS) == len(set(COMMANDS)) >= 14


def test_the_commands_of_the_table_run_in_their_order(folder: Path) -> None:
    for command in COMMANDS:
        _, *words = shlex.split(command.replace(" ...", "").replace(TUNES, f"{TUNES}--dry-run "))
        if not command.startswith(SERVES):
            done = call(*words, cwd=folder)
            assert (done.returncode, done.stderr) == (0, ""), command
            assert done.stdout, command


def test_the_server_of_the_table_ends_with_its_client(folder: Path) -> None:
    pytest.importorskip("mcp")
    (command,) = (command for command in COMMANDS if command.startswith(SERVES))
    done = run(shlex.split(command)[1:], folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_first_command_analyzes_a_bundled_trace(tmp_path: Path) -> None:
    (command,) = re.findall(r"^three-walls (analyze .*)$", README, re.MULTILINE)
    (tmp_path / "sample_traces").symlink_to(SAMPLES)
    done = run(shlex.split(command), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "report" / "report.html").is_file()
