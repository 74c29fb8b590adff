"""Unpacks compressed exports, and compressed tables of one."""

from __future__ import annotations

import lzma
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

from three_walls.lib import limits
from three_walls.lib.errors import InputError
from three_walls.lib.text import in_percent
from three_walls.lib.threads import check_is_wanted

COMPRESSED_SUFFIXES = (".xz", ".zst")
_CHUNK_BYTES = 1 << 20
_ZSTD_CHUNK_BYTES = 1 << 10


def unpack(path: Path, plain: Path) -> None:
    """Unpacks ``path`` into ``plain``, within ``limits``. Raises InputError if it cannot be read or is damaged."""
    try:
        _decompress(path, plain)
    except (lzma.LZMAError, zstandard.ZstdError, EOFError) as error:
        if "memory" in str(error).lower():
            most = f"{limits.MOST_UNPACKING_BYTES >> 20} MiB"
            raise InputError(f"{path}: takes more than {most} of memory to unpack; unpack it yourself first") from error
        raise InputError(f"{path}: expected a complete {path.suffix} file, found a damaged one ({error})") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be unpacked ({error.strerror})") from error


def _decompress(path: Path, plain: Path) -> None:
    plausible_bytes = max(path.stat().st_size * limits.MOST_UNPACKED_RATIO, limits.ALWAYS_UNPACKED_BYTES)
    with path.open("rb") as packed, plain.open("wb", buffering=_CHUNK_BYTES) as unpacked:
        free_bytes = shutil.disk_usage(plain.parent).free * limits.MOST_UNPACKED_SHARE_OF_FREE_DISK
        unpacked_bytes = 0
        for chunk in _unpack_xz(packed) if path.suffix == ".xz" else _unpack_zstd(packed):
            check_is_wanted()
            unpacked_bytes += unpacked.write(chunk)
            if unpacked_bytes > plausible_bytes:
                raise InputError(
                    f"{path}: expected a compressed export, found a file that unpacks to more than "
                    f"{limits.MOST_UNPACKED_RATIO:,} times its size"
                )
            if unpacked_bytes > free_bytes:
                raise InputError(
                    f"{path}: unpacked it takes more than "
                    f"{in_percent(limits.MOST_UNPACKED_SHARE_OF_FREE_DISK, 0)} of the free space in "
                    f"{tempfile.gettempdir()}; set TMPDIR to a directory with more, or unpack it yourself"
                )


def _unpack_xz(packed: BinaryIO) -> Iterator[bytes]:
    """What the streams of a .xz file hold, in pieces; raises EOFError if the last one is truncated."""
    stream = lzma.LZMADecompressor(memlimit=limits.MOST_UNPACKING_BYTES)
    while chunk := packed.read(_CHUNK_BYTES):
        while chunk or not (stream.eof or stream.needs_input):
            if stream.eof:
                chunk = chunk.lstrip(b"\0")  # between streams there may be padding
                if not chunk:
                    break
                stream = lzma.LZMADecompressor(memlimit=limits.MOST_UNPACKING_BYTES)
            yield stream.decompress(chunk, _CHUNK_BYTES)
            chunk = stream.unused_data if stream.eof else b""
    if not stream.eof:
        raise EOFError("it ends in the middle of a stream")


def _unpack_zstd(packed: BinaryIO) -> Iterator[bytes]:
    """What the frames of a .zst file hold, in pieces; raises EOFError if the last is truncated.

    The library gives all that a piece of input unpacks to at once, so the pieces of input are small: 1 KiB of zeros
    takes 32 MiB.
    """
    unpacker = zstandard.ZstdDecompressor(max_window_size=limits.MOST_UNPACKING_BYTES)
    frame = unpacker.decompressobj()
    while chunk := packed.read(_ZSTD_CHUNK_BYTES):
        while chunk:
            if frame.eof:
                frame = unpacker.decompressobj()
            yield frame.decompress(chunk)
            chunk = frame.unused_data if frame.eof else b""
    if not frame.eof:
        raise EOFError("it ends in the middle of a frame")
