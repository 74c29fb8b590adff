"""The ledger of MoE layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analyzed_samples import analyze_sample, reads_sample
from tests.facts.moe_model import Model, command
from three_walls import analyze
from three_walls.facts.fact_rows import MoePart
from three_walls.report.report import Report

pytestmark = pytest.mark.slow

FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
DEEPEP = "--moe-flex-dispatcher-backend deepep"

SENT = 128 * 2 * 64 * 2 * 3 // 4
"""Tokens x top-2 x hidden x 2 bytes, three of four to other ranks."""


def capture_of(tmp_path: Path, model: Model, launched: str = "") -> Report:
    if launched:
        model.builder.launched_as(launched, RANK="0", WORLD_SIZE="4", LOCAL_WORLD_SIZE="4")
    return analyze(model.builder.write(tmp_path / "trace.sqlite"))


def steps(replayed: bool = False, deepep: bool = False) -> Model:
    """Three steps of two micro-batches through two layers."""
    model = Model(deepep=deepep)
    for _ in range(3):
        model.micro_batch(replayed=replayed).micro_batch(replayed=replayed).update()
    return model


def times(report: Report, layer: int | None, direction: str) -> dict[str, tuple[int, int, int]]:
    return {
        row.part: (row.ns, row.exposed_ns, row.calls)
        for row in report.moe_layers
        if row.layer == layer and row.direction == direction
    }


FORWARD_PARTS = {
    "router": (40, 0, 4),
    "permute": (20, 0, 2),
    "dispatch": (70, 70, 4),
    "expert_gemm": (40, 0, 4),
    "combine": (60, 60, 2),
    "unpermute": (40, 0, 4),
}
BACKWARD_PARTS = {
    "router": (40, 0, 4),
    "permute": (20, 0, 2),
    "dispatch": (70, 70, 4),
    "expert_gemm": (80, 0, 8),
    "combine": (60, 60, 2),
    "unpermute": (40, 0, 4),
}


def test_each_part_of_each_layer_in_each_direction(tmp_path: Path) -> None:
    report = capture_of(tmp_path, steps(), command())
    for layer in (0, 1):
        assert times(report, layer, "forward") == FORWARD_PARTS
        assert times(report, layer, "backward") == BACKWARD_PARTS
    assert len(report.moe_layers) == 2 * 2 * 6
    assert report.facts.number("expert_backward_gemm_ns") == 2 * 80
    assert report.facts.number("dispatch_backward_exposed_ns") == 2 * 70


def test_a_replayed_pass_is_neither_forward_nor_backward(tmp_path: Path) -> None:
    report = capture_of(tmp_path, steps(replayed=True), command(more=FULL))
    for layer in (0, 1):
        assert times(report, layer, "forward") == FORWARD_PARTS
        assert times(report, layer, "recompute") == FORWARD_PARTS
        assert times(report, layer, "backward") == BACKWARD_PARTS


@pytest.mark.parametrize("chunk", [1, 2])
def test_layers_go_back_in_reverse_and_keep_their_number(tmp_path: Path, chunk: int) -> None:
    """The second layer's experts take longer; layers are replayed row by row, or two at a time."""
    model = Model()
    for _ in range(3):
        for _ in range(2):
            model.forward().forward(expert=25).head()
            if chunk == 1:
                model.forward(expert=25).backward(expert=25).forward().backward()
            else:
                model.forward().forward(expert=25).backward(expert=25).backward()
        model.update()
    report = capture_of(tmp_path, model, command(more=FULL))
    for direction, gemms in (("forward", 4), ("recompute", 4), ("backward", 8)):
        assert times(report, 0, direction)["expert_gemm"] == (10 * gemms, 0, gemms)
        assert times(report, 1, direction)["expert_gemm"] == (25 * gemms, 0, gemms)


def test_bytes_and_speed_come_from_the_config(tmp_path: Path) -> None:
    report = capture_of(tmp_path, steps(), command())
    exchanges = [row for row in report.moe_layers if row.part in ("dispatch", "combine")]
    assert {row.bytes_moved for row in exchanges} == {2 * SENT}
    # The probabilities' exchange (5 ns) carries no tokens: 30 ns is what the tokens take.
    assert {row.bytes_per_s for row in exchanges} == {SENT * 1e9 / 30}
    assert {row.limit_bytes_per_s for row in exchanges} == {450e9}
    assert report.facts.number("ep_achieved_bytes_per_s") == SENT * 1e9 / 30
    assert report.facts.number("ep_link_bytes_per_s") == 450e9
    assert all(row.bytes_moved is None for row in report.moe_layers if row not in exchanges)


