"""Runs a command and ends all that it started. Run as a script; imports no package.

    python supervise_job.py LIVENESS LOCK GRACE_S COMMAND ARGUMENT...

LIVENESS is the descriptor of a pipe whose other end the process that tunes holds, LOCK that of a locked file. When the
command has ended, or nobody holds the other end any more (it asks for the end so, or it was killed), every descendant
is ended: SIGTERM, and SIGKILL once GRACE_S have passed. Descendants include those that left the session or whose parent
ended, as torchrun's workers do: this process is their reaper (prctl), so /proc shows them below it. Ranks on other
hosts end with their launcher (srun). Where this process is killed together with the one that tunes, the command gets
SIGTERM, and holds the lock until it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
_POLL_S = 0.02
_KILLED_S = 60.0
"""A process that SIGKILL has not ended by then hangs in the kernel."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of a shell for a program that does not exist, and for one that cannot be run."""


def main() -> None:
    liveness, lock, grace_s, command = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
    os.set_inheritable(liveness, False)
    adopt_orphans()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # a handler, unlike SIG_IGN, does not reach the command
    try:
        job = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=[lock], preexec_fn=_end_with_parent
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE)
    program = job.pid  # ``job`` itself stays: without it Python takes the exit code of a command that ended at once
    codes: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(liveness, selectors.EVENT_READ)
        while program not in codes and not selector.select(_POLL_S):
            _reap(codes)
    end_descendants(grace_s, codes)
    code = codes.get(program, -signal.SIGKILL)
    os._exit(code if code >= 0 else 128 - code)


def adopt_orphans() -> None:
    """Makes this process the parent of what its descendants leave behind."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_with_parent() -> None:
    """Has the kernel send SIGTERM to this process when its parent ends."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)


def end_descendants(grace_s: float, codes: dict[int, int]) -> None:
    """Ends every process below this one, and adds the exit codes of its children."""
    _end_all(signal.SIGTERM, grace_s, codes)
    _end_all(signal.SIGKILL, _KILLED_S, codes)


def _reap(codes: dict[int, int]) -> None:
    """Adds the exit codes of the children that have ended; of one that a signal ended minus its number."""
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    except ChildProcessError:
        return


def _end_all(number: int, patience_s: float, codes: dict[int, int]) -> None:
    """Sends the signal to every descendant, to those that start meanwhile too, and waits until none is left."""
    until_s = time.monotonic() + patience_s
    told: set[int] = set()
    while (found := _list_descendants()) and time.monotonic() < until_s:
        for process in found - told:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
        told |= found
        _reap(codes)
        time.sleep(_POLL_S)
    _reap(codes)


def _list_descendants() -> set[int]:
    """The processes below this one that still run."""
    parents = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
            state, parent = file.read().rpartition(b")")[2].split()[:2]
            if state not in (b"Z", b"X"):
                parents[int(name)] = int(parent)
    found: set[int] = set()
    last = {os.getpid()}
    while last := {process for process, parent in parents.items() if parent in last} - found:
        found |= last
    return found


if __name__ == "__main__":
    main()
