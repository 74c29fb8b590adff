"""Reads a trace file: its tables, its ranks and what the capture itself records of the run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType

import polars as pl

from three_walls.lib import limits
from three_walls.lib.errors import InputError
from three_walls.lib.report_warning import ReportWarning
from three_walls.lib.shell import quote_file
from three_walls.lib.text import count_of, in_ms
from three_walls.lib.threads import work_meanwhile
from three_walls.megatron.settings.merge_settings import merge_sources
from three_walls.megatron.settings.option_words import read_command_line
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.megatron.settings.setting_sources import SourceSettings
from three_walls.tables.shareable import cut_private
from three_walls.trace.api_calls import ApiCalls, find_only_process, read_api_calls
from three_walls.trace.capabilities import probe_capabilities
from three_walls.trace.identity import Rank, identify_ranks
from three_walls.trace.input_file import InputFile
from three_walls.trace.launch_record import (
    launch_environment,
    launch_words,
    other_environments,
    read_environment,
    secret_names,
)
from three_walls.trace.nccl_payload import read_nccl_calls
from three_walls.trace.nsys_export import EXPORT_METADATA, NsysExport
from three_walls.trace.read_tables import (
    WantedRanges,
    read_event_records,
    read_memory_events,
    read_operations,
    read_overhead,
    read_ranges,
    read_stream_waits,
)
from three_walls.trace.schemas import (
    EVENT_RECORDS,
    MEMORY_EVENTS,
    OPERATIONS,
    STREAM_WAITS,
    AnyTable,
    EventRecords,
    HostRanges,
    MemoryEvents,
    NcclCalls,
    ProfilerOverhead,
    StreamWaits,
    TraceOperations,
    conform,
    distinct_rows,
)
from three_walls.trace.spans import Device, Span, StepsToRead, list_spans
from three_walls.trace.trace_files import hash_file, plain_sqlite

# An export has at least one of these; any other SQLite file has none.
_NSYS_TABLES = (*EXPORT_METADATA, "META_DATA_CAPTURE", "TARGET_INFO_SESSION_START_TIME", "NVTX_EVENTS")
_CUPTI_PREFIX = "CUPTI_ACTIVITY_KIND_"

_VERSION = re.compile(r"\d{1,4}(\.\d{1,6}){0,4}(-[0-9a-f]{6,16}(v\d)?)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Capture:
    """What an export records apart from events. ``capture_id`` is unique within one analysis."""

    input: InputFile
    path: Path
    """Where it was read, so that one step can be read again; no output shows it."""
    capture_id: int
    ranks: tuple[Rank, ...]
    session_start_ns: int | None
    """UTC of the session's time 0, in ns since the epoch: it puts captures of one host on one clock."""
    config: RunConfig
    """The settings that the launch states, with defaults filled in."""
    launch: SourceSettings
    """The same without defaults, to be merged with other sources."""
    capabilities: Mapping[str, str]
    warnings: tuple[ReportWarning, ...]
    to_read: Mapping[Device, StepsToRead]
    """The steps whose operations, calls and ranges are read; empty where they are those of the whole capture."""


@dataclass(frozen=True, slots=True)
class Trace(Capture):
    """One export, read. Frames follow ``schemas.py``; ``names`` resolves their name ids.

    Frames with host ids (process, thread) have ``capture_id`` as a column, because two hosts can have the same process
    and thread numbers.
    """

    operations: TraceOperations
    api_calls: ApiCalls
    ranges: HostRanges
    overhead: ProfilerOverhead
    stream_waits: StreamWaits
    event_records: EventRecords
    nccl_calls: NcclCalls
    memory_events: MemoryEvents
    names: Mapping[int, str]
    """Names of kernels and calls by id, without paths (the name of a lambda holds one) and keys."""

    def after(self, ranks_count: int) -> Trace:
        """This trace, read as the first one, where others with ``ranks_count`` ranks come before it."""
        if not ranks_count:
            return self
        operations = self.operations.with_columns(pl.col("rank_index") + ranks_count)
        return replace(self, operations=operations, ranks=tuple(rank.after(ranks_count) for rank in self.ranks))


