"""The timeline of the sample report: two ranks in detail, of which rank 0 is late, and the budget of a third."""

from __future__ import annotations

from three_walls.model.report import Timeline, TimelineLane, TimelineRank, TimelineStretch

MS = 1_000_000
TEXTS = ("", "gemm", "ep_all_to_all", "nvjet", "aten::mm", "cudaLaunchKernel", "launch_starved", "experts forward")
GEMM, EXCHANGE, NVJET, MM, LAUNCH, STARVED, EXPERTS = range(1, len(TEXTS))
CAUSE = "starved_nothing_visible"

BUDGET = TimelineLane(
    "budget", "", 0, (0, 300 * MS, 150 * MS), (300 * MS, 150 * MS, 190 * MS), (0, 0, 0), (GEMM, EXCHANGE, STARVED)
)
RANGES = TimelineLane("ranges", "thread 7571", 0, (5 * MS,), (600 * MS,), (MM,), ())
CALLS = TimelineLane("calls", "thread 7571", 0, (10 * MS,), (2 * MS,), (LAUNCH,), ())
OPERATIONS = TimelineLane(
    "operations",
    "stream 7",
    0,
    (0, 300 * MS),
    (300 * MS, 150 * MS),
    (NVJET, NVJET),
    (GEMM, EXCHANGE),
    count=(40, 1),
    busy_ns=(250 * MS,),
    module=(EXPERTS, 0),
    launch_ns=(-1, 20_000),
    on_path=(1,),
)
LANES = (BUDGET, RANGES, CALLS, OPERATIONS)

GAP = TimelineStretch(3, 450 * MS, 190 * MS, CAUSE, "experts forward: aten::mm", "nvjet", 2_450 * MS + 7)
EXPOSED = TimelineStretch(3, 300 * MS, 150 * MS, "ep_all_to_all", "ncclDevKernel_SendRecv", "nvjet", 2_300 * MS)

TIMELINE = Timeline(
    step=4,
    rank=3,
    is_aligned=True,
    texts=TEXTS,
    ranks=(
        TimelineRank(3, 0, 640 * MS, 2_000 * MS, "representative", LANES, 43),
        TimelineRank(0, 1 * MS, 640 * MS, 1_000 * MS, "late", LANES, 43),
        TimelineRank(5, 2 * MS, 640 * MS, 1_500 * MS, "other", (BUDGET,), 3),
    ),
    worst_gaps=(GAP,),
    exposed_intervals=(EXPOSED,),
    longest=(EXPOSED, GAP),
)
