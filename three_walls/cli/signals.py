"""SIGINT (Ctrl-C), SIGTERM (Slurm, ``timeout``) and SIGHUP (a closed terminal) end a command cleanly, with one line."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REPEATED_S = 5.0
"""A signal that follows another this soon is the same one, sent to the process and to its group (``timeout`` does so):
it must not interrupt the cleaning up."""
_AGAIN_S = 0.05


class Terminated(SystemExit):
    """A signal asked the command to end. Its exit code is the shell's for that signal: 143 for SIGTERM, 130 for SIGINT.

    For SIGINT it takes the place of KeyboardInterrupt, for which click prints an empty line.
    """

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        super().__init__(self.exit_code)
        self.reason = _describe(number)


class _Handler:
    """Ends the process at once while it is loading, when nothing has to be cleaned up; later raises an exception."""

    def __init__(self) -> None:
        self.is_loading = True
        self.last_s: float | None = None

    def __call__(self, number: int, _: FrameType | None) -> None:
        if self.is_loading:
            os.write(2, f"three-walls: error: {_describe(number)}\n".encode())
            os._exit(128 + number)  # half-imported libraries may not survive an orderly end
        now_s = time.monotonic()
        if self.last_s is None or now_s - self.last_s > _REPEATED_S:
            self.last_s = now_s
            raise Terminated(number)


def _describe(number: int) -> str:
    return "interrupted" if number == signal.SIGINT else f"terminated ({signal.Signals(number).name})"


_handler = _Handler()


def handle_signals() -> None:
    """From now on a signal ends the process with one line. A signal that is ignored, as under nohup, stays ignored."""
    for number in _SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _handler)
    sys.unraisablehook = _send_again


def _send_again(lost: Any) -> None:
    """A signal that came where Python ignores exceptions, as in what a library calls back, comes again."""
    if not isinstance(lost.exc_value, Terminated):
        sys.__unraisablehook__(lost)
        return
    _handler.last_s = None
    threading.Timer(_AGAIN_S, os.kill, (os.getpid(), lost.exc_value.exit_code - 128)).start()


def finish_loading() -> None:
    """From now on a signal raises Terminated, so that temporary files and child processes are removed."""
    _handler.is_loading = False


@contextmanager
def loading() -> Iterator[None]:
    """For imports of a command that has begun: a signal ends the process at once, as while the command was imported."""
    was_loading, _handler.is_loading = _handler.is_loading, True
    try:
        yield
    finally:
        _handler.is_loading = was_loading


def finish() -> None:
    """From now on signals are ignored: the command has ended, and only the interpreter is left to shut down."""
    for number in _SIGNALS:
        if signal.getsignal(number) is _handler:
            signal.signal(number, signal.SIG_IGN)
