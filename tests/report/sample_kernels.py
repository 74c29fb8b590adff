"""The kernels and the host work of the sample report's step."""

from __future__ import annotations

from three_walls.model.report import HostWorkRow, KernelPlace, KernelRow

MS = 1_000_000

EXPERT_GEMM = KernelRow(
    bucket="grouped_gemm",
    name="device_kernel<GemmUniversal<GroupProblemShape<1>>>",
    full_name="void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<GroupProblemShape<1>>>(Params)",
    calls=288,
    ns=138 * MS,
    mean_ns=479_167,
    fastest_ns=402_000,
    median_ns=470_000,
    p95_ns=640_000,
    slowest_ns=655_000,
    grid=(132, 1, 1),
    block=(384, 1, 1),
    variants=3,
    places=(
        KernelPlace("experts", "backward", "GroupedLinearBackward", 192, 92 * MS),
        KernelPlace("experts", "forward", "GroupedLinear", 96, 40 * MS),
        KernelPlace("experts", "recompute", "GroupedLinear", 12, 4 * MS),
    ),
    other_places=2,
    layers=48,
    launch_ns=288 * 5_000,
    fraction_of_peak=0.61,
)
REST = KernelRow(
    bucket="elementwise",
    name="14 more",
    full_name="",
    calls=400,
    ns=2 * MS,
    mean_ns=5_000,
    fastest_ns=900,
    median_ns=4_000,
    p95_ns=9_000,
    slowest_ns=12_000,
    grid=None,
    block=None,
    variants=20,
    places=(KernelPlace(None, None, "", 400, 2 * MS),),
    other_places=0,
    layers=None,
    launch_ns=None,
    fraction_of_peak=None,
    kernels=14,
)
KERNELS = (EXPERT_GEMM, REST)

HOST_WORK = (
    HostWorkRow(7571, "experts", "forward", "layers.*.mlp.experts", "aten::mm", 24 * MS, 18 * MS, 12 * MS, 96),
    HostWorkRow(7571, "outside", None, "", "", 140 * MS, 6 * MS, 4 * MS, 0),
    HostWorkRow(8376, None, None, "", "", 90 * MS, 8 * MS, 3 * MS, 2000, places=40),
)
