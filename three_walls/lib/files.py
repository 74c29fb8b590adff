"""Reads and checks files that a user names, and writes files whole or not at all.

Until everything is written, it lies in a hidden directory next to the files. A run that is killed cannot remove its
directory. Nobody holds the lock of that, so the next run removes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from three_walls.lib import limits
from three_walls.lib.errors import InputError, UsageError

UNFINISHED = ".three-walls-unfinished-"
"""How the directories begin in which files lie until they are whole."""


@contextmanager
def whole_file(path: Path, *, may_replace: bool = True) -> Iterator[Path]:
    """A path to write to, which becomes ``path`` at the end of the block. An earlier file stays where the block fails.

    Raises FileExistsError where there is a file at ``path``, unless it ``may_replace`` that.
    """
    with working_directory(UNFINISHED, path.parent) as folder:
        unfinished = folder / path.name
        yield unfinished
        if may_replace:
            unfinished.replace(path)
        else:
            path.hardlink_to(unfinished)  # fails where the name is taken, also by another process just now


def write_texts(texts: Mapping[str, str], directory: Path) -> None:
    """Writes texts to files, by their paths below ``directory``. Once all are written, they take their places in order.

    So a full disk leaves all earlier files. Raises OSError.
    """
    with working_directory(UNFINISHED, directory) as folder:
        for name, text in texts.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(encode(text))
        for name in texts:
            (folder / name).replace(directory / name)


def encode(text: str) -> bytes:
    """``text`` as files hold it: a lone surrogate (of a file name that is not UTF-8) is spelled out.

    In JSON the spelling reads back as it was.
    """
    return text.encode("utf-8", errors="backslashreplace")


@contextmanager
def working_directory(prefix: str, parent: Path) -> Iterator[Path]:
    """A temporary directory in ``parent``, locked while it is in use and removed afterwards."""
    for leftover in parent.glob(f"{prefix}*"):
        with suppress(OSError):  # in use, another user's, or removed in the meantime
            _remove_unless_in_use(leftover)
    while True:
        with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as name:
            # Until it is locked, another run or thread may take it for a leftover and remove it: then comes a new one.
            try:
                descriptor = os.open(name, os.O_RDONLY)
            except FileNotFoundError:
                continue
            try:
                with suppress(OSError):  # a file system without locks, where nothing is taken for a leftover either
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                if Path(name).is_dir():
                    yield Path(name)
                    return
            finally:
                os.close(descriptor)
                # A signal may end a removal halfway. It ends this one or that of the directory's own block, not both.
                shutil.rmtree(name, ignore_errors=True)


def _remove_unless_in_use(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid == os.getuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory)
    finally:
        os.close(descriptor)


def open_regular(path: Path) -> BinaryIO:
    """The file at ``path``, to read. A pipe is not waited for.

    Raises OSError for what cannot be opened, and for anything but a regular file.
    """
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "expected a file, found a pipe or a device")
    return file


def is_directory(path: Path) -> bool:
    """Whether ``path`` is a directory rather than a file; raises InputError if it is neither or does not exist."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        reason = "no such file or directory" if missing else f"cannot be read ({error.strerror})"
        raise InputError(f"{path}: {reason}") from error
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise InputError(f"{path}: expected a file, found a pipe or a device; save what it gives as a file first")
    return stat.S_ISDIR(mode)


def read_text_file(path: Path, expected: str) -> str:
    """The UTF-8 text in ``path``. Raises InputError, which states what was ``expected``, if there is none."""
    try:
        if not path.exists() or is_directory(path):
            raise InputError(f"{path}: expected {expected}, found {'a directory' if path.exists() else 'no such file'}")
        with open_regular(path) as file:
            content = file.read(limits.MOST_TEXT_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > limits.MOST_TEXT_BYTES:
        raise InputError(f"{path}: expected {expected}, found more than {limits.MOST_TEXT_BYTES // 1024**2} MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected {expected}, found a file that is not UTF-8 text") from error


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
    except OSError as error:
        raise UsageError(f"{target}: cannot be written ({error.strerror or error})") from error


def _exists_already(target: Path) -> UsageError:
    return UsageError(f"{target}: exists already; choose another name, or replace it with --force")
