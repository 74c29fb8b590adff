"""What each layer's replays take."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.analyzed_samples import analyze_sample, reads_sample
from tests.facts.moe_model import LAYER_NS, Model, command
from three_walls import analyze
from three_walls.facts.fact_rows import RecomputedLayer
from three_walls.facts.recompute_facts import FULL, NONE, Recompute, sum_replays_by_layer
from three_walls.layers.attention_passes import BACKWARD, FORWARD, PASSES, RECOMPUTE, REPLAYS
from three_walls.lib.measurement import known, missing
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.report.report import Report

pytestmark = pytest.mark.slow

FLAGS = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"

MEASURED = Recompute(
    FULL,
    known(106),
    replays=pl.DataFrame([(1, 0, 30), (0, 40, 60), (3, 100, 135), (2, 140, 161)], schema=REPLAYS, orient="row"),
)
"""Two layers, two micro-batches; the second forward pass is replayed first."""

TWO_LAYERS = (RecomputedLayer(0, FULL, 20 + 21, 2), RecomputedLayer(1, FULL, 30 + 35, 2))
TOGETHER = (RecomputedLayer(None, FULL, 106, 4),)


def passes(order: str) -> pl.DataFrame:
    """``order``: F and B, an attention pass each; r is a replayed row."""
    directions = {"F": FORWARD, "B": BACKWARD, "r": RECOMPUTE}
    rows = [
        (at, at + 1, 7, "attention", BACKWARD if letter == "B" else FORWARD, directions[letter], None)
        for at, letter in enumerate(order)
    ]
    return pl.DataFrame(rows, schema=PASSES, orient="row")


def config(**values: object) -> RunConfig:
    return RunConfig({key: ConfigValue(value, "test") for key, value in values.items()})  # type: ignore[arg-type]


def test_replays_are_summed_per_layer() -> None:
    known = config(num_layers=2, pipeline_model_parallel_size=1)
    assert sum_replays_by_layer(MEASURED, passes("FFrBrB" * 2), known, 2) == TWO_LAYERS


def test_without_a_config_the_runs_of_forward_passes_show_the_layers() -> None:
    assert sum_replays_by_layer(MEASURED, passes("FFrBrB" * 2), RunConfig(), None) == TWO_LAYERS
    assert sum_replays_by_layer(MEASURED, passes("FFFrBrBFrBrB"), RunConfig(), None) == TOGETHER


def test_a_pipeline_stage_numbers_its_own_layers() -> None:
    """Four layers on two stages; the first stage goes forward twice before it goes back."""
    known = config(num_layers=4, pipeline_model_parallel_size=2)
    assert sum_replays_by_layer(MEASURED, passes("FFFFrBrBrBrB"), known, 2) == TWO_LAYERS
    uneven = config(num_layers=4, pipeline_model_parallel_size=2, num_layers_in_first_pipeline_stage=1)
    assert sum_replays_by_layer(MEASURED, passes("FFFFrBrBrBrB"), uneven, 2) == TOGETHER


@pytest.mark.parametrize(("layers", "microbatches"), [(2, 3), (3, 2), (3, None)])
def test_passes_that_contradict_the_config_are_summed_over_all_layers(layers: int, microbatches: int | None) -> None:
    known = config(num_layers=layers, pipeline_model_parallel_size=1)
    assert sum_replays_by_layer(MEASURED, passes("FFrBrB" * 2), known, microbatches) == TOGETHER


def test_an_estimate_has_no_layers() -> None:
    estimated = Recompute(FULL, known(200))
    assert sum_replays_by_layer(estimated, passes("FFrBrB" * 2), RunConfig(), None) == (
        RecomputedLayer(None, FULL, 200, 4),
    )


def test_without_recompute_there_is_no_row() -> None:
    assert sum_replays_by_layer(Recompute(NONE, known(0)), passes("FFBB"), RunConfig(), None) == ()
    assert sum_replays_by_layer(Recompute(None, missing("unknown")), passes("FFBB"), RunConfig(), None) == ()


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
