"""Files without a name, so that nothing is left of them however the program ends, and their publication in one step.

Linux creates such files directly (O_TMPFILE). SQLite opens files by name only, so a file has one for the moment of
opening: empty, or with what was unpacked. On file systems without O_TMPFILE a file keeps its name while it is filled.
A name that a killed run could not remove is removed by the next run in the same directory, which the lock on each
file that is in use makes safe.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from three_walls.model.errors import UsageError

PREFIX = ".scrubbing-"
_DESCRIPTORS = Path("/proc/self/fd")
_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
"""Errors of file systems and old kernels that do not know O_TMPFILE."""


class HiddenFile:
    """An open file, with a name only between :meth:`show` and :meth:`hide`."""

    def __init__(self, directory: Path, descriptor: int, path: Path | None) -> None:
        self._directory = directory
        self._path = path
        self.stream: BinaryIO = os.fdopen(descriptor, "w+b")

    @property
    def path(self) -> Path:
        """Where Python opens it: its name, or its descriptor."""
        return self._path or _DESCRIPTORS / str(self.stream.fileno())

    def show(self) -> Path:
        """Gives it a name, once, for programs that open files by name."""
        if self._path is None:
            path = self._directory / f"{PREFIX}{token_hex(8)}"
            self._path = path  # before it is linked: an interrupt right after that must not leave the name behind
            self._link(path)
        return self._path

    def hide(self) -> None:
        """Takes the name away; whoever has it open goes on."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None

    def publish(self, target: Path, replace: bool) -> None:
        """Makes it ``target``, at once and whole. Raises FileExistsError for one that exists, unless ``replace``."""
        self.stream.flush()
        os.fchmod(self.stream.fileno(), 0o644 & ~_umask())
        os.fsync(self.stream.fileno())  # a full disk shows here at the latest
        if not replace and self._path is None:
            self._link(target)
            return
        path = self.show()
        if replace:
            path.replace(target)
        else:
            os.link(path, target)
            path.unlink()
        self._path = None

    def _link(self, path: Path) -> None:
        descriptors = os.open(_DESCRIPTORS, os.O_RDONLY)  # without a directory Python links the link, not the file
        try:
            os.link(str(self.stream.fileno()), path, src_dir_fd=descriptors, follow_symlinks=True)
        finally:
            os.close(descriptors)


def check_target(target: Path, replace: bool) -> None:
    """Raises UsageError unless ``target`` is a new file, or a plain one that is to be replaced."""
    if target.is_dir():
        raise UsageError(f"{target}: expected a file to write to, found a directory")
    if target.is_symlink():
        raise UsageError(
            f"{target}: expected a file to write to, found a symbolic link; name the file that it stands for"
        )
    if target.exists() and not target.is_file():
        raise UsageError(f"{target}: expected a file to write to, found a device or a pipe")
    if target.exists() and not replace:
        raise _exists_already(target)


@contextmanager
def write_errors(target: Path) -> Iterator[None]:
    """Errors of writing ``target`` as UsageError."""
    try:
        yield
    except FileExistsError as error:
        raise _exists_already(target) from error
    except (OSError, sqlite3.Error) as error:
        raise UsageError(f"{target}: cannot be written ({getattr(error, 'strerror', None) or error})") from error


def _exists_already(target: Path) -> UsageError:
    return UsageError(f"{target}: exists already; choose another name, or replace it with --force")


@contextmanager
def hidden_file(directory: Path) -> Iterator[HiddenFile]:
    """A new, empty file on the file system of ``directory``; removes what killed runs left there. Raises OSError."""
    _remove_leftovers(directory)
    file = _create(directory)
    try:
        yield file
    finally:
        with suppress(OSError):
            file.hide()
        with suppress(OSError):  # a full disk, which the reader of the file has reported
            file.stream.close()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _create(directory: Path) -> HiddenFile:
    if hasattr(os, "O_TMPFILE") and _DESCRIPTORS.is_dir():
        try:
            descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o600)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED or not directory.is_dir():
                raise
        else:
            _lock(descriptor)
            return HiddenFile(directory, descriptor, None)
    while True:
        descriptor, name = tempfile.mkstemp(dir=directory, prefix=PREFIX)
        _lock(descriptor)
        path = Path(name)
        if path.exists():  # another run may have taken it for a leftover before it was locked
            return HiddenFile(directory, descriptor, path)
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Locks a file that is in use; whether nobody else has. File systems without locks never tell."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_leftovers(directory: Path) -> None:
    for path in directory.glob(f"{PREFIX}*"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                state = os.fstat(descriptor)
                if stat.S_ISREG(state.st_mode) and state.st_uid == os.getuid() and _lock(descriptor):
                    path.unlink()
            finally:
                os.close(descriptor)
