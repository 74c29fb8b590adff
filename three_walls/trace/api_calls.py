"""The CUDA API calls of a run, kept in few bytes: a capture of minutes has tens of millions of them.

Calls are kept in parts, in the order of the export. The numbers of a part are stored as their distance from the least
one, in as few bytes as the largest distance takes: a call is about 17 bytes then instead of 56. Each part knows its
first start and its latest end, so what happened in a step is found without a look at the other parts.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import polars as pl

from three_walls.trace.nsys_export import NsysExport
from three_walls.trace.read_tables import API, HAS_ENDED, THREADS_PER_PROCESS, process_of
from three_walls.trace.schemas import API_CALLS, AnyTable
from three_walls.trace.spans import Span, join_spans

_ROWS_PER_PART = 1 << 16

_PACKED = ("start_ns", "length_ns", "thread", "correlation", "name_id")
_WIDTHS = {pl.UInt8(): 1 << 8, pl.UInt16(): 1 << 16, pl.UInt32(): 1 << 32}
"""Types of packed numbers, and from which distance on each is too narrow."""

_RECORDED = pl.Schema({**API_CALLS, "capture_id": pl.Int64()})
_COLUMNS = tuple(_RECORDED)


@dataclass(frozen=True, slots=True)
class _Part:
    """Consecutive calls of one capture, at least one."""

    capture_id: int
    packed: AnyTable
    """Columns of _PACKED: how far each number is above the least one."""
    least: Mapping[str, int]
    """The least number of each column."""
    begin_ns: int
    """The first start."""
    until_ns: int
    """The latest end."""
    name_ids: frozenset[int]
    processes: frozenset[int]

    def unpack(self, columns: Iterable[str] = ("start_ns", "end_ns", "thread", "correlation", "name_id")) -> AnyTable:
        """``columns`` of its calls: start_ns, end_ns, thread, correlation and name_id."""
        return pl.DataFrame([self._unpack_column(name) for name in columns])

    def _unpack_column(self, name: str) -> pl.Series:
        if name == "end_ns":
            return (self._unpack_column("start_ns") + self._unpack_column("length_ns")).alias(name)
        return self.packed[name].cast(pl.Int64, wrap_numerical=True) + self.least[name]

    def are_between(self, begin_ns: int, until_ns: int) -> pl.Series:
        """Which of its calls end at ``begin_ns`` or later and start before ``until_ns``."""
        return (self._unpack_column("end_ns") >= begin_ns) & (self._unpack_column("start_ns") < until_ns)

    def take(self, are_wanted: pl.Series) -> _Part:
        """The rows that are wanted, with the bounds of all."""
        return replace(self, packed=self.packed.filter(are_wanted))


@dataclass(frozen=True, slots=True)
class ApiCalls:
    """The calls of one or more captures, by capture and in the order of the exports."""

    parts: tuple[_Part, ...] = ()
    names: Mapping[int, Mapping[int, str]] | None = None
    """By capture, what ids of names stand for; an id without one is a call of an unknown name."""

    @classmethod
    def join(cls, calls: Iterable[ApiCalls]) -> ApiCalls:
        """The calls of several captures."""
        all_calls = list(calls)
        names = {capture_id: texts for each in all_calls for capture_id, texts in (each.names or {}).items()}
        return cls(tuple(part for each in all_calls for part in each.parts), names)

    @property
    def height(self) -> int:
        """How many there are."""
        return sum(part.packed.height for part in self.parts)

    @property
    def name_ids(self) -> set[int]:
        """The ids of the names of all calls."""
        return {name_id for part in self.parts for name_id in part.name_ids}

    @property
    def processes(self) -> set[int]:
        """The globalPids of all calls."""
        return {process for part in self.parts for process in part.processes}

    @property
    def correlations(self) -> tuple[Span, ...]:
        """The ids of the calls, by which other rows refer to them, and few others: in order, without overlaps."""
        bounds = ((part.least["correlation"], part.packed["correlation"].max()) for part in self.parts)
        return join_spans((least, least + most + 1) for least, most in bounds if isinstance(most, int))

    def with_names(self, names: Mapping[int, str]) -> ApiCalls:
        """The calls of a single capture with what the ids of its names stand for."""
        texts = {name_id: names.get(name_id, "") for name_id in sorted(self.name_ids)}
        return replace(self, names={part.capture_id: texts for part in self.parts[:1]})

    def of_captures(self, capture_ids: Collection[int]) -> ApiCalls:
        """The calls of some captures."""
        return replace(self, parts=tuple(part for part in self.parts if part.capture_id in capture_ids))

    def during(self, spans: Mapping[int, Sequence[tuple[int, int]]]) -> ApiCalls:
        """The calls of each capture that end at the begin of one of its ``spans`` or later and start before its end."""
        parts = []
        for part in self.parts:
            near = [
                (begin_ns, until_ns)
                for begin_ns, until_ns in spans.get(part.capture_id, ())
                if part.until_ns >= begin_ns and part.begin_ns < until_ns
            ]
            if not near:
                continue
            if not any(part.begin_ns >= begin_ns and part.until_ns < until_ns for begin_ns, until_ns in near):
                part = part.take(functools.reduce(operator.or_, (part.are_between(*span) for span in near)))
            if part.packed.height:
                parts.append(part)
        return replace(self, parts=tuple(parts))

    def named(self, is_wanted: Callable[[str], bool]) -> ApiCalls:
        """The calls whose name is wanted. Calls without a name are not."""
        ids_of = {
            capture_id: {name_id for name_id, name in names.items() if is_wanted(name)}
            for capture_id, names in (self.names or {}).items()
        }
        parts = []
        for part in self.parts:
            name_ids = ids_of.get(part.capture_id, set()) & part.name_ids
            if name_ids:
                least = part.least["name_id"]
                parts.append(part.take(part.packed["name_id"].is_in([name_id - least for name_id in sorted(name_ids)])))
        return replace(self, parts=tuple(parts))

    def lasting(self, least_ns: int) -> ApiCalls:
        """The calls that take ``least_ns`` or longer."""
        return replace(
            self, parts=tuple(part.take(part.unpack(["length_ns"])["length_ns"] >= least_ns) for part in self.parts)
        )

    def frame(self, *columns: str) -> AnyTable:
        """All calls: ``columns`` of schemas.API_CALLS and ``capture_id``, by default all of these."""
        names = columns or _COLUMNS
        if not self.parts:
            return pl.DataFrame(schema=_RECORDED).select(names)
        of_captures = groupby(self.parts, lambda part: part.capture_id)
        return pl.concat([self._unpack_capture(capture_id, parts, names) for capture_id, parts in of_captures])

    def of_process(self, process: int) -> Iterator[AnyTable]:
        """The calls of a process part by part: start_ns, end_ns, thread, correlation and name_id."""
        for part in self.parts:
            if process in part.processes:
                calls = part.unpack()
                yield calls if len(part.processes) == 1 else calls.filter(process_of("thread") == process)

    def _unpack_capture(self, capture_id: int, parts: Iterable[_Part], columns: Sequence[str]) -> pl.DataFrame:
        stored = [name for name in columns if name in ("start_ns", "end_ns", "thread", "correlation")]
        stored += ["thread"] if "process" in columns and "thread" not in columns else []
        stored += ["name_id"] if "name" in columns else []
        # In one piece: a join of frames in many takes ten times their memory.
        calls = pl.concat([part.unpack(stored) for part in parts], rechunk=True)
        if "name" in columns:
            calls = calls.with_columns(self._name(capture_id, calls.select("name_id")))
        return calls.with_columns(
            *([process_of("thread").alias("process")] if "process" in columns else []),
            capture_id=pl.lit(capture_id, dtype=pl.Int64),
        ).select(columns)

    def _name(self, capture_id: int, calls: pl.DataFrame) -> pl.Series:
        names = (self.names or {}).get(capture_id, {})
        texts = pl.DataFrame(
            {"name_id": list(names), "name": list(names.values())},
            schema={"name_id": pl.Int64, "name": API_CALLS["name"]},
        )
        return calls.join(texts, on="name_id", how="left", maintain_order="left")["name"]


def read_api_calls(export: NsysExport, capture_id: int) -> ApiCalls:
    """The CUDA API calls of the capture without their names; none if not recorded."""
    columns = {
        "start_ns": "start",
        "end_ns": "end",
        "thread": "globalTid",
        "correlation": "correlationId",
        "name_id": "nameId",
    }
    timed = (rows.filter(HAS_ENDED).with_columns(pl.col("thread").fill_null(0)) for rows in export.parts(API, columns))
    return ApiCalls(tuple(part for rows in timed for part in pack_calls(capture_id, rows)))


def find_only_process(export: NsysExport) -> int:
    """The globalPid of all API calls, if it is a single one; else 0."""
    processes = read_api_calls(export, 0).processes
    return processes.pop() if len(processes) == 1 else 0


def pack_calls(capture_id: int, calls: AnyTable) -> tuple[_Part, ...]:
    """``calls`` of a capture in order: start_ns, end_ns, thread, correlation and name_id."""
    return tuple(_pack_part(capture_id, rows) for rows in calls.iter_slices(_ROWS_PER_PART) if rows.height)


def _pack_part(capture_id: int, calls: pl.DataFrame) -> _Part:
    # Series by series: a query of a frame takes several times as long as what it works out of so few rows.
    columns = {name: calls[name] for name in ("start_ns", "thread", "correlation", "name_id")}
    columns["length_ns"] = calls["end_ns"] - calls["start_ns"]
    packed, least = {}, {}
    for name in _PACKED:
        packed[name], least[name] = _pack_column(columns[name])
    threads = [least["thread"] + distance for distance in _list_distinct(packed["thread"])]
    return _Part(
        capture_id,
        pl.DataFrame(packed),
        least,
        begin_ns=_bound(calls["start_ns"].min()),
        until_ns=_bound(calls["end_ns"].max()),
        name_ids=frozenset(least["name_id"] + distance for distance in _list_distinct(packed["name_id"])),
        processes=frozenset(thread - thread % THREADS_PER_PROCESS for thread in threads),
    )


def _pack_column(numbers: pl.Series) -> tuple[pl.Series, int]:
    """How far each of ``numbers`` is above the least one, and that one; the numbers and 0 where that is too far."""
    if numbers.null_count() == len(numbers):
        return numbers.cast(pl.UInt8), 0
    least, most = _bound(numbers.min()), _bound(numbers.max())
    width = next((width for width, too_far in _WIDTHS.items() if most - least < too_far), None)
    # They fit, so that nothing need be checked: checking takes ten times as long.
    return (numbers, 0) if width is None else ((numbers - least).cast(width, wrap_numerical=True), least)


def _bound(number: object) -> int:
    assert isinstance(number, int)
    return number


def _list_distinct(numbers: pl.Series) -> list[int]:
    """The different ones of ``numbers``. To count narrow ones takes a fifth of the time of hashing."""
    known = numbers.drop_nulls()
    if known.dtype in (pl.UInt8, pl.UInt16):
        return np.flatnonzero(np.bincount(known.to_numpy())).tolist()
    return known.unique().to_list()
