"""One run of a job: when it counts, why it failed, and what is left of it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.paths import REPOSITORY
from three_walls.tuning.run_trial import Ended, Limits, ended_of, run_job
from three_walls.tuning.tuned_command import VARIABLE, TunedCommand

LINE = (
    " [2026-01-01 00:00:00.000] iteration {0:8d}/   500 | consumed samples: 8 | elapsed time per iteration (ms): 200.0 "
    "| learning rate: 1.0E-06 | lm loss: 1.0E+01 | number of skipped iterations: 0 | number of nan iterations: {1} |"
)
ITERATIONS = 12
TORCHRUN = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
  exitcode  : 1 (pid: 11)
Root Cause (first observed failure):
  exitcode  : {code} (pid: 12)
============================================================"""


class Others:
    """A job of one rank, or one whose other ranks fail after a third of a second."""

    def __init__(self, failure: str = "") -> None:
        self._failure, self._fails_s = failure, time.monotonic() + 0.3

    def failure(self) -> str:
        return self._failure if time.monotonic() > self._fails_s else ""

    def end(self) -> None:
        return


def run(
    folder: Path,
    *said: str,
    iterations: int = 4,
    code: int = 1,
    stays: bool = False,
    is_nan: bool = False,
    others: str = "",
) -> Ended:
    """A job that prints ``iterations``, then what is ``said``, and ends with ``code`` or ``stays``."""
    lines = [LINE.format(number, int(is_nan)) for number in range(1, iterations + 1)]
    (folder / "said").write_text("\n".join([*lines, *said]) + "\n")
    script = f"cat {folder / 'said'}; {'sleep 60' if stays else f'exit {code}'}"
    limits = Limits(quiet_s=0.5 if stays else 30, run_s=60, iterations=ITERATIONS, overran="it is deaf")
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR)
    try:
        return run_job(["sh", "-c", script], {}, folder / "train.log", limits, lock, Others(others))
    finally:
        os.close(lock)


pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("[rank0]: torch.AcceleratorError: CUDA error: out of memory", "out of memory: CUDA error: out of memory"),
        ("Cuda failure 2 'out of memory'", "out of memory: Cuda failure 2 'out of memory'"),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling x", "out of memory: CUBLAS_STATUS_ALLOC_FAILED"),
        ("0: AssertionError: hidden size", "AssertionError: hidden size"),
        (TORCHRUN.format(code=-11), "a rank ended with exit code 139 (SIGSEGV)"),
        (
            TORCHRUN.format(code=-9).replace("\n", "\n0: "),
            "a rank ended with exit code 137 (SIGKILL), as by a host whose memory is full",
        ),
        (f"ValueError: x\n{TORCHRUN.format(code=1)}", "ValueError: x"),
        (
            "[rank0]:[E1 10:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: W",
            "Watchdog caught collective operation timeout: W",
        ),
        ("the host is out of memory", "it ended with exit code 1"),
    ],
    ids=["driver", "NCCL", "cuBLAS", "prefix", "SIGSEGV", "SIGKILL", "ValueError", "watchdog", "no reason"],
)
def test_the_reason_of_a_failure_is_what_its_log_says(tmp_path: Path, said: str, reason: str) -> None:
    assert run(tmp_path, said).failure == reason


def test_an_error_after_the_last_iteration_counts_before_one_that_the_job_survived(tmp_path: Path) -> None:
    survived, *others = "ImportError: no apex", LINE.format(5, 0), "KeyError: 'x'"
    assert run(tmp_path, survived, *others).failure == "KeyError: 'x'"
    assert run(tmp_path, survived, others[0]).failure == survived


def test_of_a_job_that_hangs_after_an_error_both_are_said(tmp_path: Path) -> None:
    assert (
        run(tmp_path, "KeyError: 'x'", stays=True).failure
        == "it hung after 4 iterations: no more for 0 s; its log says KeyError: 'x'"
    )
    assert run(tmp_path, stays=True).failure == "it hung after 4 iterations: no more for 0 s"
    assert run(tmp_path, stays=True, iterations=0).failure == "it hung: no iteration for 0 s"


