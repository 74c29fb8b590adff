"""Other micro-batch sizes in a pipeline, compared with the simulated pipeline that has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from lockstep import ATTENTION
from pipeline_model import ATTENTION_BACKWARD, PipelineRun, simulate_pipeline
from trace_builder import GEMM

from tests.measured import measure
from three_walls.pipeline import replay_run
from three_walls.replay import replay_thresholds
from three_walls.replay.predictor import StepReplay
from three_walls.replay.step_graph import StepGraph, Work, replay
from three_walls.replay.transform_graph import transform
from three_walls.replay.transformation import Action, Level, Transformation
from three_walls.trace.run_request import RunRequest

pytestmark = pytest.mark.slow

STAGES, MICRO_BATCHES = 4, 8


def longer_passes(factor: float, run: PipelineRun) -> None:
    run.forward_ns, run.backward_ns = round(run.forward_ns * factor), round(run.backward_ns * factor)
    run.transfer_ns = round(run.transfer_ns * factor)


def labelled(graph: StepGraph) -> StepGraph:
    """``graph`` with micro-batch and direction of each pass, whose two kernels say which it is."""
    passes: dict[int, tuple[int, str]] = {}
    operations = graph.operations.with_row_index("place").sort("start_ns")
    for rank in range(len(graph.ranks)):
        of_passes = operations.filter(
            (pl.col("rank") == rank) & pl.col("name").is_in([ATTENTION, GEMM, ATTENTION_BACKWARD])
        )
        rows = of_passes.select("place", "name").rows()
        counts = {"forward": 0, "backward": 0}
        for (first, name), (second, _) in zip(rows[::2], rows[1::2], strict=True):
            direction = "forward" if name == ATTENTION else "backward"
            passes[first] = passes[second] = (counts[direction], direction)
            counts[direction] += 1
    places = range(graph.operations.height)
    return replace(
        graph,
        operations=graph.operations.with_columns(
            micro_batch=pl.Series([passes.get(place, (None,))[0] for place in places], dtype=pl.Int64),
            direction=pl.Series([passes.get(place, (0, None))[1] for place in places], dtype=pl.String),
        ),
    )


@cache
def find_predictor(traces: tuple[Path, ...]) -> StepReplay:
    predictor = replay_run(RunRequest(traces)).predictor
    assert isinstance(predictor, StepReplay)
    return predictor


def read(traces: Sequence[Path]) -> tuple[StepGraph, Work]:
    """The step of ``traces`` where no host holds the device up."""
    graph = labelled(find_predictor(tuple(traces)).graph)
    return graph, replace(graph.work, host_segment_ns=np.minimum(graph.work.host_segment_ns, 1_000))


def step_ns(graph: StepGraph, work: Work, factor: float, level: Level = Level.LIKELY) -> int:
    return replay(graph, transform(graph, work, [Transformation(Action.MICRO_BATCH, factor=factor)], level)).longest_ns


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return simulate_pipeline(STAGES, MICRO_BATCHES).write(tmp_path_factory.mktemp("pipeline"))


@pytest.fixture(scope="module", params=[0.5, 2.0])
def changed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[float, float]:
    """A factor of the micro-batch size, and the step of the pipeline that has it."""
    factor: float = request.param
    run = simulate_pipeline(STAGES, round(MICRO_BATCHES / factor), odd=lambda run: longer_passes(factor, run))
    found = measure(run.write(tmp_path_factory.mktemp("changed"))).facts.number("step_ns")
    assert found is not None
    return factor, found


def test_the_bubble_has_as_many_passes_as_before(traces: list[Path], changed: tuple[float, float]) -> None:
    factor, true_ns = changed
    assert step_ns(*read(traces), factor) == pytest.approx(true_ns, rel=0.01)


def test_the_wait_for_stages_that_were_not_captured_is_as_long_as_their_passes(
    traces: list[Path], changed: tuple[float, float]
) -> None:
    factor, true_ns = changed
    graph, work = read(traces[:1])
    assert step_ns(graph, work, factor) == pytest.approx(true_ns, rel=0.03)
    low_ns, high_ns = (step_ns(graph, work, factor, level) for level in (Level.HIGH, Level.LOW))
    now_ns = replay(graph, work).longest_ns
    assert low_ns <= now_ns <= high_ns  # of uneven stages the wait is as long in all


def test_without_stages_the_device_takes_as_long_for_smaller_micro_batches(
    traces: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the start of each kernel, of which there are twice as many."""
    monkeypatch.setattr(replay_thresholds, "LEAST_KERNEL_NS", 0)
    graph, work = read(traces)
    category = pl.col("category").cast(pl.String).replace("pipeline_p2p", "all_reduce")
    alone = replace(graph, operations=graph.operations.with_columns(category))
    assert step_ns(alone, work, 0.5) == replay(graph, work).longest_ns


def test_it_is_not_predicted_where_no_pass_is_known(traces: list[Path]) -> None:
    predictor = find_predictor(tuple(traces))
    twice = Transformation(Action.MICRO_BATCH, factor=2.0)
    assert predictor.explain(twice) == "which micro-batch each launch belongs to is not known"
    assert replace(predictor, graph=labelled(predictor.graph)).explain(twice) == ""
