"""What hardware counters of the GPU and of network adapters show of the step (``trace/hardware_samples.py``).

A sample covers many kernels or a part of one. In the tables its values count for what owns the time that it covers, so
averages weighted by that time sum exactly: buckets to the step, and modules of layers too. Facts about a part of the
step count samples of that part alone: those at its ends also describe what runs before and after.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

import polars as pl

from three_walls.facts.fact_rows import HardwareUse
from three_walls.facts.overlap_slowdown import GEMM_KIND
from three_walls.facts.run_layout import UNKNOWN_GPU
from three_walls.facts.transport import adapter_bytes_per_s
from three_walls.layers.labels import LabelledOperations
from three_walls.lib.declare import artifact, fact
from three_walls.lib.measurement import Measurement, known, known_or_missing, missing
from three_walls.step.intervals import DURATION, intersect, merge_overlapping, sweep
from three_walls.step.ownership import OWNER, ConservationError
from three_walls.step.step_tables import Intervals, Operations
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import (
    COMMUNICATION_CATEGORIES,
    COMPUTE_CATEGORIES,
    EP_CATEGORIES,
    GEMM_CATEGORIES,
    in_precedence,
)
from three_walls.tables.gpu_metrics import gpu_counters
from three_walls.tables.model_parts import MODULES
from three_walls.trace.capabilities import YES
from three_walls.trace.hardware_samples import read_gpu_samples, read_nic_samples
from three_walls.trace.schemas import GPU_SAMPLES, GpuSamples, NicSamples

MINIMUM_OWN_SAMPLES_FRACTION = 0.5
"""Of the time of a part of the step: with less of it in samples of hardware counters that lie wholly within that part,
nothing is said about it: they would describe its longest kernels alone. Samples of 0.1 ms lay so for 0.85 of the GEMMs
of a dense model, for 0.38 of those of a small MoE model, whose long GEMMs are not those of its experts, and for 0.6 of
token exchanges."""

STEP, BUCKET, MODULE = "step", "bucket", "module"
_UNKNOWN, _IDLE = "unknown", "idle"
_MODULES = (*MODULES, _UNKNOWN)
_OWNERS = (*_MODULES, *(f"{name} besides compute" for name in _MODULES))
"""What computes owns the time before what does not, as in the budget; then the order of modules decides."""
_MEMORY = pl.col("memory_read") + pl.col("memory_write")
_NVLINK = pl.max_horizontal("nvlink_receive", "nvlink_send")
_PCIE = pl.max_horizontal("pcie_receive", "pcie_send")
_PEAK = 0.9
USES = {"tensor pipes": pl.col("tensor_active"), "SMs": pl.col("sm_active"), "memory": _MEMORY, "NVLink": _NVLINK}
"""What of the GPU is in use, as fractions of the peak that samples give."""

SampledTime = Annotated[
    pl.DataFrame,
    {
        "name": pl.String,
        "sample": pl.UInt32,
        "ns": pl.Int64,  # that the bucket or module has of the sample
        **{name: dtype for name, dtype in GPU_SAMPLES.items() if dtype == pl.Float64},
        "length_ns": pl.Int64,
    },
]
"""The time of each sample by what owns it."""
_PORT = ["adapter", "port"]


@artifact
def hardware_samples(step: StepView) -> Measurement[GpuSamples]:
    """The samples of the rank's GPU that overlap the step. Reads the trace file again."""
    state = step.trace.capabilities["gpu_metrics"]
    if state != YES:
        return missing(state)
    gpu = _find_gpu_number(step)
    if gpu is None:
        return missing("CUDA_VISIBLE_DEVICES does not state which of the sampled GPUs is that of the rank")
    samples = read_gpu_samples(step.trace.path, *step.window)
    of_rank = samples.filter(pl.col("gpu") == gpu)
    if of_rank.height:
        return known(of_rank)
    if samples.height:
        others = ", ".join(map(str, samples["gpu"].unique().sort()))
        return missing(
            f"the counters of GPU {others} were sampled, and the rank runs on GPU {gpu} "
            "(three-walls capture --gpu-metrics samples each rank's own)"
        )
    return missing("no known hardware counter was sampled in the step")


