"""The ledger of MoE layers whose forward and backward passes are launched between one another."""

from __future__ import annotations

import lzma
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from trace_builder import GEMM, SEND_RECV

from tests.facts.moe_model import FORWARD, NORM, PERMUTE, command
from tests.facts.overlap_model import BACKWARD_NODES, BOTH_NODES, FORWARD_NODES, NODES, OverlappedModel
from tests.paths import SAMPLES
from three_walls import analyze
from three_walls.report.report import Report

pytestmark = pytest.mark.slow

SAMPLE = SAMPLES / "wide-slowlink-ep-overlap.sqlite.xz"
OVERLAP = command(more="--overlap-moe-expert-parallel-comm")


def capture_of(tmp_path: Path, model: OverlappedModel, launched: str = OVERLAP) -> Report:
    model.builder.launched_as(launched, RANK="0", WORLD_SIZE="4", LOCAL_WORLD_SIZE="4")
    return analyze(model.builder.write(tmp_path / "trace.sqlite"))


def times(report: Report, layer: int | None, direction: str) -> dict[str, tuple[int, int]]:
    found = [row for row in report.moe_layers if row.layer == layer and row.direction == direction]
    return {row.part: (row.ns, row.calls) for row in found}


def why_not(report: Report) -> str:
    return str(report.facts.get("expert_backward_gemm_ns").missing_reason)


FORWARD_PARTS = {
    "router": (20, 2),
    "permute": (40, 4),
    "dispatch": (70, 4),
    "expert_gemm": (40, 4),
    "combine": (60, 2),
    "unpermute": (40, 4),
}
BACKWARD_PARTS = {
    "router": (20, 2),
    "permute": (40, 4),
    "dispatch": (60, 2),
    "expert_gemm": (80, 8),
    "combine": (70, 4),
    "unpermute": (40, 4),
}


def test_named_nodes_separate_layers_that_interleave(tmp_path: Path) -> None:
    report = capture_of(tmp_path, OverlappedModel().step().step().step())
    for layer in (0, 1):
        assert times(report, layer, "forward") == FORWARD_PARTS
        assert times(report, layer, "backward") == BACKWARD_PARTS
    assert len(report.moe_layers) == 2 * 2 * 6


def test_layers_go_forward_in_order_and_back_in_reverse(tmp_path: Path) -> None:
    """The second layer's experts run a third GEMM in forward, a fifth in backward."""
    more = {
        "mlp forward": (NODES["mlp forward"][1][0], *[(GEMM, 10)] * 3, NODES["mlp forward"][1][3]),
        "mlp backward": (NODES["mlp backward"][1][0], *[(GEMM, 10)] * 5, NODES["mlp backward"][1][5]),
    }
    model = OverlappedModel()
    for _ in range(3):
        for nodes in (FORWARD_NODES, BOTH_NODES, BACKWARD_NODES):
            for order in (0, 1):
                for name in nodes:
                    second = order == (1 if name.endswith("forward") else 0)
                    model.node(name, more.get(name) if second else None)
        model.update()
    report = capture_of(tmp_path, model)
    gemms = {(row.layer, row.direction): row.calls for row in report.moe_layers if row.part == "expert_gemm"}
    assert gemms == {(0, "forward"): 4, (1, "forward"): 6, (0, "backward"): 8, (1, "backward"): 10}


def test_delayed_weight_gradients_are_gemms_of_their_layers_backward(tmp_path: Path) -> None:
    model = OverlappedModel()
    for _ in range(3):
        model.layers(FORWARD_NODES)
        for name in BOTH_NODES * 2 + BACKWARD_NODES * 2:
            if name == "mlp backward":
                model.node(name, (*NODES[name][1][:3], NODES[name][1][5]))
                model.node("mlp wgrad", ((GEMM, 10), (GEMM, 10)))
            else:
                model.node(name)
        model.update()
    report = capture_of(tmp_path, model)
    assert times(report, 0, "backward") == BACKWARD_PARTS
    assert times(report, 1, "backward") == BACKWARD_PARTS


def test_dense_layers_between_take_no_row(tmp_path: Path) -> None:
    """Of four layers the first and the third are MoE layers; dense ones have neither dispatch nor combine."""
    dense = ("attn forward", "mlp forward")
    model = OverlappedModel()
    for _ in range(3):
        for _ in range(2):
            for _ in range(2):
                model.layers(FORWARD_NODES, 1).layers(dense, 1)
            for _ in range(2):
                model.layers(("mlp backward", "attn backward"), 1).layers(BACKWARD_NODES, 1)
        model.update()
    report = capture_of(tmp_path, model, command(layers=4, more="--moe-layer-freq 2"))
    assert {row.layer for row in report.moe_layers} == {0, 2}
    assert times(report, 2, "forward") == FORWARD_PARTS


def test_an_exchange_outside_the_ranges_is_not_guessed_at(tmp_path: Path) -> None:
    model = OverlappedModel()
    for _ in range(3):
        model.layers(FORWARD_NODES).layers(BOTH_NODES).layers(BACKWARD_NODES)
        model.builder.kernel(SEND_RECV, model.at + 1, model.at + 31, 31, launched=model.at)
        model.at += 31
        model.update()
    report = capture_of(tmp_path, model)
    assert report.moe_layers == ()
    assert "outside" in why_not(report)