def list_steps_to_read(traces: Iterable[Capture]) -> dict[int, StepsToRead]:
    """By rank index, the steps that were read of the ranks of which not all were."""
    ranks = [(trace, rank, (rank.process, rank.device)) for trace in traces for rank in trace.ranks]
    return {rank.rank_index: trace.to_read[device] for trace, rank, device in ranks if device in trace.to_read}


def read_trace(
    path: Path,
    capture_id: int,
    first_rank_index: int,
    wanted: WantedRanges,
    graph_launch: re.Pattern[str],
    *,
    with_events: bool = True,
    to_read: Mapping[Device, StepsToRead] = MappingProxyType({}),
) -> Trace:
    """Reads ``path`` (plain, .xz or .zst) as capture ``capture_id``; its ranks are numbered from ``first_rank_index``.

    ``wanted`` selects the NVTX ranges to read; ``graph_launch`` matches the API calls that launch CUDA graphs. A trace
    without kernels has no ranks. ``with_events``: whether to read what streams wait for, and allocations by the driver;
    else these frames are empty. ``to_read``: the steps that are read, where not all are. Raises InputError if the file
    is no export of Nsight Systems.
    """
    spans = list_spans(to_read)
    with (
        plain_sqlite(path) as plain,
        # Hashing takes as long as SQLite's reading, and both leave Python's lock to others.
        work_meanwhile(partial(hash_file, path)) as wait_for_digest,
        NsysExport(plain, path, spans) as export,
        # A third of reading, for which SQLite leaves Python's lock to others.
        work_meanwhile(partial(_read_ranges_alone, plain, path, wanted, spans)) as wait_for_ranges,
    ):
        check_is_nsys(export, path)
        # Operations first: to sort them takes most memory.
        operations, untimed = read_operations(export, cache(partial(find_only_process, export)))
        api_calls = read_api_calls(export, capture_id)
        of_kernels = pl.concat([operations[name].unique() for name in ("name_id", "short_name_id")])
        texts = export.strings({*of_kernels.drop_nulls().to_list(), *api_calls.name_ids})
        names = cut_names(texts)
        long_names = sum(len(text) > limits.LONGEST_NAME for text in texts.values())
        call_names = [names.get(name_id, "") for name_id in api_calls.name_ids]
        launches_graphs = any(map(graph_launch.search, call_names))
        rows = launch_environment(export)
        nccl_calls, refused = read_nccl_calls(export)
        launch, notes = _read_launch(export, rows)
        config = merge_sources([launch])
        devices = _devices_with_kernels(operations, path)
        foreign = _find_foreign_processes(operations, names) if len(devices) > 1 else {}
        devices = [device for device in devices if device not in foreign]
        ranks = identify_ranks(export, devices, config.environment, first_rank_index)

        def mark(frame: AnyTable) -> AnyTable:
            return frame.with_columns(capture_id=pl.lit(capture_id, dtype=pl.Int64))

        records = partial(read_event_records, called=api_calls.correlations if spans else None)
        return Trace(
            path=path,
            capture_id=capture_id,
            ranks=ranks,
            operations=_with_rank_indices(operations, ranks),
            api_calls=api_calls.with_names(names),
            ranges=mark(wait_for_ranges()),
            overhead=mark(read_overhead(export)),
            stream_waits=mark(read_stream_waits(export) if with_events else pl.DataFrame(schema=STREAM_WAITS)),
            event_records=mark(records(export) if with_events else pl.DataFrame(schema=EVENT_RECORDS)),
            nccl_calls=mark(nccl_calls),
            memory_events=read_memory_events(export) if with_events else pl.DataFrame(schema=MEMORY_EVENTS),
            session_start_ns=read_session_start(export),
            names=names,
            to_read=to_read,
            config=config,
            launch=launch,
            capabilities=probe_capabilities(export, launches_graphs),
            warnings=(
                *_warn_of_contents(path, untimed, refused, secret_names([*rows, *other_environments(export)])),
                *_warn_of_long_names(path, long_names),
                *_warn_of_lost_names(path, of_kernels.drop_nulls(), texts),
                *_warn_of_foreign_processes(path, foreign),
                *notes,
            ),
            input=_describe(export, path, wait_for_digest()),  # last: until here the file was hashed meanwhile
        )


