"""How the phases of a pipeline are shown: one row per stage and phase, ranges over its ranks."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.report.test_text_report import print_plain
from three_walls.model.report import PipelinePhase, Report
from three_walls.report.diagnosis_views import summarize_stages
from three_walls.report.html_report import render_html
from three_walls.report.json_report import render_json

MS = 1_000_000
UNTOLD = "one rank captured"
PHASES = (
    PipelinePhase(4, 1, "update", 14 * MS, 0, None, 0, MS, UNTOLD),
    PipelinePhase(1, 0, "steady", 99 * MS, 5 * MS, 4 * MS, 7 * MS, 14 * MS),
    PipelinePhase(0, 0, "warm-up", 96 * MS, 34 * MS, 33 * MS, 3 * MS, 22 * MS),
    PipelinePhase(1, 0, "warm-up", 98 * MS, 35 * MS, 34 * MS, 3 * MS, 22 * MS),
)


def with_pipeline(report: Report) -> Report:
    return replace(report, pipeline_phases=PHASES)


def test_stages_come_in_order_and_their_phases_in_order_of_time(report: Report) -> None:
    rows = summarize_stages(with_pipeline(report))
    assert [(one.stage, one.phase, one.rank_count) for one in rows] == [
        (0, "warm-up", 2),
        (0, "steady", 1),
        (1, "update", 1),
    ]
    assert (rows[0].low, rows[0].high) == (96 * MS, 98 * MS)
    assert (rows[0].bubble_low_ns, rows[0].bubble_high_ns) == (33 * MS, 34 * MS)


def test_an_unknown_bubble_is_unknown_and_says_why(report: Report) -> None:
    (row,) = [one for one in summarize_stages(with_pipeline(report)) if one.stage == 1]
    assert (row.bubble_low_ns, row.bubble_high_ns, row.notes) == (None, None, (UNTOLD,))
    line = next(line for line in print_plain(with_pipeline(report)).splitlines() if UNTOLD in line)
    assert "unknown" in line
    assert UNTOLD in render_html(with_pipeline(report))


def test_the_json_holds_every_phase(report: Report) -> None:
    first = json.loads(render_json(with_pipeline(report)))["pipeline"][2]
    assert first == {
        "rank": 0,
        "stage": 0,
        "phase": "warm-up",
        "ns": 96 * MS,
        "p2p_exposed_ns": 34 * MS,
        "bubble_ns": 33 * MS,
        "ep_exposed_ns": 3 * MS,
        "idle_ns": 22 * MS,
        "note": "",
    }


def test_without_a_pipeline_nothing_is_said_of_one(report: Report) -> None:
    assert "PIPELINE" not in print_plain(report)
    assert 'id="pipeline"' not in render_html(report)
