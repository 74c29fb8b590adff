"""One report of several processes, which share correlation ids, holds what a report of each of them holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lockstep import EPOCH, Behaviour, simulate
from moe_model import Model, command
from trace_builder import ADAM, GEMM, POINTWISE, PROCESS, TraceBuilder, merge

from three_walls import analyze
from three_walls.report.json_report import render_json
from three_walls.report.report import Report

pytestmark = pytest.mark.slow

BEGINS = (1, 1001, 2001, 3001)


def comparable(report: Report) -> dict[str, Any]:
    """The report but for where it was read."""
    document: dict[str, Any] = json.loads(render_json(report))
    for rank in document["ranks"]:
        del rank["input_name"]
    del document["inputs"], document["recorded_at"]  # not every file states when it began
    document["warnings"] = [warning for warning in document["warnings"] if warning["code"] != "rank-not-in-trace"]
    return document


def both_ways(tmp_path: Path, builders: list[TraceBuilder]) -> tuple[Report, Report]:
    apart = [builder.write(tmp_path / f"{number}.sqlite") for number, builder in enumerate(builders)]
    return analyze(apart), analyze(merge(tmp_path / "all.sqlite", *builders))


def second_process(first: TraceBuilder) -> TraceBuilder:
    return TraceBuilder(process=PROCESS + (1 << 24), strings=first.strings, session_start_ns=EPOCH)


def test_waits_and_stragglers(tmp_path: Path) -> None:
    run = simulate([Behaviour(), Behaviour(slow=1.3), Behaviour()])
    run.write(tmp_path)
    apart, together = both_ways(tmp_path, run.builders)
    assert comparable(apart) == comparable(together)
    assert [straggler.rank for straggler in together.stragglers] == [1]


def test_the_ledger_of_moe_layers(tmp_path: Path) -> None:
    first = Model(builder=TraceBuilder(session_start_ns=EPOCH))
    second = Model(builder=second_process(first.builder))
    for model, expert in ((first, 40), (second, 43)):
        model.builder.launched_as(command(), WORLD_SIZE="4", LOCAL_WORLD_SIZE="4")
        for _ in range(3):
            for _ in range(2):
                model.forward(expert).forward(expert).head().backward(expert).backward(expert)
            model.update()
    apart, together = both_ways(tmp_path, [first.builder, second.builder])
    assert comparable(apart) == comparable(together)
    assert {row.layer for row in together.moe_layers} == {0, 1}


def test_the_coverage_by_graphs(tmp_path: Path) -> None:
    first = TraceBuilder(session_start_ns=EPOCH)
    builders = [first, second_process(first)]
    for number, builder in enumerate(builders):
        for at in BEGINS:
            builder.kernel(GEMM, at, at + 300, node=1).kernel(GEMM, at + 300, at + 600, node=2)
            # The second process runs one more kernel outside, launched by a call of the same number.
            for extra in range(1 + number):
                builder.kernel(POINTWISE, at + 700 + extra * 20, at + 710 + extra * 20, launched=at + 2 + extra)
            builder.kernel(ADAM, at + 900, at + 1000, launched=at + 10)
    apart, together = both_ways(tmp_path, builders)
    assert comparable(apart) == comparable(together)
    assert together.graph_coverage is not None
