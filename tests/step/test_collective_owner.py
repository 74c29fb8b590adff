"""The owner of a collective: which evidence shows it, and that other evidence changes nothing."""

from __future__ import annotations

import struct
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_builder import ALL_GATHER, MEGATRON, SEND_RECV, TraceBuilder

from tests.measured import measure
from three_walls.lib.fact import Fact
from three_walls.tables.buckets import COMMUNICATION_CATEGORIES as COMMUNICATION

pytestmark = pytest.mark.slow

REDUCE_SCATTER = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE = "ncclDevKernel_Reduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

TP2 = "--tensor-model-parallel-size 2 --sequence-parallel --expert-tensor-parallel-size 1"
TP8 = "--tensor-model-parallel-size 8 --sequence-parallel"
EP8 = "--expert-tensor-parallel-size 1 --expert-model-parallel-size 8 --moe-token-dispatcher-type alltoall"
EP4 = "--expert-model-parallel-size 4"
DISTRIBUTED = "--use-distributed-optimizer"


def owners(tmp_path: Path, kernel: str, flags: str, text: str = "", *, grid: int = 24) -> set[str]:
    """Classes of a collective at the end of each step's GEMMs, launched inside ``text``."""
    builder = TraceBuilder().steps(4).launched_as(f"{MEGATRON} {flags}", RANK="0", WORLD_SIZE="8")
    for at in (602, 1602, 2602, 3602):
        builder.kernel(kernel, at, at + 40, stream=20, launched=at - 5, grid=grid)
        if text:
            builder.nvtx(text, at - 6, at - 3)
    report = measure(builder.write(Path(mkdtemp(dir=tmp_path)) / "trace.sqlite"))
    return set(report.ranks[0].communication)


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (ALL_GATHER, "LinearWithGradAccumulationAndAsyncCommunication, seq = 1, op_id = 2"),
        (REDUCE_SCATTER, "_ReduceScatterToSequenceParallelRegion, seq = 1"),
        (ALL_GATHER, "_ReduceScatterToSequenceParallelRegionBackward, seq = 1"),
        (ALL_REDUCE, "_VocabParallelCrossEntropy, seq = 1"),
        (REDUCE, "_GatherFromSequenceParallelRegionBackward, seq = 1"),
    ],
)
def test_a_range_of_tensor_parallelism_owns_what_it_launches_where_that_is_on(
    tmp_path: Path, kernel: str, text: str
) -> None:
    assert owners(tmp_path, kernel, TP2, text) == {"tensor_parallel"}
    assert "tensor_parallel" not in owners(tmp_path, kernel, f"{EP4} {DISTRIBUTED}", text)


def test_coalesced_collectives_are_data_parallel(tmp_path: Path) -> None:
    text = "nccl:all_gather_into_tensor_coalesced, op_id = 7"
    assert owners(tmp_path, ALL_GATHER, f"{TP2} {DISTRIBUTED}", text) == {"data_parallel"}
    c10d = "c10d::allgather_into_tensor_coalesced_, seq = 1, op_id = 7"
    assert owners(tmp_path, ALL_GATHER, f"{TP2} {DISTRIBUTED}", c10d) == {"data_parallel"}
    # Another all-gather of PyTorch shows nothing about its owner.
    assert owners(tmp_path, ALL_GATHER, f"{TP2} {DISTRIBUTED}", "nccl:_all_gather_base, op_id = 7") == {"all_gather"}


@pytest.mark.parametrize(
    ("kernel", "flags", "grid", "owner"),
    [
        (REDUCE_SCATTER, f"{EP4} {DISTRIBUTED}", 1, "data_parallel"),
        (ALL_GATHER, f"{EP4} {DISTRIBUTED}", 24, "data_parallel"),
        (ALL_GATHER, f"{EP4} {DISTRIBUTED}", 1, "ep_control"),  # one channel: token counts
        (ALL_GATHER, DISTRIBUTED, 1, "all_gather"),  # no token counts without expert parallelism
        (ALL_REDUCE, EP4, 24, "data_parallel"),  # gradients without the distributed optimizer
        (ALL_REDUCE, EP4, 1, "all_reduce"),  # norms and losses
        (ALL_REDUCE, f"{EP4} {DISTRIBUTED}", 24, "all_reduce"),
        (REDUCE_SCATTER, f"{TP2} {DISTRIBUTED}", 24, "reduce_scatter"),  # either
        (REDUCE_SCATTER, f"--context-parallel-size 2 {DISTRIBUTED}", 24, "reduce_scatter"),
        (REDUCE_SCATTER, TP8, 24, "tensor_parallel"),  # no two ranks hold the same parameters
        (ALL_GATHER, TP8, 1, "tensor_parallel"),
        (REDUCE_SCATTER, f"{TP8} --num-experts 8 --expert-tensor-parallel-size 1", 24, "reduce_scatter"),  # of experts
        (ALL_GATHER, f"{TP8} --num-experts 8 {EP8}", 24, "tensor_parallel"),
        (ALL_GATHER, f"{TP8} --num-experts 8 {EP8}", 1, "all_gather"),  # it may be token counts
        (REDUCE_SCATTER, "--expert-model-parallel-size 8 --moe-token-dispatcher-type allgather", 24, "reduce_scatter"),
    ],
)
def test_the_sizes_decide_where_a_single_owner_is_left(
    tmp_path: Path, kernel: str, flags: str, grid: int, owner: str
) -> None:
    assert owners(tmp_path, kernel, flags, grid=grid) == {owner}


