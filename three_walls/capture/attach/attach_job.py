"""Runs one rank's program, profiles it where asked to, exports the report, and analyzes the job on rank 0.

Whatever fails here, the program runs, and its end is the end of this process. Rank and directory of the job are by the
variables of the launcher.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from three_walls.capture.attach.attach_settings import add_settings
from three_walls.capture.attach.run_program import ExitStatus, Program, Tee
from three_walls.capture.capture_commands import RUN_CONFIG, CaptureRequest, nsys_options
from three_walls.capture.capture_guide import ATTACH, GPU_METRICS
from three_walls.lib.errors import InputError
from three_walls.lib.files import write_texts
from three_walls.lib.shell import quote_word
from three_walls.trace.report_export import REPORT_SUFFIX, export_report, find_nsys

_RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
"""Variables of the rank and of the number of ranks: torchrun's, srun's, those of Open MPI and of MPICH."""
_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_NUMBER = re.compile(r"\d{1,7}", re.ASCII)
_LONGEST_NAME = 64
_MOST_ATTEMPTS = 1000


@dataclass(frozen=True, slots=True)
class Job:
    """One launch, as all of its ranks see it."""

    rank: int
    world: int | None
    """Number of ranks, where the launcher states it."""
    name: str
    """The same in all ranks of a launch, and different in launches at the same time: a name of a directory."""

    @property
    def last_rank(self) -> int:
        """Megatron prints the iteration lines there."""
        return self.world - 1 if self.world else self.rank


def read_job(environment: Mapping[str, str]) -> Job:
    """The job by ``environment``; a program that no launcher started is rank 0 of 1."""
    for rank, world in _RANKS:
        if _NUMBER.fullmatch(environment.get(rank, "")):
            size = environment.get(world, "")
            return Job(int(environment[rank]), int(size) if _NUMBER.fullmatch(size) else None, _name_job(environment))
    return Job(0, 1, _name_job(environment))


def find_gpu(environment: Mapping[str, str]) -> str | None:
    """The number of this rank's GPU on its host; None where CUDA_VISIBLE_DEVICES does not name it by a number."""
    local = next((environment[name] for name in _LOCAL_RANKS if _NUMBER.fullmatch(environment.get(name, ""))), "0")
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    if not visible:
        return local
    numbers = [number.strip() for number in visible.split(",")]
    place = int(local) if len(numbers) > 1 else 0  # a launcher may show each rank its own GPU alone
    return numbers[place] if place < len(numbers) and _NUMBER.fullmatch(numbers[place]) else None


def _name_job(environment: Mapping[str, str]) -> str:
    """The launcher's own name of the launch. torchrun's is ``none`` unless the user gives one; then its address is."""
    if slurm := environment.get("SLURM_JOB_ID"):
        name = f"slurm-{slurm}.{environment.get('SLURM_STEP_ID', '0')}"
    elif environment.get("TORCHELASTIC_RUN_ID", "none") not in ("none", ""):
        name = f"run-{environment['TORCHELASTIC_RUN_ID']}"
    elif "MASTER_PORT" in environment:
        address = f"{environment.get('MASTER_ADDR')}:{environment['MASTER_PORT']}"
        name = f"run-{hashlib.sha256(address.encode()).hexdigest()[:8]}"
    else:
        name = "run"
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:_LONGEST_NAME]


