"""The ledger of MoE layers where the threads that launch tell forward from backward."""

from __future__ import annotations

import lzma
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from trace_builder import SEND_RECV

from tests.analyzed_samples import analyze_sample, reads_sample
from tests.facts.moe.test_ledger import BACKWARD_PARTS, FORWARD_PARTS, FULL, capture_of, steps, times
from tests.facts.moe_model import LAYER_NS, POINTWISE, UNPERMUTE, Model, command
from tests.paths import SAMPLES
from three_walls import analyze
from three_walls.report.report import Report

pytestmark = pytest.mark.slow

OVERLAPPED = "wide-slowlink-ep-overlap.sqlite.xz"


def why_not(report: Report) -> str:
    return str(report.facts.get("expert_backward_gemm_ns").missing_reason)


@pytest.mark.parametrize("replayed", [False, True])
def test_threads_and_the_order_on_the_device_give_the_same_ledger(tmp_path: Path, replayed: bool) -> None:
    launched = command(more=FULL if replayed else "")
    by_order = capture_of(tmp_path, steps(replayed=replayed), launched)
    (tmp_path / "threads").mkdir()
    model = Model(has_launches=True)
    for _ in range(3):
        model.micro_batch(replayed=replayed).micro_batch(replayed=replayed).update()
    by_threads = capture_of(tmp_path / "threads", model, launched)
    assert len(by_order.moe_layers) == 2 * (3 if replayed else 2) * 6
    assert by_threads.moe_layers == by_order.moe_layers
    assert by_threads.recompute_layers == by_order.recompute_layers
    assert by_threads.facts.number("recompute_ns") == (4 * LAYER_NS if replayed else 0)


def overlapped(has_launches: bool, between: tuple[tuple[str, int], ...] = ()) -> Model:
    """Three steps in which the second micro-batch goes forward between the layers of the first one's backward pass.

    ``between``: kernels that its first forward pass launches more.
    """
    model = Model(has_launches=has_launches)
    for _ in range(3):
        model.forward().forward().head()
        model.forward().run(*between).backward().forward().backward()
        model.head().backward().backward().update()
    return model


def test_layers_that_interleave_are_told_apart_by_their_threads(tmp_path: Path) -> None:
    report = capture_of(tmp_path, overlapped(has_launches=True), command())
    for layer in (0, 1):
        assert times(report, layer, "forward") == FORWARD_PARTS
        assert times(report, layer, "backward") == BACKWARD_PARTS
    assert len(report.moe_layers) == 2 * 2 * 6


def test_without_threads_layers_that_interleave_are_not_guessed_at(tmp_path: Path) -> None:
    report = capture_of(tmp_path, overlapped(has_launches=False), command())
    assert report.moe_layers == ()
    assert "the threads that launch, show their direction" in why_not(report)


@pytest.mark.parametrize(
    "more", [((SEND_RECV, 30),), ((SEND_RECV, 30), (UNPERMUTE, 10), (POINTWISE, 10))], ids=["exchange", "combine"]
)
def test_a_pass_that_exchanges_more_often_than_the_others_is_not_guessed_at(
    tmp_path: Path, more: tuple[tuple[str, int], ...]
) -> None:
    report = capture_of(tmp_path, overlapped(has_launches=True, between=more), command())
    assert report.moe_layers == ()
    assert "different numbers of calls" in why_not(report)


@reads_sample(OVERLAPPED)
def test_a_real_run_without_its_ranges_gives_the_same_ledger(tmp_path: Path) -> None:
    """But for sums of gradients at the edges of a layer: which side they belong to, only ranges show."""
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(lzma.decompress((SAMPLES / OVERLAPPED).read_bytes()))
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE NVTX_EVENTS")
        database.commit()
    named, unnamed = analyze_sample(OVERLAPPED).moe_layers, analyze(path).moe_layers
    assert {row.layer for row in named} == {0, 1, 2, 3}
    # Before a backward pass reaches the tokens it adds up gradients of the residual path, as it does after the router.
    at_edges = {("backward", "router"), ("backward", "unpermute")}
    pairs = list(zip(named, unnamed, strict=True))
    differing = {(row.direction, row.part) for row, other in pairs if other != row}
    assert differing <= at_edges
    assert sum(other.ns for _, other in pairs) == pytest.approx(sum(row.ns for row, _ in pairs), rel=0.01)
