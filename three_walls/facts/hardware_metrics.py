"""What the hardware counters of the GPU show of the step, where they were sampled (``trace/gpu_samples.py``).

A sample covers many kernels or a part of one. Its values count for what owns the time that it covers, so averages
weighted by that time sum exactly: buckets to the step, and modules of layers too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import polars as pl

from three_walls.facts.fact_rows import HardwareUse
from three_walls.layers.labels import LabelledOperations
from three_walls.lib.declare import artifact, fact
from three_walls.lib.measurement import Measurement, known, known_or_missing, missing
from three_walls.step.intervals import DURATION, intersect, sweep
from three_walls.step.ownership import OWNER, ConservationError
from three_walls.step.step_tables import Intervals
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import (
    COMMUNICATION_CATEGORIES,
    COMPUTE_CATEGORIES,
    GEMM_CATEGORIES,
    in_precedence,
)
from three_walls.tables.gpu_metrics import gpu_counters
from three_walls.tables.model_parts import MODULES
from three_walls.trace.capabilities import YES
from three_walls.trace.gpu_samples import read_gpu_samples
from three_walls.trace.schemas import GpuSamples

STEP, BUCKET, MODULE = "step", "bucket", "module"
_UNKNOWN, _IDLE = "unknown", "idle"
_MODULES = (*MODULES, _UNKNOWN)
_OWNERS = (*_MODULES, *(f"{name} besides compute" for name in _MODULES))
"""What computes owns the time before what does not, as in the budget; then the order of modules decides."""
_MEMORY = ("memory_read", "memory_write")


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
            "(capture with --gpu-metrics-devices=cuda-visible)"
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
def hardware(
    step: StepView, hardware_samples: GpuSamples, labelled_step: Measurement[LabelledOperations]
) -> tuple[HardwareUse, ...]:
    """The step, its buckets and the modules of its layers, each with what it uses of the GPU."""
    samples = hardware_samples.select(
        "start_ns", "end_ns", *gpu_counters(), rank_index=pl.lit(step.rank_index, dtype=pl.Int64)
    ).with_row_index("sample")
    window = pl.DataFrame({"rank_index": [step.rank_index], "start_ns": [step.start_ns], "end_ns": [step.end_ns]})
    (whole,) = _average(window.with_columns(name=pl.lit("")), samples, STEP)
    buckets = _average(step.slices.with_columns(name=OWNER), samples, BUCKET)
    modules = []
    if labelled_step.value is not None:
        modules = _average(_find_owners(labelled_step.value, window), samples, MODULE)
    for parts in filter(None, (buckets, modules)):
        _check_sums(whole, parts)
    order = (*_MODULES, _IDLE)
    return (
        whole,
        *sorted(buckets, key=lambda row: in_precedence(row.name)),
        *sorted(modules, key=lambda row: order.index(row.name)),
    )


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


def _average(owned: Intervals, samples: pl.DataFrame, kind: str) -> list[HardwareUse]:
    """A row for each ``name`` of ``owned``, which are disjoint; ``samples`` with the columns sample and rank_index."""
    counters = [*gpu_counters()]
    pieces = (
        intersect(samples, owned.select("rank_index", "start_ns", "end_ns", "name"), ["rank_index"], carry=["name"])
        .group_by("name", "sample")
        .agg(DURATION.sum().alias("ns"), *(pl.col(name).first() for name in counters))
        .join(samples.select("sample", length_ns=DURATION), on="sample")
    )
    weight = pl.col("ns")
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
        used, of_whole = _average_of(parts, (name,)), getattr(whole, name)
        if used is not None and of_whole is not None and abs(used - of_whole) > 1e-9 and not _has_holes(parts, name):
            raise ConservationError(f"{name} does not average to that of the step: {used}, {of_whole}")


def _has_holes(parts: Sequence[HardwareUse], name: str) -> bool:
    """Whether a part has no samples of the counter."""
    return any(getattr(part, name) is None for part in parts)


def _average_of(rows: Collection[HardwareUse], counters: Sequence[str]) -> float | None:
    """The average sum of ``counters`` over the time of all ``rows``; None where not known."""
    values = [(row.ns, [getattr(row, name) for name in counters]) for row in rows]
    known_values = [(ns, sum(parts)) for ns, parts in values if None not in parts]
    total_ns = sum(ns for ns, _ in known_values)
    return sum(ns * value for ns, value in known_values) / total_ns if total_ns else None


def _measure(rows: tuple[HardwareUse, ...], kind: str, names: Collection[str], *counters: str) -> Measurement[float]:
    """The average of ``counters``, added up, over the rows of ``kind`` and ``names``."""
    chosen = [row for row in rows if row.kind == kind and row.name in names]
    if not chosen:
        return missing("no sample of the hardware counters covers such time of the step")
    titles = " and ".join(gpu_counters()[name].title for name in counters)
    return known_or_missing(_average_of(chosen, counters), f"the hardware counters of {titles} were not sampled")


@fact("fraction", "the activity of the tensor pipes", whole="all cycles of the step")
def tensor_active_fraction(hardware: tuple[HardwareUse, ...]) -> Measurement[float]:
    """Fraction of the cycles of the step in which the GPU's tensor pipes are active, from sampled hardware counters.

    Not the same as: The peak that GEMMs reach by their sizes: pipes also stay active on padding and on slow operands.
    """
    return _measure(hardware, STEP, ("",), "tensor_active")


@fact("fraction", "the activity of the multiprocessors", whole="all cycles of the step")
def sm_active_fraction(hardware: tuple[HardwareUse, ...]) -> Measurement[float]:
    """Fraction of the cycles of the step in which a multiprocessor has work, on average over the GPU's multiprocessors,
    from sampled hardware counters.

    Not the same as: Time in which kernels run: a kernel of communication uses few of the multiprocessors.
    """
    return _measure(hardware, STEP, ("",), "sm_active")


@fact("fraction", "the activity of device memory", whole="all cycles of the step")
def memory_active_fraction(hardware: tuple[HardwareUse, ...]) -> Measurement[float]:
    """Fraction of the cycles of the step in which the interface of device memory reads or writes, from sampled hardware
    counters."""
    return _measure(hardware, STEP, ("",), *_MEMORY)


@fact("fraction", "the NVLink load while receiving", whole="what NVLink carries in one direction")
def nvlink_receive_fraction(hardware: tuple[HardwareUse, ...]) -> Measurement[float]:
    """Fraction of what NVLink carries in one direction that the GPU receives in the step, protocol included, from
    sampled hardware counters."""
    return _measure(hardware, STEP, ("",), "nvlink_receive")


@fact("fraction", "the NVLink load while sending", whole="what NVLink carries in one direction")
def nvlink_send_fraction(hardware: tuple[HardwareUse, ...]) -> Measurement[float]:
    """Fraction of what NVLink carries in one direction that the GPU sends in the step, protocol included, from sampled
    hardware counters."""
    return _measure(hardware, STEP, ("",), "nvlink_send")


@fact("fraction", "the activity of the tensor pipes in GEMMs", whole="all cycles in which a GEMM runs")
def gemm_tensor_active_fraction(hardware: tuple[HardwareUse, ...]) -> Measurement[float]:
    """Fraction of the cycles while a GEMM runs in which the GPU's tensor pipes are active, from sampled hardware
    counters. A sample that is longer than a GEMM also describes what runs before and after it."""
    return _measure(hardware, BUCKET, GEMM_CATEGORIES, "tensor_active")


@fact("fraction", "the activity of device memory in GEMMs", whole="all cycles in which a GEMM runs")
def gemm_memory_active_fraction(hardware: tuple[HardwareUse, ...]) -> Measurement[float]:
    """Fraction of the cycles while a GEMM runs in which the interface of device memory reads or writes, from sampled
    hardware counters. A sample that is longer than a GEMM also describes what runs before and after it."""
    return _measure(hardware, BUCKET, GEMM_CATEGORIES, *_MEMORY)


@fact("fraction", "the NVLink load of exposed communication", whole="what NVLink carries in one direction")
def exposed_nvlink_send_fraction(hardware: tuple[HardwareUse, ...]) -> Measurement[float]:
    """Fraction of what NVLink carries in one direction that the GPU sends while communication is exposed, protocol
    included, from sampled hardware counters. Time in which communication waits for peers counts too.

    Not the same as: What the GPU receives then: peers also send while this rank computes or has not launched yet.
    """
    return _measure(hardware, BUCKET, COMMUNICATION_CATEGORIES, "nvlink_send")
