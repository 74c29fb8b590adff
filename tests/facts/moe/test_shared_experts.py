"""Rows of shared experts in the ledger of MoE layers."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import GEMM, POINTWISE, SEND_RECV

from tests.facts.moe_model import (
    BACKWARD,
    FORWARD,
    NORM,
    NORM_BACKWARD,
    PERMUTE,
    ROUTER,
    ROUTER_BACKWARD,
    UNPERMUTE,
    Model,
    command,
)
from three_walls import analyze
from three_walls.report.report import Report

pytestmark = pytest.mark.slow

SHARED = "--moe-shared-expert-intermediate-size 64"

EXPERT_FORWARD = ((GEMM, 7), (POINTWISE, 10), (GEMM, 7))
EXPERT_BACKWARD = ((GEMM, 7), (GEMM, 7), (POINTWISE, 10), (GEMM, 7), (GEMM, 7))
Kernels = tuple[tuple[str, int], ...]


def routed(before: Kernels = EXPERT_FORWARD, after: Kernels = EXPERT_BACKWARD) -> Model:
    """Three steps of two micro-batches through two layers; ``before`` the router, ``after`` its backward."""
    model = Model()
    for _ in range(3):
        for _ in range(2):
            for _ in range(2):
                model.run((NORM, 10), (GEMM, 10), (FORWARD, 10), (GEMM, 10), (NORM, 10), *before)
                model.run((POINTWISE, 10), (GEMM, 10), (ROUTER, 10), (PERMUTE, 10), (SEND_RECV, 30))
                model.run((GEMM, 10), (GEMM, 10), (SEND_RECV, 30), (UNPERMUTE, 10), (POINTWISE, 10))
            model.head()
            for _ in range(2):
                model.run((POINTWISE, 10), (SEND_RECV, 30), *[(GEMM, 10)] * 4, (SEND_RECV, 30), (PERMUTE, 10))
                model.run((ROUTER_BACKWARD, 10), (GEMM, 10), (GEMM, 10), (POINTWISE, 10), *after, (NORM_BACKWARD, 10))
                model.run((GEMM, 10), (GEMM, 10), (BACKWARD, 10), (GEMM, 10), (GEMM, 10), (NORM_BACKWARD, 20))
        model.update()
    return model


def capture_of(tmp_path: Path, model: Model, launched: str) -> Report:
    model.builder.launched_as(launched, RANK="0", WORLD_SIZE="4", LOCAL_WORLD_SIZE="4")
    return analyze(model.builder.write(tmp_path / "trace.sqlite"))


def shared(report: Report) -> dict[tuple[int | None, str], tuple[int, int]]:
    return {(row.layer, row.direction): (row.ns, row.calls) for row in report.moe_layers if row.part == "shared_expert"}


EACH_LAYER = {
    (layer, direction): {"forward": (48, 6), "backward": (76, 10)}[direction]
    for layer in (0, 1)
    for direction in ("forward", "backward")
}


def test_gemms_between_norm_and_router_are_shared_experts(tmp_path: Path) -> None:
    report = capture_of(tmp_path, routed(), command(more=SHARED))
    assert shared(report) == EACH_LAYER
    assert report.facts.number("shared_expert_ns") == 2 * (48 + 76)


def test_the_same_gemms_without_shared_experts_in_the_config_have_no_row(tmp_path: Path) -> None:
    report = capture_of(tmp_path, routed(), command())
    assert report.moe_layers != ()
    assert shared(report) == {}
    assert report.facts.number("shared_expert_ns") == 0


def test_where_nothing_parts_the_routers_gemm_from_the_second_linear_layer(tmp_path: Path) -> None:
    """Layer two runs as fc1, activation, fc2 and the router's GEMM in one run."""
    model = routed(before=((GEMM, 7), (POINTWISE, 10), (GEMM, 7), (GEMM, 3)))
    assert shared(capture_of(tmp_path, model, command(more=SHARED))) == EACH_LAYER


@pytest.mark.parametrize(
    ("before", "after"),
    [(((GEMM, 7),), EXPERT_BACKWARD), ((), EXPERT_BACKWARD), (EXPERT_FORWARD, ()), ((), ())],
    ids=["one", "backward-alone", "forward-alone", "none"],
)
def test_without_their_gemms_in_both_directions_there_is_no_row_but_a_reason(
    tmp_path: Path, before: Kernels, after: Kernels
) -> None:
    report = capture_of(tmp_path, routed(before, after), command(more=SHARED))
    assert shared(report) == {}
    assert "order of shared experts" in str(report.facts.get("shared_expert_ns").missing_reason)


def test_without_a_config_it_is_not_known_whether_there_are_any(tmp_path: Path) -> None:
    report = analyze(routed().builder.write(tmp_path / "trace.sqlite"))
    assert report.facts.get("shared_expert_ns").is_missing
    assert shared(report) == {}


def test_attention_replayed_alone_parts_no_layer_from_its_exchanges(tmp_path: Path) -> None:
    """Selective recompute replays attention behind the exchanges of its layer's backward."""
    model = Model()
    for _ in range(3):
        for _ in range(2):
            model.forward().forward().head()
            for _ in range(2):
                model.run((POINTWISE, 10), (SEND_RECV, 30), *[(GEMM, 10)] * 4, (SEND_RECV, 5), (SEND_RECV, 30))
                model.run((ROUTER_BACKWARD, 10), (NORM_BACKWARD, 10), (GEMM, 10), (GEMM, 10), (FORWARD, 10))
                model.run((BACKWARD, 10), (GEMM, 10), (GEMM, 10), (NORM_BACKWARD, 20))
        model.update()
    report = capture_of(tmp_path, model, command(more="--recompute-granularity selective"))
    assert {row.layer for row in report.moe_layers} == {0, 1}
    assert {row.direction for row in report.moe_layers} == {"forward", "backward"}
    assert [(row.layer, row.kind, row.ns) for row in report.recompute_layers] == [
        (0, "selective", 20),
        (1, "selective", 20),
    ]
