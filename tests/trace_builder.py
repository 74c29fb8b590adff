"""Builds a small Nsight Systems export from a few words, so that a test shows exactly the facts that matter."""

from __future__ import annotations

import random
import sqlite3
import struct
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROCESS = (1 << 48) + (7571 << 24)  # <vm:8><pid:24><tid:24>
THREAD_OFFSET = 1

_OPERATION = ["start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid"]
_KERNEL = [*_OPERATION, "demangledName", "shortName", "gridX", "gridY", "gridZ", "graphNodeId"]
_MEMCPY = [*_OPERATION, "bytes", "copyKind", "srcKind", "dstKind", "graphNodeId"]
_MEMSET = [*_OPERATION, "value", "bytes", "memKind", "graphNodeId"]
_GRAPH = [*_OPERATION, "graphId", "graphExecId"]
_RUNTIME = ["start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue"]
_NVTX = ["start", "end", "eventType", "text", "textId", "globalTid", "domainId", "binaryData"]
_EVENT = ["deviceId", "contextId", "streamId", "correlationId", "globalPid", "eventId", "eventSyncId"]
_SYNCHRONIZATION = ["start", "end", *_EVENT, "syncType"]
_MEMORY_USAGE = ["start", "globalPid", "deviceId", "bytes", "memKind", "memoryOperationType"]
_OVERHEAD = ["start", "end", "globalTid", "nameId", "returnValue"]

COLUMNS: dict[str, list[str]] = {
    "ThreadNames": ["nameId", "priority", "globalTid"],
    "CUPTI_ACTIVITY_KIND_KERNEL": _KERNEL,
    "CUPTI_ACTIVITY_KIND_MEMCPY": _MEMCPY,
    "CUPTI_ACTIVITY_KIND_MEMSET": _MEMSET,
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": _GRAPH,
    "CUPTI_ACTIVITY_KIND_RUNTIME": _RUNTIME,
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": _EVENT,
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": _SYNCHRONIZATION,
    "NVTX_EVENTS": _NVTX,
    "PROFILER_OVERHEAD": _OVERHEAD,
    "OSRT_API": _OVERHEAD,
    "CUDA_GPU_MEMORY_USAGE_EVENTS": _MEMORY_USAGE,
    "GPU_METRICS": ["timestamp", "typeId", "metricId", "value"],
    "TARGET_INFO_GPU_METRICS": ["typeId", "metricId", "metricName"],
    "NET_NIC_METRIC": ["start", "end", "globalId", "portId", "metricsListId", "metricsIdx", "value"],
    "TARGET_INFO_NETWORK_METRICS": ["metricsListId", "metricsIdx", "name", "unit"],
    "NVTX_PAYLOAD_SCHEMAS": ["domainId", "schemaId", "name", "payloadSize"],
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": ["domainId", "schemaId", "idx", "type", "name", "offset"],
}

GEMM = "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_TNT"
ADAM = "multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float>>"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>"

MEGATRON = (
    "pretrain_gpt.py --bf16 --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 "
    "--max-position-embeddings 128 --num-experts 8 --moe-router-topk 2 --micro-batch-size 1 --global-batch-size 8 "
    "--moe-token-dispatcher-type alltoall"
)

MEGATRON_RANGE = "LinearWithGradAccumulationAndAsyncCommunication, seq = 4, op_id = 9, sizes = [[128, 64], [512, 64]]"
"""A range that PyTorch opens for an autograd function of Megatron: captures without a telling command line have it."""


