"""Transfer and waiting, separated by what the fastest calls of a kind took."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from trace_builder import ADAM, GEMM, MEGATRON, SEND_RECV, TraceBuilder

from three_walls import analyze
from three_walls.report.report import Report

pytestmark = pytest.mark.slow

MS = 1_000_000
STEP = 100 * MS


def exchanges(tmp_path: Path, durations_ms: list[float], hidden: bool = False) -> Report:
    """Three steps, each with exchanges of these durations, 8 ms apart, concurrent with a GEMM if ``hidden``."""
    builder = TraceBuilder().launched_as(
        f"{MEGATRON} --expert-model-parallel-size 8", RANK="0", WORLD_SIZE="8", LOCAL_WORLD_SIZE="8"
    )
    for first in (1, 1 + STEP, 1 + 2 * STEP):
        builder.kernel(GEMM, first, first + MS)
        for order, duration in enumerate(durations_ms):
            at = first + (1 + 8 * order) * MS
            builder.kernel(SEND_RECV, at, at + int(duration * MS), stream=20)
            if hidden:
                builder.kernel(GEMM, at, at + int(duration * MS))
        builder.kernel(ADAM, first + STEP - MS, first + STEP)
    return analyze(builder.write(tmp_path / "trace.sqlite"))


def test_what_a_call_takes_beyond_the_fastest_of_its_kind_is_waiting(tmp_path: Path) -> None:
    facts = exchanges(tmp_path, [1, 1, 5, 7, 1, 1, 5, 7, 1, 1]).facts
    assert facts.number("ep_exposed_ns") == 30 * MS
    assert facts.number("ep_transfer_exposed_ns") == 10 * MS
    assert facts.number("ep_wait_exposed_ns") == 20 * MS


def test_calls_of_similar_length_are_all_transfer(tmp_path: Path) -> None:
    facts = exchanges(tmp_path, [4.0] * 10).facts
    assert facts.number("ep_transfer_exposed_ns") == 40 * MS
    assert facts.number("ep_wait_exposed_ns") == 0


def test_small_exchanges_of_counts_show_nothing_about_token_exchanges(tmp_path: Path) -> None:
    # A third of the calls carry counts only; they must not pull the others' transfer down.
    facts = exchanges(tmp_path, [4, 0.02, 4, 4, 0.02, 4, 4, 0.02, 4, 4]).facts
    assert facts.number("ep_transfer_exposed_ns") == round((7 * 4 + 3 * 0.02) * MS)


def test_over_a_slow_link_small_exchanges_may_take_longer_than_large_ones_over_a_fast_one(tmp_path: Path) -> None:
    facts = exchanges(tmp_path, [4, 0.14, 4, 4, 0.02, 4, 4, 0.09, 4, 4]).facts
    assert facts.number("ep_transfer_exposed_ns") == round((7 * 4 + 0.14 + 0.02 + 0.09) * MS, -4)


def test_small_exchanges_that_waited_do_not_hide_the_jump(tmp_path: Path) -> None:
    # Two of the three small ones waited 5 ms: what they took beyond the transfer is waiting.
    facts = exchanges(tmp_path, [1, 5, 1, 1, 0.02, 1, 1, 5, 1, 1]).facts
    assert facts.number("ep_transfer_exposed_ns") == round((7 * 1 + 0.02 + 2 * 1) * MS)


def test_with_few_calls_nothing_is_known_and_all_is_transfer(tmp_path: Path) -> None:
    facts = exchanges(tmp_path, [1, 9]).facts
    assert facts.number("ep_transfer_exposed_ns") == 10 * MS


def test_hidden_exchanges_have_no_exposed_transfer(tmp_path: Path) -> None:
    report = exchanges(tmp_path, [1, 1, 5, 7, 1, 1, 5, 7, 1, 1], hidden=True)
    assert report.facts.number("ep_transfer_exposed_ns") == 0
    assert report.facts.number("ep_hidden_ns") == 30 * MS


def uneven(tmp_path: Path, *, sizes_mb: list[int] | None = None, settings: str = "", gemm_ms: int = 30) -> Report:
    """Three steps of 100 ms in which one rank of eight computes, then exchanges for 1, 1, 5, 7, 1, 1, 5, 7, 1, 1 ms.

    ``sizes_mb``: what NCCL's own ranges state that each exchange sends.
    """
    builder = TraceBuilder().launched_as(
        f"{MEGATRON} --expert-model-parallel-size 8 {settings}", RANK="0", WORLD_SIZE="8", LOCAL_WORLD_SIZE="8"
    )
    builder.nccl_schema(1, 20, (18, "NCCL communicator ID", 0), (18, "Message size [bytes]", 8), (15, "Peer rank", 16))
    for first in (1000, 1000 + STEP, 1000 + 2 * STEP):
        builder.kernel(GEMM, first, first + gemm_ms * MS, launched=first - 500)
        at = first + gemm_ms * MS
        for order, duration in enumerate([1, 1, 5, 7, 1, 1, 5, 7, 1, 1]):
            builder.kernel(SEND_RECV, at, at + duration * MS, stream=20, launched=at - 100)
            if sizes_mb:
                builder.nccl_call("ncclGroupStart", at - 800, at - 790)
                payload = struct.pack("<QQi", 7, sizes_mb[order] * 1_000_000, 1)
                builder.nccl_call("ncclSend", at - 700, at - 690, schema=1, payload=payload)
                builder.nccl_call("ncclGroupEnd", at - 200, at - 50)
            at += duration * MS
        builder.kernel(ADAM, at, first + STEP, launched=at)
    return analyze(builder.write(tmp_path / "trace.sqlite"))


def test_an_exchange_of_more_tokens_transfers_longer(tmp_path: Path) -> None:
    # The second call of 5 ms carries five times as much as one of 1 ms; the first one and both of 7 ms waited.
    facts = uneven(tmp_path, sizes_mb=[10, 10, 10, 20, 10, 10, 50, 20, 10, 10]).facts
    assert facts.number("ep_exposed_ns") == 30 * MS
    assert facts.number("ep_transfer_exposed_ns") == (6 + 1 + 2 + 5 + 2) * MS
    assert facts.get("ep_transfer_is_lower_bound").value is False


def test_without_their_sizes_the_transfer_of_uneven_exchanges_is_a_lower_bound(tmp_path: Path) -> None:
    natural = uneven(tmp_path)
    assert natural.facts.number("ep_transfer_exposed_ns") == 10 * MS
    assert natural.facts.get("ep_transfer_is_lower_bound").value is True
    (warning,) = [each.message for each in natural.warnings if each.code == "uneven-exchanges"]
    assert warning.startswith("Between 10.0 ms and 30.0 ms of exposed expert-parallel communication is transfer.")
    assert "waiting-for-peers" not in {each.code for each in natural.warnings}


def test_balanced_exchanges_have_one_size(tmp_path: Path) -> None:
    balanced = uneven(tmp_path, settings="--moe-router-force-load-balancing")
    assert balanced.facts.get("ep_transfer_is_lower_bound").value is False
    assert "waiting-for-peers" in {each.code for each in balanced.warnings}
    assert "uneven-exchanges" not in {each.code for each in balanced.warnings}
