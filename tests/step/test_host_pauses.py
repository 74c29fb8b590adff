"""Pauses of the host stand out among the gaps of their place, and belong to no time that edits share out."""

from __future__ import annotations

import lzma
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
from paths import SAMPLES
from paused import pause_before
from rich.console import Console
from trace_builder import ADAM, GEMM, MEGATRON, POINTWISE, TraceBuilder

from tests.analyzed_samples import analyze_sample, reads_sample
from three_walls import analyze
from three_walls.advice.decide_verdict import Verdict, decide_verdict
from three_walls.advice.format.conditions import KnownFacts
from three_walls.advice.testing.rule_cases import sheet_of
from three_walls.facts.sheet import DEFINITIONS
from three_walls.report.markdown_report import render_markdown
from three_walls.report.report import LiveReport
from three_walls.report.terminal_report import print_report

pytestmark = pytest.mark.slow

MS = 1_000_000
LAYERS = 20
STEPS = 4
MIDDLE = 2 * (LAYERS // 2)
"""A launch in the middle of a step."""
FIRST, UPDATE = 0, 2 * LAYERS
NORM = "rmsnorm_fwd_kernel"
LAUNCH = "the launch itself"


class Program:
    """Steps of 20 layers with two kernels each and an update. The host launches one every 2 ms, which runs for 1 ms."""

    def __init__(self) -> None:
        self.builder = TraceBuilder().launched_as(MEGATRON)

    def run(
        self,
        folder: Path,
        pauses_ns: Mapping[tuple[int, int], int],
        inside: str = "",
        os_calls: Mapping[str, int] = {},
        norms: Collection[int] = (),
        steps: int = STEPS,
        busy_ns: int = 0,
        interrupted_ns: int | None = None,
        kernel_ns: int = MS,
    ) -> LiveReport:
        """``pauses_ns``: by step and launch; ``inside``: what the host is in meanwhile: a call, or a range.

        ``os_calls``: how long it is in functions of the operating system. ``norms``: launches of another kernel.
        ``busy_ns``: how long the kernel runs that was launched before a pause. ``interrupted_ns``: how long each of
        three calls or ranges takes, with which the host is ``inside`` something, in place of all the time.
        ``kernel_ns``: how long a kernel runs; the device is behind the host where that is more than 2 ms.
        """
        at, behind_ns = MS, 0
        for step in range(steps):
            for launch in range(UPDATE + 1):
                pause_ns = pauses_ns.get((step, launch), 0)
                add = self.builder.api if inside.startswith("cu") else self.builder.nvtx
                if pause_ns and interrupted_ns is not None:
                    for quarter in (1, 2, 3):
                        begin = at + quarter * pause_ns // 4
                        add(inside, begin, begin + interrupted_ns)
                elif pause_ns and inside not in ("", LAUNCH):
                    add(inside, at + MS, at + MS + pause_ns)
                for name, ns in os_calls.items() if pause_ns else ():
                    self.builder.os_call(name, at + 2 * MS, at + 2 * MS + ns)
                at += 2 * MS + pause_ns
                name = ADAM if launch == UPDATE else (GEMM, POINTWISE)[launch % 2]
                name = NORM if launch in norms else name
                runs_ns = busy_ns if (step, launch + 1) in pauses_ns else 0
                begin = max(at, behind_ns if kernel_ns > MS else 0) + 5_000
                behind_ns = begin - 5_000 + kernel_ns + runs_ns
                self.builder.kernel(name, begin, behind_ns, launched=at)
                if pause_ns and inside == LAUNCH:
                    self.builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1]["start"] -= pause_ns
        return analyze(self.builder.write(folder / f"{sum(pauses_ns.values())}.sqlite"))


def count(report: LiveReport) -> int | float | None:
    return report.facts.number("host_pause_count")


def cost(report: LiveReport) -> float:
    return (report.facts.number("host_pause_cost_ns") or 0) / MS


def longest(report: LiveReport) -> str:
    return str(report.facts.get("longest_host_pause").value)


def is_found(report: LiveReport) -> bool:
    return any(finding.rule == "host-pause" and finding.outcome == "found" for finding in report.findings)


def test_a_program_that_launches_evenly_never_pauses(tmp_path: Path) -> None:
    report = Program().run(tmp_path, {})
    assert count(report) == 0
    assert not is_found(report)


def test_a_gap_that_is_as_long_in_every_layer_is_no_pause(tmp_path: Path) -> None:
    even = {(step, launch): 6 * MS for step in range(STEPS) for launch in range(2, UPDATE, 2)}
    assert count(Program().run(tmp_path, even)) == 0
    uneven = Program().run(tmp_path, even | {(2, MIDDLE): 60 * MS})
    assert count(uneven) == 1


