"""The timeline in the page: what its script is given, the picture without it, and the tables below."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode
from dataclasses import replace
from typing import Any

import pytest

from three_walls.export.step_detail_rows import StepTimeline, TimelineCounter, TimelineLane
from three_walls.lib.resources import TEMPLATES_DIR
from three_walls.report.html_report import render_html
from three_walls.report.report import Report
from three_walls.report.section import TimelineBlock, nested_blocks
from three_walls.report.sections.timeline import format_clock, link_of, timeline
from three_walls.report.svg import COLUMNS, choose_ink, place_timeline, timeline_data

HOSTILE = "</script><img src=x>&\x1b[31m\u202e"


def block_of(report: Report) -> TimelineBlock:
    section = timeline(report)
    assert section is not None
    return next(block for block in nested_blocks(section.blocks) if isinstance(block, TimelineBlock))


def unpack(block: TimelineBlock) -> dict[str, Any]:
    """What the script reads."""
    document: dict[str, Any] = json.loads(zlib.decompress(b64decode(timeline_data(block))))
    return document


@pytest.fixture
def drawn(report: Report) -> StepTimeline:
    assert report.timeline is not None
    return report.timeline


def test_a_link_leads_to_a_place_of_the_page(report: Report, drawn: StepTimeline) -> None:
    page = render_html(report)
    link = link_of(drawn.worst_gaps[0])
    assert link == "t=450000000-640000000&rank=3"
    escaped = link.replace("&", "&amp;")
    assert f'href="#{escaped}"' in page
    assert page.count(f'id="{escaped}"') == 1


def test_a_hostile_name_can_neither_end_the_data_nor_steer_the_reader(report: Report, drawn: StepTimeline) -> None:
    hostile = replace(drawn, texts=(HOSTILE, *drawn.texts[1:]))
    block = block_of(replace(report, timeline=hostile))
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", timeline_data(block))
    assert unpack(block)["texts"][0] == "</script><img src=x>&\\x1b[31m\\u202e"


def test_the_data_holds_every_lane_and_the_colours_that_it_uses(report: Report) -> None:
    document = unpack(block_of(report))
    assert [len(rank["lanes"]) for rank in document["ranks"]] == [4, 4, 1]
    assert set(document["colours"]) == {"gemm", "ep_all_to_all", "launch_starved"}
    assert document["ranks"][0]["lanes"][3]["busy_ns"] == [250_000_000]


def test_lanes_of_the_hardware_are_there_where_it_was_sampled(report: Report, drawn: StepTimeline) -> None:
    assert all(rank["counters"] == [] for rank in unpack(block_of(report))["ranks"])
    section = timeline(report)
    assert section is not None
    assert "hardware" not in section.lead
    first = replace(drawn.ranks[0], counters=(TimelineCounter("SMs", (90, None, 10, 0)),))
    sampled = replace(report, timeline=replace(drawn, ranks=(first, *drawn.ranks[1:])))
    ranks = unpack(block_of(sampled))["ranks"]
    assert [rank["counters"] for rank in ranks] == [[{"name": "SMs", "percent": [90, None, 10, 0]}], [], []]
    section = timeline(sampled)
    assert section is not None
    assert "averaged over 160 ms" in section.lead


def test_the_picture_shows_what_takes_most_of_each_column_and_leaves_a_pause_white(report: Report) -> None:
    budget, stream, *others = place_timeline(block_of(report))
    assert (budget["name"], stream["name"]) == ("bucket", "stream 7")
    assert [lane["name"] for lane in others] == ["rank 0", "rank 5"]
    widths = [sum(int(wide) for wide in re.findall(r"h(\d+)v", path)) for _, path in budget["paths"]]
    assert sum(widths) == COLUMNS
    assert sum(int(wide) for _, path in stream["paths"] for wide in re.findall(r"h(\d+)v", path)) == round(
        450 / 640 * COLUMNS
    )


def test_an_empty_lane_is_an_empty_picture(report: Report, drawn: StepTimeline) -> None:
    empty = replace(drawn.ranks[0], lanes=(TimelineLane("budget", "", 0, (), (), (), ()),))
    (lane,) = place_timeline(block_of(replace(report, timeline=replace(drawn, ranks=(empty,)))))
    assert lane["paths"] == ()


def test_a_report_without_a_step_has_no_timeline(report: Report) -> None:
    bare = replace(report, timeline=None)
    assert timeline(bare) is None
    assert "timeline-data" not in render_html(bare)


def test_times_are_written_as_nsight_systems_takes_them() -> None:
    assert [format_clock(0), format_clock(3_727_063_386)] == ["0.000000000s", "3.727063386s"]


def test_text_is_dark_on_light_colours_and_light_on_dark_ones() -> None:
    assert (choose_ink("#fdba74"), choose_ink("#1d4ed8")) == ("#0b1220", "#ffffff")


def test_the_script_is_small_and_only_ever_sets_text() -> None:
    script = (TEMPLATES_DIR / "timeline.js").read_text(encoding="utf-8")
    assert len(script) < 24 * 1024
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|fetch\(", script
    )
