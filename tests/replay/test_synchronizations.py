"""Calls that wait for the device, by place in the code: how often, how long, what idles after them, what they cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trace_builder import ADAM, GEMM, TraceBuilder
from three_walls import analyze
from three_walls.facts.fact_rows import Synchronizations
from three_walls.report.report import LiveReport

pytestmark = pytest.mark.slow

US = 1_000
CYCLES = 6
KERNEL_US = 400


def analyze_cycles(
    folder: Path, thought_us: int, waits: bool = True, reads: bool = False, ranges: bool = True
) -> LiveReport:
    """Steps of some GEMMs of 400 us, each launched ``thought_us`` after the thread goes on, and an update.

    ``waits``: a call waits for each GEMM, in ``aten::item`` of a layer. ``reads``: and before it a copy to pageable
    memory, which waits itself.
    """
    builder = TraceBuilder()
    now = 10_000
    for _ in range(5):
        device_us = now
        for layer in range(CYCLES):
            launched = now
            start = max(now + 5, device_us + 2)
            device_us = start + KERNEL_US
            builder.kernel(GEMM, start * US, device_us * US, launched=launched * US)
            begun = now = launched + 10
            if waits:
                if reads:
                    builder.copy(2, (device_us + 2) * US, (device_us + 4) * US, memory=(2, 0))
                    now = device_us + 6
                    builder.api("cudaMemcpyAsync_v3020", begun * US, now * US, builder.correlation)
                    builder.api("cudaStreamSynchronize_v3020", (now + 2) * US, (now + 4) * US)
                    now += 4
                else:
                    now = device_us + 4
                    builder.api("cudaStreamSynchronize_v3020", begun * US, now * US)
                if ranges:
                    builder.nvtx(f"layers.{layer}.router", (begun - 3) * US, (now + 3) * US)
                    builder.nvtx("aten::item, op_id = 4", (begun - 2) * US, (now + 2) * US)
                    builder.nvtx("aten::_local_scalar_dense, op_id = 5", (begun - 1) * US, (now + 1) * US)
            now += thought_us
        start = max(now + 5, device_us + 2)
        builder.kernel(ADAM, start * US, (start + 100) * US, launched=now * US)
        now += 300 if waits else 10
        if not waits:
            now = max(now, start + 90)
    report = analyze(builder.write(folder / "rank0.sqlite"))
    assert isinstance(report, LiveReport)
    return report


def ledger(report: LiveReport) -> Synchronizations:
    assert report.synchronizations is not None
    return report.synchronizations


def test_the_launch_starvation_after_a_wait_is_what_it_costs_although_the_device_never_idles_in_the_call(
    tmp_path: Path,
) -> None:
    report = analyze_cycles(tmp_path, thought_us=300)
    found, (site,) = ledger(report), ledger(report).sites
    assert (site.name, site.function, site.calls) == ("aten::item in layers.*.router", "cudaStreamSynchronize", CYCLES)
    assert site.blocked_ns == CYCLES * (KERNEL_US - 1) * US
    assert site.drained_ns == CYCLES * (300 + 5) * US
    assert site.gain_ns == found.gain_ns
    # Without waiting, a thread needs 310 us for what the device does in 400.
    assert found.gain_ns == pytest.approx(CYCLES * 300 * US, rel=0.2)
    assert (report.facts.number("host_blocked_fraction") or 0) < 0.03
    finding = next(finding for finding in report.findings if finding.rule == "host-synchronization")
    assert finding.outcome == "found"
    assert "aten::item in layers.*.router" in finding.reason
    assert finding.gain_ns.high == pytest.approx(found.gain_ns, rel=0.1)


def test_a_wait_after_which_the_host_is_soon_ahead_again_costs_little(tmp_path: Path) -> None:
    report = analyze_cycles(tmp_path, thought_us=2)
    assert ledger(report).calls == CYCLES
    assert 0 < (ledger(report).gain_ns or 0) < CYCLES * 25 * US  # the gap between two GEMMs
    assert ledger(report).drained_ns == CYCLES * 7 * US


def test_a_copy_to_pageable_memory_and_the_wait_for_it_count_once(tmp_path: Path) -> None:
    report = analyze_cycles(tmp_path, thought_us=300, reads=True)
    (site,) = ledger(report).sites
    assert (site.name, site.function, site.calls) == ("aten::item in layers.*.router", "cudaStreamSynchronize", CYCLES)
    assert site.gain_ns == pytest.approx(CYCLES * 300 * US, rel=0.2)


def test_without_ranges_a_site_is_the_function_that_waits(tmp_path: Path) -> None:
    report = analyze_cycles(tmp_path, thought_us=300, ranges=False)
    assert {site.name for site in ledger(report).sites} == {"cudaStreamSynchronize"}
    assert sum(site.calls for site in ledger(report).sites) == CYCLES


def test_a_step_whose_host_never_waits_has_no_site(tmp_path: Path) -> None:
    report = analyze_cycles(tmp_path, thought_us=20, waits=False)
    assert ledger(report).sites == ()
    assert (ledger(report).calls, ledger(report).gain_ns) == (0, 0)
    assert report.facts.get("costliest_synchronization").is_missing
    finding = next(finding for finding in report.findings if finding.rule == "host-synchronization")
    assert finding.outcome == "not_needed"