def _find_gpu_number(step: StepView) -> int | None:
    """The number of the rank's GPU on its host; None where its visible devices are not listed by number."""
    visible = dict(zip((rank.rank_index for rank in step.run.ranks), step.run.visible_gpus, strict=True))
    listed = visible.get(step.rank_index)
    if not listed:
        return step.rank.device
    numbers = listed.split(",")
    if step.rank.device >= len(numbers):
        return None
    number = numbers[step.rank.device].strip()
    return int(number) if number.isascii() and number.isdigit() and len(number) < 4 else None


@artifact
def sampled_buckets(step: StepView, hardware_samples: GpuSamples) -> SampledTime:
    """The time of each sample by the bucket that owns it."""
    return _divide(step.slices.with_columns(name=OWNER), _number(step, hardware_samples))


@artifact
def hardware(
    step: StepView,
    hardware_samples: GpuSamples,
    sampled_buckets: SampledTime,
    labelled_step: Measurement[LabelledOperations],
) -> tuple[HardwareUse, ...]:
    """The step, its buckets and the modules of its layers, each with what it uses of the GPU."""
    samples = _number(step, hardware_samples)
    window = pl.DataFrame({"rank_index": [step.rank_index], "start_ns": [step.start_ns], "end_ns": [step.end_ns]})
    (whole,) = _average(_divide(window.with_columns(name=pl.lit("")), samples), STEP)
    buckets = _average(sampled_buckets, BUCKET)
    modules = []
    if labelled_step.value is not None:
        modules = _average(_divide(_find_owners(labelled_step.value, window), samples), MODULE)
    for parts in filter(None, (buckets, modules)):
        _check_sums(whole, parts)
    order = (*_MODULES, _IDLE)
    return (
        whole,
        *sorted(buckets, key=lambda row: in_precedence(row.name)),
        *sorted(modules, key=lambda row: order.index(row.name)),
    )


def _number(step: StepView, samples: GpuSamples) -> pl.DataFrame:
    """``samples`` with their number and the rank's index."""
    rank_index = pl.lit(step.rank_index, dtype=pl.Int64).alias("rank_index")
    return samples.select("start_ns", "end_ns", *gpu_counters(), rank_index).with_row_index("sample")


def _find_owners(operations: LabelledOperations, window: Intervals) -> Intervals:
    """The step cut by the module that owns each instant, as ``name``."""
    module = pl.col("module").fill_null(_UNKNOWN)
    computes = pl.col("category").cast(pl.String).is_in(COMPUTE_CATEGORIES)
    labelled = operations.select(
        "rank_index", "start_ns", "end_ns", label=pl.when(computes).then(module).otherwise(module + " besides compute")
    )
    slices = sweep(labelled, window, "label", _OWNERS, ["rank_index"])
    names = dict(enumerate([*_MODULES, *_MODULES]))
    owner = pl.col("active").bitwise_trailing_zeros().replace_strict(names, default=_IDLE, return_dtype=pl.String)
    return slices.with_columns(name=owner)


def _divide(owned: Intervals, samples: pl.DataFrame) -> SampledTime:
    """Of each sample the ``ns`` that each ``name`` of ``owned``, which are disjoint, has of its ``length_ns``."""
    return (
        intersect(samples, owned.select("rank_index", "start_ns", "end_ns", "name"), ["rank_index"], carry=["name"])
        .group_by("name", "sample", maintain_order=True)  # the order in which shares are added up
        .agg(DURATION.sum().alias("ns"), *(pl.col(name).first() for name in gpu_counters()))
        .join(samples.select("sample", length_ns=DURATION), on="sample", maintain_order="left")
    )


def _average(pieces: SampledTime, kind: str) -> list[HardwareUse]:
    """A row for each ``name`` of ``pieces``, as :func:`_divide` makes them."""
    counters, weight = [*gpu_counters()], pl.col("ns")
    averages = [
        ((pl.col(name) * weight).sum() / weight.filter(pl.col(name).is_not_null()).sum()).fill_nan(None).alias(name)
        for name in counters
    ]
    alone_ns = weight.filter(weight == pl.col("length_ns")).sum().alias("alone_ns")
    rows = pieces.group_by("name").agg(weight.sum().alias("sum_ns"), alone_ns, *averages)
    return [
        HardwareUse(
            kind=kind,
            name=row["name"],
            ns=row["sum_ns"],
            alone_fraction=row["alone_ns"] / row["sum_ns"],
            **{name: row[name] for name in counters},
        )
        for row in rows.sort("name").to_dicts()
    ]


