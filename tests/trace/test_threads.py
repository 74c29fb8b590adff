"""Files are read in threads in the same order as one after the other, and no thread outlives an error or a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from lockstep import Behaviour, simulate
from trace_builder import TraceBuilder

from tests.paths import REPOSITORY
from three_walls import analyze
from three_walls.lib.threads import check_is_wanted, read_each, work_meanwhile
from three_walls.report.json_report import render_json
from three_walls.trace.run_request import Workers

PATIENCE_S = 60


def ignore(_: int) -> None:
    """Stands for what nobody wants to know."""


@pytest.mark.parametrize("jobs", [1, 2, 8])
def test_results_are_in_the_order_of_the_files(jobs: int) -> None:
    def read(number: int) -> int:
        time.sleep(0.02 * (number == 1))  # the second ends last
        return number

    begun: list[int] = []
    assert read_each(read, range(6), jobs, begun.append) == begun == list(range(6))


def test_of_several_files_two_are_read_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=PATIENCE_S)
    read_each(lambda _: both.wait(), [0, 1], 2, ignore)  # else the barrier breaks


@pytest.mark.parametrize(("files", "jobs"), [(3, 1), (1, 3)])
def test_one_job_or_file_is_this_thread_alone(files: int, jobs: int) -> None:
    found = read_each(lambda _: threading.current_thread(), range(files), jobs, ignore)
    assert found == [threading.current_thread()] * files


def test_the_first_error_in_the_order_of_the_files_is_raised() -> None:
    def read(number: int) -> None:
        time.sleep(0.02 * (number == 1))
        if number:
            raise ValueError(number)

    with pytest.raises(ValueError, match="1"):
        read_each(read, range(4), 3, ignore)


def work_on() -> None:
    """Works until nobody wants it, or would wait any longer."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        check_is_wanted()
        time.sleep(0.01)


def test_an_interrupt_ends_the_reading_of_all_files_and_closes_what_they_had_open() -> None:
    opened, closed = threading.Event(), list[int]()

    def read(number: int) -> None:
        if number == 0:
            return
        try:
            opened.set()
            work_on()
        finally:
            closed.append(number)

    def interrupt(place: int) -> None:
        if place == 1:
            assert opened.wait(PATIENCE_S)
            raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        read_each(read, range(4), 2, interrupt)
    assert set(closed) <= {1, 2}  # the files behind them were not begun
    assert 1 in closed
    assert threading.active_count() == before


def test_work_is_done_meanwhile_and_its_error_is_raised_where_it_is_waited_for() -> None:
    both = threading.Barrier(2, timeout=PATIENCE_S)
    with work_meanwhile(both.wait) as wait:
        both.wait()  # else the barrier breaks
        assert wait() in (0, 1)
    with work_meanwhile(lambda: 1 / 0) as wait, pytest.raises(ZeroDivisionError):
        wait()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_work_that_nobody_waits_for_any_more_ends(error: type[BaseException]) -> None:
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        try:
            begun.set()
            work_on()
        finally:
            ended.set()

    before = time.monotonic()
    with pytest.raises(error), work_meanwhile(work):
        assert begun.wait(PATIENCE_S)
        raise error
    assert ended.is_set() and time.monotonic() - before < PATIENCE_S / 2


def test_an_interrupt_ends_work_that_the_reading_of_a_file_waits_for() -> None:
    begun = threading.Event()

    def work() -> None:
        begun.set()
        work_on()

    def read(_: int) -> None:
        with work_meanwhile(work) as wait:
            wait()

    def interrupt(_: int) -> None:
        assert begun.wait(PATIENCE_S)
        time.sleep(0.1)  # until the threads that read wait as well
        raise KeyboardInterrupt

    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        read_each(read, range(3), 2, interrupt)
    assert time.monotonic() - before < PATIENCE_S / 2


@pytest.mark.slow
def test_several_ranks_are_analyzed_as_one_after_the_other(tmp_path: Path) -> None:
    ranks = simulate([Behaviour()] * 4, steps=3).write(tmp_path)
    ranks.insert(1, TraceBuilder().write(tmp_path / "no_kernels.sqlite"))
    ranks.insert(3, tmp_path / "damaged.sqlite")
    ranks[3].write_bytes(ranks[0].read_bytes()[:4096])

    assert render_json(analyze(ranks, workers=Workers(3))) == render_json(analyze(ranks))


_STALLING_THREADS = """
import pathlib, sys, threading, time
from three_walls.trace import read_trace as reader
from three_walls.lib.threads import check_is_wanted
read = reader.read_ranges
def stall(*arguments, **options):
    if threading.current_thread() is not threading.main_thread():
        pathlib.Path("reached").touch()
        for _ in range(6000):
            check_is_wanted()
            time.sleep(0.01)
    return read(*arguments, **options)
reader.read_ranges = stall
from three_walls.__main__ import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_threads_read_is_one_line_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    for rank in range(3):
        TraceBuilder().steps(4).write(tmp_path / f"rank{rank}.sqlite")
        subprocess.run(["xz", "-0", f"rank{rank}.sqlite"], cwd=tmp_path, check=True)
    (tmp_path / "tmp").mkdir()
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path / "tmp")}
    process = subprocess.Popen(
        [sys.executable, "-c", _STALLING_THREADS, "analyze", *sorted(tmp_path.glob("*.xz")), "--jobs", "2"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end_s = time.monotonic() + PATIENCE_S
    while not (tmp_path / "reached").exists():
        assert time.monotonic() < end_s
        time.sleep(0.02)
    process.send_signal(number)
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output) == (128 + number, "")
    assert errors.startswith("three-walls: error: ")
    assert errors.count("\n") == 1
    assert list((tmp_path / "tmp").iterdir()) == []
