"""Reads what Nsight Systems samples while one step runs.

That is hardware counters of GPUs (``--gpu-metrics-devices``), and what network adapters carry (``--nic-metrics``).
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from three_walls.lib import limits
from three_walls.tables.gpu_metrics import gpu_counters, plain_name
from three_walls.trace.nsys_export import NsysExport
from three_walls.trace.schemas import GPU_SAMPLES, NIC_SAMPLES, AnyTable, GpuSamples, NicSamples, conform
from three_walls.trace.trace_files import plain_sqlite

GPU_METRICS = "GPU_METRICS"
_NAMES = "TARGET_INFO_GPU_METRICS"

_GPU_OF_TYPE = 0xFF
"""The last byte of a typeId is the number of the GPU."""
_LONGEST_NS = 10_000_000
"""Samples are 5 us to 100 ms apart as nsys is asked; those of more than 10 ms resolve no step."""
_MOST_PERIODS = 2
"""Samples that are this many times as far apart as most are: some between them were lost."""
NIC_METRICS = "NET_NIC_METRIC"
_NIC_NAMES = "TARGET_INFO_NETWORK_METRICS"
_SENT = ("IB: Bytes sent", "Eth: Bytes sent")
"""Of RDMA over Ethernet the second may contain the first."""
RATE_UNITS = {"bytes/ms": 1_000, "bytes/s": 1}
"""Units of rates that were seen, as bytes per second."""


def read_gpu_samples(path: Path, begin_ns: int, until_ns: int) -> GpuSamples:
    """The counters (schemas.GPU_SAMPLES) of all GPUs of a capture from ``begin_ns`` to ``until_ns``, sorted.

    A sample describes the time from its timestamp to the next one: read so, counters of Nsight Systems 2024.2 follow
    the kernels, and read as the time before the timestamp they come one period early. Raises InputError if the file can
    no longer be read.
    """
    with plain_sqlite(path) as plain, NsysExport(plain, path) as export:
        counters = _find_counters(export)
        if not counters.height:
            return pl.DataFrame(schema=GPU_SAMPLES)
        ids = ",".join(map(str, counters["metric"].unique().sort()))
        first, last = (
            max(-limits.LATEST_TIME_NS, min(at_ns, limits.LATEST_TIME_NS))
            for at_ns in (begin_ns - _LONGEST_NS, until_ns + _LONGEST_NS)
        )
        where = f"WHERE timestamp BETWEEN {first:d} AND {last:d} AND metricId IN ({ids})"
        columns = {"start_ns": "timestamp", "type": "typeId", "metric": "metricId", "value": "value"}
        values = export.frame(GPU_METRICS, columns, where)
    samples = _add_parts(values.join(counters, on=["type", "metric"]))
    return samples.filter(pl.col("start_ns") < until_ns, pl.col("end_ns") > begin_ns)


def _find_counters(export: NsysExport) -> pl.DataFrame:
    """Which metrics are counters that are read. Columns: type, metric, counter, parts (of the counter)."""
    schema = {"type": pl.Int64, "metric": pl.Int64, "counter": pl.String, "parts": pl.Int64}
    if not export.has(GPU_METRICS, "timestamp", "typeId", "metricId", "value") or not export.has(
        _NAMES, "typeId", "metricId", "metricName"
    ):
        return pl.DataFrame(schema=schema)
    recorded: dict[int, dict[str, int]] = {}
    for kind, metric, name in export.rows(f"SELECT typeId, metricId, CAST(metricName AS TEXT) FROM {_NAMES}"):
        if isinstance(kind, int) and isinstance(metric, int) and name is not None:
            recorded.setdefault(kind, {})[plain_name(name)] = metric
    rows = [
        (kind, metric, counter.name, len(metrics))
        for kind, names in recorded.items()
        for counter in gpu_counters().values()
        for metrics in [counter.find(names)]
        for metric in metrics
    ]
    return pl.DataFrame(rows, schema, orient="row")


def _add_parts(values: AnyTable) -> GpuSamples:
    """A row for each sample. ``values``: with the columns of GPU_METRICS and of :func:`_find_counters`."""
    key = ["gpu", "start_ns"]
    # A counter that overflowed gives no percentage, and one of which a part is missing would be too small.
    is_percentage = pl.col("value").is_between(0, 100)
    summed = (
        values.filter(is_percentage)
        .with_columns(gpu=pl.col("type") & _GPU_OF_TYPE)
        .group_by(*key, "counter", "parts")
        .agg(fraction=pl.col("value").sum() / 100, found=pl.col("metric").n_unique())
        .filter(pl.col("found") == pl.col("parts"))
    )
    counters = [
        pl.col("fraction").filter(pl.col("counter") == name).first().alias(name)
        for name in GPU_SAMPLES
        if name not in (*key, "end_ns")
    ]
    samples = summed.group_by(key).agg(counters).sort(key)
    apart_ns = pl.col("start_ns").shift(-1).over("gpu") - pl.col("start_ns")
    period_ns = apart_ns.median().over("gpu").cast(pl.Int64)
    return conform(
        samples.with_columns(apart_ns=apart_ns, period_ns=period_ns)
        .filter(pl.col("period_ns").is_between(1, _LONGEST_NS))
        .with_columns(
            end_ns=pl.col("start_ns")
            + pl.when(pl.col("apart_ns") < _MOST_PERIODS * pl.col("period_ns")).then("apart_ns").otherwise("period_ns")
        ),
        GPU_SAMPLES,
    )


def read_nic_samples(path: Path, begin_ns: int, until_ns: int) -> NicSamples:
    """The samples (schemas.NIC_SAMPLES) that overlap the time, by adapter and time; none where no rate is known.

    Raises InputError if the file can no longer be read.
    """
    with plain_sqlite(path) as plain, NsysExport(plain, path) as export:
        if not export.has(NIC_METRICS, "start", "end", "globalId", "portId", "metricsListId", "metricsIdx", "value"):
            return pl.DataFrame(schema=NIC_SAMPLES)
        if not export.has(_NIC_NAMES, "metricsListId", "metricsIdx", "name", "unit"):
            return pl.DataFrame(schema=NIC_SAMPLES)
        query = f"SELECT metricsListId, metricsIdx, CAST(name AS TEXT), CAST(unit AS TEXT) FROM {_NIC_NAMES}"
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
