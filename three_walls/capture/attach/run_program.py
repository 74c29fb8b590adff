"""Runs the program of a rank, under the profiler or without it; passes signals on to it, and its output to a log."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from three_walls.capture.attach import start_program
from three_walls.capture.attach.start_program import ENDED, ERR, LIVENESS, OUT, PASSED_ON

_UNDER_PROFILER, _WITHOUT_PROFILER = "under-profiler", "without-profiler"
"""Marks of ``start_program``: they differ, so that a late start by the profiler cannot be taken for the other."""
_POLL_S = 0.02
_MOST_POLL_S = 0.2
_GRACE_S = 5.0
"""A starter that ended without starting anything is given up after this time."""
START_S = 180.0
"""A profiler that has not started the program after this time never will; the program then runs without it."""
_CHUNK_BYTES = 1 << 16
_IDLE_S = 0.5
"""An unfinished line goes into the log after this time without output."""
_MOST_LINE_BYTES = 1 << 20
_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How the program ended."""

    code: int
    """Its exit code; of a program that a signal ended, minus the signal's number."""
    is_profiled: bool
    """Whether the profiler started it."""
    was_asked_to_end: bool
    """Whether a signal that asks a program to end was passed on to it."""


class Program:
    """The program of one rank. It runs at most once, in a session and process group of its own."""

    def __init__(self, command: Sequence[str], folder: Path, environment: dict[str, str], warn: Callable[[str], None]):
        """``folder``: an empty directory on a local disk for the pipes and marks of ``start_program``."""
        self._command, self._folder, self._environment, self._warn = tuple(command), folder, environment, warn
        self.profiler: subprocess.Popen[bytes] | None = None
        self._group: int | None = None
        self._starter: int | None = None
        self._pending: list[int] = []
        self._was_asked_to_end = False
        os.mkfifo(folder / LIVENESS)
        # Both ends, so that opening does not wait. The starter sees the end of the pipe when this process is gone.
        self._liveness_pipe = os.open(folder / LIVENESS, os.O_RDWR)

    def run(self, profiler: Sequence[str], profiler_log: IO[bytes] | None) -> ExitStatus:
        """Runs the program under ``profiler`` (its words; none to run it without) and waits until it has ended.

        The profiler may still be writing its report then: it is :attr:`profiler`.
        """
        with self._signals_passed_on():
            if profiler and not self._start_under(profiler, profiler_log):
                ending = [number for number in self._pending if number in _ENDING]
                if ending:
                    return ExitStatus(-ending[0], False, True)
            if self.profiler is None:
                self._mark = self._folder / _WITHOUT_PROFILER
                self._parent = self._start((), None)
            code = self._wait_for_end()
            return ExitStatus(code, self.profiler is not None, self._was_asked_to_end)

    def _start_under(self, profiler: Sequence[str], log: IO[bytes] | None) -> bool:
        """Whether ``profiler`` has started the program; if not, it never will."""
        self._mark = self._folder / _UNDER_PROFILER
        try:
            process = self._parent = self._start(profiler, log)
        except OSError as error:
            self._warn(f"{profiler[0]}: {error.strerror}; the program runs without the profiler")
            return False
        until_s = time.monotonic() + START_S
        while not self._mark.exists() and process.poll() is None and not _ENDING.intersection(self._pending):
            if time.monotonic() > until_s:
                break
            time.sleep(_POLL_S)
        try:  # whoever creates the mark may start the program
            os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            self.profiler = process
            return True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._warn(_describe_failure(process.returncode, log))
        return False

    def _start(self, profiler: Sequence[str], output: IO[bytes] | None) -> subprocess.Popen[bytes]:
        # -I and -S: neither the user's directories nor site packages are imported in front of the program.
        starter = (sys.executable, "-I", "-S", start_program.__file__, str(self._folder), self._mark.name)
        return subprocess.Popen(
            [*profiler, *starter, *self._command],
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            env=self._environment,
            close_fds=False,  # as for the program itself
            start_new_session=True,  # signals of the terminal reach this process alone, which passes them on
        )

    def _wait_for_end(self) -> int:
        """The exit code of the program, or minus the signal that ended it."""
        ended = self._folder / ENDED
        pause_s = _POLL_S
        until_s = None
        while not ended.exists():
            if self._group is None:
                self._find_group()
                if self._group is None and self._parent.poll() is not None:
                    until_s = until_s or time.monotonic() + _GRACE_S
                    if time.monotonic() > until_s:
                        self._warn("the program could not be started")
                        return 1
            elif not _is_running(self._starter) and not ended.exists():
                return self._wait_without_starter()
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.2, _MOST_POLL_S)
        self._group = None
        return int(ended.read_text())

    def _find_group(self) -> None:
        text = self._mark.read_text() if self._mark.exists() else ""
        if text.endswith("\n"):
            starter, group = map(int, text.split())
            self._starter, self._group = starter, group
            pending, self._pending = self._pending, []
            for number in pending:
                self._pass_on(number, None)

    def _wait_without_starter(self) -> int:
        """Somebody killed the starter: the program is waited for, but how it ends is not known."""
        while _is_running(self._group):
            time.sleep(_MOST_POLL_S)
        self._group = None
        self._warn("how the program ended is not known, because its parent was killed")
        return 1

    @contextmanager
    def _signals_passed_on(self) -> Iterator[None]:
        numbers = [getattr(signal, name) for name in (*PASSED_ON, "SIGCONT", "SIGTSTP")]
        before = {number: signal.getsignal(number) for number in numbers}
        for number, handler in before.items():
            if handler not in (signal.SIG_IGN, None):  # as under nohup: then the program ignores it too
                signal.signal(number, self._pass_on)
        try:
            yield
        finally:
            for number, handler in before.items():
                if handler is not None:
                    signal.signal(number, handler)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        if self._group is None:
            self._pending.append(number)
            return
        self._was_asked_to_end |= number in _ENDING
        # The program's group has no terminal, so the system would ignore the terminal's own stop signal there.
        stops = number == signal.SIGTSTP
        with suppress(ProcessLookupError):
            os.killpg(self._group, signal.SIGSTOP if stops else number)
        if stops:
            os.kill(os.getpid(), signal.SIGSTOP)


