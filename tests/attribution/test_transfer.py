"""Transfer and waiting, separated by what the fastest calls of a kind took."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import ADAM, GEMM, MEGATRON, SEND_RECV, TraceBuilder

from three_walls import analyze
from three_walls.model.report import Report

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
