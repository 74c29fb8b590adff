"""Reads what the network adapters of a host carried, as Nsight Systems samples it (``--nic-metrics``)."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from three_walls.lib import limits
from three_walls.trace.nsys_export import NsysExport
from three_walls.trace.schemas import NIC_SAMPLES, NicSamples, conform
from three_walls.trace.trace_files import plain_sqlite

NIC_METRICS = "NET_NIC_METRIC"
_NAMES = "TARGET_INFO_NETWORK_METRICS"
_SENT = ("IB: Bytes sent", "Eth: Bytes sent")
"""Of RDMA over Ethernet the second may contain the first."""
RATE_UNITS = {"bytes/ms": 1_000, "bytes/s": 1}
"""Units of rates that were seen, as bytes per second."""


def read_nic_samples(path: Path, begin_ns: int, until_ns: int) -> NicSamples:
    """The samples (schemas.NIC_SAMPLES) that overlap the time, by adapter and time; none where no rate is known.

    Raises InputError if the file can no longer be read.
    """
    with plain_sqlite(path) as plain, NsysExport(plain, path) as export:
        if not export.has(NIC_METRICS, "start", "end", "globalId", "portId", "metricsListId", "metricsIdx", "value"):
            return pl.DataFrame(schema=NIC_SAMPLES)
        if not export.has(_NAMES, "metricsListId", "metricsIdx", "name", "unit"):
            return pl.DataFrame(schema=NIC_SAMPLES)
        query = f"SELECT metricsListId, metricsIdx, CAST(name AS TEXT), CAST(unit AS TEXT) FROM {_NAMES}"
        rates = [
            (group, metric, RATE_UNITS[unit])
            for group, metric, name, unit in export.rows(query)
            if name in _SENT and unit in RATE_UNITS
        ]
        columns = {"start_ns": "start", "end_ns": "end", "adapter": "globalId", "port": "portId", "value": "value"}
        keys = {"group": "metricsListId", "metric": "metricsIdx"}
        first, last = (max(-limits.LATEST_TIME_NS, min(at, limits.LATEST_TIME_NS)) for at in (begin_ns, until_ns))
        where = f'WHERE start < {last:d} AND "end" > {first:d} AND "end" > start AND value >= 0'
        values = export.frame(NIC_METRICS, columns | keys, where)
    known = pl.DataFrame(rates, {"group": pl.Int64, "metric": pl.Int64, "per_s": pl.Int64}, orient="row")
    rate = (pl.col("value") * pl.col("per_s")).max()  # of the kinds of traffic of a port the one that holds the other
    return conform(
        values.join(known, on=["group", "metric"])
        .group_by("adapter", "port", "start_ns", "end_ns")
        .agg(send_bytes_per_s=rate)
        .sort("adapter", "port", "start_ns", "end_ns"),
        NIC_SAMPLES,
    )