@pytest.mark.parametrize(("launches", "are_found"), [((10,), False), ((10, 20, 30), True)])
def test_pauses_of_every_step_count_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launches: tuple[int, ...], are_found: bool
) -> None:
    monkeypatch.setattr("three_walls.step.host_pauses.MINIMUM_REGULAR_PAUSE_FRACTION", 0.2)
    pauses = {(step, launch): 8 * MS for step in range(STEPS) for launch in launches}
    assert bool(count(Program().run(tmp_path, pauses, norms=launches))) is are_found


@pytest.mark.parametrize(("launches", "found"), [((MIDDLE,), 0), ((8, MIDDLE, 32), 3)])
def test_short_pauses_of_one_step_count_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launches: tuple[int, ...], found: int
) -> None:
    monkeypatch.setattr("three_walls.step.host_pauses.MINIMUM_PAUSE_FRACTION", 0.5)
    monkeypatch.setattr("three_walls.step.host_pauses.MINIMUM_PAUSES_FRACTION", 0.5)
    assert count(Program().run(tmp_path, {(2, launch): 30 * MS for launch in launches})) == found


def test_a_long_pause_makes_no_pause_of_a_short_gap_of_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("three_walls.step.host_pauses.MINIMUM_PAUSE_FRACTION", 0.5)
    monkeypatch.setattr("three_walls.step.host_pauses.MINIMUM_PAUSES_FRACTION", 0.5)
    report = Program().run(tmp_path, {(2, 8): 150 * MS, (2, MIDDLE): 30 * MS})
    assert (count(report), cost(report)) == (1, 0)  # another step is shown


@pytest.mark.parametrize(("most", "is_said"), [(2, True), (3, False)])
def test_gaps_that_are_not_looked_into_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, is_said: bool
) -> None:
    monkeypatch.setattr("three_walls.step.host_pauses.MOST_LONG_GAPS", most)
    report = Program().run(tmp_path, {(2, launch): 30 * MS for launch in (8, MIDDLE, 32)})
    assert count(report) == most
    messages = [warning.message for warning in report.warnings if warning.code == "gaps-left-out"]
    assert bool(messages) is is_said
    assert not is_said or "because others are longer: 1." in messages[0]


@pytest.mark.parametrize("launch", [FIRST, MIDDLE, UPDATE])
def test_one_pause_anywhere_is_found_where_it_is(tmp_path: Path, launch: int) -> None:
    report = Program().run(tmp_path, {(2, launch): 30 * MS})
    assert count(report) == 1
    assert is_found(report)
    assert "once, on thread" in longest(report)
    expected = "between_steps" if launch == FIRST else "inside_step"
    assert report.facts.get("host_pause_cause").value == expected


@pytest.mark.parametrize(("launch", "pause_ms", "found"), [(MIDDLE, 30, 1), (UPDATE, 30, 1), (MIDDLE, 0, 0)])
def test_the_only_step_of_a_capture_is_compared_within_itself(
    tmp_path: Path, launch: int, pause_ms: int, found: int
) -> None:
    report = Program().run(tmp_path, {(0, launch): pause_ms * MS}, steps=1)
    assert count(report) == found
    assert cost(report) == pytest.approx(pause_ms, abs=0.1)


def test_a_range_names_a_pause(tmp_path: Path) -> None:
    report = Program().run(tmp_path, {(2, MIDDLE): 30 * MS}, "garbage collection")
    assert count(report) == 1
    assert "inside garbage collection" in longest(report)
    assert report.facts.get("host_pause_cause").value == "garbage_collection"


@pytest.mark.parametrize("name", ["cudaMalloc", "cudaFree", "cudaStreamSynchronize", "cudaEventSynchronize"])
@pytest.mark.parametrize(("busy_ms", "paused_ms"), [(0, 30), (12, 18), (31, 0)])
def test_a_call_pauses_for_what_the_device_does_not_explain(
    tmp_path: Path, name: str, busy_ms: int, paused_ms: int
) -> None:
    pauses = {(step, MIDDLE): 30 * MS for step in range(STEPS)}
    report = Program().run(tmp_path, pauses, f"{name}_v3020", busy_ns=busy_ms * MS)
    assert count(report) == (2 if paused_ms else 0)
    assert cost(report) == pytest.approx(paused_ms, abs=1.1)  # the host takes a millisecond before and after each call
    if paused_ms:
        assert f"in {name}()" in longest(report)


@pytest.mark.parametrize(("busy_ms", "paused_ms"), [(0, 30), (12, 19), (31, 0)])
def test_a_launch_pauses_unless_it_waits_for_the_device(tmp_path: Path, busy_ms: int, paused_ms: int) -> None:
    pauses = {(step, MIDDLE): 30 * MS for step in range(STEPS)}
    report = Program().run(tmp_path, pauses, LAUNCH, busy_ns=busy_ms * MS)
    assert count(report) == (2 if paused_ms else 0)
    assert cost(report) == pytest.approx(paused_ms, abs=2.1)  # such a gap usually takes 2 ms
    if paused_ms:
        assert "in cudaLaunchKernel()" in longest(report)
        assert report.ranks[0].budget["host_pause"] == pytest.approx(paused_ms * MS, abs=1.1 * MS)


