"""The Chrome trace event format of small tracks."""

from __future__ import annotations

import json

import polars as pl
import pytest

from three_walls.export.chrome_trace import RankTracks, StepTracks, Track, render_chrome_trace

HOSTILE = '</script>","ph":"X"}],\n\x1b[31m\u202e\ud800'


def render(*ranks: RankTracks, why: str = "its median step") -> str:
    return "".join(render_chrome_trace(StepTracks(7, why, ("a note",), iter(ranks))))


def make_track(track: str, start_ns: int, end_ns: int, name: str, category: str, **details: object) -> Track:
    """A track with one slice."""
    slices = {"start_ns": start_ns, "end_ns": end_ns, "name": "", "category": category, **details}
    shown = pl.Series("name", [name], dtype=pl.Object)  # no column of texts holds half a character, JSON does
    return Track(track, pl.DataFrame([slices]).with_columns(shown))


def make_rank(number: int, name: str = "gemm") -> RankTracks:
    """A call of 2 ns at 1 us, and the kernel it launched from 2.003 to 5.010 us."""
    call = make_track(name, 1_000, 1_002, "cudaLaunchKernel", "cuda_call", correlation=5)
    kernel = make_track("stream 7", 2_003, 5_010, name, "gemm", layer=0, module=None)
    return RankTracks(number, (kernel, call), ((1, 1_000, 0, 2_003),))


def test_a_rank_is_a_process_and_a_track_a_thread_with_its_name() -> None:
    events = json.loads(render(make_rank(3), make_rank(11)))["traceEvents"]
    named = {(event["pid"], event["tid"], event["args"].get("name")) for event in events if event["ph"] == "M"}
    assert {(1, 0, "rank 3"), (2, 0, "rank 11"), (1, 1, "stream 7"), (2, 2, "gemm")} <= named


def test_times_are_microseconds_with_every_nanosecond() -> None:
    text = render(make_rank(0))
    assert '"ts":2.003,"dur":3.007' in text
    assert '"ts":1.000,"dur":0.002' in text


def test_what_is_not_known_is_left_out_and_zero_is_not() -> None:
    events = json.loads(render(make_rank(0)))["traceEvents"]
    assert [event["args"] for event in events if event.get("cat") == "gemm"] == [{"layer": 0}]


def test_a_flow_leads_from_the_call_to_the_kernel_and_its_id_is_unique() -> None:
    events = json.loads(render(make_rank(0), make_rank(1)))["traceEvents"]
    flows = [(event["ph"], event["id"], event["pid"], event["tid"], event["ts"]) for event in events if "id" in event]
    assert flows == [("s", 1, 1, 2, 1.0), ("f", 1, 1, 1, 2.003), ("s", 2, 2, 2, 1.0), ("f", 2, 2, 1, 2.003)]


@pytest.mark.parametrize("hostile", [HOSTILE, '"', "\\", "\u2028", "</script>"])
def test_a_hostile_name_stays_text(hostile: str) -> None:
    text = render(make_rank(0, hostile), why=hostile)
    assert text.isascii()
    assert "\x1b" not in text
    document = json.loads(text)
    assert document["otherData"]["step_chosen"] == hostile
    events = document["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X"] == [hostile, "cudaLaunchKernel"]
    assert len(events) == len(json.loads(render(make_rank(0)))["traceEvents"])


def test_no_rank_is_still_a_document() -> None:
    assert json.loads(render())["traceEvents"] == []
