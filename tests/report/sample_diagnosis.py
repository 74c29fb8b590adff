"""Why the time of the sample report went: rank 0 computes slowest and the others wait for it in the all-to-all.

The idle causes of a rank sum to its time without a compute kernel, and the MoE layers to the buckets of the step.
"""

from __future__ import annotations

from collections.abc import Mapping

from three_walls.model.buckets import BUCKET_BY_NAME, Group
from three_walls.model.report import (
    Alignment,
    CopyBandwidth,
    Efficiency,
    GapCause,
    GraphCoverage,
    MoePart,
    OutsideGraphs,
    OverlapSlowdown,
    RecomputedLayer,
    Straggler,
    Wait,
)

MS = 1_000_000
MOE_LAYERS = 48

ALIGNMENT = Alignment("median offset of matched collective ends", 8_200, 41_500)

STRAGGLERS = (
    Straggler(5, 1_800_000, "unknown", ""),
    Straggler(
        0, 12 * MS, "slow_compute", "grouped_gemm takes 144 ms, 138 ms on the median rank; 1.09x the mean tokens"
    ),
)

OVERLAP_SLOWDOWN = (
    OverlapSlowdown("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "16x12x1", 96, 192, 310_000, 331_000, 4_032_000),
    OverlapSlowdown("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN", "8x22x1", 48, 96, 402_000, 467_000, 6_240_000),
    OverlapSlowdown(
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<GroupProblemShape<1>>>(Params)",
        "132x1x1",
        64,
        32,
        1_450_000,
        1_510_000,
        1_920_000,
    ),
    OverlapSlowdown("nvjet_tst_64x32_64x16_4x1_v_bz_splitK_TNT", "2x64x1", 20, 12, 61_000, 64_000, 36_000),
    OverlapSlowdown("nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNT", "24x8x1", 48, 4, 280_000, 279_000, 0),
)

_HOST_CAUSES = (
    GapCause("starved_nothing_visible", 19 * MS),
    GapCause("starved_synchronizing", 7 * MS, "cudaStreamSynchronize until copy_d2h_pageable on stream 7"),
    GapCause("starved_synchronizing", 4 * MS, "cudaStreamSynchronize until gemm on stream 7"),
    GapCause("starved_launching", 6 * MS, "cuLaunchKernelEx"),
    GapCause("starved_launching", 4 * MS, "cudaLaunchKernel"),
    GapCause("starved_launching", 1 * MS, "cudaEventRecord"),
    GapCause("starved_launching", 1 * MS, "cudaStreamWaitEvent"),
    GapCause("starved_launching", 500_000, "cudaEventDestroy"),
    GapCause("starved_launching", 500_000, "other"),
    GapCause("starved_allocating", 2 * MS, "cudaMalloc"),
    GapCause("launch_latency", 4 * MS),
    GapCause("unexplained", 1 * MS, "no launch recorded"),
)


def gap_causes(budget_ns: Mapping[str, int]) -> tuple[GapCause, ...]:
    """Of a rank with this budget: what its streams waited for, and what its host did meanwhile."""
    waited_for = (Group.COMMUNICATION, Group.COPY)
    blocking = (
        GapCause("blocking", ns, f"{name} on stream {20 if name == 'ep_all_to_all' else 7}")
        for name, ns in budget_ns.items()
        if ns and BUCKET_BY_NAME[name].group in waited_for
    )
    return (*blocking, *_HOST_CAUSES)


def waits() -> tuple[Wait, ...]:
    """Rank 0 arrives last: it waits least. Classes whose calls could not be matched are split less surely, or not."""
    rows = []
    for rank in range(8):
        late = 4 * rank * MS
        awaited = 0 if rank else 5
        rows.append(Wait("ep_all_to_all", rank, 19 * MS + late, 140 * MS, awaited, True, "latest arrival"))
        rows.append(Wait("all_gather", rank, 6 * MS, 34 * MS, None, False, "fastest calls"))
        rows.append(Wait("all_reduce", rank, None, None, None, False, "too few calls to compare"))
    return tuple(rows)


_TIMES_US = {
    ("forward", "router"): (100, 0, 4),
    ("forward", "permute"): (160, 0, 3),
    ("forward", "dispatch"): (890, 790, 1),
    ("forward", "expert_gemm"): (960, 0, 6),
    ("forward", "combine"): (880, 770, 1),
    ("forward", "unpermute"): (150, 0, 2),
    ("backward", "router"): (80, 0, 4),
    ("backward", "permute"): (170, 0, 3),
    ("backward", "dispatch"): (900, 780, 1),
    ("backward", "expert_gemm"): (1910, 0, 12),
    ("backward", "combine"): (890, 780, 1),
    ("backward", "unpermute"): (160, 0, 2),
}
"""Mean time and exposed time of a layer, and its calls."""

EFFICIENCY = (
    Efficiency("GEMMs", 164_440_000_000_000, 229 * MS, 718e12, 989_500_000_000_000, 0.7256, ""),
    Efficiency("fused attention", 1_000_000_000_000, 5 * MS, 200e12, None, None, "causal half"),
)
COPIES = (
    CopyBandwidth("copy_d2h_pinned", 55, 748, 129_152, 0, None, 64_000_000_000),
    CopyBandwidth("copy_h2d_pinned", 5, 135_135_232, 2_753_883, 1, 49.3e9, 64_000_000_000),
)

_SENT_BYTES = 28_000_000
_LINK_BYTES_PER_S = 50e9


def moe_layers() -> tuple[MoePart, ...]:
    """The layers differ a little, and not in their order; over all of them the differences cancel."""
    return tuple(_moe_part(layer, direction, part) for layer in range(MOE_LAYERS) for direction, part in _TIMES_US)


def _moe_part(layer: int, direction: str, part: str) -> MoePart:
    mean_us, exposed_us, calls = _TIMES_US[direction, part]
    apart = 2 * (layer * 29 % MOE_LAYERS) - (MOE_LAYERS - 1)
    ns = mean_us * 1_000 + apart * mean_us * 6
    if part not in ("dispatch", "combine"):
        return MoePart(layer, direction, part, ns, 0, calls)
    exposed_ns = exposed_us * 1_000 + apart * exposed_us * 6
    rate = _SENT_BYTES / ns * 1_000_000_000
    return MoePart(layer, direction, part, ns, exposed_ns, calls, _SENT_BYTES, rate, _LINK_BYTES_PER_S)


RECOMPUTE_LAYERS = (RecomputedLayer(0, "full", 11 * MS, 2), RecomputedLayer(1, "full", 13 * MS, 2))

GRAPH_COVERAGE = GraphCoverage(
    kernels_inside=300,
    kernels_outside=100,
    whole_graphs=0,
    fraction=0.75,
    reason="",
    outside=(OutsideGraphs("optimizer", 70, 2 * MS), OutsideGraphs("norm", 30, None)),
)
