"""Calls that can be of several groups are matched by when they end."""

from __future__ import annotations

from pathlib import Path

import pytest
from lockstep import EPOCH
from trace_builder import MEGATRON, TraceBuilder

from tests.measured import measure
from three_walls.report.report import Report
from three_walls.step.step_rows import Wait

pytestmark = pytest.mark.slow

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
US = 1_000
STEP = 1_000 * US
EVERYONE = (0, 1, 2, 3)

Meeting = tuple[tuple[int, ...], int, int]
"""Who takes part, when the first arrives (each other 10 us later), how long after the last arrival they leave."""


def compare(tmp_path: Path, meetings: list[Meeting], flags: str = "--pipeline-model-parallel-size 2") -> Report:
    """Four ranks, two pipeline stages of two, each of whose steps of 1 ms has these ``meetings`` (times in us)."""
    tmp_path.mkdir(exist_ok=True)
    paths = []
    for rank in EVERYONE:
        builder = TraceBuilder(process=(1 << 48) + ((10 + rank) << 24), session_start_ns=EPOCH).steps(5, STEP)
        builder.launched_as(f"{MEGATRON} {flags}", RANK=str(rank), WORLD_SIZE="4")
        for step in range(5):
            for members, first, transfer in meetings:
                if rank in members:
                    begin = 1 + step * STEP + (first + 10 * members.index(rank)) * US
                    end = 1 + step * STEP + (first + 10 * (len(members) - 1) + transfer) * US
                    builder.kernel(ALL_REDUCE, begin, end, stream=20)
        paths.append(builder.write(tmp_path / f"rank{rank}.sqlite"))
    return measure(paths)


def all_reduces(report: Report) -> list[Wait]:
    return [wait for wait in report.waits if wait.communication_class == "all_reduce"]


MIXED: list[Meeting] = [
    ((0, 2), 100, 50),  # a pipeline's first and last stage
    ((1, 3), 120, 70),
    ((0, 1), 300, 40),  # data parallelism of one stage
    ((2, 3), 320, 60),
    (EVERYONE, 500, 30),
]


def test_each_call_finds_its_own_group(tmp_path: Path) -> None:
    found = all_reduces(compare(tmp_path, MIXED))
    assert all(wait.resolved for wait in found)
    waited = {wait.rank: (wait.wait_ns, wait.transfer_ns) for wait in found}
    # First of a pair waits 10 us, second not at all; of all four rank 0 waits 30, rank 3 nothing.
    assert waited == {
        0: ((10 + 10 + 30) * US, (50 + 40 + 30) * US),
        1: ((10 + 0 + 20) * US, (70 + 40 + 30) * US),
        2: ((0 + 10 + 10) * US, (50 + 60 + 30) * US),
        3: (0, (70 + 60 + 30) * US),
    }


def test_a_call_that_only_the_last_stage_makes_shifts_no_other(tmp_path: Path) -> None:
    found = all_reduces(compare(tmp_path, [*MIXED[:4], ((2, 3), 450, 20), MIXED[4]]))
    assert all(wait.resolved for wait in found)
    assert {wait.rank: wait.wait_ns for wait in found} == {0: 50 * US, 1: 30 * US, 2: 30 * US, 3: 0}


def test_calls_that_no_group_leaves_together_are_not_split(tmp_path: Path) -> None:
    apart: list[Meeting] = [((rank,), 100 + 200 * rank, 150) for rank in EVERYONE]
    found = all_reduces(compare(tmp_path, apart))
    assert len(found) == 4
    assert not any(wait.resolved for wait in found)
    assert all("do not fit together in time" in wait.note for wait in found)


def test_a_rank_with_two_calls_that_end_together_is_matched_with_no_other(tmp_path: Path) -> None:
    one_each: list[Meeting] = [((0, 2), 100, 50), ((0, 2), 300, 50)]
    assert all(wait.resolved for wait in all_reduces(compare(tmp_path / "one", one_each)))
    twice: list[Meeting] = [*one_each, ((0,), 105, 55), ((0,), 305, 55)]
    found = all_reduces(compare(tmp_path / "two", twice))
    assert {wait.rank for wait in found} == {0, 2}
    assert not any(wait.resolved for wait in found)


@pytest.mark.parametrize("flags", ["", "--tensor-model-parallel-size 2 --expert-tensor-parallel-size 1"])
def test_ranks_that_leave_together_but_are_no_group_are_not_matched(tmp_path: Path, flags: str) -> None:
    crossed: list[Meeting] = [((0, 3), 100, 50), ((1, 2), 400, 50)]
    found = all_reduces(compare(tmp_path, crossed, flags))
    assert not any(wait.resolved for wait in found)