def test_deepep_sends_a_token_once_to_each_rank(tmp_path: Path) -> None:
    report = capture_of(tmp_path, steps(deepep=True), command(dispatcher="flex", more=DEEPEP))
    # DeepEP's own counts prepare the dispatch, and what was received is permuted.
    prepared = {"preprocess": (10, 0, 2), "dispatch": (60, 60, 2)}
    assert times(report, 0, "forward") == FORWARD_PARTS | prepared
    assert times(report, 1, "backward")["dispatch"] == (60, 60, 2)
    # Of 3 other ranks with 2 of 8 experts each, row is missed by both choices with probability (6 x 5) / (8 x 7).
    sent = round(128 * 64 * 2 * 3 * (1 - 30 / 56))
    assert {row.bytes_moved for row in report.moe_layers if row.part == "dispatch"} == {2 * sent}


def test_without_a_config_the_layers_are_known_and_the_bytes_are_not(tmp_path: Path) -> None:
    report = capture_of(tmp_path, steps(deepep=True))
    assert {row.layer for row in report.moe_layers} == {0, 1}
    assert times(report, 0, "forward")["expert_gemm"] == (40, 0, 4)
    assert all(row.bytes_moved is None and row.bytes_per_s is None for row in report.moe_layers)
    assert "does not state" in str(report.facts.get("ep_achieved_bytes_per_s").missing_reason)


@pytest.mark.parametrize(
    ("launched", "mismatch"),
    [
        (command(layers=3), "4 forward and 4 backward passes of MoE layers in the step, expected 6 each"),
        (command(layers=4, more="--moe-layer-freq 4"), "expected 2 each (1 layers x 2 micro-batches)"),
    ],
)
def test_a_model_that_does_not_fit_the_passes_gives_no_layer(tmp_path: Path, launched: str, mismatch: str) -> None:
    report = capture_of(tmp_path, steps(), launched)
    assert {row.layer for row in report.moe_layers} == {None}
    assert times(report, None, "forward")["expert_gemm"] == (80, 0, 8)
    (message,) = mismatches(report)
    assert mismatch in message


def test_layers_of_multi_token_prediction_follow_the_others(tmp_path: Path) -> None:
    report = capture_of(tmp_path, steps(), command(layers=1, more="--mtp-num-layers 1"))
    assert {row.layer for row in report.moe_layers} == {0, 1}
    assert mismatches(report) == []


def among_dense_layers(*is_moe: bool) -> Model:
    """Three steps of two micro-batches through layers, some of which are dense."""
    model = Model()
    for _ in range(3):
        for _ in range(2):
            for each in is_moe:
                model.forward() if each else model.dense()
            model.head()
            for each in reversed(is_moe):
                model.backward() if each else model.dense_backward()
        model.update()
    return model


def test_a_pattern_of_layers_written_as_python_is_understood(tmp_path: Path) -> None:
    model = among_dense_layers(False, True, True)
    report = capture_of(tmp_path, model, command(layers=3, more="--moe-layer-freq [0]*1+[1]*2"))
    assert {row.layer for row in report.moe_layers} == {1, 2}
    assert mismatches(report) == []


@pytest.mark.parametrize(("layers", "warnings"), [(4, 0), (8, 1)])
def test_the_layers_of_a_pipeline_stage_are_checked_too(tmp_path: Path, layers: int, warnings: int) -> None:
    """A stage runs two layers for each of four micro-batches: of a model of four layers, not of eight."""
    model = Model(deepep=True)
    for _ in range(3):
        for _ in range(4):
            model.micro_batch()
        model.update()
    launched = command(layers, "flex", f"{DEEPEP} --pipeline-model-parallel-size 2")
    report = capture_of(tmp_path, model, launched)
    assert len(mismatches(report)) == warnings
    assert {row.layer for row in report.moe_layers} == ({None} if warnings else {0, 1})


def mismatches(report: Report) -> list[str]:
    return [warning.message for warning in report.warnings if warning.code == "moe-layers-mismatch"]


