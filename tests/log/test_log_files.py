"""Whatever the file is: prefixes, encodings, compression, garbage, one endless line."""

from __future__ import annotations

import gzip
import lzma
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from examples import ARGUMENTS, MEMORY_MB, OOM, SUMMARY, iteration, rank_timers, read
from hypothesis import given
from hypothesis import strategies as st

from three_walls.lib.errors import InputError
from three_walls.lib.limits import MOST_LINE_BYTES
from three_walls.log.collect_log import Collector
from three_walls.log.log_lines import log_grammar
from three_walls.log.read_log import find_logs, read_logs, read_text
from three_walls.log.training_log import TrainingLog

pytestmark = pytest.mark.slow

LINES = [*ARGUMENTS, iteration(1, 900.0), MEMORY_MB, iteration(2, 377.0), OOM]
TEXT = "".join(f"{line}\n" for line in LINES)


def read_bytes(*chunks: bytes) -> TrainingLog:
    collector = Collector()
    read_text(chunks, collector, "train.log")
    return collector.result(("train.log",))


PLAIN = read_bytes(TEXT.encode())


@pytest.mark.parametrize(
    "prefix",
    [
        "[default0]:",
        "0: ",
        " 12: ",
        "node12: ",
        "node12: [default3]:",
        "[default0]:[2026-07-25T10:11:12.345] ",
        "2026-07-25 10:11:12,345 - ",
        "trainer/0 [default0]:",
        "[default0]:INFO:megatron.bridge.training:",
        "rank0: ",
        "[rank3]:",
        "[rank3]: ",
        "node1: ",
        "[1,3]<stdout>:",
        "[1,3]<stderr>: ",
        "[pod/trainer-0/pytorch] ",
        "(Worker pid=1234, ip=10.0.0.1) ",
        "2026-07-25T10:11:12.345678901Z stdout F ",
    ],
)
def test_prefixes_of_launchers_are_stripped(prefix: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in LINES)
    assert read_bytes(text.encode()) == PLAIN


