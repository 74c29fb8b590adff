"""Finding traces, unpacking them, and refusing what is none, in one line each."""

from __future__ import annotations

import lzma
import os
import resource
import shutil
import sqlite3
import sys
import tempfile
from collections import namedtuple
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest
import zstandard
from trace_builder import TraceBuilder

from three_walls import analyze
from three_walls.lib import limits
from three_walls.lib.errors import InputError
from three_walls.lib.threads import read_each, work_meanwhile
from three_walls.trace import trace_files
from three_walls.trace.trace_files import find_traces, hash_file, keep_unpacked, plain_sqlite, unpack_sqlite


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught, plain_sqlite(path):
        pass
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("suffix", [".xz", ".zst"])
def test_a_compressed_trace_is_unpacked_and_the_copy_removed(tmp_path: Path, suffix: str) -> None:
    plain = TraceBuilder().steps(2).write(tmp_path / "trace.sqlite").read_bytes()
    packed = tmp_path / f"trace.sqlite{suffix}"
    packed.write_bytes(lzma.compress(plain) if suffix == ".xz" else zstandard.compress(plain))
    with plain_sqlite(packed) as unpacked:
        assert unpacked.read_bytes() == plain
    assert not unpacked.exists()


def pack_trace(directory: Path) -> Path:
    packed = directory / "trace.sqlite.xz"
    packed.write_bytes(lzma.compress(TraceBuilder().steps(2).write(directory / "trace.sqlite").read_bytes()))
    return packed


def test_a_trace_is_unpacked_once_while_copies_are_kept_in_all_threads_that_begin_there(tmp_path: Path) -> None:
    packed = pack_trace(tmp_path)

    def find_copy() -> Path:
        with plain_sqlite(packed) as copy:
            return copy

    with keep_unpacked():
        first = find_copy()
        assert first.exists() and find_copy() == first
        with work_meanwhile(find_copy) as wait:
            assert wait() == first
    assert not first.exists() and find_copy() != first


def test_a_copy_without_room_for_another_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack_trace(tmp_path)
    usage, copy_bytes = shutil.disk_usage(tmp_path), (tmp_path / "trace.sqlite").stat().st_size
    free_bytes = [2 * copy_bytes, copy_bytes]  # before and after unpacking
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free_bytes.pop(0)))
    with keep_unpacked():
        with plain_sqlite(packed) as copy:
            assert copy.exists()
        assert not copy.exists()


@pytest.mark.parametrize(("kept", "expected"), [(1, [True, False, False]), (2, [True, True, False])])
def test_copies_are_kept_up_to_a_size_and_the_first_one_always(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int, expected: list[bool]
) -> None:
    packed = pack_trace(tmp_path)
    others = [packed, *(shutil.copy(packed, tmp_path / f"{name}.sqlite.xz") for name in "ab")]
    monkeypatch.setattr(limits, "MOST_KEPT_BYTES", kept * (tmp_path / "trace.sqlite").stat().st_size)
    with keep_unpacked():
        copies = []
        for path in others:
            with plain_sqlite(path) as copy:
                copies.append(copy)
        assert [copy.exists() for copy in copies] == expected


@pytest.mark.usefixtures("switches_often")
def test_threads_may_keep_copies_at_the_same_time(tmp_path: Path) -> None:
    packed = pack_trace(tmp_path)
    paths = [Path(shutil.copy(packed, tmp_path / f"rank{rank}.sqlite.xz")) for rank in range(24)]

    def find_copy(path: Path) -> Path:
        with plain_sqlite(path) as copy:
            return copy

    for _ in range(5):
        with keep_unpacked():
            copies = read_each(find_copy, paths, 4, lambda _: None)
            assert len(set(copies)) == len(paths) and all(copy.exists() for copy in copies)
        assert not any(copy.exists() for copy in copies)


