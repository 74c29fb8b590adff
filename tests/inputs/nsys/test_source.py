"""Finding traces, unpacking them, and refusing what is none, in one line each."""

from __future__ import annotations

import lzma
import sqlite3
from pathlib import Path

import pytest
import zstandard
from trace_builder import TraceBuilder

from three_walls.inputs.nsys.source import find_traces, plain_sqlite
from three_walls.model.errors import InputError


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


def test_a_directory_stands_for_its_exports_and_prefers_plain_ones(tmp_path: Path) -> None:
    for name in ("rank1.sqlite.xz", "rank0.sqlite", "rank0.sqlite.xz", "rank2.sqlite.zst", "notes.txt"):
        (tmp_path / name).touch()
    assert [path.name for path in find_traces([tmp_path])] == ["rank0.sqlite", "rank1.sqlite.xz", "rank2.sqlite.zst"]


def test_a_directory_without_exports_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found none"):
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
    sqlite3.connect(tmp_path / "profiles.sqlite" / "rank0.sqlite").close()
    assert [path.name for path in find_traces([tmp_path / "profiles.sqlite"])] == ["rank0.sqlite"]
