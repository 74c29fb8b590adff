"""Which parallelism a SendRecv kernel belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import MEGATRON, SEND_RECV, TraceBuilder

from tests.measured import measure
from three_walls.report.report import Report

pytestmark = pytest.mark.slow


def trace(tmp_path: Path, command: str, text: str = "") -> Report:
    builder = TraceBuilder().steps(4)
    if command:
        builder.launched_as(command, RANK="0", WORLD_SIZE="8", LOCAL_WORLD_SIZE="8")
    for at in (601, 1601, 2601, 3601):
        builder.kernel(SEND_RECV, at, at + 100, launched=at - 5)
        if text:
            builder.nvtx(text, at - 6, at - 3)
    return measure(builder.write(tmp_path / "trace.sqlite"))


@pytest.mark.parametrize(
    ("sizes", "owner"),
    [
        ("--expert-model-parallel-size 8", "ep_all_to_all"),
        ("--pipeline-model-parallel-size 2 --expert-model-parallel-size 1", "pipeline_p2p"),
        ("--context-parallel-size 2", "context_ring"),
        ("--expert-model-parallel-size 4 --context-parallel-size 2", "send_recv_ambiguous"),
        (
            "--expert-model-parallel-size 8 --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep",
            "send_recv_ambiguous",  # flex carries its tokens with kernels of its own
        ),
    ],
)
def test_the_only_parallelism_that_exchanges_owns_the_exchange(tmp_path: Path, sizes: str, owner: str) -> None:
    report = trace(tmp_path, f"{MEGATRON} {sizes}")
    assert report.ranks[0].communication.keys() == {owner}
    assert report.ranks[0].budget[owner] == 100


@pytest.mark.parametrize(
    ("sizes", "ring_ns"), [("--context-parallel-size 2", 100), ("--expert-model-parallel-size 8", 0)]
)
def test_the_exposed_ring_is_a_fact_of_context_parallelism_alone(tmp_path: Path, sizes: str, ring_ns: int) -> None:
    facts = trace(tmp_path, f"{MEGATRON} {sizes}").facts
    assert facts.get("cp_exposed_ns").value == ring_ns
    assert facts.get("cp_exposed_fraction").value == pytest.approx(ring_ns / 1000)


def test_a_range_around_the_launch_distinguishes_experts_from_pipeline(tmp_path: Path) -> None:
    sizes = "--expert-model-parallel-size 4 --pipeline-model-parallel-size 2"
    found = trace(tmp_path, f"{MEGATRON} {sizes}", "nccl:all_to_all")
    assert found.ranks[0].communication.keys() == {"ep_all_to_all"}


BOTH = "--expert-model-parallel-size 4 --pipeline-model-parallel-size 2"


def owners_by_stream(tmp_path: Path, flags: str, ranges: bool) -> set[str]:
    """Owners of an exchange on the computing stream (7) and of one on a stream of its own (43)."""
    builder = TraceBuilder().steps(4).launched_as(f"{MEGATRON} {BOTH} {flags}", RANK="0", WORLD_SIZE="8")
    for at in (601, 1601, 2601, 3601):
        builder.kernel(SEND_RECV, at, at + 50, launched=at - 5)
        builder.kernel(SEND_RECV, at + 60, at + 100, stream=43, launched=at - 2)
        if ranges:
            builder.nvtx("nccl:all_to_all", at - 6, at - 3)
    return set(measure(builder.write(tmp_path / "trace.sqlite")).ranks[0].communication)


def test_an_exchange_in_no_all_to_all_range_is_the_pipelines(tmp_path: Path) -> None:
    assert owners_by_stream(tmp_path, "", ranges=True) == {"ep_all_to_all", "pipeline_p2p"}


def test_without_ranges_the_stream_distinguishes_a_blocking_all_to_all_from_the_pipeline(tmp_path: Path) -> None:
    assert owners_by_stream(tmp_path, "", ranges=False) == {"ep_all_to_all", "pipeline_p2p"}


def test_with_ep_overlap_an_exchange_on_its_own_stream_may_be_either(tmp_path: Path) -> None:
    found = owners_by_stream(tmp_path, "--overlap-moe-expert-parallel-comm", ranges=False)
    assert found == {"ep_all_to_all", "send_recv_ambiguous"}


@pytest.mark.parametrize(
    ("text", "owner"), [("_AllToAll", "ep_all_to_all"), ("nccl:all_to_all", "send_recv_ambiguous")]
)
def test_without_a_config_only_megatrons_own_range_shows_experts(tmp_path: Path, text: str, owner: str) -> None:
    # Any sequence-parallel model exchanges with nccl:all_to_all; Megatron's dispatcher does so inside _AllToAll.
    assert trace(tmp_path, "", text).ranks[0].communication.keys() == {owner}


def test_with_context_parallelism_an_all_to_all_may_be_the_contexts(tmp_path: Path) -> None:
    sizes = "--expert-model-parallel-size 4 --context-parallel-size 2"
    found = trace(tmp_path, f"{MEGATRON} {sizes}", "_AllToAll")
    assert found.ranks[0].communication.keys() == {"send_recv_ambiguous"}


def test_what_stays_ambiguous_leaves_every_fact_on_experts_missing(tmp_path: Path) -> None:
    report = trace(tmp_path, "")
    assert report.ranks[0].communication.keys() == {"send_recv_ambiguous"}
    fact = report.facts.get("ep_exposed_ns")
    assert fact.is_missing
    assert "cannot be classified" in str(fact.missing_reason)
    assert report.facts.number("collective_exposed_ns") == 100
