"""Host time of the threads that launch work by the stack of NVTX ranges: the frames of a flame graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import polars as pl

from three_walls.export.kernel_table import DescribedOperations, name_part
from three_walls.export.step_detail_rows import LEAST_FRAME_FRACTION, HostFrame
from three_walls.lib.declare import artifact
from three_walls.step.operators import generalize, is_place
from three_walls.step.step_tables import NamedRanges
from three_walls.step.step_view import StepView
from three_walls.trace.read_tables import THREADS_PER_PROCESS

MOST_FRAMES_DEPTH = 10
NOTHING_NEXT, UNKNOWN_NEXT = "after the last launch", "a part that is not known"


@dataclass(slots=True)
class _Frame:
    ns: int = 0
    calls: int = 0
    parts: dict[str, _Frame] = field(default_factory=dict)

    def add(self, name: str, ns: int) -> _Frame:
        """Counts a range in this frame, and gives its own."""
        frame = self.parts.setdefault(name, _Frame())
        frame.ns += ns
        frame.calls += 1
        return frame


@artifact
def host_frames(
    step: StepView, described_operations: DescribedOperations, named_ranges: NamedRanges
) -> tuple[HostFrame, ...]:
    """The frames of every thread that launched something that started in the step, the busiest thread first."""
    begin_ns, end_ns = step.window
    launches = described_operations.drop_nulls("launch_thread").select(
        "module", "direction", thread="launch_thread", launch_ns="launch_start_ns"
    )
    ranges = (
        named_ranges.with_columns(pl.col("end_ns").fill_null(end_ns))
        .filter(
            pl.col("name").is_in([name for name in named_ranges["name"].unique().to_list() if is_place(name)]),
            pl.col("thread").is_in(launches["thread"].unique().to_list()),
            pl.col("start_ns") < end_ns,
            pl.col("end_ns") > begin_ns,
        )
        .with_columns(pl.col("start_ns", "end_ns").clip(begin_ns, end_ns))
        .sort("start_ns", maintain_order=True)
        .join_asof(
            launches.drop_nulls("launch_ns").sort("launch_ns"),
            left_on="start_ns",
            right_on="launch_ns",
            by="thread",
            strategy="forward",
            check_sortedness=False,
        )
        .sort("thread", "start_ns", "end_ns", descending=[False, False, True], maintain_order=True)
    )
    shown = {name: generalize(name) for name in ranges["name"].unique().to_list()}
    roots: dict[int, _Frame] = {}
    last: int | None = None
    stack: list[tuple[int, _Frame]] = []
    free_ns = begin_ns  # the end of the last range that is in no other one
    for thread, start, end, name, launch_ns, module, direction in ranges.select(
        "thread", "start_ns", "end_ns", "name", "launch_ns", "module", "direction"
    ).iter_rows():
        if thread != last:
            last, stack, free_ns = thread, [], begin_ns
        while stack and stack[-1][0] <= start:
            stack.pop()
        until = min(end, stack[-1][0]) if stack else end
        if stack:
            around = stack[-1][1]
        else:
            part = NOTHING_NEXT if launch_ns is None else name_part(module, direction) or UNKNOWN_NEXT
            root = roots.setdefault(thread, _Frame())
            root.ns += until - free_ns
            around, free_ns = root.add(part, until - free_ns), until
        stack.append((until, around.add(shown[name], until - start)))
    least_ns = LEAST_FRAME_FRACTION * step.step_ns
    busiest = sorted(roots, key=lambda thread: (-roots[thread].ns, thread))
    return tuple(
        frame
        for thread in busiest
        for frame in _list_frames(thread % THREADS_PER_PROCESS, roots[thread], least_ns, 0, 0)
    )


def _list_frames(thread: int, around: _Frame, least_ns: float, start_ns: int, depth: int) -> Iterator[HostFrame]:
    ordered = sorted(around.parts.items(), key=lambda part: (-part[1].ns, part[0]))
    for name, frame in ordered if depth < MOST_FRAMES_DEPTH else ():
        if frame.ns < least_ns:
            break
        self_ns = frame.ns - sum(part.ns for part in frame.parts.values())
        yield HostFrame(thread, depth, name, start_ns, frame.ns, self_ns, frame.calls)
        yield from _list_frames(thread, frame, least_ns, start_ns, depth + 1)
        start_ns += frame.ns
