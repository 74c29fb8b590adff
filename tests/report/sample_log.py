"""The training log of the sample report: 50 iterations, timers of eight ranks, two jobs."""

from __future__ import annotations

from tests.report.sample_diagnosis import MS
from three_walls.model.report import LogSummary, ProgressSummary, SlowRank, TimerSummary
from three_walls.model.training_log import TimerKind

GIB = 2**30

LOG = LogSummary(
    files=("train.log", "progress.txt"),
    iterations=50,
    roles={"steady": 46, "warm-up": 2, "profiled": 2},
    torn_lines=0,
    unprofiled_step_ns=612 * MS,
    peak_memory_bytes=61 * GIB,
    reserved_memory_bytes=66 * GIB,
    allocator_retries=0,
    theoretical_memory_bytes=None,
    parameters=30_500_000_000,
    ooms=0,
    events={"checkpoint": 2},
    tflops_per_gpu=214.5,
    device_memory_bytes=70 * GIB,
    timers=(
        TimerSummary("all-grads-sync", TimerKind.EXCHANGE, 46, None, 31 * MS),
        TimerSummary("forward-compute", TimerKind.WORK, 46, 180 * MS, 234 * MS, 2, 5),
        TimerSummary("optimizer", TimerKind.STEP, 46, 20 * MS, 21 * MS),
        TimerSummary("save-checkpoint", TimerKind.OUTSIDE, 2, 9_000 * MS, 9_100 * MS),
    ),
    slow_ranks=(SlowRank(5, "forward-compute", 234 * MS, 2, 180 * MS, 185 * MS, 44, 46, None),),
    progress=ProgressSummary(16, 2, 1, 3, 4_000, 16_400_000_000, 171.2, 120.9, (8,)),
    unread_files=("rank3.log.xz: expected a .xz file, found a damaged one",),
)
