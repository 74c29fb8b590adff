"""Directories of tables (``nsys export --type parquetdir`` or ``arrowdir``): which they are, and their digests.

A table is a file that is named like it, with the columns of the SQLite export; unsigned integers are stored as such,
where SQLite has only signed ones. Nsight Systems 2023.4 and newer write both kinds. A table may be compressed, as an
SQLite export may.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from three_walls.lib.threads import check_is_wanted
from three_walls.trace.unpack import COMPRESSED_SUFFIXES

PARQUET, ARROW = ".parquet", ".arrow"
SUFFIXES = ("_pqtdir", "_arwdir")
"""Ends of the names that nsys gives these directories."""
_MARKS = ("META_DATA_EXPORT", "META_DATA_CAPTURE", "StringIds")
"""Tables that every export has."""
_PACKINGS = (*COMPRESSED_SUFFIXES, "")


def is_table_directory(directory: Path) -> bool:
    """Whether ``directory`` is itself an export, and does not only hold some."""
    names = (f"{name}{suffix}{packing}" for name in _MARKS for suffix in (PARQUET, ARROW) for packing in _PACKINGS)
    return any((directory / name).is_file() for name in names)


def list_tables(directory: Path) -> list[Path]:
    """The files of the tables, sorted by name: of one in both formats the parquet file, in both forms the plain one."""
    by_name: dict[str, Path] = {}
    for suffix in (ARROW, PARQUET):
        for packing in _PACKINGS:
            by_name |= {name_table(path): path for path in directory.glob(f"*{suffix}{packing}") if path.is_file()}
    return [by_name[name] for name in sorted(by_name)]


def name_table(path: Path) -> str:
    """The table that the file ``path`` holds."""
    return Path(path.stem).stem if path.suffix in COMPRESSED_SUFFIXES else path.stem


def hash_tables(directory: Path) -> str:
    """SHA-256 over the names and contents of the tables, in hex. Raises OSError."""
    whole = hashlib.sha256()
    for path in list_tables(directory):
        check_is_wanted()
        with path.open("rb") as stream:
            whole.update(f"{path.name} {hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()
