"""A run attributed in parts: the same as at once, with memory for some steps only."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest

from tests.trace_builder import ADAM, ALL_GATHER, GEMM, POINTWISE, SEND_RECV, TraceBuilder
from three_walls import analyze, pipeline
from three_walls.step import attribute_steps, parts_of_run, selected_steps
from three_walls.step.attribute_steps import Attribution
from three_walls.step.build_timeline import Timeline
from three_walls.step.compute_gaps import ComputeGaps
from three_walls.step.parts_of_run import Part
from three_walls.step.stream_edges import EventCalls

pytestmark = pytest.mark.slow

US = 1_000
STEPS = 24
STEP = 3_000 * US
CALLS = ("cudaStreamSynchronize_v3020", "cudaMalloc_v3020", "cudaMemsetAsync_v3020")


def busy_steps(seed: int, rank: int = 0) -> TraceBuilder:
    """Steps of kernels on three streams that wait for each other's events, launched up to two steps ahead."""
    random, builder = Random(seed), TraceBuilder(device=rank)
    free, launch, event = dict.fromkeys((7, 20, 21), 10), 1, 0
    for step in range(STEPS):
        begin = 10 + step * STEP
        for _ in range(12):
            stream = random.choice((7, 7, 20, 21))
            start = max(free[stream] + random.randrange(0, 300) * US, begin)
            length = random.randrange(1, 500) * US
            launch = max(launch + random.randrange(1, 300) * US, start - random.randrange(0, 2 * STEP))
            launch = min(launch, start)
            if random.random() < 0.5:
                event, other = event + 1, random.choice((7, 20, 21))
                builder.record_event(event % 5 + 1, other, max(launch - 3 * US, 0), listed=random.random() < 0.3)
                builder.wait_event(event % 5 + 1, stream, max(launch - 2 * US, 0))
            if random.random() < 0.3:
                builder.api(random.choice(CALLS), start - random.randrange(1, 200) * US, start + US)
            name = random.choice((GEMM, GEMM, POINTWISE, SEND_RECV, ALL_GATHER))
            builder.kernel(name, start, start + length, stream=stream, launched=launch)
            free[stream] = start + length
        builder.kernel(ADAM, begin + STEP - 300 * US, begin + STEP - US, launched=begin + STEP - 400 * US)
        free[7] = begin + STEP
    return builder


def divide(monkeypatch: pytest.MonkeyPatch, most: int, margin: int) -> list[Part]:
    """Makes parts of ``most`` operations, and gives those that are made from then on."""
    made: list[Part] = []

    def divide_run(timeline: Timeline, event_calls: EventCalls) -> list[Part]:
        made.extend(parts_of_run.divide_run(timeline, event_calls))
        return made

    monkeypatch.setattr(parts_of_run, "MOST_OPERATIONS", most)
    monkeypatch.setattr(selected_steps, "LARGEST_MARGIN", margin)
    monkeypatch.setattr(attribute_steps, "divide_run", divide_run)
    return made


def attribute(path: Path) -> Attribution:
    """What ``analyze`` attributes."""
    found: list[Attribution] = []

    def keep(*arguments: Any) -> Attribution:
        found.append(attribute_steps.attribute(*arguments))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "attribute", keep)
        analyze(path)
    return found[0]


def assert_same(one: Attribution, other: Attribution) -> None:
    for field in fields(Attribution):
        for left, right in zip(*map(list_values, (getattr(one, field.name), getattr(other, field.name))), strict=True):
            assert left.equals(right) if isinstance(left, pl.DataFrame) else left == right, field.name


def list_values(value: Any) -> list[Any]:
    """The frames of a dataclass, or the value itself."""
    is_composed = isinstance(value, EventCalls | ComputeGaps)
    return [getattr(value, field.name) for field in fields(value)] if is_composed else [value]


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (4, 6))])
def test_a_rank_in_parts_is_attributed_as_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    path = busy_steps(seed).write(tmp_path / "t.sqlite")
    whole = attribute(path)
    made = divide(monkeypatch, most=40, margin=60)
    assert_same(attribute(path), whole)
    assert len(made) > STEPS // 4
    assert all(part.timeline.operations.height < 40 + 2 * 60 + 20 for part in made)
    assert pl.concat(part.timeline.steps for part in made).equals(whole.steps)
    assert whole.compute_gaps.sums["cause"].n_unique() > 3


def test_ranks_in_parts_are_attributed_as_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(4):
        path = tmp_path / "profiles" / f"rank{rank}.sqlite"
        path.parent.mkdir(exist_ok=True)
        busy_steps(rank, rank).write(path)
    whole = attribute(tmp_path / "profiles")
    made = divide(monkeypatch, most=700, margin=60)
    assert_same(attribute(tmp_path / "profiles"), whole)
    assert [part.timeline.steps["rank_index"].unique().sort().to_list() for part in made] == [[0, 1], [2, 3]]


def test_a_small_run_is_a_single_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = divide(monkeypatch, most=parts_of_run.MOST_OPERATIONS, margin=60)
    analyze(busy_steps(1).write(tmp_path / "t.sqlite"))
    assert len(made) == 1
