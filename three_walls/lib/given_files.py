"""Checks files that a user names, to read or to write. A pipe or a device could block or never end."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from three_walls.lib import limits
from three_walls.lib.errors import InputError, UsageError


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
        with path.open("rb") as file:
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
    except (OSError, sqlite3.Error) as error:
        raise UsageError(f"{target}: cannot be written ({getattr(error, 'strerror', None) or error})") from error


def _exists_already(target: Path) -> UsageError:
    return UsageError(f"{target}: exists already; choose another name, or replace it with --force")
