"""The flame graph of the host: frames by the stack of NVTX ranges. Times are in us."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

from tests.analyzed_samples import analyze_sample, reads_sample
from tests.trace_builder import ADAM, GEMM, TraceBuilder
from three_walls import analyze

US = 1_000


def test_ranges_are_frames_in_each_other_and_the_time_between_them_is_of_what_is_launched_next(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for number in range(5):
        at = (1 + number) * 1_000 * US
        builder.nvtx(f"training_step_{number}", at, at + 1_000 * US)
        builder.kernel(GEMM, at + 10 * US, at + 60 * US, launched=at + 5 * US)  # here the step begins
        for layer, begin in ((0, 100), (1, 300)):
            builder.nvtx(f"layers.{layer}.mlp", at + begin * US, at + (begin + 150) * US)
            builder.nvtx("aten::mm", at + (begin + 20) * US, at + (begin + 70) * US)
        builder.kernel(GEMM, at + 400 * US, at + 500 * US, launched=at + 350 * US)
        builder.kernel(ADAM, at + 900 * US, at + 1_000 * US, launched=at + 890 * US)
    frames = analyze(builder.write(tmp_path / "rank0.sqlite")).host_frames
    found = [(frame.depth, frame.name, frame.start_ns // US, frame.ns // US, frame.self_ns // US) for frame in frames]
    assert found == [
        (0, "a part that is not known", 0, 440, 140),
        (1, "layers.*.mlp", 0, 300, 200),
        (2, "aten::mm", 0, 100, 100),
    ]
    assert [frame.calls for frame in frames] == [2, 2, 2]


def test_without_ranges_there_is_no_frame(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for number in range(5):
        at = (1 + number) * 1_000 * US
        builder.nvtx(f"training_step_{number}", at, at + 1_000 * US)
        builder.kernel(GEMM, at + 400 * US, at + 900 * US, launched=at + 350 * US)
    assert analyze(builder.write(tmp_path / "rank0.sqlite")).host_frames == ()


@pytest.mark.slow
@reads_sample("wide-nvlink-alltoall.sqlite")
def test_frames_of_a_real_step_fit_into_the_frame_around_them() -> None:
    report = analyze_sample("wide-nvlink-alltoall.sqlite")
    assert {frame.name for frame in report.host_frames} >= {"attention forward", "aten::copy_"}
    for _, own in groupby(report.host_frames, key=lambda frame: frame.thread):
        around = []
        for frame in own:
            del around[frame.depth :]
            if around:
                assert around[-1].start_ns <= frame.start_ns
                assert frame.start_ns + frame.ns <= around[-1].start_ns + around[-1].ns - around[-1].self_ns
            assert 0 <= frame.self_ns <= frame.ns
            around.append(frame)
            assert frame.start_ns + frame.ns <= 1.1 * report.step.median_ns