@reads_sample("two-processes-one-report.sqlite.xz")
def test_the_start_of_a_program_in_the_first_of_several_steps_is_no_pause() -> None:
    assert count(analyze_sample("two-processes-one-report.sqlite.xz")) == 0


@reads_sample("foreign-inference.sqlite.xz")
def test_gaps_of_a_program_without_steps_are_no_pauses() -> None:
    assert count(analyze_sample("foreign-inference.sqlite.xz")) == 0


@pytest.mark.parametrize("inside", ["cudaEventQuery_v3020", "aten::stack"])
@pytest.mark.parametrize(("interrupted_ns", "paused_ms"), [(3_000, 40), (200_000, 40), (4 * MS, 8)])
def test_a_pause_that_tiny_things_interrupt_is_one(
    tmp_path: Path, inside: str, interrupted_ns: int, paused_ms: int
) -> None:
    pauses = {(step, MIDDLE): 40 * MS for step in range(STEPS)}
    report = Program().run(tmp_path, pauses, inside, interrupted_ns=interrupted_ns)
    assert count(report) == 2
    assert cost(report) == pytest.approx(paused_ms, abs=0.1)


@pytest.mark.parametrize(("name", "found"), [("cuLibraryLoadData", 0), ("cudaHostAlloc_v3020", 2)])
def test_a_call_that_loads_code_takes_its_time(tmp_path: Path, name: str, found: int) -> None:
    pauses = {(step, MIDDLE): 30 * MS for step in range(STEPS)}
    assert count(Program().run(tmp_path, pauses, name)) == found


@pytest.mark.parametrize(
    ("os_calls", "shown", "cause"),
    [
        ({"pread64": 20 * MS, "futex": 2 * MS}, "in pread64()", "data_loader"),
        ({"pread64": 2 * MS, "fsync": 20 * MS}, "in fsync()", "checkpoint"),
        ({"pthread_cond_wait": 20 * MS}, "in pthread_cond_wait()", "inside_step"),
        ({}, "in no CUDA call", "inside_step"),
    ],
)
def test_a_function_of_the_operating_system_tells_what_the_host_did_in_a_pause(
    tmp_path: Path, os_calls: Mapping[str, int], shown: str, cause: str
) -> None:
    report = Program().run(tmp_path, {(2, MIDDLE): 30 * MS}, os_calls=os_calls)
    assert shown in longest(report)
    assert report.facts.get("host_pause_cause").value == cause


def test_a_data_loader_that_is_late_is_named_and_within_a_step_its_wait_is_no_pause(tmp_path: Path) -> None:
    asked = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    before = Program().run(tmp_path, {(step, FIRST): 30 * MS for step in range(STEPS)}, asked)
    assert count(before) == STEPS - 2
    assert before.facts.get("host_pause_cause").value == "data_loader"
    within = Program().run(tmp_path, {(step, 1): 30 * MS for step in range(1, STEPS)}, asked)
    assert count(within) == 0
    assert within.facts.get("data_loader_sets_pace").value is True


def test_a_pause_before_every_step_stays_in_the_step_and_out_of_all_gains(tmp_path: Path) -> None:
    even = Program().run(tmp_path, {})
    paused = Program().run(tmp_path, {(step, FIRST): 30 * MS for step in range(STEPS)})
    assert cost(paused) == pytest.approx(30, abs=0.1)
    budgets = [report.ranks[0].budget for report in (even, paused)]
    assert budgets[1]["host_pause"] == pytest.approx(31 * MS, abs=0.1 * MS)
    assert budgets[0]["launch_starved"] - budgets[1]["launch_starved"] == pytest.approx(MS, abs=0.1 * MS)
    gains = []
    for report in (even, paused):
        answer = report.replay.with_edits(scales={"host": 0.5})
        assert answer.step is not None
        assert answer.after is not None
        gains.append(answer.step.likely_ns - answer.after.likely_ns)
    assert gains[1] == pytest.approx(gains[0], abs=0.2 * MS)


@pytest.mark.parametrize(("kernel_ms", "shown"), [(1, "by replay 30.0 ms of the step"), (4, "by replay costs nothing")])
def test_a_pause_that_the_device_hides_is_said_to_cost_nothing(tmp_path: Path, kernel_ms: int, shown: str) -> None:
    pauses = {(step, MIDDLE): 30 * MS for step in range(STEPS)}
    report = Program().run(tmp_path, pauses, kernel_ns=kernel_ms * MS)
    assert count(report) == 2
    assert shown in longest(report)
    assert cost(report) == pytest.approx(30 if kernel_ms == 1 else 0, abs=0.1)


