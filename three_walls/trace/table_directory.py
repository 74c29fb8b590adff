"""Directories of tables (``nsys export --type parquetdir`` or ``arrowdir``): which they are, and their digests.

A table is a file that is named like it, with the columns of the SQLite export; unsigned integers are stored as such,
where SQLite has only signed ones. Nsight Systems 2023.4 and newer write both kinds.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from three_walls.lib.threads import check_is_wanted

PARQUET, ARROW = ".parquet", ".arrow"
SUFFIXES = ("_pqtdir", "_arwdir")
"""Ends of the names that nsys gives these directories."""
_MARKS = ("META_DATA_EXPORT", "META_DATA_CAPTURE", "StringIds")
"""Tables that every export has."""


def is_table_directory(directory: Path) -> bool:
    """Whether ``directory`` is itself an export, and does not only hold some."""
    return any((directory / f"{name}{suffix}").is_file() for name in _MARKS for suffix in (PARQUET, ARROW))


def list_tables(directory: Path) -> list[Path]:
    """The files of the tables, sorted by name; of a table in both formats the parquet file."""
    by_name: dict[str, Path] = {}
    for suffix in (ARROW, PARQUET):
        by_name |= {path.stem: path for path in directory.glob(f"*{suffix}") if path.is_file()}
    return [by_name[name] for name in sorted(by_name)]


def hash_tables(directory: Path) -> str:
    """SHA-256 over the names and contents of the tables, in hex. Raises OSError."""
    whole = hashlib.sha256()
    for path in list_tables(directory):
        check_is_wanted()
        with path.open("rb") as stream:
            whole.update(f"{path.name} {hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()
