"""Why the device was idle."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import ADAM, GEMM, MEGATRON, TraceBuilder

from three_walls import analyze

pytestmark = pytest.mark.slow

IDLE = ("profiler", "host_blocked", "launch_starved", "idle_other")


def idle(tmp_path: Path, builder: TraceBuilder) -> dict[str, int]:
    """Idle buckets of the only kept step (from 1001 to 2001)."""
    report = analyze(builder.write(tmp_path / "trace.sqlite"))
    assert [(step.start_ns, step.end_ns) for step in report.ranks[0].steps if step.kept] == [(1001, 2001)]
    return {name: ns for name, ns in report.ranks[0].budget.items() if name in IDLE}


def three_steps(busy_until: int, next_launched: int | None) -> TraceBuilder:
    """Per step a GEMM until ``busy_until``, a gap, and an update from 900 on, launched at ``next_launched``."""
    builder = TraceBuilder()
    for at in (1, 1001, 2001):
        builder.kernel(GEMM, at, at + busy_until, launched=max(at - 5, 0))
        launched = None if next_launched is None else at + next_launched
        builder.kernel(ADAM, at + 900, at + 1000, launched=launched)
    return builder


def test_a_gap_before_a_late_launch_is_starvation(tmp_path: Path) -> None:
    # Idle from 600 to 900; the update's launch began at 850.
    assert idle(tmp_path, three_steps(600, next_launched=850)) == {"launch_starved": 250, "idle_other": 50}


def test_a_long_queue_is_no_starvation(tmp_path: Path) -> None:
    # Launched long before it ran: the host is ahead. The gap has another cause.
    assert idle(tmp_path, three_steps(600, next_launched=10)) == {"idle_other": 300}


def test_a_full_device_has_no_idle_time_at_all(tmp_path: Path) -> None:
    assert idle(tmp_path, three_steps(900, next_launched=10)) == {}


def test_a_launch_that_was_not_recorded_leaves_the_gap_unexplained(tmp_path: Path) -> None:
    assert idle(tmp_path, three_steps(600, next_launched=None)) == {"idle_other": 300}


def test_waiting_in_a_synchronizing_call_is_blocked_not_starved(tmp_path: Path) -> None:
    builder = three_steps(600, next_launched=850)
    for at in (1, 1001, 2001):
        builder.api("cudaStreamSynchronize_v3020", at + 500, at + 700)
    assert idle(tmp_path, builder) == {"host_blocked": 100, "launch_starved": 150, "idle_other": 50}


def test_a_synchronizing_call_of_another_thread_blocks_nothing(tmp_path: Path) -> None:
    builder = three_steps(600, next_launched=850)
    for at in (1, 1001, 2001):
        builder.api("cudaStreamSynchronize_v3020", at + 500, at + 700, thread=builder.thread + 7)
    assert idle(tmp_path, builder) == {"launch_starved": 250, "idle_other": 50}


def test_the_profilers_own_work_is_not_the_hosts_fault(tmp_path: Path) -> None:
    builder = three_steps(600, next_launched=850)
    for at in (1, 1001, 2001):
        builder.overhead(at + 650, at + 750)
    assert idle(tmp_path, builder) == {"profiler": 100, "launch_starved": 150, "idle_other": 50}


def test_a_device_saturated_by_copies_is_never_host_bound(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in (1, 1001, 2001):
        builder.copy(1, at, at + 970, launched=max(at - 5, 0))
        builder.kernel(GEMM, at + 970, at + 980, launched=at + 2)
        builder.kernel(ADAM, at + 980, at + 1000, launched=at + 3)
        builder.api("cudaStreamSynchronize_v3020", at + 10, at + 960)  # the host waits for the copies
    report = analyze(builder.write(tmp_path / "trace.sqlite"), settings=["num_moe_experts=8"])
    assert report.ranks[0].budget["copy_h2d_pinned"] == 970
    assert report.facts.number("host_idle_ns") == 0
    assert report.verdict.wall == "memory"


def test_copies_are_distinguished_by_direction_and_memory(tmp_path: Path) -> None:
    builder = three_steps(500, next_launched=850)
    for at in (1, 1001, 2001):
        builder.copy(1, at + 500, at + 510, memory=(0, 2)).copy(1, at + 510, at + 530, memory=(1, 2))
        builder.copy(2, at + 530, at + 560, memory=(2, 0)).copy(2, at + 560, at + 600, memory=(2, 1))
        builder.copy(8, at + 600, at + 650, memory=(2, 2)).copy(10, at + 650, at + 710, memory=(2, 2))
    owned = analyze(builder.write(tmp_path / "trace.sqlite")).ranks[0].budget
    assert {name: ns for name, ns in owned.items() if name.startswith("copy")} == {
        "copy_h2d_pageable": 10,
        "copy_h2d_pinned": 20,
        "copy_d2h_pageable": 30,
        "copy_d2h_pinned": 40,
        "copy_d2d": 50,
        "copy_p2p": 60,
    }


def test_starvation_under_the_profiler_comes_with_a_warning(tmp_path: Path) -> None:
    starved = analyze(three_steps(600, next_launched=850).write(tmp_path / "starved.sqlite"))
    fed = analyze(three_steps(600, next_launched=10).write(tmp_path / "fed.sqlite"))
    assert [w.code for w in starved.warnings].count("host-time-under-profiler") == 1
    assert "host-time-under-profiler" not in {w.code for w in fed.warnings}


def test_starvation_under_the_runs_own_ranges_comes_with_a_warning(tmp_path: Path) -> None:
    def codes(launched: int, flags: str) -> set[str]:
        builder = three_steps(600, next_launched=launched).launched_as(f"{MEGATRON} {flags}", RANK="0")
        return {
            warning.code for warning in analyze(builder.write(tmp_path / f"{launched}{len(flags)}.sqlite")).warnings
        }

    assert "nvtx-ranges" in codes(850, "--nvtx-ranges")
    assert "nvtx-ranges" not in codes(850, "")
    assert "nvtx-ranges" not in codes(10, "--nvtx-ranges")
