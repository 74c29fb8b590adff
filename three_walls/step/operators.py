"""PyTorch's operators and the NVTX ranges around them: which of them launched a kernel, with which tensor shapes.

``torch.autograd.profiler.emit_nvtx(record_shapes=True)`` (Megatron's ``--profile``, Megatron-Bridge's
``profiling.record_shapes``, ``nsys profile --pytorch=autograd-shapes-nvtx``) writes one NVTX range per operator::

    aten::mm, seq = 12, op_id = 345, sizes = [[4096, 4096], [4096, 6144]], input_op_ids = [(344,0), (340,-1)]
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from three_walls.lib import limits
from three_walls.step.find_steps import TRAINING_STEP_TEXT
from three_walls.step.step_tables import NAMED_RANGES, RANGE_TIMES, NamedRanges, Operations, RangeTimes
from three_walls.tables.shareable import cut_private
from three_walls.trace.read_tables import read_ranges_between
from three_walls.trace.read_trace import Trace
from three_walls.trace.schemas import ExportRanges, Int64Array

EVALUATES = "autograd::engine::evaluate_function: "
"""What the name of a range begins with in which autograd runs a node of the backward pass."""

ASKS_FOR_BATCH = "enumerate(DataLoader)#"
"""What the name of a range begins with in which a thread asks PyTorch's data loader for the next batch."""

LONGEST_SHOWN_NAME = 400
"""Characters of a name: demangled kernels have up to 1,421, and the words that distinguish them come early."""

_END_OF_NAME = re.compile(r", (?:seq = \d|op_id = \d|sizes = \[)")
_SEQUENCE = re.compile(r", seq = (\d{1,18})")
_SIZES = re.compile(r", sizes = (\[[\]\[0-9, ]*\])")
_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z])|(?<=layer)\d+|(?<=step)\d+")
"""Numbers of layers, steps and regions, but not those of functions: ``MulBackward0`` is another one than 1."""
_STILL_OPEN = 2**62

_SHAPES = "sizes = "

Sizes = tuple[tuple[int, ...], ...]


class Operator(NamedTuple):
    """A range. ``sizes``: the shape of each argument, () for one that is no tensor; None where none were recorded."""

    name: str
    sizes: Sizes | None
    sequence: int | None
    """PyTorch's number of the forward operator; the range of its backward pass has the same number."""
    parent: int | None
    """Index of the innermost range around it on the same thread."""


@dataclass(frozen=True, slots=True)
class Operators:
    """The ranges of a process, nested as its threads opened and closed them."""

    found: tuple[Operator, ...]
    """An operator per range; an index stands for its place here."""
    starts: dict[int, list[int]]
    """Per thread the starts of its ranges, ascending."""
    order: dict[int, range]
    """Per thread the indices of these ranges, in the same order."""
    ends: tuple[int, ...]
    """The end of each range of ``found``."""

    def innermost(self, thread: int | None, at_ns: int | None) -> int | None:
        """Index of the innermost range that is open on ``thread`` at ``at_ns``; None if there is none.

        None also for a launch that was not recorded, which has neither.
        """
        if thread is None or at_ns is None:
            return None
        starts = self.starts.get(thread, [])
        position = bisect_right(starts, at_ns) - 1
        index: int | None = self.order[thread][position] if position >= 0 else None
        while index is not None and self.ends[index] <= at_ns:
            index = self.found[index].parent
        return index

    def around(self, index: int | None) -> Iterator[int]:
        """The indices of the range ``index`` and of those around it, from the inside out; nothing for None."""
        while index is not None:
            yield index
            index = self.found[index].parent


def read_operators(trace: Trace, process: int, operations: Operations) -> Operators:
    """The ranges of ``process`` around the launches of ``operations``. Reads the trace file again.

    Raises InputError where it cannot be read any more.
    """
    step = _read_step(trace, process, operations)
    return nest_operators(trace.ranges.clear()) if step is None else step.operators


def take_batch_requests(ranges: NamedRanges) -> NamedRanges:
    """Those of ``ranges`` in which a thread asks PyTorch's data loader for its next batch, and gets it."""
    return ranges.filter(pl.col("name").str.starts_with(ASKS_FOR_BATCH), pl.col("end_ns").is_not_null())