def cut_names(texts: Mapping[int, str]) -> dict[int, str]:
    """Names of kernels and calls as they are kept, by id: without private parts, and not longer than any real one."""
    return {number: cut_private(text[: limits.LONGEST_NAME]) for number, text in texts.items()}


def _warn_of_lost_names(path: Path, of_kernels: pl.Series, texts: Mapping[int, str]) -> Iterator[ReportWarning]:
    """``of_kernels``: ids of their names."""
    wanted = set(of_kernels.to_list())
    if lost := wanted - texts.keys():
        message = (
            f"{path.name}: {len(lost):,} of {len(wanted):,} names of kernels are missing, because the export's table "
            "StringIds is damaged or incomplete. Export the report again."
        )
        yield ReportWarning("names-lost", message)


def _read_ranges_alone(plain: Path, path: Path, wanted: WantedRanges, spans: Sequence[Span]) -> pl.DataFrame:
    """read_ranges by a connection of its own, as another thread needs."""
    with NsysExport(plain, path, spans) as export:
        return read_ranges(export, wanted)


def check_is_nsys(export: NsysExport, path: Path) -> None:
    """Raises InputError for a database of something else."""
    tables = export.columns
    if any(table in tables for table in _NSYS_TABLES) or any(table.startswith(_CUPTI_PREFIX) for table in tables):
        return
    raise InputError(
        f"{path}: expected an export of Nsight Systems (nsys export --type sqlite), found an SQLite database "
        f"with {count_of(len(tables), 'other table')}"
    )


def _describe(export: NsysExport, path: Path, digest: str) -> InputFile:
    metadata = dict(pair for table in EXPORT_METADATA for pair in export.pairs(table))
    product, schema = metadata.get("EXPORT_PRODUCT_VERSION", ""), metadata.get("EXPORT_SCHEMA_VERSION", "")
    return InputFile(
        path.name,
        digest,
        product if _VERSION.fullmatch(product) else None,
        schema if _VERSION.fullmatch(schema) else None,
    )


def _devices_with_kernels(operations: pl.DataFrame, path: Path) -> list[tuple[int, int]]:
    """(process, device) pairs that ran kernels. Launchers and data loaders run none and are no ranks."""
    ran = distinct_rows(operations.select("kind", "process", "device")).drop_nulls()
    working = ran.filter(pl.col("kind").is_in(["kernel", "graph"])).select("process", "device").unique()
    if working.height > limits.MOST_RANKS_OF_EXPORT:
        most, found = f"{limits.MOST_RANKS_OF_EXPORT:,}", f"{working.height:,}"
        raise InputError(f"{path}: expected a capture of at most {most} processes on GPUs, found {found}")
    return [(int(p), int(d)) for p, d in working.sort("process", "device").rows()]


def _find_foreign_processes(operations: pl.DataFrame, names: Mapping[int, str]) -> dict[tuple[int, int], int]:
    """(process, device) pairs that are no ranks of the run: their time in kernels, in ns.

    Where a process of the capture runs NCCL, so does every rank of the run. A process that runs none is another program
    which the profiler followed, and which may have taken time from a rank's GPU.
    """
    nccl = [number for number, name in names.items() if "nccl" in name.lower()]
    columns = ("kind", "process", "device", "start_ns", "end_ns", "name_id", "short_name_id")
    is_working = pl.col("kind").is_in(["kernel", "graph"]) & pl.all_horizontal(
        pl.col("process", "device").is_not_null()
    )
    working = operations.select(columns).filter(is_working)
    totals = working.group_by("process", "device").agg(
        ns=(pl.col("end_ns") - pl.col("start_ns")).sum(),
        runs_nccl=(pl.col("name_id").is_in(nccl) | pl.col("short_name_id").is_in(nccl)).any(),
    )
    if not totals["runs_nccl"].any():
        return {}
    others = totals.filter(~pl.col("runs_nccl")).sort("process", "device")
    return {(process, device): ns for process, device, ns in others.select("process", "device", "ns").iter_rows()}