@pytest.mark.parametrize(
    "data",
    [
        TEXT.replace("\n", "\r\n").encode(),
        TEXT.replace("\n", "\n 45%|####      | 45/100\r 46%|####      | 46/100\r").encode(),
        TEXT.encode("utf-16"),
        b"\xff\xfe" + TEXT.encode("utf-16-le"),
        TEXT.encode("utf-16-be"),
        b"\xef\xbb\xbf" + TEXT.encode(),
        TEXT.replace("\n", "\ncaf\xe9 \xfc\n").encode("latin-1"),
        TEXT.encode().replace(b"\n", b"\x00\x00\n\x00"),
        TEXT.encode() + random.Random(1).randbytes(5000),
        TEXT.encode().removesuffix(b"\n"),
        TEXT.replace("\n", "\r").encode(),
        TEXT.replace("\n", "\n\r\r\n").encode(),
        TEXT.replace("iteration", "\x1b[1;32miteration\x1b[0m").replace("\n", "\x1b[K\n\x1b[33m").encode(),
        b"\x7fELF\x02\x01\n" + random.Random(2).randbytes(5000).replace(b"\n", b"") + b"\n" + TEXT.encode(),
        TEXT.encode("utf-16-le"),
    ],
)
def test_encodings_and_line_ends_change_nothing(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(data)
    assert read_logs([path]) == PLAIN


def test_a_line_cut_by_a_chunk_is_one_line() -> None:
    data = TEXT.encode()
    assert read_bytes(*(data[at : at + 7] for at in range(0, len(data), 7))) == PLAIN


def test_a_very_long_line_is_skipped_and_the_next_one_read() -> None:
    endless = [b"x" * 100_000 + b"| consumed samples: "] * 50
    log = read_bytes(*endless, b"\n", TEXT.encode())
    assert log == PLAIN
    assert MOST_LINE_BYTES < 100_000


def test_compressed_files_are_read_and_a_cut_one_as_far_as_it_goes(tmp_path: Path) -> None:
    data = TEXT.encode()
    for suffix, packed in (
        (".xz", lzma.compress(data)),
        (".gz", gzip.compress(data)),
        (".zst", zstandard.compress(data)),
    ):
        path = tmp_path / f"train.log{suffix}"
        path.write_bytes(packed)
        assert read_logs([path]).iterations != ()
        path.write_bytes(packed[: len(packed) - 4])
        read_logs([path])


@pytest.mark.attack
@pytest.mark.parametrize("suffix", [".xz", ".gz", ".zst"])
def test_a_log_that_unpacks_to_far_more_than_any_is_refused(tmp_path: Path, suffix: str) -> None:
    pack = {".xz": lzma.compress, ".gz": gzip.compress, ".zst": zstandard.compress}[suffix]
    path = tmp_path / f"train.log{suffix}"
    path.write_bytes(pack(b"x" * 99 + b"\n") + pack((b"x" * 99 + b"\n") * 1_000_000))
    with pytest.raises(InputError, match="unpacks to more than 200 times its size"):
        read_logs([path])


def test_damaged_and_absent_files_are_one_clear_line(tmp_path: Path) -> None:
    damaged = tmp_path / "train.log.xz"
    damaged.write_bytes(b"this is no xz")
    with pytest.raises(InputError, match=r"damaged"):
        read_logs([damaged])
    with pytest.raises(InputError, match="no such file"):
        read_logs([tmp_path / "absent.log"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="expected training logs"):
        read_logs([tmp_path / "empty"])


def test_what_cannot_be_read_of_a_directory_is_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(TEXT)
    (tmp_path / "damaged.log.xz").write_bytes(b"this is no xz")
    (tmp_path / "binary.out").write_bytes(random.Random(3).randbytes(50_000))
    (tmp_path / "folder.log").mkdir()
    (tmp_path / "dangling.log").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe.log")
    log = read_logs([tmp_path])
    assert log.files == ("binary.out", "damaged.log.xz", "train.log")
    assert [message.partition(" (")[0] for message in log.unread] == [
        "damaged.log.xz: expected a .xz file, found a damaged one"
    ]
    assert replace(log, files=("train.log",), unread=()) == PLAIN
    with pytest.raises(InputError, match="damaged"):
        read_logs([tmp_path, tmp_path / "damaged.log.xz"])


def test_a_directory_in_which_nothing_can_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "damaged.log.xz").write_bytes(b"this is no xz")
    with pytest.raises(InputError, match="damaged"):
        read_logs([tmp_path])


def test_what_the_profiler_printed_beside_a_log_is_no_log(tmp_path: Path) -> None:
    for name in ("rank0.log", "rank0.nsys.log", "rank0.nsys.log.xz"):
        (tmp_path / name).write_text("")
    assert [*find_logs([tmp_path])] == [tmp_path / "rank0.log"]


def test_a_directory_of_logs_is_one_run_and_a_repeated_line_counts_once(tmp_path: Path) -> None:
    for rank in ("0", "3"):
        (tmp_path / rank).mkdir()
        (tmp_path / rank / "stdout.log").write_text(TEXT)
    (tmp_path / "rank0.sqlite").write_text(TEXT)
    log = read_logs([tmp_path])
    assert log.files == ("stdout.log", "stdout.log")
    assert [line.iteration for line in log.iterations] == [1, 2]


def test_an_empty_file_gives_nothing(tmp_path: Path) -> None:
    log = read(tmp_path)
    assert (log.iterations, log.argument_block, log.config_dump) == ((), (), None)


SHORT = [
    ARGUMENTS[0],
    *ARGUMENTS[1:3],
    ARGUMENTS[-1],
    iteration(1, 900.0),
    MEMORY_MB,
    *rank_timers({"optimizer": {0: 1.25}}),
]


def test_a_log_cut_at_any_byte_gives_nothing_that_the_whole_one_does_not() -> None:
    data = "".join(f"{line}\n" for line in SHORT).encode()
    whole = read_bytes(data)
    for end in range(len(data)):
        cut = read_bytes(data[:end])
        assert set(cut.iterations) <= set(whole.iterations)
        assert set(cut.memory) <= set(whole.memory)
        assert set(cut.argument_block) <= set(whole.argument_block)
        assert {timer for timer_print in cut.timers for timer in timer_print.timers} <= set(whole.timers[0].timers)


@given(
    st.integers(0, 2_000),
    st.sampled_from(["[rank1]:W1121 10:11 warning", "\nnoise\n", " 1.5 | x: 3 |", "\x1b[31m", "\0"]),
)
def test_other_output_in_the_middle_of_a_line_changes_no_value(place: int, other: str) -> None:
    text = "".join(f"{line}\n" for line in [iteration(7, 377.25), MEMORY_MB, OOM])
    log = read_bytes((text[:place] + other + text[place:]).encode())
    assert {(line.iteration, line.elapsed_ns) for line in log.iterations} <= {(7, 377_200_000)}
    assert {line.max_allocated_bytes for line in log.memory} <= {round(300.5 * 2**20)}
    assert {line.requested_bytes for line in log.ooms} <= {round(1.5 * 2**30)}


@given(st.binary(max_size=3000))
def test_no_bytes_raise(data: bytes) -> None:
    read_bytes(data)


TIMERS = [*rank_timers({"optimizer": {0: 1.0}}), "     rank  1: ", "max time across ranks (ms):", "    a ..: "]
ANCHORS = [anchor.decode() for anchor in log_grammar().anchors]
fragments = st.sampled_from(
    [*ANCHORS, *LINES, *SUMMARY, *TIMERS, "\n", "\r", "|", ": ", "1", "999999999999999999999999", "9" * 9_000 + ".00"]
)


@given(st.lists(st.one_of(fragments, st.text(max_size=20)), max_size=40))
def test_no_mixture_of_our_own_lines_raises(parts: list[str]) -> None:
    read_bytes("".join(parts).encode("utf-8", "replace"))


def test_a_traceback_or_timers_of_another_process_do_not_end_the_arguments() -> None:
    lines = [*ARGUMENTS[:3], "Traceback (most recent call last):", '  File "a.py", line 1, in b', *ARGUMENTS[3:]]
    assert read_bytes("".join(f"{line}\n" for line in lines).encode()).argument_block == PLAIN.argument_block
    lines[3:5] = rank_timers({"optimizer": {0: 1.0}})
    assert read_bytes("".join(f"{line}\n" for line in lines).encode()).argument_block == PLAIN.argument_block


OTHERS = ["  swiglu ......... True", "  4: nothing", "=" * 70, "model:", "", "NCCL INFO Channel 00/0 : 0[0] -> 1[1]"]


@given(st.lists(st.tuples(st.integers(0, len(LINES)), st.sampled_from(OTHERS)), max_size=30))
def test_other_ranks_lines_in_between_change_nothing(inserted: list[tuple[int, str]]) -> None:
    lines = [f"[default0]:{line}" for line in LINES]
    for place, other in sorted(inserted, reverse=True):
        lines.insert(place, f"[default1]:{other}")
    assert read_bytes("".join(f"{line}\n" for line in lines).encode()) == PLAIN
