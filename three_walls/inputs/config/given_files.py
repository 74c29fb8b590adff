"""Files that a user names, which may be anything: a pipe or a device would be waited for, or read, for ever."""

from __future__ import annotations

import stat
from pathlib import Path

from three_walls.model.errors import InputError

MOST_BYTES = 16 * 1024 * 1024
"""A real run_config.yaml has 20 to 40 kB, an overrides.txt less."""


def is_directory(path: Path) -> bool:
    """Whether ``path`` is a directory, else it is a file; raises InputError where it is neither or does not exist."""
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
    """The UTF-8 text in ``path``; raises InputError, which says what was ``expected``, where it is none."""
    try:
        if not path.exists() or is_directory(path):
            raise InputError(f"{path}: expected {expected}, found {'a directory' if path.exists() else 'no such file'}")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > MOST_BYTES:
        raise InputError(f"{path}: expected {expected}, found more than {MOST_BYTES // 1024**2} MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected {expected}, found a file that is no text (not UTF-8)") from error
