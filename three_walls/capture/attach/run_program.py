"""Runs the program of a rank, under the profiler or without it, and passes signals on to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from three_walls.capture.attach import start_program
from three_walls.capture.attach.start_program import ENDED, LIVENESS, PASSED_ON

_UNDER_PROFILER, _WITHOUT_PROFILER = "under-profiler", "without-profiler"
"""Marks of ``start_program``: they differ, so that a late start by the profiler cannot be taken for the other."""
_POLL_S = 0.02
_MOST_POLL_S = 0.2
_GRACE_S = 5.0
"""A starter that ended without starting anything is given up after this time."""
START_S = 180.0
"""A profiler that has not started the program after this time never will; the program then runs without it."""
_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})


@dataclass(frozen=True, slots=True)
class Ended:
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

    def run(self, profiler: Sequence[str], profiler_log: IO[bytes] | None) -> Ended:
        """Runs the program under ``profiler`` (its words; none to run it without) and waits until it has ended.

        The profiler may still be writing its report then: it is :attr:`profiler`.
        """
        with self._signals_passed_on():
            if profiler and not self._start_under(profiler, profiler_log):
                asked = [number for number in self._pending if number in _ENDING]
                if asked:
                    return Ended(-asked[0], False, True)
            if self.profiler is None:
                self._mark = self._folder / _WITHOUT_PROFILER
                self._parent = self._start((), None)
            code = self._wait_for_end()
            return Ended(code, self.profiler is not None, self._was_asked_to_end)

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
