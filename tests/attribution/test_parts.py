"""A run attributed in parts: the same as at once, with memory for some steps only."""

from __future__ import annotations

from pathlib import Path
from random import Random

import polars as pl
import pytest

from tests.trace_builder import ADAM, ALL_GATHER, GEMM, POINTWISE, SEND_RECV, TraceBuilder
from three_walls import analyze
from three_walls.attribution import attribution, parts
from three_walls.attribution.parts import Part
from three_walls.attribution.stream_edges import EventCalls
from three_walls.model.report import Report
from three_walls.timeline.timeline import Timeline

US = 1_000
STEPS = 24
STEP = 10_000 * US
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
        made.extend(parts.divide_run(timeline, event_calls))
        return made

    monkeypatch.setattr(parts, "MOST_OPERATIONS", most)
    monkeypatch.setattr(parts, "_MARGIN", margin)
    monkeypatch.setattr(attribution, "divide_run", divide_run)
    return made


def measured(report: Report) -> tuple[object, ...]:
    values = {name: fact.value for name, fact in report.facts.facts.items()}
    return values, report.ranks, report.waits, report.stragglers, report.budget, report.timeline


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_rank_in_parts_is_attributed_as_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    path = busy_steps(seed).write(tmp_path / "t.sqlite")
    whole = analyze(path)
    made = divide(monkeypatch, most=40, margin=60)
    assert measured(analyze(path)) == measured(whole)
    assert len(made) > STEPS // 4
    assert all(part.timeline.operations.height < 40 + 2 * 60 + 20 for part in made)
    steps = pl.concat(part.timeline.steps for part in made)
    assert steps.height == len(whole.ranks[0].steps)
    assert steps["step"].is_unique().all()


def test_ranks_in_parts_are_attributed_as_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(4):
        path = tmp_path / "profiles" / f"rank{rank}.sqlite"
        path.parent.mkdir(exist_ok=True)
        busy_steps(rank, rank).write(path)
    whole = analyze(tmp_path / "profiles")
    made = divide(monkeypatch, most=700, margin=60)
    assert measured(analyze(tmp_path / "profiles")) == measured(whole)
    assert [part.timeline.steps["rank_index"].unique().sort().to_list() for part in made] == [[0, 1], [2, 3]]


def test_a_small_run_is_a_single_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = divide(monkeypatch, most=parts.MOST_OPERATIONS, margin=60)
    analyze(busy_steps(1).write(tmp_path / "t.sqlite"))
    assert len(made) == 1