@pytest.mark.parametrize(
    ("name", "kernels", "reason"),
    [
        ("moe_combine forward", ((SEND_RECV, 30), (SEND_RECV, 30)), "different numbers of calls"),
        ("moe_combine forward", ((GEMM, 10),), "different numbers of calls"),
    ],
)
def test_a_pass_that_exchanges_otherwise_than_the_rest_is_not_guessed_at(
    tmp_path: Path, name: str, kernels: tuple[tuple[str, int], ...], reason: str
) -> None:
    model = OverlappedModel()
    for _ in range(3):
        model.layers(FORWARD_NODES, 1)
        for node in FORWARD_NODES:
            model.node(node, kernels if node == name else None)
        model.layers(BOTH_NODES).layers(BACKWARD_NODES).update()
    report = capture_of(tmp_path, model)
    assert report.moe_layers == ()
    assert reason in why_not(report)


def test_ranges_in_another_order_are_not_guessed_at(tmp_path: Path) -> None:
    model = OverlappedModel()
    turned = ("attn forward", "mlp forward", "moe_dispatch forward", "moe_combine forward")
    for _ in range(3):
        model.layers(turned).layers(BACKWARD_NODES).layers(turned).layers(BACKWARD_NODES).update()
    report = capture_of(tmp_path, model)
    assert report.moe_layers == ()
    assert "not in the order" in why_not(report)


def test_ranges_of_the_same_words_that_launch_nothing_here_change_nothing(tmp_path: Path) -> None:
    """Another library may use such a name for work that is not in the step."""
    model = OverlappedModel(named=False).step().step().step()
    model.builder.nvtx("attn forward", 1, 2)
    model.builder.nvtx("moe_dispatch forward", 3, 4)
    report = capture_of(tmp_path, model)
    assert times(report, 0, "forward") == FORWARD_PARTS


def test_without_ranges_the_order_of_launches_gives_the_same_ledger(tmp_path: Path) -> None:
    named = capture_of(tmp_path, OverlappedModel().step().step().step())
    (tmp_path / "unnamed").mkdir()
    unnamed = capture_of(tmp_path / "unnamed", OverlappedModel(named=False).step().step().step())
    assert len(named.moe_layers) == 24
    assert unnamed.moe_layers == named.moe_layers


def test_without_ranges_and_without_overlap_in_the_config_nothing_is_guessed_at(tmp_path: Path) -> None:
    report = capture_of(tmp_path, OverlappedModel(named=False).step().step().step(), command())
    assert report.moe_layers == ()
    assert "interleave" in why_not(report)


@pytest.mark.parametrize(
    "nodes",
    [
        # Attention goes back before combine, as ep_overlap_early_attn_memory_release has it.
        (*BOTH_NODES[:6], "attn backward", "moe_combine forward"),
        # A layer whose combine is missing.
        (*BOTH_NODES[:6], *BOTH_NODES[7:]),
    ],
)
def test_launches_in_another_order_are_not_guessed_at(tmp_path: Path, nodes: tuple[str, ...]) -> None:
    model = OverlappedModel(named=False)
    for _ in range(3):
        model.layers(FORWARD_NODES).layers(BOTH_NODES, 1).layers(nodes, 1).layers(BACKWARD_NODES).update()
    report = capture_of(tmp_path, model)
    assert report.moe_layers == ()
    assert "interleave" in why_not(report)


def test_launches_that_were_not_recorded_show_no_order(tmp_path: Path) -> None:
    model = OverlappedModel(named=False).step().step().step()
    model.builder.launched_as(OVERLAP, RANK="0", WORLD_SIZE="4", LOCAL_WORLD_SIZE="4")
    report = analyze(model.builder.write(tmp_path / "trace.sqlite", without=("CUPTI_ACTIVITY_KIND_RUNTIME",)))
    assert report.moe_layers == ()


def test_a_real_run_without_its_ranges_gives_the_same_ledger(tmp_path: Path) -> None:
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(lzma.decompress(SAMPLE.read_bytes()))
    named = analyze(path)
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE NVTX_EVENTS")
        database.commit()
    unnamed = analyze(path)
    assert len(named.moe_layers) == 4 * 2 * 6
    assert unnamed.moe_layers == named.moe_layers


def test_rotary_embedding_is_no_permutation_of_tokens(tmp_path: Path) -> None:
    """Attention permutes once more before its GEMM: the ledger stays as it is."""
    own = ((NORM, 10), (PERMUTE, 10), (PERMUTE, 10), (GEMM, 10), (FORWARD, 10), *NODES["attn forward"][1][4:])
    model = OverlappedModel()
    for _ in range(3):
        for name in FORWARD_NODES * 2 + BOTH_NODES * 2 + BACKWARD_NODES * 2:
            model.node(name, own if name == "attn forward" else None)
        model.update()
    assert times(capture_of(tmp_path, model), 0, "forward") == FORWARD_PARTS