def test_layers_that_agree_with_the_config_need_no_warning(tmp_path: Path) -> None:
    assert mismatches(capture_of(tmp_path, steps(), command())) == []


def test_moe_layers_among_dense_ones_keep_the_models_numbers(tmp_path: Path) -> None:
    model = among_dense_layers(True, False, True, False)
    report = capture_of(tmp_path, model, command(layers=4, more="--moe-layer-freq 2"))
    assert {row.layer for row in report.moe_layers} == {0, 2}
    assert times(report, 2, "forward") == FORWARD_PARTS


def test_exchanges_that_do_not_fit_the_order_are_not_guessed_at(tmp_path: Path) -> None:
    model = Model()
    for _ in range(3):
        model.forward().forward().head()
        first = len(model.builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"])
        model.backward().backward()
        rows = model.builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"][first:]
        # The first exchange of backward moves behind both layers, as an exchange of another micro-batch would stand.
        moved = next(row for row in rows if row["end"] - row["start"] == 30)
        moved["start"], moved["end"] = model.at, model.at + 30
        model.idle(30).update()
    report = capture_of(tmp_path, model, command())
    assert report.moe_layers == ()
    assert "in different numbers of calls" in str(report.facts.get("dispatch_backward_exposed_ns").missing_reason)
    assert report.facts.get("ep_achieved_bytes_per_s").is_missing


def parts(report: Report, part: str) -> list[MoePart]:
    return [row for row in report.moe_layers if row.part == part]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=reads_sample(name))
        for name in ("wide-nvlink-alltoall.sqlite", "wide-nvlink-deepep.sqlite.xz")
    ],
)
def test_a_real_run_below_the_links_limit(name: str) -> None:
    report = analyze_sample(name)
    assert {row.layer for row in report.moe_layers} == {0, 1, 2, 3}
    for row in (*parts(report, "dispatch"), *parts(report, "combine")):
        assert row.bytes_per_s is not None
        assert row.limit_bytes_per_s == 450e9
        assert 100e9 < row.bytes_per_s < row.limit_bytes_per_s
    # Two experts of the same size, four GEMMs forward and eight backward for each of two micro-batches.
    calls = {(row.direction, row.calls) for row in parts(report, "expert_gemm")}
    assert calls == {("forward", 8), ("backward", 16)}
    for row in parts(report, "expert_gemm"):
        assert row.ns == pytest.approx(2.07e6 if row.direction == "forward" else 4.13e6, rel=0.02)


@pytest.mark.exhaustive
@reads_sample("qwen-full-recompute.sqlite.xz")
def test_a_real_run_with_full_recompute_has_three_directions() -> None:
    report = analyze_sample("qwen-full-recompute.sqlite.xz")
    for layer in range(6):
        of = {direction: times(report, layer, direction) for direction in ("forward", "recompute", "backward")}
        assert of["recompute"]["expert_gemm"] == (pytest.approx(of["forward"]["expert_gemm"][0], rel=0.02), 0, 128)
        assert of["recompute"]["unpermute"][0] == pytest.approx(of["forward"]["unpermute"][0], rel=0.02)
        assert of["backward"]["expert_gemm"][2] == 256


@reads_sample("wide-slowlink-ep-overlap.sqlite.xz")
def test_a_real_run_with_overlap_has_every_layer() -> None:
    """Two micro-batches; a layer exchanges tokens and probabilities before its experts, tokens after them."""
    report = analyze_sample("wide-slowlink-ep-overlap.sqlite.xz")
    for layer in range(4):
        forward, backward = times(report, layer, "forward"), times(report, layer, "backward")
        assert (forward["dispatch"][2], forward["combine"][2]) == (4, 2)
        assert (backward["dispatch"][2], backward["combine"][2]) == (4, 2)
        # Two local experts of two GEMMs, each with two gradients.
        assert (forward["expert_gemm"][2], backward["expert_gemm"][2]) == (8, 16)
        assert forward["expert_gemm"][0] == pytest.approx(2.18e6, rel=0.05)
        assert backward["expert_gemm"][0] == pytest.approx(4.1e6, rel=0.05)
    for row in (*parts(report, "dispatch"), *parts(report, "combine")):
        assert row.bytes_per_s is not None
        assert 10e9 < row.bytes_per_s < 50e9