def read_named_ranges(trace: Trace, process: int, operations: Operations) -> NamedRanges:
    """The ranges of ``process`` that are open while ``operations`` are launched or run.

    They are sorted by thread and start, the outer before the inner. Reads the trace file again unless that was done for
    the same operations. Raises InputError where it cannot be read any more.
    """
    step = _read_step(trace, process, operations)
    return pl.DataFrame(schema=NAMED_RANGES) if step is None else step.named


def read_range_times(trace: Trace, process: int, operations: Operations, until_ns: int) -> RangeTimes:
    """The ranges of ``process`` from the first launch of ``operations`` to ``until_ns``.

    Reads the trace file again. Raises InputError where it cannot be read any more.
    """
    step = _read_step(trace, process, operations)
    if step is None:
        return pl.DataFrame(schema=RANGE_TIMES)
    if until_ns <= step.until_ns:
        return step.times.filter(
            pl.col("start_ns") <= until_ns, pl.col("end_ns").fill_null(_STILL_OPEN) >= step.first_ns
        )
    return _list_times(read_ranges_between(trace.path, process, step.first_ns, until_ns))


def _read_step(trace: Trace, process: int, operations: Operations) -> _StepRanges | None:
    first, last = operations["launch_start_ns"].min(), operations["launch_start_ns"].max()
    if not isinstance(first, int) or not isinstance(last, int):
        return None
    start, end = operations["start_ns"].min(), operations["end_ns"].max()
    assert isinstance(start, int) and isinstance(end, int)
    return _read_step_between(trace.path, trace.input.sha256, process, (first, last), (start, end))