def test_a_pause_of_another_step_than_the_shown_one_is_said_with_what_it_costs_there(tmp_path: Path) -> None:
    report = Program().run(tmp_path, {(2, MIDDLE): 30 * MS})
    assert longest(report).endswith("by replay 30.0 ms of step 2, which is not the one shown")
    assert cost(report) == 0


def test_one_screen_and_a_ticket_say_that_the_host_pauses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for pauses, is_said in (({(2, MIDDLE): 30 * MS}, True), ({}, False)):
        report = Program().run(tmp_path, pauses)
        print_report(report, Console(width=200, file=sys.stdout))
        assert ("The host pauses: 32.0 ms inside step 2, once" in capsys.readouterr().out) is is_said
        assert ("The host pauses: 32.0 ms inside step 2, once" in render_markdown(report, is_full=False)) is is_said


def test_the_wall_is_that_of_the_step_without_pauses() -> None:
    facts = {"training_sign": "a log", "megatron_sign": "a log", "host_recoverable_ns": 100 * MS}
    facts |= dict.fromkeys([f"{wall}_recoverable_ns" for wall in ("memory", "communication", "compute")], 0)
    known = KnownFacts.of(DEFINITIONS)

    def decide(step_ms: int, paused_ms: int) -> Verdict:
        of_step = {"unpaused_step_ns": (step_ms - paused_ms) * MS, "host_pause_ns": paused_ms * MS}
        return decide_verdict(sheet_of({**facts, "step_ns": step_ms * MS, **of_step}, known))

    even, paused = decide(800, 0), decide(800, 200)
    assert (paused.wall, paused.sub_wall) == (even.wall, even.sub_wall)
    assert paused.reason.startswith("The host pauses for 200.0 ms (25.0%) of the 800.0 ms step")
    assert "100.0 ms (16.7% of the 600.0 ms step)" in paused.reason
    assert "pauses" not in even.reason
    assert decide(1100, 0).abstained
    assert not decide(1100, 200).abstained


def unpack_even(folder: Path, name: str) -> tuple[Path, LiveReport]:
    """A plain copy of a packed sample without pauses, and its report."""
    sample = folder / "even.sqlite"
    sample.write_bytes(lzma.decompress((SAMPLES / name).read_bytes()))
    return sample, analyze_sample(name)


@reads_sample("wide-nvlink-alltoall.sqlite")
def test_no_edit_of_a_real_run_is_credited_with_a_pause(tmp_path: Path) -> None:
    sample = SAMPLES / "wide-nvlink-alltoall.sqlite"
    even = analyze_sample(sample.name)
    for launch in (2_900, 3_300):
        report = analyze(pause_before(sample, tmp_path / f"{launch}.sqlite", launch, 120 * MS))
        assert is_found(report), launch
        assert cost(report) == pytest.approx(120, abs=1), launch
        assert report.plan[0].rule == even.plan[0].rule, launch
        assert report.plan[0].gain_ns.likely == pytest.approx(even.plan[0].gain_ns.likely, rel=0.1), launch


@reads_sample("wide-slowlink-ep-overlap.sqlite.xz")
def test_a_pause_of_host_and_device_costs_its_length_however_far_the_host_was_ahead(tmp_path: Path) -> None:
    """Without the profiler the host is further ahead, so the device would have had more to do meanwhile."""
    sample, even = unpack_even(tmp_path, "wide-slowlink-ep-overlap.sqlite.xz")
    for launch in (3_300, 3_600):
        report = analyze(pause_before(sample, tmp_path / f"{launch}.sqlite", launch, 60 * MS))
        assert cost(report) == pytest.approx(60, abs=1), launch
        assert report.plan[0].gain_ns.likely == pytest.approx(even.plan[0].gain_ns.likely, rel=0.01), launch


@pytest.mark.exhaustive
@reads_sample("qwen-alltoall-ep8.sqlite.xz")
def test_a_pause_does_not_count_as_time_that_other_ranks_are_late(tmp_path: Path) -> None:
    """Four fifths of this step wait for ranks that were not captured, and wait less as the step gets shorter."""
    sample, even = unpack_even(tmp_path, "qwen-alltoall-ep8.sqlite.xz")
    report = analyze(pause_before(sample, tmp_path / "paused.sqlite", 8_000, 200 * MS))
    assert is_found(report)
    assert cost(report) == pytest.approx(200, abs=1)
    for entry, paused in zip(even.plan[:3], report.plan[:3], strict=True):
        assert paused.rule == entry.rule
        assert paused.gain_ns.likely == pytest.approx(entry.gain_ns.likely, rel=0.01)