def _check_sums(whole: HardwareUse, parts: Sequence[HardwareUse]) -> None:
    """Raises ConservationError unless the sampled times of ``parts``, and what they use, sum to those of the step."""
    if sum(part.ns for part in parts) != whole.ns:
        raise ConservationError(f"sampled times do not sum to the step: {[part.ns for part in parts]}, {whole.ns}")
    for name in gpu_counters():
        used, of_whole = _average_of(parts, name), getattr(whole, name)
        if used is not None and of_whole is not None and abs(used - of_whole) > 1e-9 and not _has_holes(parts, name):
            raise ConservationError(f"{name} does not average to that of the step: {used}, {of_whole}")


def _has_holes(parts: Sequence[HardwareUse], name: str) -> bool:
    """Whether a part has no samples of the counter."""
    return any(getattr(part, name) is None for part in parts)


def _average_of(rows: Collection[HardwareUse], name: str) -> float | None:
    """The average of a counter over the time of all ``rows``; None where not known."""
    known_values = [(row.ns, value) for row in rows if (value := getattr(row, name)) is not None]
    total_ns = sum(ns for ns, _ in known_values)
    return sum(ns * value for ns, value in known_values) / total_ns if total_ns else None


def _measure_step(rows: tuple[HardwareUse, ...], *counters: str) -> Measurement[float]:
    """The average of ``counters``, added up, over the step."""
    values = [getattr(row, name) for row in rows if row.kind == STEP for name in counters]
    titles = " and ".join(gpu_counters()[name].title for name in counters)
    return known_or_missing(
        None if None in values else sum(values), f"the hardware counters of {titles} were not sampled"
    )


def _measure(
    sampled: SampledTime, buckets: Collection[str], use: pl.Expr, quantile: float | None = None
) -> Measurement[float]:
    """The average of ``use``, or its ``quantile``, over the samples that ``buckets`` own throughout."""
    time = sampled.filter(pl.col("name").is_in(list(buckets)))
    is_own = pl.col("ns") == pl.col("length_ns")
    own, own_ns = time.filter(is_own), pl.col("ns").filter(is_own).sum()
    if not time.height:
        return missing("no sample of the hardware counters covers such time of the step")
    if time.select(own_ns / pl.col("ns").sum()).item() < MINIMUM_OWN_SAMPLES_FRACTION:
        return missing("the hardware counters were sampled too rarely: hardly a sample covers such time alone")
    value = own.select(use.mean() if quantile is None else use.quantile(quantile, interpolation="lower")).item()
    return known_or_missing(value, "these hardware counters were not sampled")


@fact("fraction", "the activity of the tensor pipes", whole="all cycles of the step")
def tensor_active_fraction(hardware: tuple[HardwareUse, ...]) -> Measurement[float]:
    """Fraction of the cycles of the step in which the GPU's tensor pipes are active, from sampled hardware counters.

    Not the same as: The peak that GEMMs reach by their sizes: pipes also stay active on padding and on slow operands.
    """
    return _measure_step(hardware, "tensor_active")


@fact("fraction", "the activity of the multiprocessors", whole="all cycles of the step")
def sm_active_fraction(hardware: tuple[HardwareUse, ...]) -> Measurement[float]:
    """Fraction of the cycles of the step in which a multiprocessor has work, on average over the GPU's multiprocessors,
    from sampled hardware counters.

    Not the same as: Time in which kernels run: a kernel of communication uses few of the multiprocessors.
    """
    return _measure_step(hardware, "sm_active")


@fact("fraction", "the activity of device memory", whole="all cycles of the step")
def memory_active_fraction(hardware: tuple[HardwareUse, ...]) -> Measurement[float]:
    """Fraction of the cycles of the step in which the interface of device memory reads or writes, from sampled hardware
    counters."""
    return _measure_step(hardware, "memory_read", "memory_write")


@fact("fraction", "the NVLink load while receiving", whole="what NVLink carries in one direction")
def nvlink_receive_fraction(hardware: tuple[HardwareUse, ...]) -> Measurement[float]:
    """Fraction of what NVLink carries in one direction that the GPU receives in the step, protocol included, from
    sampled hardware counters."""
    return _measure_step(hardware, "nvlink_receive")


