"""SIGTERM and SIGHUP end every command with one line, its exit code, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from trace_builder import TraceBuilder

from tests.paths import REPOSITORY

pytestmark = pytest.mark.slow

PATIENCE_S = 60
NOT_IGNORED = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # tests under nohup inherit that it is
STALLING_MAIN = """
import pathlib, sys, time
from importlib import import_module
def stall(*_, **__):
    pathlib.Path("reached").touch()
    time.sleep({seconds})
    return ""
setattr(import_module("{module}"), "{function}", stall)
from three_walls.__main__ import main
main()
"""


def start(program: list[str], *arguments: str, cwd: Path, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    (cwd / "tmp").mkdir(exist_ok=True)
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(cwd / "tmp")}
    command = [sys.executable, *program, *arguments]
    return subprocess.Popen(command, cwd=cwd, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True)


def stall_in(module: str, function: str, seconds: float = PATIENCE_S, before: str = NOT_IGNORED) -> list[str]:
    """The program, which creates the file ``reached`` and waits where it would call ``function``."""
    return ["-c", before + STALLING_MAIN.format(module=module, function=function, seconds=seconds)]


def wait_for(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


READING = ("three_walls.trace.read_trace", "read_api_calls")
WRITING = ("three_walls.report.write_report", "render_overrides")


@pytest.mark.parametrize(
    ("number", "place"), [(signal.SIGTERM, READING), (signal.SIGHUP, READING), (signal.SIGTERM, WRITING)]
)
def test_a_signal_during_an_analysis_is_one_line_and_leaves_nothing(
    tmp_path: Path, number: signal.Signals, place: tuple[str, str]
) -> None:
    TraceBuilder().steps(4).write(tmp_path / "rank0.sqlite")
    subprocess.run(["xz", "-0", "rank0.sqlite"], cwd=tmp_path, check=True)
    process = start(stall_in(*place), "analyze", "rank0.sqlite.xz", cwd=tmp_path)
    wait_for((tmp_path / "reached").exists)
    assert bool(list((tmp_path / "tmp").iterdir())) == (place == READING)  # the unpacked export
    process.send_signal(number)
    process.send_signal(number)  # to the process and to its group, as `timeout` does
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (128 + number, f"three-walls: error: terminated ({number.name})\n")
    assert output == ""
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not list(tmp_path.glob("*.three-walls"))


def test_a_signal_while_the_program_is_still_loading_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "polars.py").write_text("import os, time\nopen('reached', 'w').close()\ntime.sleep(60)\n")
    process = start(["-m", "three_walls"], "facts", cwd=tmp_path)
    wait_for((tmp_path / "reached").exists)
    process.terminate()
    assert process.communicate(timeout=PATIENCE_S)[1] == "three-walls: error: terminated (SIGTERM)\n"
    assert process.returncode == 143


def test_a_signal_ends_the_interpreter_that_verify_started_and_what_it_started(tmp_path: Path) -> None:
    (tmp_path / "overrides.txt").write_text("model.recompute_granularity=null\n")
    (tmp_path / "run_config.yaml").write_text("model: {num_layers: 4}\n")
    wrapper = tmp_path / "wrapper"
    wrapper.write_text("#!/bin/sh\nsleep 60 &\necho $! > child\nwait\n")
    wrapper.chmod(0o755)
    options = ["--config", "run_config.yaml", "--python", str(wrapper)]
    process = start(["-m", "three_walls"], "verify", "overrides.txt", *options, cwd=tmp_path)
    wait_for(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text().strip())
    process.terminate()
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (143, "three-walls: error: terminated (SIGTERM)\n")
    child = Path("/proc") / (tmp_path / "child").read_text().strip()
    wait_for(lambda: not child.exists() or "\nState:\tZ" in (child / "status").read_text())


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    TraceBuilder().steps(4).write(tmp_path / "rank0.sqlite")
    before = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"  # as under nohup
    program = stall_in(*WRITING, seconds=0.5, before=before)
    process = start(program, "analyze", "rank0.sqlite", "--quiet", cwd=tmp_path)
    wait_for((tmp_path / "reached").exists)
    process.send_signal(signal.SIGHUP)
    errors = process.communicate(timeout=PATIENCE_S)[1]
    assert (process.returncode, errors) == (0, "")
    assert (tmp_path / "rank0.three-walls" / "report.json").exists()


COMES_WHERE_EXCEPTIONS_ARE_IGNORED = """
import signal, time
from three_walls.cli.signals import finish_loading, handle_signals

class Ends:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

handle_signals()
finish_loading()
Ends()
time.sleep(60)
"""


def test_a_signal_that_comes_where_exceptions_are_ignored_ends_the_command_all_the_same(tmp_path: Path) -> None:
    process = start(["-c", COMES_WHERE_EXCEPTIONS_ARE_IGNORED], cwd=tmp_path)
    assert process.communicate(timeout=PATIENCE_S / 2)[1] == ""
    assert process.returncode == 143