def make_directory(out: Path, job: Job) -> tuple[Path, int]:
    """The directory of this attempt of ``job`` under ``out``, and the rank's log in it, opened for writing.

    A repeated attempt (a restart, or the same command again) gets a directory of its own: ``NAME``, ``NAME-2``, ...
    Each rank takes the first one in which it has no log yet, so that ranks agree without talking. Raises OSError.
    """
    for attempt in range(1, _MOST_ATTEMPTS):
        directory = out / (job.name if attempt == 1 else f"{job.name}-{attempt}")
        directory.mkdir(parents=True, exist_ok=True)
        try:
            return directory, os.open(log_path(directory, job.rank), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            continue
    raise OSError(0, f"{_MOST_ATTEMPTS} earlier attempts", str(out))


def log_path(directory: Path, rank: int) -> Path:
    """Where the output of ``rank`` goes."""
    return directory / f"rank{rank}.log"


_DRAIN_S = 2.0
"""A child that the program left behind may hold its output open for this time."""
_FINISH_S = 900.0
"""The profiler may take this time to write its report after the program has ended."""
_POLL_S = 0.5
Warn = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class AttachRequest:
    """What to run, and what to do around it."""

    capture: CaptureRequest
    """``command`` is the program of one rank."""
    framework: str | None
    """Whose settings are added; None for nobody's."""
    adds_settings: bool
    out: Path
    analyzes: bool
    when_done: str | None
    """A command for a shell, run at the end on rank 0."""
    wait_s: float
    """How long rank 0 waits for the exports of the other ranks."""


def attach(request: AttachRequest, warn: Warn) -> int:
    """Runs the program and what belongs around it; returns how the program ended, as ``ExitStatus.code``.

    ``warn`` is called with a line for the user.
    """
    folder = None
    try:
        job = read_job(os.environ)
        directory, log = make_directory(request.out.absolute(), job)
        folder = Path(tempfile.mkdtemp(prefix="three-walls-attach-"))
        attached = _Attached(request, job, directory, folder, log, warn)
    except Exception as error:  # whatever it is, the program has to run
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        warn(f"{_describe(error)}; the program runs without profiler and log")
        _replace_process(request.capture.command)
    try:
        ended = attached.run()
        try:
            attached.finish(ended)
        except SystemExit:  # a signal, once the program has ended
            warn("stopped by a signal after the program had ended; what was left to do is not done")
        except Exception as error:  # the program's end counts, not ours
            warn(_describe(error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(log)
    return ended.code


def _describe(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    return f"{type(error).__name__}: {error}"


class _Attached:
    """One rank of a job and its files: ``rank0.log``, ``rank0.nsys-rep``, ``rank0.sqlite``, ``rank0.json``."""

    def __init__(self, request: AttachRequest, job: Job, directory: Path, folder: Path, log: int, warn: Warn) -> None:
        """All that can fail before the program runs. ``folder``: for pipes; ``log``: the open log file."""
        self._request, self._job, self._directory, self._warn = request, job, directory, warn
        in_run = job.world is None or job.rank < job.world
        self._is_profiled = in_run and job.rank in request.capture.ranks
        self._report = directory / f"rank{job.rank}{REPORT_SUFFIX}"
        self._nsys: str | None = None
        settings: Sequence[str] = ()
        note = "nothing is added to the command (--no-overrides)"
        if request.adds_settings:
            settings, note = add_settings(request.capture, request.framework, directory / RUN_CONFIG)
        if job.rank == 0:
            warn(f"output, reports and logs are in {directory}")
            warn(note)
        environment = dict(os.environ)
        if os.isatty(1) and "PYTHONUNBUFFERED" not in environment:
            environment["PYTHONUNBUFFERED"] = "1"  # a program that prints into a pipe holds its lines back
        self._words = self._profiler_words()
        self._nsys_log = (directory / f"rank{job.rank}.nsys.log").open("wb") if self._words else None
        _open_standard_files()
        self._program = Program([*request.capture.command, *settings], folder, environment, warn)
        self._tee = Tee(folder, log)

    def run(self) -> ExitStatus:
        """Runs the program until it has ended."""
        with self._nsys_log or nullcontext():
            return self._program.run(self._words, self._nsys_log)

    def finish(self, ended: ExitStatus) -> None:
        """Exports the report; on rank 0, waits for the other ranks and analyzes. Less if a signal asked for an end."""
        self._tee.finish(_DRAIN_S)
        if self._program.profiler is not None:
            self._wait_for(self._program.profiler)
        reason = self._export_report(ended) if self._is_profiled else "not profiled"
        note = {"rank": self._job.rank, "code": ended.code, "exported": not reason, "reason": reason or None}
        # By this file rank 0 sees that this rank has done its part.
        write_texts({f"rank{self._job.rank}.json": json.dumps(note) + "\n"}, self._directory)
        if self._job.rank != 0:
            return
        if self._ends_early(ended):
            if self._request.analyzes:
                self._warn(f"the run did not end by itself, so nothing is analyzed; run: {self._analyze_line()}")
            return
        self._wait_for_ranks()
        if self._request.analyzes:
            self._analyze()
        if self._request.when_done is not None:
            environment = os.environ | {"THREE_WALLS_RUN": str(self._directory)}
            if code := _run_to_end(["sh", "-c", self._request.when_done], environment):
                self._warn(f"--when-done: exit code {code}")

    def _ends_early(self, ended: ExitStatus) -> bool:
        """Whether the launcher waits for this process: after a signal, or to end the other ranks of a failed run."""
        return ended.was_asked_to_end or (ended.code != 0 and self._job.world != 1)

    def _profiler_words(self) -> tuple[str, ...]:
        """``nsys profile`` with its options; empty where this rank runs without it."""
        if not self._is_profiled:
            return ()
        try:
            self._nsys = find_nsys()
        except InputError as error:
            self._warn(f"{error}; rank {self._job.rank} runs without the profiler")
            return ()
        if self._nsys is None:
            self._warn(f"nsys is not on PATH; rank {self._job.rank} runs without the profiler (--nsys names one)")
            return ()
        target = str(self._report.with_suffix("")).replace("%", "%%")  # nsys replaces %p, %h and %q{NAME}
        uses = {*self._request.capture.recorded, ATTACH}
        gpu = find_gpu(os.environ) if GPU_METRICS in uses else ""
        if gpu is None:
            self._warn("CUDA_VISIBLE_DEVICES names no number of a GPU: its hardware counters are not sampled")
        options = nsys_options(uses if gpu else uses - {GPU_METRICS}, gpu or "")
        return (self._nsys, "profile", *options, "-o", target)

    def _wait_for(self, profiler: subprocess.Popen[bytes]) -> None:
        """Waits until the profiler has written its report."""
        try:
            profiler.wait(_FINISH_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(profiler.pid, signal.SIGKILL)
            self._warn(f"the profiler of rank {self._job.rank} took more than {_FINISH_S:.0f} s to write its report")

    def _export_report(self, ended: ExitStatus) -> str:
        """Exports the report of this rank; returns why there is no export, or an empty text."""
        reason = ""
        if not ended.is_profiled or self._nsys is None:
            return "it ran without the profiler"
        if not self._report.exists():
            code = self._program.profiler.returncode if self._program.profiler is not None else 0
            if self._report.with_suffix(".qdstrm").exists():
                reason = "the profiler could not import its report (see its log); a .qdstrm file is there"
            elif code is not None and code < 0:
                reason = f"the profiler wrote no report: it was killed (signal {-code})"
            else:
                reason = "the profiler wrote no report: the program never began the capture (cudaProfilerStart)"
        elif self._ends_early(ended):
            reason = "the report is not exported, because the run did not end by itself"
        else:
            try:
                export_report(self._nsys, self._report, self._export_of(self._job.rank))
            except InputError as error:
                reason = str(error)
        if reason:
            self._warn(f"rank {self._job.rank}: {reason}")
        return reason

    def _export_of(self, rank: int) -> Path:
        return self._directory / f"rank{rank}.sqlite"

    def _wait_for_ranks(self) -> None:
        """Waits until all profiled ranks and the last one, whose log has the step times, have left their notes."""
        profiled = [rank for rank in self._request.capture.ranks if self._job.world is None or rank < self._job.world]
        awaited = sorted({*profiled, self._job.last_rank})
        until_s = time.monotonic() + self._request.wait_s
        while missing := [rank for rank in awaited if not (self._directory / f"rank{rank}.json").exists()]:
            if time.monotonic() > until_s:
                names = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
                self._warn(
                    f"no end of ranks {names} after {self._request.wait_s:.0f} s: going on without them "
                    "(is --out on a file system that all hosts share?)"
                )
                return
            time.sleep(_POLL_S)

    def _analyze(self) -> None:
        exports = list(filter(Path.is_file, map(self._export_of, self._request.capture.ranks)))
        if not exports:
            self._warn("no rank has an export, so there is nothing to analyze")
            return
        words = [sys.executable, "-P", "-m", "three_walls", *self._analyze_words(exports)]
        if code := _run_to_end(words, os.environ):
            self._warn(f"the analysis failed (exit code {code}); to repeat it: {self._analyze_line()}")

    def _analyze_words(self, traces: Sequence[Path]) -> list[str]:
        words = ["analyze", *map(str, traces), "--out", str(self._directory / "report")]
        for rank in sorted({0, self._job.last_rank}):
            if (path := log_path(self._directory, rank)).is_file() and path.stat().st_size:
                words += ["--log", str(path)]
        config = self._directory / RUN_CONFIG
        return [*words, "--config", str(config)] if config.is_file() else words

    def _analyze_line(self) -> str:
        """For later: the directory, because reports without an export are then exported too."""
        return " ".join(map(quote_word, ["three-walls", *self._analyze_words([self._directory])]))


def _open_standard_files() -> None:
    """Opens what the launcher has closed of stdin, stdout and stderr, so that no pipe of ours takes its place."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def _run_to_end(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a command of our own after the program; its exit code. A signal ends it before it ends this process."""
    process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL)
    try:
        return process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise


def end_like(code: int) -> NoReturn:
    """Ends this process as the program ended: with its exit code, or by the same signal."""
    with suppress(OSError):
        if sys.stdout is not None:  # it is where the launcher closed it
            sys.stdout.flush()
    if code >= 0:
        os._exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own core file
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    os._exit(128 - code)


def _replace_process(command: Sequence[str]) -> NoReturn:
    try:
        os.execvp(command[0], tuple(command))
    except OSError as error:
        print(f"three-walls attach: {command[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)