def _with_rank_indices(operations: pl.DataFrame, ranks: tuple[Rank, ...]) -> pl.DataFrame:
    """The ``operations`` of ``ranks``, as schemas.OPERATIONS; where that is all, they share their memory with these."""
    rank_indices = pl.DataFrame(
        [(rank.rank_index, rank.process, rank.device) for rank in ranks],
        schema={"rank_index": pl.Int64, "process": pl.Int64, "device": pl.Int64},
        orient="row",
    )
    key = ["process", "device"]
    devices = distinct_rows(operations.select(key))
    if len(ranks) == 1 and devices.rows() == [(ranks[0].process, ranks[0].device)]:
        return conform(operations.with_columns(rank_index=pl.lit(ranks[0].rank_index, dtype=pl.Int64)), OPERATIONS)
    column = operations.select(key).join(rank_indices, on=key, how="left", maintain_order="left")["rank_index"]
    with_ranks = operations.with_columns(column)
    return conform(with_ranks.drop_nulls("rank_index") if column.null_count() else with_ranks, OPERATIONS)


def read_session_start(export: NsysExport) -> int | None:
    """UTC of the session's time 0, in ns since the epoch; None where it is not recorded."""
    if not export.has("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"):
        return None
    rows = export.rows("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME LIMIT 1")
    value = rows[0][0] if rows else None
    return value if isinstance(value, int) and 0 <= value <= limits.LATEST_TIME_NS else None


def _read_launch(export: NsysExport, rows: list[str]) -> tuple[SourceSettings, list[ReportWarning]]:
    """Settings and environment of the launch. Where the command line also sets a variable, its value counts."""
    command_line = read_command_line(launch_words(export))
    environment = read_environment(rows) | dict(command_line.environment)
    launch = replace(command_line, environment=MappingProxyType(dict(sorted(environment.items()))))
    return launch, [ReportWarning("command-line", f"{export.shown_as.name}: {note}") for note in launch.warnings]


def _warn_of_long_names(path: Path, count: int) -> list[ReportWarning]:
    """Warns of names of kernels and calls that are longer than any real one and were cut."""
    if not count:
        return []
    message = f"{path.name}: {count} names of kernels or calls are cut after {limits.LONGEST_NAME:,} characters"
    return [ReportWarning("long-names", message)]


def _warn_of_foreign_processes(path: Path, foreign: Mapping[tuple[int, int], int]) -> list[ReportWarning]:
    """Warns of other programs on the GPUs: they are no ranks."""
    if not foreign:
        return []
    message = (
        f"Of {path.name}, processes that ran kernels but no NCCL are left out: {len(foreign)}, with up to "
        f"{in_ms(max(foreign.values()), ',.0f')} of kernels. They may have slowed a rank's GPU."
    )
    return [ReportWarning("other-process-on-gpu", message)]


def _warn_of_contents(path: Path, untimed: int, refused: int, secrets: tuple[str, ...]) -> list[ReportWarning]:
    """Warns of operations without time, refused NCCL payloads and variables that look like secrets."""
    warnings = []
    if untimed:
        message = f"{untimed} device operations are left out: the profiler could not time them"
        warnings.append(ReportWarning("untimed-operations", f"{path.name}: {message}"))
    if refused:
        message = (
            f"{path.name}: the payloads of {refused} NCCL calls do not have the size that their schema states. They "
            "are not read, so the communicators of these calls stay unknown"
        )
        warnings.append(ReportWarning("nccl-payload", message))
    if secrets:
        message = (
            f"{path.name} holds environment variables that look like secrets ({', '.join(secrets)}). The report does "
            "not show their values, but the file holds them. Before you share it, run: three-walls scrub "
            f"{quote_file(path.name)} scrubbed.sqlite"
        )
        warnings.append(ReportWarning("secrets-in-trace", message))
    return warnings