def test_a_run_with_all_its_iterations_counts_also_if_its_end_fails_or_hangs(tmp_path: Path) -> None:
    assert run(tmp_path, "terminate called", iterations=ITERATIONS, code=134).step_s == 0.2
    assert run(tmp_path, iterations=ITERATIONS, stays=True).step_s == 0.2
    assert run(tmp_path, iterations=ITERATIONS - 1, code=134).failure == "it ended with exit code 134 (SIGABRT)"
    for without_memory in ("CUDA out of memory. Tried to allocate 2.00 GiB", "CUDA error: out of memory"):
        assert run(tmp_path, without_memory, iterations=ITERATIONS, code=1).failure.startswith("out of memory")
        hangs = run(tmp_path, without_memory, iterations=ITERATIONS, stays=True)
        assert hangs.failure.startswith("out of memory")
    assert run(tmp_path, iterations=2 * ITERATIONS, stays=True).failure == "it is deaf"


def test_another_rank_that_fails_once_all_iterations_are_printed_does_not_count(tmp_path: Path) -> None:
    failed = "rank 1 ended with exit code 1"
    assert run(tmp_path, iterations=ITERATIONS, stays=True, others=failed).step_s == 0.2
    assert run(tmp_path, iterations=ITERATIONS - 1, stays=True, others=failed).failure == failed


def test_memory_is_read_from_what_ranks_print_after_their_second_step_and_the_limit_from_a_refusal(
    tmp_path: Path,
) -> None:
    first = (
        "[Rank 0] (after 1 iterations) memory (MB) | allocated: 4096.00 | max allocated: 6144.00 | reserved: 7000.00 | "
        "max reserved: 7000.00"
    )
    second = first.replace("after 1", "after 2").replace("6144", "8192")
    other = second.replace("Rank 0", "Rank 1").replace("8192", "9216")
    assert run(tmp_path, first, second, iterations=ITERATIONS, code=0).memory == (4 << 30, 8 << 30)
    assert run(tmp_path, second, other, iterations=ITERATIONS, code=0).memory == (4 << 30, 9 << 30)
    assert run(tmp_path, first, iterations=ITERATIONS, code=0).memory is None  # the optimizer keeps nothing yet
    all_kept = second.replace("8192", "4100")
    kept = run(tmp_path, all_kept, iterations=ITERATIONS, code=0).memory
    assert kept == (4 << 30, 4100 << 20)
    assert kept and not kept.shows_activations
    refused = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.00 GiB is "
        "free. Of the allocated memory 20.00 GiB is allocated by PyTorch, and 3.00 GiB is reserved by PyTorch but "
        "unallocated."
    )
    assert run(tmp_path, refused).limit_bytes == 24 << 30
    assert run(tmp_path, refused.replace("1.00 GiB", "50.00 GiB")).limit_bytes == 23 << 30  # the job's own limit
    allowed = refused.replace("free. Of", "free. this process has 28.00 GiB memory in use. 25.00 GiB allowed; Of")
    assert run(tmp_path, allowed).limit_bytes == 25 << 30
    assert run(tmp_path, refused.partition(" Of the")[0]).limit_bytes is None


def test_too_few_steady_iterations_are_said_with_their_reason(tmp_path: Path) -> None:
    lost = run(tmp_path, iterations=ITERATIONS, code=0, is_nan=True).failure
    assert lost.endswith("of 12 that it prints 12 skip the update or have a loss that is NaN")
    assert run(tmp_path, iterations=3, code=0).failure.endswith(
        "more --iterations, or a line of each, would tell its step"
    )
    assert run(tmp_path, "KeyError: 'x'", iterations=3, code=0).failure == "KeyError: 'x'"  # as behind `| tee`


KILLS_SUPERVISOR = """
import os, signal, sys, time
from pathlib import Path
from three_walls.tuning.run_trial import running

started = Path(sys.argv[1])
lock = os.open(started.with_name("lock"), os.O_CREAT | os.O_RDWR)
words = ["sh", "-c", f"setsid sh -c 'echo $$ > {started}; exec sleep 60' & wait"]
with running(words, {}, Path("train.log"), lock) as job:
    while not (started.is_file() and started.read_text().endswith("\\n")):
        time.sleep(0.02)
    os.kill(job.pid, signal.SIGKILL)
"""


def test_where_the_supervisor_is_killed_no_process_of_the_job_is_left(tmp_path: Path) -> None:
    words = [sys.executable, "-c", KILLS_SUPERVISOR, str(tmp_path / "started")]
    subprocess.run(words, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, timeout=60, check=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "started").read_text()), 0)