def test_a_run_of_unknown_sizes_keeps_its_operations(tmp_path: Path) -> None:
    builder = TraceBuilder().steps(4)
    for at in (602, 1602, 2602, 3602):
        builder.kernel(REDUCE_SCATTER, at, at + 40, stream=20, launched=at - 5, grid=24)
    assert set(measure(builder.write(tmp_path / "trace.sqlite")).ranks[0].communication) == {"reduce_scatter"}


def of_communicator(tmp_path: Path, communicators: tuple[int, int], flags: str = TP2) -> dict[str, int]:
    """Two all-gathers per step, the first in a range of tensor parallelism: busy ns by class in the median step."""
    builder = TraceBuilder().steps(4).launched_as(f"{MEGATRON} {flags}", RANK="0", WORLD_SIZE="8")
    builder.nccl_schema(20, 16, (18, "NCCL communicator ID", None), (22, "Message size [bytes]", 8))
    for at in (602, 1602, 2602, 3602):
        for number, communicator in enumerate(communicators):
            start = at + 50 * number
            builder.kernel(ALL_GATHER, start, start + 40, stream=20, launched=start - 5, grid=24)
            builder.nccl_call("ncclAllGather", start - 6, start - 3, 20, struct.pack("<QQ", communicator, 64))
        builder.nvtx("_ReduceScatterToSequenceParallelRegionBackward, seq = 1", at - 8, at - 2)
    report = measure(builder.write(Path(mkdtemp(dir=tmp_path)) / "trace.sqlite"))
    return {name: communication.busy_ns for name, communication in report.ranks[0].communication.items()}


def test_a_range_settles_its_communicator_and_no_other(tmp_path: Path) -> None:
    assert of_communicator(tmp_path, (7, 7)) == {"tensor_parallel": 80}
    assert of_communicator(tmp_path, (7, 8)) == {"tensor_parallel": 40, "all_gather": 40}


def test_the_gather_of_token_counts_is_no_tensor_parallelism(tmp_path: Path) -> None:
    text = "_GatherFromSequenceParallelRegion, seq = 1"
    both = f"{TP2} --expert-model-parallel-size 2"
    assert owners(tmp_path, ALL_GATHER, both, text, grid=1) == {"ep_control"}
    assert owners(tmp_path, ALL_GATHER, both, text, grid=24) == {"tensor_parallel"}
    assert owners(tmp_path, ALL_GATHER, TP2, text, grid=1) == {"tensor_parallel"}


@pytest.mark.parametrize(
    ("exchange", "grid", "owner"),
    [("_AllToAll", 1, "ep_control"), ("_AllToAll", 24, "tensor_parallel"), ("", 1, "tensor_parallel")],
)
def test_without_sizes_an_all_to_all_of_experts_shows_that_token_counts_are_gathered(
    tmp_path: Path, exchange: str, grid: int, owner: str
) -> None:
    builder = TraceBuilder().steps(4)
    for at in (602, 1602, 2602, 3602):
        builder.kernel(ALL_GATHER, at, at + 40, stream=20, launched=at - 5, grid=grid)
        builder.nvtx("_GatherFromSequenceParallelRegion, seq = 1", at - 6, at - 3)
        builder.kernel(SEND_RECV, at + 50, at + 90, stream=20, launched=at + 45, grid=24)
        if exchange:
            builder.nvtx(exchange, at + 44, at + 47)
    exchanged = "ep_all_to_all" if exchange else "send_recv_ambiguous"
    assert set(measure(builder.write(tmp_path / "trace.sqlite")).ranks[0].communication) == {owner, exchanged}


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from([ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, SEND_RECV]),
            st.integers(1, 3900),
            st.integers(1, 90),
            st.sampled_from([7, 20, 30]),
            st.sampled_from([1, 24]),
        ),
        max_size=12,
    ),
    flags=st.sampled_from(["", TP2, f"{EP4} {DISTRIBUTED}", f"{TP2} {EP4} {DISTRIBUTED}"]),
)
def test_owners_only_divide_the_communication_that_there_is(
    tmp_path: Path, calls: list[tuple[str, int, int, int, int]], flags: str
) -> None:
    def totals(command: str) -> list[tuple[int, int]]:
        builder = TraceBuilder().steps(4).launched_as(command, RANK="0", WORLD_SIZE="8")
        for name, start, length, stream, grid in calls:
            builder.kernel(name, start, start + length, stream=stream, grid=grid, launched=max(start - 5, 1))
        path = tmp_path / "trace.sqlite"
        path.unlink(missing_ok=True)
        rank = measure(builder.write(path)).ranks[0]
        communication = [ns for name, ns in rank.budget.items() if name in COMMUNICATION]
        return [(sum(rank.budget.values()), sum(communication))]

    assert totals(f"{MEGATRON} {flags}") == totals("train.py")


def dp_exposed(tmp_path: Path, length: int, flags: str) -> Fact:
    builder = TraceBuilder().steps(4).launched_as(f"{MEGATRON} {flags}", RANK="0", WORLD_SIZE="8")
    for at in (602, 1602, 2602, 3602):
        builder.kernel(REDUCE_SCATTER, at, at + length, stream=20, launched=at - 5, grid=24)
    report = measure(builder.write(Path(mkdtemp(dir=tmp_path)) / "trace.sqlite"))
    return report.facts.get("dp_exposed_ns")


def test_much_time_of_unknown_owner_withholds_the_times_of_data_and_tensor_parallelism(tmp_path: Path) -> None:
    withheld = dp_exposed(tmp_path, 60, TP2)  # 60 of 1000 ns
    assert withheld.value is None
    assert "cannot be classified into tensor and data parallelism" in (withheld.missing_reason or "")
    assert dp_exposed(tmp_path, 40, TP2).value == 0
    assert dp_exposed(tmp_path, 60, DISTRIBUTED).value == 60  # known from the sizes