@lru_cache(maxsize=4)  # facts and the replay ask for the same ranks
def _read_step_between(
    path: Path, _digest: str, process: int, launches: tuple[int, int], operations: tuple[int, int]
) -> _StepRanges:
    first_ns, last_ns = launches
    until_ns = max(last_ns + (last_ns - first_ns) // _AFTER_LAUNCHES, operations[1])
    ranges = read_ranges_between(path, process, min(first_ns, operations[0]), until_ns)
    return _StepRanges(ranges, first_ns, last_ns, until_ns)


_AFTER_LAUNCHES = 4
"""This part of the time between a step's launches is read after the last one too: until its host begins the next."""


class _StepRanges:
    """The ranges of a process around the launches of a step and after them, as they are needed."""

    def __init__(self, ranges: pl.DataFrame, first_ns: int, last_ns: int, until_ns: int) -> None:
        self.first_ns, self.until_ns = first_ns, until_ns
        self.times = _list_times(ranges)
        """RANGE_TIMES until ``until_ns``."""
        self.named = name_ranges(ranges)
        """NAMED_RANGES until ``until_ns``."""
        is_around = (pl.col("start_ns") <= last_ns) & (pl.col("end_ns").fill_null(_STILL_OPEN) >= first_ns)
        self._around = ranges.filter(is_around)

    @cached_property
    def operators(self) -> Operators:
        """The ranges up to the last launch, nested."""
        around, self._around = self._around, self._around.clear()
        return nest_operators(around)


def _list_times(ranges: pl.DataFrame) -> RangeTimes:
    has_shapes = pl.col("text").str.contains(_SHAPES, literal=True)
    return ranges.with_columns(has_shapes=has_shapes).select(*RANGE_TIMES)


def name_ranges(ranges: ExportRanges) -> NamedRanges:
    """``ranges`` with the name of each in place of its text, as read_operator_text reads it."""
    return ranges.select("thread", "start_ns", "end_ns", name=_NAME, has_sequence=_TEXT.str.contains(_SEQUENCE.pattern))


_TEXT = pl.col("text").str.head(limits.LONGEST_NAME)
# Texts are first cut after the end of the name, which lies after as many bytes as are found, or after fewer characters:
# replacing in whole texts took three times as long.
_NAME = pl.coalesce(_TEXT.str.head(_TEXT.str.find(_END_OF_NAME.pattern) + len(", op_id = 1")), _TEXT).str.replace(
    f"(?s)(?:{_END_OF_NAME.pattern}).*", ""
)


@lru_cache(maxsize=20_000)
def generalize(range_name: str) -> str:
    """The name of a range without what differs between layers and runs: layer numbers, paths, addresses."""
    return cut_private(_NUMBER.sub("*", range_name))[:LONGEST_SHOWN_NAME]


def is_place(range_name: str) -> bool:
    """Whether a range names a place in the code: a step does not, nor does the range around a node of autograd."""
    return not range_name.startswith(EVALUATES) and TRAINING_STEP_TEXT not in range_name


def nest_operators(ranges: ExportRanges) -> Operators:
    """Nests ``ranges``: HOST_RANGES of one process, sorted by thread and start, the outer before the inner.

    A range inside as many others as ``limits.MOST_NESTED_RANGES`` contains none: ranges that overlap without nesting
    would otherwise be around each other, and each launch would visit all of them.
    """
    # What read_operator_text reads of each text, but all at once: text by text it took half of the time.
    texts = ranges.select(
        _NAME.alias("name"),
        _TEXT.str.extract(_SIZES.pattern).alias("sizes"),
        _TEXT.str.extract(_SEQUENCE.pattern).alias("sequence"),
    )
    sizes_of = {text: None if text is None else _read_sizes(text) for text in texts["sizes"].unique().to_list()}
    sizes = [sizes_of[text] for text in texts["sizes"].to_list()]
    sequences = [None if text is None else int(text) for text in texts["sequence"].to_list()]
    all_starts, ends = ranges["start_ns"].to_list(), ranges["end_ns"].fill_null(_STILL_OPEN).to_list()
    parents: list[int | None] = []
    starts: dict[int, list[int]] = {}
    order: dict[int, range] = {}
    of_threads = ranges["thread"].rle().struct.unnest()
    for length, thread in of_threads.iter_rows():
        order[thread] = range(len(parents), len(parents) + length)
        starts[thread] = all_starts[len(parents) : len(parents) + length]
        stack: list[int] = []
        for index, start in zip(order[thread], starts[thread], strict=True):
            while stack and ends[stack[-1]] <= start:
                stack.pop()
            parents.append(stack[-1] if stack else None)
            if len(stack) < limits.MOST_NESTED_RANGES:
                stack.append(index)
    operators = tuple(map(Operator, texts["name"].to_list(), sizes, sequences, parents))
    return Operators(operators, starts, order, tuple(ends))


def list_ranges_around(ranges: NamedRanges, at_ns: Int64Array) -> list[tuple[str, ...]]:
    """Per instant the names of the ranges open then, from the inside out; steps and nodes of autograd left out.

    ``ranges``: of one thread, by start, the outer before the inner. ``at_ns``: ascending. A range inside as many others
    as ``limits.MOST_NESTED_RANGES`` is not listed.
    """
    start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].fill_null(_STILL_OPEN).to_numpy()
    is_around = np.searchsorted(at_ns, start, side="left") < np.searchsorted(at_ns, end, side="left")
    around = zip(start[is_around].tolist(), end[is_around].tolist(), ranges["name"].filter(is_around), strict=True)
    waiting, stack, found = deque(around), list[tuple[int, str]](), []
    for at in at_ns.tolist():
        while waiting and waiting[0][0] <= at:
            opened, until, name = waiting.popleft()
            while stack and stack[-1][0] <= opened:
                stack.pop()
            if len(stack) < limits.MOST_NESTED_RANGES:
                stack.append((until, name))
        found.append(tuple(generalize(name) for until, name in reversed(stack) if until > at and is_place(name)))
    return found


def read_operator_text(text: str) -> tuple[str, Sizes | None, int | None]:
    """(name, shapes of the arguments, sequence number) from the text of a range; None for what it lacks."""
    text = text[: limits.LONGEST_NAME]
    end = _END_OF_NAME.search(text)
    if end is None:
        return text, None, None
    sequence, sizes = _SEQUENCE.search(text, end.start()), _SIZES.search(text, end.start())
    return text[: end.start()], _read_sizes(sizes[1]) if sizes else None, int(sequence[1]) if sequence else None


@lru_cache(maxsize=10_000)  # the same few shapes come back thousands of times
def _read_sizes(text: str) -> Sizes | None:
    try:
        sizes = json.loads(text)
    except (ValueError, RecursionError):  # cut off, as a profiler does with very long texts, or no sizes at all
        return None
    if not all(isinstance(size, list) and _is_shape(size) for size in sizes):
        return None
    return tuple(tuple(size) for size in sizes)


def _is_shape(lengths: list[object]) -> bool:
    """Whether a tensor can have dimensions of these ``lengths``."""
    if len(lengths) > limits.MOST_DIMENSIONS:
        return False
    numbers = [length for length in lengths if isinstance(length, int) and length <= limits.MOST_ELEMENTS]
    return len(numbers) == len(lengths) and prod(numbers) <= limits.MOST_ELEMENTS