@pytest.fixture
def switches_often() -> Iterator[None]:
    """Lets threads take turns a thousand times as often as usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.parametrize("suffix", [".sqlite", ".sqlite.xz"])
def test_a_whole_analysis_unpacks_a_trace_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    pack_trace(tmp_path)
    unpacked: list[Path] = []

    def unpack(path: Path, plain: Path) -> None:
        unpacked.append(path)
        unpack_sqlite(path, plain)

    monkeypatch.setattr(trace_files, "unpack_sqlite", unpack)
    analyze(tmp_path / f"trace{suffix}")
    assert len(unpacked) == (suffix == ".sqlite.xz")


def test_what_a_killed_run_unpacked_is_removed_by_the_next_and_what_is_in_use_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    packed = tmp_path / "trace.sqlite.xz"
    packed.write_bytes(lzma.compress(TraceBuilder().steps(2).write(tmp_path / "trace.sqlite").read_bytes()))
    with plain_sqlite(packed) as in_use:
        abandoned = in_use.parent.with_name(f"{in_use.parent.name}-killed")
        shutil.copytree(in_use.parent, abandoned)
        with plain_sqlite(packed) as second:
            assert not abandoned.exists()
            assert in_use.exists() and second.exists() and second != in_use
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_directory_stands_for_its_exports_and_prefers_plain_ones(tmp_path: Path) -> None:
    for name in ("rank1.sqlite.xz", "rank0.sqlite", "rank0.sqlite.xz", "rank2.sqlite.zst", "notes.txt"):
        (tmp_path / name).touch()
    assert [path.name for path in find_traces([tmp_path])] == ["rank0.sqlite", "rank1.sqlite.xz", "rank2.sqlite.zst"]


def test_a_directory_without_exports_is_refused_and_its_directories_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"found none$"):
        find_traces([tmp_path])
    for name in "dacb":
        (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=r"found none, and these directories: a, b, c, \.\.\.$"):
        find_traces([tmp_path])


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        find_traces([tmp_path / "nowhere.sqlite"])


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.sqlite"
    path.touch()
    assert "an empty file" in refusal(path)


def test_a_text_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.sqlite"
    path.write_text("not a database")
    assert "expected a SQLite export of Nsight Systems" in refusal(path)


def test_a_report_that_was_not_exported_gets_the_command_that_does(tmp_path: Path) -> None:
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(b"\x00\x01 report")
    assert "nsys export --type sqlite run.nsys-rep" in refusal(path)


def test_a_zst_file_may_have_several_frames(tmp_path: Path) -> None:
    plain = TraceBuilder().steps(2).write(tmp_path / "trace.sqlite").read_bytes()
    packed = tmp_path / "trace.sqlite.zst"
    packed.write_bytes(zstandard.compress(plain[:1000]) + zstandard.compress(plain[1000:]))
    with plain_sqlite(packed) as unpacked:
        assert unpacked.read_bytes() == plain


@pytest.mark.parametrize("suffix", [".xz", ".zst"])
def test_a_truncated_archive_is_refused(tmp_path: Path, suffix: str) -> None:
    plain = TraceBuilder().steps(2).write(tmp_path / "trace.sqlite").read_bytes()
    packed = lzma.compress(plain) if suffix == ".xz" else zstandard.compress(plain)
    path = tmp_path / f"cut.sqlite{suffix}"
    path.write_bytes(packed[: len(packed) // 2])
    assert "damaged" in refusal(path)


def test_a_directory_named_like_a_trace_is_searched_not_read(tmp_path: Path) -> None:
    (tmp_path / "profiles.sqlite").mkdir()
    (tmp_path / "profiles.sqlite" / "rank0.sqlite").touch()
    assert [path.name for path in find_traces([tmp_path / "profiles.sqlite"])] == ["rank0.sqlite"]


def _bomb(path: Path, size: int) -> Path:
    """Zeros after the beginning of an SQLite file, packed without holding them in memory."""
    pack = lzma.LZMACompressor(preset=0) if path.suffix == ".xz" else zstandard.ZstdCompressor().compressobj()
    with path.open("wb") as packed:
        packed.write(pack.compress(b"SQLite format 3\0"))
        for _ in range(size >> 20):
            packed.write(pack.compress(bytes(1 << 20)))
        packed.write(pack.flush())
    return path


@pytest.mark.slow
@pytest.mark.attack
@pytest.mark.parametrize("suffix", [".xz", ".zst"])
def test_a_bomb_is_refused_before_it_fills_memory_or_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    bomb = _bomb(tmp_path / f"rank0.sqlite{suffix}", 512 << 20)
    monkeypatch.setattr(limits, "MOST_UNPACKED_RATIO", 100)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "unpacks to more than 100 times its size" in refusal(bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize("suffix", [".xz", ".zst"])
def test_an_export_that_would_fill_the_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    plain = TraceBuilder().steps(50).write(tmp_path / "trace.sqlite").read_bytes()
    path = tmp_path / f"rank0.sqlite{suffix}"
    path.write_bytes(lzma.compress(plain) if suffix == ".xz" else zstandard.compress(plain))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, len(plain)))
    assert "more than 80% of the free space" in refusal(path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 2 * len(plain)))
    with plain_sqlite(path) as unpacked:
        assert unpacked.read_bytes() == plain


def test_a_window_that_takes_too_much_memory_is_refused(tmp_path: Path) -> None:
    dictionary = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]
    (tmp_path / "long.sqlite.xz").write_bytes(lzma.compress(b"SQLite format 3\0", filters=dictionary))
    window = zstandard.ZstdCompressionParameters(window_log=30)
    packing = zstandard.ZstdCompressor(compression_params=window).compressobj()
    (tmp_path / "long.sqlite.zst").write_bytes(packing.compress(b"SQLite format 3\0") + packing.flush())
    for suffix in (".xz", ".zst"):
        assert "takes more than 256 MiB of memory to unpack" in refusal(tmp_path / f"long.sqlite{suffix}")


def test_an_xz_file_may_have_several_streams_with_padding(tmp_path: Path) -> None:
    plain = TraceBuilder().steps(2).write(tmp_path / "trace.sqlite").read_bytes()
    packed = tmp_path / "trace.sqlite.xz"
    packed.write_bytes(lzma.compress(plain[:1000]) + bytes(8) + lzma.compress(plain[1000:]) + bytes(4))
    with plain_sqlite(packed) as unpacked:
        assert unpacked.read_bytes() == plain


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_changes_that_are_not_in_the_export_yet_are_named_and_empty_files_are_not(tmp_path: Path, suffix: str) -> None:
    path = TraceBuilder().steps(2).write(tmp_path / "rank0.sqlite")
    other = tmp_path / f"rank0.sqlite{suffix}"
    for content in (b"", bytes(512)):
        other.write_bytes(content)
        with plain_sqlite(path) as plain:
            assert plain == path
    other.write_bytes(b"\x37\x7f\x06\x82" + bytes(508))
    assert f"found rank0.sqlite{suffix} next to it" in refusal(path)


def test_a_real_wal_is_named_and_its_remedy_works_on_a_copy(tmp_path: Path) -> None:
    path = TraceBuilder().steps(2).write(tmp_path / "rank0.sqlite")
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE later (x)")
        database.commit()
        assert "PRAGMA wal_checkpoint(TRUNCATE)" in refusal(path)
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{path}{suffix}", f"{tmp_path / 'copy.sqlite'}{suffix}")
    with closing(sqlite3.connect(tmp_path / "copy.sqlite")) as copy:
        copy.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with plain_sqlite(tmp_path / "copy.sqlite") as plain:
        assert plain.exists()


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.sqlite")
    (tmp_path / "loop.sqlite").symlink_to("loop.sqlite")
    (tmp_path / "zero.sqlite").symlink_to("/dev/zero")
    for name in ("pipe.sqlite", "loop.sqlite", "zero.sqlite"):
        with pytest.raises(InputError) as caught:
            find_traces([tmp_path / name])
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="found none"):
        find_traces([tmp_path])


def test_a_file_is_hashed_while_something_else_is_done(tmp_path: Path) -> None:
    path = tmp_path / "trace.sqlite"
    path.write_bytes(bytes(range(256)) * 10_000)
    with work_meanwhile(partial(hash_file, path)) as wait_for_digest:
        assert wait_for_digest() == sha256(path.read_bytes()).hexdigest() == hash_file(path)


def test_hashing_ends_with_what_it_was_for(tmp_path: Path) -> None:
    path = tmp_path / "trace.sqlite"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # hashing it takes an hour
    with pytest.raises(KeyboardInterrupt), work_meanwhile(partial(hash_file, path)):
        raise KeyboardInterrupt


def test_a_file_that_cannot_be_hashed_is_an_error_of_the_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        hash_file(tmp_path / "none.sqlite")
