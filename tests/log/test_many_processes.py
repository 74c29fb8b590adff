"""A log that very many processes write at the same time: memory stays bounded, and what was left out is stated."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest
from examples import ARGUMENTS, OOM, iteration, rank_timers, read
from trace_builder import ADAM, GEMM, TraceBuilder

from three_walls import analyze
from three_walls.lib import limits
from three_walls.log.collect_log import Collector
from three_walls.log.read_log import read_text
from three_walls.log.training_log import TrainingLog

pytestmark = pytest.mark.slow

TRACEBACK = "Traceback (most recent call last):"
MIB = 1 << 20


def frame(function: str) -> str:
    return f'  File "/opt/megatron/core/optimizer/optimizer.py", line 12, in {function}'


def in_turns(processes: int, lines: Iterable[str]) -> list[str]:
    """``lines`` of every process: the first line of each, then the second of each, and so on."""
    return [f"[rank{rank}]:{line}" for line in lines for rank in range(processes)]


def read_lines(lines: Iterable[str]) -> tuple[TrainingLog, int]:
    """The log, and the most memory that reading it took, in bytes."""
    data = "".join(f"{line}\n" for line in lines).encode()
    collector = Collector()
    tracemalloc.start()
    try:
        read_text((data[at : at + MIB] for at in range(0, len(data), MIB)), collector, "train.log")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return collector.result(("train.log",)), peak_bytes


def limit_open_blocks(monkeypatch: pytest.MonkeyPatch, limit_bytes: int) -> None:
    monkeypatch.setattr(limits, "MOST_OPEN_BLOCK_BYTES", limit_bytes)


def test_blocks_of_some_hundred_processes_are_read_in_turns(tmp_path: Path) -> None:
    log = read(tmp_path, *in_turns(512, ARGUMENTS))
    assert log.argument_block == read(tmp_path, *ARGUMENTS).argument_block
    assert (log.left_out_blocks, log.unplaced_lines_count) == ((), 0)


@pytest.mark.attack
@pytest.mark.parametrize("processes", [8_000, 16_000])
def test_open_blocks_take_no_more_memory_than_stated_however_many_processes_write(
    monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    limit_open_blocks(monkeypatch, 4 * MIB)
    log, peak_bytes = read_lines(in_turns(processes, ARGUMENTS[:2]))
    assert peak_bytes < 4 * MIB + 6 * MIB  # the text of a chunk and the places of its anchors
    ((kind, count),) = log.left_out_blocks or (("", 0),)
    assert log.argument_block or (kind == "argument_block" and count > processes // 2)


def test_very_large_blocks_take_no_more_memory_than_stated_and_the_small_one_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit_open_blocks(monkeypatch, 4 * MIB)
    large = in_turns(4, ["Final configuration:", *(f"  key{line}: {'v' * 12_000}" for line in range(400))])
    small = [f"[node0]:{line}" for line in ARGUMENTS]
    log, peak_bytes = read_lines([*large[:200], *small, *large[200:]])
    assert peak_bytes < 4 * MIB + 8 * MIB
    assert len(log.argument_block) == len(ARGUMENTS) - 2
    assert log.config_dump is None
    assert log.left_out_blocks == (("config_dump", 4),)


def test_a_block_that_was_left_out_is_none_where_another_process_printed_it_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit_open_blocks(monkeypatch, 40 * 1024)
    log, _ = read_lines(in_turns(100, ARGUMENTS))
    assert log.argument_block
    assert log.left_out_blocks == ()


def test_a_traceback_is_as_large_as_its_last_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_open_blocks(monkeypatch, 4 * 1024)
    frames = [frame(f"called_{depth}") for depth in range(2_000)]
    log, _ = read_lines([TRACEBACK, *frames, frame("step"), OOM.removeprefix("[rank3]: ")])
    assert [oom.raised_in for oom in log.ooms] == ["megatron/core/optimizer/optimizer.py: step"]
    assert log.left_out_blocks == ()


def test_a_function_of_a_traceback_with_an_impossible_name_is_not_kept() -> None:
    log, _ = read_lines([TRACEBACK, frame("step"), frame("f" * 5_000), OOM.removeprefix("[rank3]: ")])
    assert [oom.raised_in for oom in log.ooms] == ["megatron/core/optimizer/optimizer.py: step"]


def test_processes_are_distinguished_by_the_end_of_very_long_prefixes() -> None:
    pods = [f"[pod/{'a' * 900}/{name}] " for name in ("first", "second")]
    turns = [f"{pod}{line}" for line in ARGUMENTS for pod in pods]
    assert read_lines(turns)[0].argument_block == read_lines(ARGUMENTS)[0].argument_block


def warnings_of(tmp_path: Path, *lines: str) -> dict[str, str]:
    builder = TraceBuilder()
    for at in range(1, 500_000_000, 100_000_000):
        builder.kernel(GEMM, at, at + 90_000_000).kernel(ADAM, at + 90_000_000, at + 100_000_000)
    log = tmp_path / "train.log"
    log.write_text("".join(f"{line}\n" for line in lines))
    warnings = analyze(builder.write(tmp_path / f"{len(list(tmp_path.iterdir()))}.sqlite"), logs=[log]).warnings
    return {warning.code: warning.message for warning in warnings if warning.code.endswith("-left-out")}


def test_a_warning_states_which_blocks_were_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timers = rank_timers({"optimizer": {0: 1.25, 1: 1.5}})
    lines = [iteration(1, 75.0), *in_turns(300, [*timers[:3], TRACEBACK])]
    assert warnings_of(tmp_path, *lines) == {}
    limit_open_blocks(monkeypatch, 100 * 1024)
    (message,) = warnings_of(tmp_path, *lines).values()
    assert message.startswith("Blocks of the log that were left out, because more than 0 MiB of them were open")
    assert "of the timers of every rank" in message
    assert message.endswith("Give the logs of the first and the last rank alone.")


def test_a_warning_states_that_not_all_processes_are_distinguished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"[rank{rank}]:{iteration(rank + 1, 75.0)}" for rank in range(12)]
    assert warnings_of(tmp_path, *lines) == {}
    monkeypatch.setattr(limits, "MOST_PROCESSES", 10)
    (message,) = warnings_of(tmp_path, *lines).values()
    assert message.startswith("The log is of more than 10 processes. Of 2 iteration lines")
