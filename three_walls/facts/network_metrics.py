"""What the network adapters of the rank's host carried in the step, where it was sampled (``trace/nic_samples.py``)."""

from __future__ import annotations

import polars as pl

from three_walls.facts import fact_thresholds
from three_walls.facts.run_layout import UNKNOWN_GPU
from three_walls.facts.transport import adapter_bytes_per_s
from three_walls.lib.declare import artifact, fact
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.step.intervals import DURATION, intersect, merge_overlapping
from three_walls.step.ownership import OWNER
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import COMMUNICATION_CATEGORIES
from three_walls.trace.capabilities import YES
from three_walls.trace.nic_samples import read_nic_samples
from three_walls.trace.schemas import NicSamples

_PORT = ["adapter", "port"]


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
    if not own.height or own_fraction < fact_thresholds.MINIMUM_OWN_SAMPLES_FRACTION:
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
