"""Log files, plain or compressed, as streams of UTF-8 bytes; they are only ever read."""

from __future__ import annotations

import codecs
import gzip
import lzma
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import zstandard

from three_walls.inputs.given_files import is_directory
from three_walls.model.errors import InputError

CHUNK_BYTES = 1 << 20
LOG_SUFFIXES = (".log", ".out", ".err", ".txt")
COMPRESSED_SUFFIXES = (".xz", ".zst", ".gz")
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class LogFile:
    """``is_named``: the user named the file itself, so it must be readable; otherwise a directory that holds it."""

    path: Path
    is_named: bool


def find_logs(paths: Sequence[Path]) -> list[LogFile]:
    """The files that ``paths`` name: files as given, directories searched to any depth, sorted by path.

    Raises InputError for a path that does not exist or a directory without logs.
    """
    found: dict[Path, LogFile] = {}
    for path in paths:
        if is_directory(path):
            for inside in _logs_in(path):
                found.setdefault(inside, LogFile(inside, is_named=False))
        else:
            found[path] = LogFile(path, is_named=True)
    return list(found.values())


def _logs_in(directory: Path) -> list[Path]:
    found = [path for path in directory.rglob("*") if _plain_name(path).suffix in LOG_SUFFIXES and path.is_file()]
    if not found:
        wanted = ", ".join(f"*{suffix}" for suffix in LOG_SUFFIXES)
        raise InputError(f"{directory}: expected training logs ({wanted}; also .xz, .zst, .gz), found none")
    return sorted(found)


def _plain_name(path: Path) -> Path:
    return path.with_suffix("") if path.suffix in COMPRESSED_SUFFIXES else path


def read_chunks(path: Path) -> Iterator[bytes]:
    """The file's text in chunks of about a MiB, as UTF-8; bytes in any other encoding pass as they are.

    A compressed file that ends early is read as far as it goes: the log of a running job does. Raises InputError
    where the file cannot be read or its compression is damaged.
    """
    try:
        with path.open("rb") as file:
            yield from _decode(_unpack(path.suffix, file))
    except EOFError:
        return
    except (lzma.LZMAError, zstandard.ZstdError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: expected a {path.suffix} file, found a damaged one ({error})") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error


def _unpack(suffix: str, file: BinaryIO) -> Iterator[bytes]:
    if suffix == ".xz":
        with lzma.LZMAFile(file) as stream:
            yield from _chunks(stream)
    elif suffix == ".gz":
        with gzip.GzipFile(fileobj=file) as stream:
            yield from _chunks(stream)
    elif suffix == ".zst":
        yield from _chunks(zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))
    else:
        yield from _chunks(file)


def _chunks(stream: _Readable) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


def _decode(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """UTF-16 with its mark as UTF-8, and no NUL bytes (sparse files, UTF-16 without its mark)."""
    decoder = None
    for number, chunk in enumerate(chunks):
        if number == 0 and chunk[:2] in _UTF16_MARKS:
            decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
        text = decoder.decode(chunk).encode("utf-8", "replace") if decoder else chunk
        if number == 0:
            text = text.removeprefix(codecs.BOM_UTF8)
        yield text.replace(b"\0", b"") if b"\0" in text else text
