"""What a snapshot shows: peaks that can be checked by mental arithmetic."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from trace_builder import TraceBuilder

from tests.called import call
from tests.memory_snapshot.snapshots import FORWARD, STATE, block, event, frame, snapshot, write
from three_walls import analyze
from three_walls.lib.errors import InputError, RuleBaseError
from three_walls.lib.load_documents import load_table
from three_walls.memory_snapshot.read_snapshot import Event, Live
from three_walls.memory_snapshot.snapshot import CATEGORIES, MemorySnapshot
from three_walls.memory_snapshot.summarize_snapshot import (
    AllocationStacks,
    allocation_stacks,
    count_releases,
    find_peak,
    read_memory_snapshot,
)
from three_walls.report.html_report import render_html
from three_walls.report.json_report import render_json, report_schema
from three_walls.report.report import Report
from three_walls.report.terminal_report import print_report

pytestmark = pytest.mark.slow

RISE_AND_FALL = [
    event("segment_alloc", 0, 100, []),
    event("alloc", 0, 30, STATE),
    event("alloc", 40, 50, FORWARD),
    event("free_requested", 40, 50, []),
    event("free_completed", 40, 50, []),
    event("alloc", 40, 20, FORWARD),
]
AT_END = (block(0, 30, frames=STATE), block(40, 20, frames=FORWARD), block(60, 50, "inactive"))


def read(tmp_path: Path, value: Any) -> MemorySnapshot:
    return read_memory_snapshot(write(tmp_path / "snapshot.pickle", value))


def test_the_peak_is_the_moment_with_the_most_allocated_memory(tmp_path: Path) -> None:
    summary = read(tmp_path, snapshot(RISE_AND_FALL, *AT_END))
    assert (summary.peak_allocated_bytes, summary.reserved_at_peak_bytes, summary.peak_reserved_bytes) == (80, 100, 100)
    assert summary.fragmentation_fraction == pytest.approx(0.2)
    assert (summary.allocated_bytes, summary.reserved_bytes, summary.largest_free_block_bytes) == (50, 100, 50)
    assert [(share.category, share.bytes) for share in summary.shares] == [("activations", 50), ("optimizer_state", 30)]
    assert summary.no_peak_reason is None


def test_the_history_holds_the_most_of_each_stretch_and_is_bounded(tmp_path: Path) -> None:
    summary = read(tmp_path, snapshot(RISE_AND_FALL, *AT_END))
    assert max(moment.allocated_bytes for moment in summary.history) == 80
    many = [event("alloc", at, 10, FORWARD) for at in range(0, 50_000, 10)]
    long = read(tmp_path, snapshot(many, *(block(at, 10, frames=FORWARD) for at in range(0, 50_000, 10))))
    assert 200 < len(long.history) <= 240
    assert [moment.allocated_bytes for moment in long.history][-1] == 50_000
    assert read(tmp_path, snapshot([], block(0, 10))).history == ()


def test_what_was_allocated_before_the_recording_counts(tmp_path: Path) -> None:
    events = [event("alloc", 40, 10, FORWARD), event("free_requested", 0, 30), event("free_completed", 0, 30)]
    summary = read(tmp_path, snapshot(events, block(40, 10, frames=FORWARD), block(70, 60)))
    assert summary.peak_allocated_bytes == 30 + 60 + 10
    assert [(share.category, share.bytes) for share in summary.shares] == [
        ("before_recording", 90),
        ("activations", 10),
    ]


def test_without_a_history_the_peak_is_unknown_and_the_moment_is_described(tmp_path: Path) -> None:
    summary = read(tmp_path, snapshot([], *AT_END))
    assert summary.peak_allocated_bytes is None
    assert summary.fragmentation_fraction is None
    assert "history was not recorded" in str(summary.no_peak_reason)
    assert sum(share.bytes for share in summary.shares) == summary.allocated_bytes == 50


def test_the_device_with_the_most_memory_is_described(tmp_path: Path) -> None:
    both = snapshot(RISE_AND_FALL, *AT_END, device=2)
    both["segments"] += snapshot([], block(0, 5))["segments"]
    assert read(tmp_path, both).device == 2


def test_failures_and_releases_are_counted(tmp_path: Path) -> None:
    events = [
        *RISE_AND_FALL,
        event("segment_free", 1, 10),
        event("segment_free", 2, 10),
        event("segment_alloc", 3, 20),
        event("segment_free", 3, 20),
        {"action": "oom", "size": 999, "device_free": 7, "frames": [], "stream": 0, "time_us": 1},
        {"action": "oom", "size": 5, "stream": 0},
    ]
    summary = read(tmp_path, snapshot(events, *AT_END))
    assert [(failure.requested_bytes, failure.device_free_bytes) for failure in summary.failures] == [
        (999, 7),
        (5, None),
    ]
    assert summary.release_count == 2


def test_the_same_stack_is_one_site_and_directories_are_not_shown(tmp_path: Path) -> None:
    events = [event("alloc", at, 10, FORWARD) for at in range(0, 30, 10)]
    summary = read(tmp_path, snapshot(events, *(block(at, 10, frames=FORWARD) for at in range(0, 30, 10))))
    (site,) = summary.sites
    assert (site.stack, site.bytes, site.count) == (("model.py:forward",), 30, 3)
    assert "/opt" not in repr(summary)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9), st.booleans()), max_size=40))
def test_a_peak_is_found_wherever_the_recording_begins(steps: list[tuple[int, int, bool]]) -> None:
    """A recording that lost its beginning finds the same peak among the moments that it still has."""
    live: dict[int, Live] = {}
    events: list[Event] = []
    totals = [0]
    for address, size, allocates in steps:
        if allocates and address not in live:
            live[address] = Live(size, ())
            events.append(Event("alloc", address, size, ()))
        elif not allocates and address in live:
            events.append(Event("free_requested", address, live.pop(address).size_bytes, ()))
        else:
            continue
        totals.append(totals[-1] + (size if events[-1].action == "alloc" else -events[-1].size_bytes))
    for begin in range(len(events) + 1):
        peak = find_peak(events[begin:], live, reserved_at_end_bytes=0)
        assert peak.allocated_bytes == max(totals[begin:])
        assert sum(block.size_bytes for block in peak.live) == peak.allocated_bytes
        if begin < len(events):
            assert max(moment.allocated_bytes for moment in peak.history) == peak.allocated_bytes
            assert peak.history[-1].events == len(events) - begin


def test_releases_in_a_row_count_once() -> None:
    events = [Event(action, 0, 1, ()) for action in ("segment_free", "segment_free", "alloc", "segment_unmap")]
    assert count_releases(events) == 2


@pytest.mark.parametrize(
    ("file", "function", "category"),
    [
        ("/x/megatron/core/distributed/param_and_grad_buffer.py", "__init__", "parameters_and_gradients"),
        ("/x/megatron/core/optimizer/distrib_optimizer.py", "_build_model_and_main_param_groups", "optimizer_state"),
        ("/x/site-packages/torch/optim/adam.py", "_init_group", "optimizer_state"),
        ("/x/site-packages/torch/optim/adam.py", "_multi_tensor_adam", "optimizer_step"),
        ("/x/megatron/core/optimizer/clip_grads.py", "clip_grad_by_total_norm_fp32", "optimizer_step"),
        ("/x/megatron/core/tensor_parallel/mappings.py", "forward", "communication"),
        ("/x/megatron/core/tensor_parallel/layers.py", "backward", "backward"),
        ("/x/megatron/core/transformer/attention.py", "forward", "activations"),
        ("/x/megatron/training/training.py", "get_model", "parameters"),
        ("/x/megatron/training/training.py", "setup_model_and_optimizer", "other"),
        ("/x/mine.py", "helper", "other"),
    ],
)
def test_stacks_show_what_an_allocation_is_for(tmp_path: Path, file: str, function: str, category: str) -> None:
    frames = [frame(function, file)]
    summary = read(tmp_path, snapshot([event("alloc", 0, 8, frames)], block(0, 8, frames=frames)))
    assert [share.category for share in summary.shares] == [category]


def test_an_allocation_without_a_stack_has_no_category_of_its_own() -> None:
    assert allocation_stacks().category(()) == "no_stack"


def test_a_category_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("stacks:\n  - {category: activation, pattern: x, because: y}\nignored: []\n")
    with pytest.raises(RuleBaseError, match="did you mean activations"):
        load_table(tmp_path / "a.yaml", AllocationStacks)


@pytest.mark.parametrize(
    "value",
    [
        [],
        {"segments": {}},
        {"segments": [{"total_size": "big", "blocks": []}]},
        {"segments": [{"total_size": 1, "address": 0, "blocks": [7]}]},
        {"segments": [{"total_size": 1, "address": 0, "device": -3, "blocks": []}], "device_traces": [[]]},
        {"segments": [], "device_traces": [[{"action": 3}]]},
        {"segments": [], "device_traces": [[{"action": "alloc", "size": 1.5}]]},
        {"segments": [], "device_traces": [[{"action": "alloc", "size": 1, "frames": [{"name": 1}]}]]},
    ],
)
def test_data_that_is_no_snapshot_is_refused_in_one_line(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, value)
    assert "\n" not in str(caught.value)


def test_the_same_snapshot_as_json_gives_the_same(tmp_path: Path) -> None:
    value = snapshot(RISE_AND_FALL, *AT_END)
    (tmp_path / "snapshot.json").write_text(json.dumps(value))
    assert read_memory_snapshot(tmp_path / "snapshot.json").shares == read(tmp_path, value).shares


@pytest.mark.attack
def test_json_with_more_lists_than_a_snapshot_of_its_size_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "snapshot.json").write_text('{"segments": [' + "[]," * 1_000_000 + "[]]}")
    with pytest.raises(InputError, match=r"more lists and mappings \(1,000,003\) than a snapshot of this size has"):
        read_memory_snapshot(tmp_path / "snapshot.json")


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "NaN"])
def test_json_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "snapshot.json").write_text(text)
    with pytest.raises(InputError, match="expected a memory snapshot"):
        read_memory_snapshot(tmp_path / "snapshot.json")


@pytest.fixture
def report(tmp_path: Path) -> Report:
    trace = TraceBuilder().steps(4).write(tmp_path / "rank0.sqlite")
    events = [*RISE_AND_FALL, {"action": "oom", "size": 1 << 33, "device_free": 1 << 30}, event("segment_free", 9, 1)]
    return analyze(trace, memory_snapshot=write(tmp_path / "snapshot.pickle", snapshot(events, *AT_END)))


def test_the_report_shows_the_snapshot_everywhere(report: Report) -> None:
    loaded = json.loads(render_json(report))
    jsonschema.validate(loaded, report_schema())
    assert loaded["memory_snapshot"]["peak_allocated_bytes"] == 80
    assert {share["category"] for share in loaded["memory_snapshot"]["shares"]} <= CATEGORIES.keys()
    html = render_html(report)
    assert 'id="memory"' in html
    assert "8.0 GiB requested" in html
    screen = Console(file=io.StringIO(), width=100)
    print_report(report, screen, is_full=True)
    text = screen.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO above
    assert "Out of memory: 8.0 GiB requested, 1.0 GiB free on the device" in text
    assert "optimizer_state" in text


def test_the_facts_of_a_snapshot_are_in_the_sheet(report: Report, tmp_path: Path) -> None:
    assert report.facts.number("snapshot_peak_allocated_bytes") == 80
    assert report.facts.number("snapshot_peak_reserved_bytes") == 101  # the released byte was reserved from the start
    assert report.facts.number("snapshot_fragmentation_fraction") == pytest.approx(21 / 101)
    without = analyze(tmp_path / "rank0.sqlite")
    assert "--memory-snapshot" in str(without.facts.get("snapshot_peak_allocated_bytes").missing_reason)
    assert 'id="memory"' not in render_html(without)
    assert json.loads(render_json(without))["memory_snapshot"] is None


def test_the_command_line_takes_a_snapshot_and_refuses_a_hostile_one(tmp_path: Path) -> None:
    TraceBuilder().steps(4).write(tmp_path / "rank0.sqlite")
    write(tmp_path / "good.pickle", snapshot(RISE_AND_FALL, *AT_END))
    (tmp_path / "bad.pickle").write_bytes(b"cos\nsystem\n(S'touch made'\ntR.")
    good = call("analyze", "rank0.sqlite", "--memory-snapshot", "good.pickle", "--full", cwd=tmp_path)
    assert good.returncode == 0, good.stderr
    assert "optimizer_state" in good.stdout
    bad = call("analyze", "rank0.sqlite", "--memory-snapshot", "bad.pickle", cwd=tmp_path)
    assert (bad.returncode, len(bad.stderr.splitlines())) == (3, 1)
    assert "GLOBAL" in bad.stderr
    assert not (tmp_path / "made").exists()
    absent = call("analyze", "rank0.sqlite", "--memory-snapshot", "none.pickle", cwd=tmp_path)
    assert (absent.returncode, "no such file" in absent.stderr) == (3, True)
