"""GEMMs of experts whose shapes did not occur before cost the host more than they do where tokens are spread evenly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl
import pytest

from tests.replay.small_graphs import GraphBuilder
from three_walls.replay.step_graph import StepGraph
from three_walls.replay.transform_graph import transform
from three_walls.replay.transformation import Action, Level, Selection, Transformation

BALANCED = Transformation(Action.BALANCE, Selection(modules=("experts",)))
FIXED_NS = (30, 30, 30, 90, 90)
"""Host time of the launches of GEMMs of other layers."""
DEAR_NS = (200, 200, 10, 10)
"""The same of experts: two shapes that did not occur before."""


def launched(
    experts_ns: Sequence[int],
    fixed_ns: Sequence[int] = FIXED_NS,
    streams: Sequence[int] = (1, 2, 3, 4),
    asks: bool = False,
    category: str = "gemm",
) -> StepGraph:
    """GEMMs one after the other; ``asks``: the time before a launch lies before the calls that prepare it and fill."""
    builder = GraphBuilder()
    builder.call(0, 0)
    part, module = [], []
    for order, took_ns in enumerate((*fixed_ns, *experts_ns)):
        is_expert = order >= len(fixed_ns)
        stream = streams[order - len(fixed_ns)] if is_expert else 0
        labels = ("expert_gemm", "experts") if is_expert else ("projection", "attention")
        if asks:
            builder.calls[builder.call(took_ns, 0)]["kind"] = "other"
            builder.operation(builder.call(0, 0), 1, stream, category="memset")
            part, module = [*part, labels[0].removesuffix("_gemm")], [*module, labels[1]]
        builder.operation(builder.call(0 if asks else took_ns, 0), 1, stream, category=category)
        part, module = [*part, labels[0]], [*module, labels[1]]
    graph = builder.build()
    return replace(graph, operations=graph.operations.with_columns(part=pl.Series(part), module=pl.Series(module)))


def host_ns(graph: StepGraph, level: Level = Level.LIKELY, change: Transformation = BALANCED) -> int:
    return int(transform(graph, graph.work, (change,), level).host_segment_ns.sum()) - sum(FIXED_NS)


@pytest.mark.parametrize(
    ("level", "left_ns"),
    [
        (Level.LOW, 200 + 200 + 10 + 10),
        (Level.LIKELY, 30 + 30 + 10 + 10),  # as the cheapest quarter of the other GEMMs
        (Level.HIGH, 10 + 10 + 10 + 10),  # as the cheapest quarter of those of experts
    ],
)
def test_shapes_that_did_not_occur_before_cost_what_known_ones_do(level: Level, left_ns: int) -> None:
    assert host_ns(launched(DEAR_NS), level) == left_ns


def test_what_prepares_a_launch_belongs_to_it() -> None:
    assert host_ns(launched(DEAR_NS, asks=True)) == 30 + 30 + 10 + 10


@pytest.mark.parametrize("level", list(Level))
def test_a_rare_pause_among_cheap_launches_has_another_cause(level: Level) -> None:
    experts_ns = (10, 10, 60, 10)
    assert host_ns(launched(experts_ns), level) == sum(experts_ns)


def test_without_gemms_of_other_layers_or_of_experts_nothing_is_known() -> None:
    assert host_ns(launched(DEAR_NS, fixed_ns=())) == sum(DEAR_NS) - sum(FIXED_NS)
    assert host_ns(launched(())) == 0


def test_experts_that_run_one_by_one_on_a_stream_keep_the_code_between_them() -> None:
    assert host_ns(launched(DEAR_NS, streams=(1, 1, 1, 1))) == sum(DEAR_NS)


def test_only_gemms_of_experts_that_are_balanced_change() -> None:
    others = Transformation(Action.BALANCE, Selection(modules=("dispatch",)))
    assert host_ns(launched(DEAR_NS), change=others) == sum(DEAR_NS)
    assert host_ns(launched(DEAR_NS, category="elementwise")) == sum(DEAR_NS)