@dataclass
class TraceBuilder:
    """Collects rows; ``write`` makes the export. Times are ns and must be above 0, as CUPTI's are."""

    process: int = PROCESS
    device: int = 0
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    strings: dict[str, int] = field(default_factory=dict)
    correlation: int = 0
    metadata: list[tuple[str, str]] = field(default_factory=list)
    gpus: list[str] = field(default_factory=lambda: ["NVIDIA H200"])
    host: str = "node0"
    session_start_ns: int | None = None
    """UTC of the capture's time 0, in ns since the epoch; None: not recorded."""

    @property
    def thread(self) -> int:
        return self.process + THREAD_OFFSET

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings) + 1)

    def add(self, table: str, **values: Any) -> None:
        self.rows.setdefault(table, []).append(values)

    def _operation(self, table: str, start: int, end: int, stream: int, launched: int | None, **values: Any) -> None:
        self.correlation += 1
        place = {"deviceId": self.device, "contextId": 1, "streamId": stream, "globalPid": self.process}
        self.add(table, start=start, end=end, correlationId=self.correlation, **place, **values)
        if launched is not None:
            self.api("cudaLaunchKernel_v7000", launched, launched + 1, correlation=self.correlation)

    def kernel(
        self,
        name: str,
        start: int,
        end: int,
        stream: int = 7,
        launched: int | None = None,
        node: int | None = None,
        grid: int = 1,
    ) -> TraceBuilder:
        """A kernel; ``launched``: when its API call began (None: not recorded)."""
        short = name.split("(")[0].split("<")[0].split("::")[-1].removeprefix("void ")
        table = "CUPTI_ACTIVITY_KIND_KERNEL"
        names = {"demangledName": self.string(name), "shortName": self.string(short)}
        self._operation(table, start, end, stream, launched, **names, gridX=grid, gridY=1, gridZ=1, graphNodeId=node)
        return self

    def copy(
        self,
        kind: int,
        start: int,
        end: int,
        stream: int = 7,
        launched: int | None = None,
        memory: tuple[int, int] = (1, 2),
        size: int = 1,
    ) -> TraceBuilder:
        """A copy: kind 1 H2D, 2 D2H, 8 D2D, 10 P2P; ``memory``: source and target kind (0 pageable, 1 pinned)."""
        source, target = memory
        values = {"bytes": size, "copyKind": kind, "srcKind": source, "dstKind": target}
        self._operation("CUPTI_ACTIVITY_KIND_MEMCPY", start, end, stream, launched, **values)
        return self

    def graph(self, start: int, end: int, stream: int = 7, launched: int | None = None) -> TraceBuilder:
        """The envelope of a CUDA graph."""
        self._operation("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start, end, stream, None, graphId=1, graphExecId=1)
        if launched is not None:
            self.api("cudaGraphLaunch_v10000", launched, launched + 1, correlation=self.correlation)
        return self

    def api(self, name: str, start: int, end: int, correlation: int = 0, thread: int | None = None) -> TraceBuilder:
        """An API call of the main thread (or ``thread``)."""
        values = {"eventClass": 0, "correlationId": correlation, "nameId": self.string(name), "returnValue": 0}
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, globalTid=thread or self.thread, **values)
        return self

    def record_event(
        self, event: int, stream: int, called: int, sync: int | None = None, listed: bool = True
    ) -> TraceBuilder:
        """cudaEventRecord on ``stream``; without ``listed`` with flags, as CUPTI lists no such record."""
        self.correlation += 1
        if listed:
            self.add("CUPTI_ACTIVITY_KIND_CUDA_EVENT", **self._event(event, stream, sync))
        name = "cudaEventRecord_v3020" if listed else "cudaEventRecordWithFlags_v11010"
        return self.api(name, called, called + 1, correlation=self.correlation)

    def wait_event(self, event: int, stream: int, called: int, sync: int | None = None, kind: int = 2) -> TraceBuilder:
        """cudaStreamWaitEvent: ``stream`` waits for ``event``; ``kind``: its syncType (3 in old exports)."""
        self.correlation += 1
        values = self._event(event, stream, sync)
        self.add("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=called, end=called + 1, syncType=kind, **values)
        return self.api("cudaStreamWaitEvent_v3020", called, called + 1, correlation=self.correlation)

    def _event(self, event: int, stream: int, sync: int | None) -> dict[str, Any]:
        place = {"deviceId": self.device, "contextId": 1, "streamId": stream, "globalPid": self.process}
        return {**place, "correlationId": self.correlation, "eventId": event, "eventSyncId": sync}

    def allocation(
        self, start: int, size: int, freed: bool = False, kind: int = 2, process: int | None = None
    ) -> TraceBuilder:
        """Memory taken from the driver, or given back; ``kind``: 1 pinned host memory, 2 device memory."""
        place = {"globalPid": self.process if process is None else process, "deviceId": self.device}
        values = {"bytes": size, "memKind": kind, "memoryOperationType": int(freed)}
        self.add("CUDA_GPU_MEMORY_USAGE_EVENTS", start=start, **place, **values)
        return self

    def samples(self, metrics: dict[str, list[int]], begin: int = 0, period: int = 1000, gpu: int = 0) -> TraceBuilder:
        """Hardware counters of ``gpu``: by metric its values, ``period`` ns apart from ``begin``."""
        kind = (1 << 48) + (1 << 32) + gpu
        for number, (name, values) in enumerate(metrics.items()):
            self.add("TARGET_INFO_GPU_METRICS", typeId=kind, metricId=number, metricName=name)
            for order, value in enumerate(values):
                self.add("GPU_METRICS", timestamp=begin + order * period, typeId=kind, metricId=number, value=value)
        return self

    def sent(
        self,
        values: list[int],
        begin: int,
        period: int,
        name: str = "IB: Bytes sent",
        unit: str = "bytes/ms",
        nic: int = 0,
    ) -> TraceBuilder:
        """What the adapter ``nic`` sent, ``period`` ns apart from ``begin``."""
        metric = {"metricsListId": 0, "metricsIdx": len(self.rows.get("TARGET_INFO_NETWORK_METRICS", ()))}
        self.add("TARGET_INFO_NETWORK_METRICS", name=name, unit=unit, **metric)
        for order, value in enumerate(values):
            start = begin + order * period
            self.add("NET_NIC_METRIC", start=start, end=start + period, globalId=nic, portId=1, value=value, **metric)
        return self

    def nvtx(self, text: str, start: int, end: int | None, inline: bool = False) -> TraceBuilder:
        """A range; its text in StringIds, or ``inline`` in the row."""
        where = {"text": text} if inline else {"textId": self.string(text)}
        self.add("NVTX_EVENTS", start=start, end=end, eventType=59, globalTid=self.thread, domainId=0, **where)
        return self

    def nccl_schema(
        self, schema: int, size: int, *entries: tuple[int, str, int | None], domain: int = 1
    ) -> TraceBuilder:
        """A payload schema of NCCL; ``entries``: type, name and offset of each."""
        self.add("NVTX_PAYLOAD_SCHEMAS", domainId=domain, schemaId=schema, name=None, payloadSize=size)
        for order, (kind, name, offset) in enumerate(entries):
            values = {"idx": order, "type": kind, "name": name, "offset": offset}
            self.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", domainId=domain, schemaId=schema, **values)
        return self

    def nccl_call(
        self, operation: str, start: int, end: int, schema: int | None = None, payload: bytes = b"", domain: int = 1
    ) -> TraceBuilder:
        """A range of NCCL's own domain, with a payload of ``schema`` where it has one."""
        data = None if schema is None else struct.pack("<QQQQ", domain, schema, len(payload), 32) + payload
        values = {"textId": self.string(operation), "domainId": domain, "binaryData": data}
        self.add("NVTX_EVENTS", start=start, end=end, eventType=59, globalTid=self.thread, **values)
        return self

    def overhead(self, start: int, end: int) -> TraceBuilder:
        """A stretch in which the profiler held up the main thread."""
        self.add(
            "PROFILER_OVERHEAD", start=start, end=end, globalTid=self.thread, nameId=self.string("flush"), returnValue=0
        )
        return self

    def os_call(self, name: str, start: int, end: int, thread: int | None = None) -> TraceBuilder:
        """A function of the operating system that the main thread (or ``thread``) was in (``-t osrt``)."""
        values = {"globalTid": thread or self.thread, "nameId": self.string(name), "returnValue": 0}
        self.add("OSRT_API", start=start, end=end, **values)
        return self

    def launched_as(self, command: str, **environment: str) -> TraceBuilder:
        """The command line and environment that the capture recorded."""
        first, *arguments = command.split()
        self.metadata.append(("PROCESS_0:COMMAND", first))
        self.metadata += [(f"PROCESS_0:ARGUMENT_{order}", word) for order, word in enumerate(arguments)]
        self.metadata += [
            ("PROCESS_0:ENVIRONMENT_VARIABLE", f'{name}="{value}"') for name, value in environment.items()
        ]
        return self

    def steps(self, count: int, length: int = 1000) -> TraceBuilder:
        """``count`` plain steps from t=1: GEMMs for 60% of each, then an update; everything launched in time."""
        for order in range(count):
            at = 1 + order * length
            self.kernel(GEMM, at, at + 6 * length // 10, launched=max(at - 5, 0))
            self.kernel(ADAM, at + 8 * length // 10, at + length, launched=max(at - 3, 0))
        return self

    def write(
        self, path: Path, shuffle: int | None = None, without: tuple[str, ...] = (), schema: str = "3.11.1"
    ) -> Path:
        """Writes the export. ``without``: tables ("T") or columns ("T.c") it lacks; ``shuffle``: row order by seed."""
        with closing(sqlite3.connect(path)) as database, database:
            _table(database, "META_DATA_EXPORT", ["name", "value"], [("EXPORT_SCHEMA_VERSION", schema)])
            if self.metadata:
                _table(database, "META_DATA_CAPTURE", ["name", "value"], self.metadata)
            _table(database, "StringIds", ["id", "value"], [(number, text) for text, number in self.strings.items()])
            gpus = [(order, name, 9, 0, 150_109_880_320) for order, name in enumerate(self.gpus)]
            _table(database, "TARGET_INFO_GPU", ["id", "name", "computeMajor", "computeMinor", "totalMemory"], gpus)
            _table(database, "TARGET_INFO_SYSTEM_ENV", ["name", "value"], [("Hostname", self.host)])
            if self.session_start_ns is not None:
                _table(database, "TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"], [(self.session_start_ns,)])
            for table, rows in self.rows.items():
                if table in without:
                    continue
                columns = [column for column in COLUMNS[table] if f"{table}.{column}" not in without]
                values = [tuple(row.get(column) for column in columns) for row in rows]
                if shuffle is not None:
                    random.Random(shuffle).shuffle(values)
                _table(database, table, columns, values)
        return path


def merge(path: Path, *builders: TraceBuilder) -> Path:
    """One export with the rows of several processes, as a profiler around torchrun writes it."""
    first = builders[0]
    merged = TraceBuilder(strings=first.strings, metadata=first.metadata)
    for builder in builders:
        assert builder.strings is first.strings, "builders that are merged share their strings"
        for table, rows in builder.rows.items():
            merged.rows.setdefault(table, []).extend(rows)
    return merged.write(path)


def _table(database: sqlite3.Connection, name: str, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
    database.execute(f'CREATE TABLE "{name}" ({", ".join(f"""{chr(34)}{column}{chr(34)}""" for column in columns)})')
    marks = ",".join("?" * len(columns))
    database.executemany(f'INSERT INTO "{name}" VALUES ({marks})', rows)