KILLS_ALL = """
import fcntl, os, signal, sys, time
from pathlib import Path
from three_walls.tuning.run_trial import running

started = Path(sys.argv[1])
lock = os.open(started.with_name("lock"), os.O_CREAT | os.O_RDWR)
fcntl.flock(lock, fcntl.LOCK_EX)
with running(["sh", "-c", sys.argv[2]], {}, Path("train.log"), lock) as job:
    while not started.is_file():
        time.sleep(0.02)
    os.kill(job.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("job", "hears"), [("touch {}; exec sleep 60", True), ("trap '' TERM; touch {}; sleep 3", False)]
)
def test_where_the_tuning_is_killed_with_its_supervisor_the_job_is_told_and_holds_the_lock(
    tmp_path: Path, job: str, hears: bool
) -> None:
    started = tmp_path / "started"
    words = [sys.executable, "-c", KILLS_ALL, str(started), job.format(started)]
    done = subprocess.run(
        words, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    killed_s = time.monotonic()
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as `--resume` waits for it
    waited_s = time.monotonic() - killed_s
    assert waited_s < 2 if hears else 1 < waited_s < 20


def test_a_path_may_be_text_as_os_path_gives_it_and_no_step_takes_no_time(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"{LINE.format(number, 0)}\n" for number in range(1, ITERATIONS)))
    assert ended_of(str(log), 1.0).step_s == ended_of(log, 1.0).step_s == 0.2
    assert ended_of(str(tmp_path / "missing"), 1.0).failure.startswith("its log has no line of an iteration")
    assert ended_of([], 1.0).failure == "it gave no log"
    assert ended_of([0.2] * 9 + [0.0], 1.0).failure == "it gave a step of 0 s"
    assert ended_of([-1.0] * 9, 1.0).failure == "it gave a step of -1 s"


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (OOM, "out of memory"),
        ("AssertionError: hidden size", "AssertionError: hidden size"),
        (TORCHRUN.format(code=-11), "a rank ended with exit code 139 (SIGSEGV)"),
        ("Exception ignored in: <function _exit>", ""),
        ("", ""),
    ],
)
def test_a_run_that_breaks_off_behind_a_pipe_has_failed_though_its_exit_code_is_0(
    tmp_path: Path, said: str, reason: str
) -> None:
    assert run(tmp_path, said, iterations=ITERATIONS - 1, code=0).failure == reason
    assert run(tmp_path, said, iterations=ITERATIONS, code=0).failure == ""


def test_an_error_before_the_last_iteration_is_none_of_a_run_that_ended_well(tmp_path: Path) -> None:
    lines = [LINE.format(number, 0) for number in range(1, ITERATIONS - 1)]
    assert run(tmp_path, "ImportError: no apex", *lines, iterations=1, code=0).failure == ""


@pytest.mark.parametrize(
    ("word", "scripts"),
    [
        ("model.recompute_modules=[core_attn,mlp]", ("printf %s ${0}", 'eval "printf %s ${0}"')),
        ('my.name="it\'s a b"', ('eval "printf %s ${0}"',)),
    ],
)
def test_a_script_takes_overrides_from_the_variable(tmp_path: Path, word: str, scripts: tuple[str, ...]) -> None:
    command = TunedCommand(("run.sh",), None, 25)
    for script in scripts:
        line = script.replace("{0}", VARIABLE)
        done = subprocess.run(
            ["sh", "-c", line],
            env=command.variables([word], {}),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == word


def test_a_run_that_warms_up_nearly_to_its_end_tells_its_step_less_surely() -> None:
    lengths = (4.6968, 0.2562, 0.2756, 0.2457, 0.2197, 0.2344, 0.2267, 0.2097, 0.2082, 0.2098)
    falling = ended_of(lengths, 1.0)
    assert falling.failure == ""
    assert falling.step_s == pytest.approx(0.209, abs=0.001)
    assert falling.error > 0.03
    steady = ended_of([4.697, *[0.210, 0.208] * 4], 1.0)
    assert steady.error < 0.005
    assert "fewer than 5" in ended_of([4.697, 0.256, 0.220, 0.210, 0.208], 1.0).failure
