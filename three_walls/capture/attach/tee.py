"""Copies what the program prints to where it would have printed it, byte for byte, and to a log file."""

from __future__ import annotations

import os
import selectors
import sys
import threading
from pathlib import Path

from three_walls.capture.attach.start_program import ERR, OUT

_CHUNK_BYTES = 1 << 16
_IDLE_S = 0.5
"""An unfinished line goes into the log after this time without output."""
_MOST_LINE_BYTES = 1 << 20


class Tee:
    """The pipes of the program's output, and a thread that copies them. Use as a context manager.

    Where stdout and stderr are the same file, as in a terminal or after ``2>&1``, the program gets one pipe for both,
    which keeps their order. Else the log gets whole lines of each, in the order in which they arrive.
    """

    def __init__(self, folder: Path, log: int | None) -> None:
        """``folder``: where the pipes are made. ``log``: the open log file, or None for no log. Raises OSError."""
        self._log = log
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
            _wait_until_writable(target)


def _wait_until_writable(target: int) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(target, selectors.EVENT_WRITE)
        selector.select()


def _is_same_file(first: int, second: int) -> bool:
    try:
        return os.path.sameopenfile(first, second)
    except OSError:  # one of them is closed
        return False