@fact("fraction", "the NVLink load while sending", whole="what NVLink carries in one direction")
def nvlink_send_fraction(hardware: tuple[HardwareUse, ...]) -> Measurement[float]:
    """Fraction of what NVLink carries in one direction that the GPU sends in the step, protocol included, from sampled
    hardware counters."""
    return _measure_step(hardware, "nvlink_send")


@fact("fraction", "the activity of the tensor pipes in GEMMs", whole="all cycles in which a GEMM runs")
def gemm_tensor_active_fraction(sampled_buckets: SampledTime) -> Measurement[float]:
    """Fraction of the cycles while a GEMM runs in which the GPU's tensor pipes are active, from sampled hardware
    counters. Samples in which anything else owns time of the step do not count."""
    return _measure(sampled_buckets, GEMM_CATEGORIES, pl.col("tensor_active"))


@fact("fraction", "the activity of device memory in GEMMs", whole="all cycles in which a GEMM runs")
def gemm_memory_active_fraction(sampled_buckets: SampledTime) -> Measurement[float]:
    """Fraction of the cycles while a GEMM runs in which the interface of device memory reads or writes, from sampled
    hardware counters. Samples in which anything else owns time of the step do not count."""
    return _measure(sampled_buckets, GEMM_CATEGORIES, _MEMORY)


@fact("fraction", "the NVLink load of exposed communication", whole="what NVLink carries in one direction")
def exposed_nvlink_send_fraction(sampled_buckets: SampledTime) -> Measurement[float]:
    """Fraction of what NVLink carries in one direction that the GPU sends while communication is exposed, protocol
    included, from sampled hardware counters. Time in which communication waits for peers counts too.

    Not the same as: What the GPU receives then: peers also send while this rank computes or has not launched yet.
    """
    return _measure(sampled_buckets, COMMUNICATION_CATEGORIES, pl.col("nvlink_send"))


@fact("fraction", "the NVLink peak of exposed communication", whole="what NVLink carries in one direction")
def exposed_nvlink_peak_fraction(sampled_buckets: SampledTime) -> Measurement[float]:
    """Fraction of what NVLink carries in one direction that the GPU sends or receives (the larger) while communication
    is exposed, protocol included: 90th percentile of the samples of hardware counters. Waits for peers do not lower it.

    Not the same as: Average load: with waits that is far lower.
    """
    return _measure(sampled_buckets, COMMUNICATION_CATEGORIES, _NVLINK, _PEAK)


@fact("fraction", "the PCIe peak of exposed communication", whole="what PCIe carries in one direction")
def exposed_pcie_peak_fraction(sampled_buckets: SampledTime) -> Measurement[float]:
    """Fraction of what the GPU's PCIe link carries in one direction that the GPU sends or receives (the larger) while
    communication is exposed: 90th percentile of the samples of hardware counters.

    Not the same as: The load of the network: what goes to network adapters and what goes to host memory both count.
    """
    return _measure(sampled_buckets, COMMUNICATION_CATEGORIES, _PCIE, _PEAK)


@fact("fraction", "the NVLink load of exposed token exchanges", whole="what NVLink carries in one direction")
def ep_nvlink_send_fraction(sampled_buckets: SampledTime) -> Measurement[float]:
    """Fraction of what NVLink carries in one direction that the GPU sends while expert-parallel communication is
    exposed, protocol included, from sampled hardware counters. Time in which it waits for peers counts too."""
    return _measure(sampled_buckets, EP_CATEGORIES, pl.col("nvlink_send"))


@fact("fraction", "the NVLink peak of exposed token exchanges", whole="what NVLink carries in one direction")
def ep_nvlink_peak_fraction(sampled_buckets: SampledTime) -> Measurement[float]:
    """Fraction of what NVLink carries in one direction that the GPU sends or receives (the larger) while
    expert-parallel communication is exposed, protocol included: 90th percentile of the samples of hardware counters.
    Waits for peers do not lower it."""
    return _measure(sampled_buckets, EP_CATEGORIES, _NVLINK, _PEAK)


@fact("fraction", "the share of SMs in exposed token exchanges", whole="the GPU's SMs")
def ep_sm_active_fraction(sampled_buckets: SampledTime) -> Measurement[float]:
    """Fraction of the GPU's SMs that have work while expert-parallel communication is exposed, from sampled hardware
    counters: those that dispatch and combine occupy, waiting for peers included.

    Not the same as: The SMs that a dispatcher is configured for: its kernels may launch fewer blocks.
    """
    return _measure(sampled_buckets, EP_CATEGORIES, pl.col("sm_active"))