def _describe_failure(code: int, log: IO[bytes] | None) -> str:
    if code == -signal.SIGKILL:
        return "the profiler did not start the program, which now runs without it"
    where = f"; see {Path(log.name).name}" if log is not None else ""
    return f"the profiler failed before it started the program (exit code {code}{where}), which now runs without it"


def _is_running(process: int | None) -> bool:
    if process is None:
        return False
    try:
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


class Tee:
    """The pipes of the program's output, and a thread that copies them: to where it would go, and to a log file.

    Where stdout and stderr are the same file, as in a terminal or after ``2>&1``, the program gets one pipe for both,
    which keeps their order. Else the log gets whole lines of each, in the order in which they arrive.
    """

    def __init__(self, folder: Path, log: int) -> None:
        """``folder``: where the pipes are made. ``log``: the open log file. Raises OSError."""
        self._log: int | None = log  # until it cannot be written
        self._targets: dict[int, int] = {}  # a pipe -> where its bytes go
        names = {OUT: 1} if _is_same_file(1, 2) else {OUT: 1, ERR: 2}
        for name, target in names.items():
            os.mkfifo(folder / name)
            self._targets[os.open(folder / name, os.O_RDONLY | os.O_NONBLOCK)] = target
        self._lines: dict[int, bytes] = dict.fromkeys(self._targets, b"")
        self._broken: set[int] = set()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._copy, name="tee", daemon=True)
        self._thread.start()

    def finish(self, patience_s: float) -> None:
        """Waits until the program has closed its output. A child that it left behind may keep it open."""
        self._thread.join(patience_s)
        self._is_stopped = True
        self._thread.join()

    def _copy(self) -> None:
        with selectors.DefaultSelector() as selector:
            for pipe in self._targets:
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map() and not self._is_stopped:
                ready = [int(key.fd) for key, _ in selector.select(_IDLE_S)]
                for pipe in ready:
                    chunk = os.read(pipe, _CHUNK_BYTES)
                    if chunk:
                        self._pass_on(pipe, chunk)
                    else:
                        selector.unregister(pipe)
                        os.close(pipe)
                        self._write_log(self._take_line(pipe))
                if not ready:
                    self._write_log(b"".join(map(self._take_line, self._lines)))
        self._write_log(b"".join(map(self._take_line, self._lines)))

    def _pass_on(self, pipe: int, chunk: bytes) -> None:
        target = self._targets[pipe]
        if target not in self._broken:
            try:
                _write_all(target, chunk)
            except OSError:  # its reader has gone; the program goes on, and so does the log
                self._broken.add(target)
        if len(self._targets) == 1:
            self._write_log(chunk)
            return
        whole, newline, rest = (self._lines[pipe] + chunk).rpartition(b"\n")
        self._write_log(whole + newline)
        self._lines[pipe] = rest
        if len(rest) > _MOST_LINE_BYTES:
            self._write_log(self._take_line(pipe))

    def _take_line(self, pipe: int) -> bytes:
        line, self._lines[pipe] = self._lines[pipe], b""
        return line

    def _write_log(self, text: bytes) -> None:
        if self._log is None or not text:
            return
        try:
            _write_all(self._log, text)
        except OSError as error:  # a full disk must not stop the program
            self._log = None
            print(f"three-walls attach: the log ends here ({error.strerror})", file=sys.stderr)  # noqa: T201


def _write_all(target: int, text: bytes) -> None:
    view = memoryview(text)
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:  # the launcher made the pipe non-blocking
            with selectors.DefaultSelector() as selector:
                selector.register(target, selectors.EVENT_WRITE)
                selector.select()


def _is_same_file(first: int, second: int) -> bool:
    try:
        return os.path.sameopenfile(first, second)
    except OSError:  # one of them is closed
        return False
