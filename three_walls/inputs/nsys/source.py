"""Finds trace files, and gives a compressed one as a plain SQLite file. The given files are only read."""

from __future__ import annotations

import hashlib
import lzma
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import zstandard

from three_walls.inputs.given_files import is_directory
from three_walls.model.errors import InputError

SQLITE_MAGIC = b"SQLite format 3\x00"
COMPRESSED_SUFFIXES = (".xz", ".zst")
_CHUNK_BYTES = 1 << 20


def find_traces(paths: list[Path]) -> list[Path]:
    """The trace files that ``paths`` name, in that order; the exports in a directory are sorted by name.

    Of ``rank0.sqlite`` and ``rank0.sqlite.xz`` in one directory only the plain file is read. Raises InputError for a
    path that does not exist and for a directory without exports.
    """
    found: list[Path] = []
    for path in paths:
        if is_directory(path):
            found.extend(_exports_in(path))
        else:
            found.append(path)
    return list(dict.fromkeys(found))


def _exports_in(directory: Path) -> list[Path]:
    by_plain_name: dict[str, Path] = {}
    for path in sorted(directory.iterdir()):
        plain = path.with_suffix("") if path.suffix in COMPRESSED_SUFFIXES else path
        if plain.suffix == ".sqlite" and path.is_file():
            kept = by_plain_name.get(plain.name)
            by_plain_name[plain.name] = path if kept is None or path == plain else kept
    if not by_plain_name:
        raise InputError(
            f"{directory}: expected exports (*.sqlite, *.sqlite.xz, *.sqlite.zst) in this directory, found none"
        )
    return [by_plain_name[name] for name in sorted(by_plain_name)]


def hash_file(path: Path) -> str:
    """SHA-256 of the file as given (compressed if it is), in hex. Raises InputError if it cannot be read."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


@contextmanager
def plain_sqlite(path: Path) -> Iterator[Path]:
    """A path to the uncompressed database. If ``path`` is compressed, this is a temporary copy, removed afterwards.

    Raises InputError if the file cannot be read or is not SQLite, or if its compression is damaged.
    """
    if path.suffix not in COMPRESSED_SUFFIXES:
        _check_magic(path, path)
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="three-walls-") as directory:
        plain = Path(directory) / path.with_suffix("").name
        unpack_sqlite(path, plain)
        yield plain


def unpack_sqlite(path: Path, plain: Path) -> None:
    """Unpacks the compressed export ``path`` into the file ``plain``.

    Raises InputError if it cannot be read, is damaged, or is not SQLite.
    """
    _decompress(path, plain)
    _check_magic(plain, path)


def _decompress(path: Path, plain: Path) -> None:
    try:
        with path.open("rb") as packed, plain.open("wb") as unpacked:
            if path.suffix == ".xz":
                with lzma.open(packed) as stream:
                    shutil.copyfileobj(stream, unpacked, _CHUNK_BYTES)
            else:
                _unpack_zstd(packed, unpacked)
    except (lzma.LZMAError, zstandard.ZstdError, EOFError) as error:
        raise InputError(f"{path}: expected a complete {path.suffix} file, found a damaged one ({error})") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be unpacked ({error.strerror})") from error


def _unpack_zstd(packed: BinaryIO, unpacked: BinaryIO) -> None:
    """Unpacks all frames of a .zst file; raises EOFError if the last one is truncated, where the library is silent."""
    frame = zstandard.ZstdDecompressor().decompressobj()
    while chunk := packed.read(_CHUNK_BYTES):
        while chunk:
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
            unpacked.write(frame.decompress(chunk))
            chunk = frame.unused_data if frame.eof else b""
    if not frame.eof:
        raise EOFError("it ends in the middle of a frame")


def _check_magic(plain: Path, given: Path) -> None:
    try:
        with plain.open("rb") as stream:
            head = stream.read(len(SQLITE_MAGIC))
    except OSError as error:
        raise InputError(f"{given}: cannot be read ({error.strerror})") from error
    if head == SQLITE_MAGIC:
        return
    if given.suffix == ".nsys-rep":
        raise InputError(
            f"{given}: expected a SQLite export, found an Nsight report; run: nsys export --type sqlite {given.name}"
        )
    found = "an empty file" if not head else "something else"
    raise InputError(f"{given}: expected a SQLite export of Nsight Systems (nsys export --type sqlite), found {found}")