@fact("ratio", "relative tensor pipe activity of overlapped GEMMs")
def overlapped_gemm_tensor_ratio(
    step: StepView, hardware_samples: GpuSamples, compared_gemms: Operations
) -> Measurement[float]:
    """Activity of the tensor pipes in GEMMs concurrent with communication over their activity in the same GEMMs alone,
    from sampled hardware counters within single calls. Below 1 communication takes SMs or memory bandwidth from them.

    Not the same as: Their slowdown: at lower clocks a GEMM takes longer, and the tensor pipes are as active.
    """
    calls = compared_gemms.select("rank_index", "start_ns", "end_ns", "is_alone", kind=pl.struct(GEMM_KIND))
    samples = _number(step, hardware_samples).with_columns(length_ns=DURATION)
    within = intersect(calls, samples, ["rank_index"], carry=["tensor_active", "length_ns"])
    active, is_alone = pl.col("tensor_active"), pl.col("is_alone")
    kinds = (
        within.filter(pl.col("length_ns") == DURATION)
        .group_by("kind")
        .agg(calls=(~is_alone).sum(), alone=active.filter(is_alone).mean(), beside=active.filter(~is_alone).mean())
        .drop_nulls()
    )
    alone, beside = kinds.select(
        (pl.col("calls") * pl.col(name)).sum().alias(name) for name in ("alone", "beside")
    ).row(0)
    if not alone:
        return missing(
            "no sample of tensor pipes lies within calls of a GEMM that ran both alone and beside communication"
        )
    return known(beside / alone)


@artifact
def nic_samples(step: StepView) -> Measurement[NicSamples]:
    """The samples of the adapters of the rank's host that overlap the step. Reads the trace file again."""
    state = step.trace.capabilities["nic_metrics"]
    if state != YES:
        return missing(state)
    samples = read_nic_samples(step.trace.path, *step.window)
    return known(samples) if samples.height else missing("no rate of bytes that a network adapter sent was sampled")


@fact("bytes_per_s", "the network traffic of exposed communication")
def exposed_network_send_bytes_per_s(step: StepView, nic_samples: NicSamples) -> Measurement[float]:
    """Bytes per second that all network adapters of the rank's host send together while communication of this rank is
    exposed, from sampled counters. Time in which it waits for peers counts too.

    Not the same as: The traffic of this rank: that of other ranks of the host, and of storage, counts too.
    """
    communicates = OWNER.is_in(list(COMMUNICATION_CATEGORIES))
    exposed = merge_overlapping(step.slices.filter(communicates), ["rank_index"])
    samples = nic_samples.with_columns(rank_index=pl.lit(step.rank_index, dtype=pl.Int64), length_ns=DURATION)
    pieces = intersect(samples, exposed, ["rank_index"]).with_columns(ns=DURATION)
    ns, is_own = pl.col("ns"), pl.col("ns") == pl.col("length_ns")
    own, own_fraction = pieces.filter(is_own), pieces.select(ns.filter(is_own).sum() / ns.sum()).item()
    if not own.height or own_fraction < MINIMUM_OWN_SAMPLES_FRACTION:
        return missing(
            "the network adapters were sampled too rarely: hardly a sample covers exposed communication alone"
        )
    of_port = own.group_by(_PORT).agg(rate=(pl.col("send_bytes_per_s") * ns).sum() / ns.sum())
    return known(float(of_port["rate"].sum()))


@fact("fraction", "the network load of exposed communication", whole="what the host's network adapters carry")
def exposed_network_send_fraction(
    step: StepView, exposed_network_send_bytes_per_s: float, network_adapters: str
) -> Measurement[float]:
    """Fraction of the bandwidth of the network adapters of the rank's host in one direction that they send while
    communication of this rank is exposed: one adapter for each of the host's ranks, as in the vendor's own servers."""
    gpu, ranks = step.gpu, step.run.layout.ranks_per_node
    if gpu is None:
        return missing(UNKNOWN_GPU)
    adapter = adapter_bytes_per_s(gpu, network_adapters)
    if adapter.value is None:
        return adapter
    if not ranks:
        return missing("the number of ranks of a host was not recorded")
    return known(exposed_network_send_bytes_per_s / (adapter.value * ranks))
