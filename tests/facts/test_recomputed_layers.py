"""What each layer's replays take."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.analyzed_samples import analyze_sample, reads_sample
from tests.facts.moe_model import LAYER_NS, Model, command
from three_walls import analyze
from three_walls.facts.fact_rows import RecomputedLayer
from three_walls.facts.recompute_facts import FULL, NONE, Recompute, recompute_layers
from three_walls.lib.measurement import known, missing
from three_walls.report.report import Report

pytestmark = pytest.mark.slow

FLAGS = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"

REPLAYS = pl.DataFrame(
    [(1, 0, 30), (0, 40, 60), (1, 100, 135), (0, 140, 161)],
    schema={"layer": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64},
    orient="row",
)
"""Two layers, two micro-batches; the second layer is replayed first."""


def test_replays_are_summed_per_layer() -> None:
    measured = Recompute(FULL, known(106), REPLAYS)
    assert recompute_layers(measured) == (
        RecomputedLayer(0, FULL, 20 + 21, 2),
        RecomputedLayer(1, FULL, 30 + 35, 2),
    )


def test_replays_of_unknown_layers_are_summed_together() -> None:
    one_unknown = REPLAYS.with_columns(layer=pl.Series([1, None, 1, 0]))
    assert recompute_layers(Recompute(FULL, known(106), one_unknown)) == (RecomputedLayer(None, FULL, 106, 4),)


def test_without_recompute_there_is_no_row() -> None:
    assert recompute_layers(Recompute(NONE, known(0))) == ()
    assert recompute_layers(Recompute(None, missing("unknown"))) == ()


def capture_of(tmp_path: Path, replayed: bool, launched: str = "") -> Report:
    model = Model()
    for _ in range(3):
        model.micro_batch(replayed=replayed).micro_batch(replayed=replayed).update()
    if launched:
        model.builder.launched_as(launched, RANK="0", WORLD_SIZE="4", LOCAL_WORLD_SIZE="4")
    return analyze(model.builder.write(tmp_path / "trace.sqlite"))


@pytest.mark.parametrize("launched", ["", command(more=FLAGS)])
def test_layers_of_a_run_sum_to_its_recompute(tmp_path: Path, launched: str) -> None:
    report = capture_of(tmp_path, replayed=True, launched=launched)
    assert [(row.layer, row.kind, row.calls) for row in report.recompute_layers] == [(0, FULL, 2), (1, FULL, 2)]
    assert all(row.ns == 2 * LAYER_NS for row in report.recompute_layers)
    assert sum(row.ns for row in report.recompute_layers) == report.facts.number("recompute_ns")


def test_a_run_without_recompute_lists_no_layer(tmp_path: Path) -> None:
    assert capture_of(tmp_path, replayed=False).recompute_layers == ()


@reads_sample("qwen-full-recompute.sqlite.xz")
def test_a_real_run_with_full_recompute_lists_its_six_layers() -> None:
    report = analyze_sample("qwen-full-recompute.sqlite.xz")
    assert [(row.layer, row.calls) for row in report.recompute_layers] == [(layer, 2) for layer in range(6)]
    assert sum(row.ns for row in report.recompute_layers) == report.facts.number("recompute_ns")
