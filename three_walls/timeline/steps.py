"""Where the training steps begin and end, per rank, and which of them conclusions may rest on.

Order of trust: Megatron-Bridge's NVTX ``training_step_N``; the user's ranges; a recurring optimizer phase;
else the capture as one window, said so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import polars as pl

from three_walls.timeline.optimizer_phases import phase_ends
from three_walls.timeline.schemas import STEPS

TRAINING_STEP_TEXT = "training_step_"
"""In the range's text, before the number; emitted by Megatron-Bridge (since 2026) with profiling.nvtx_ranges=true."""


class StepSource(StrEnum):
    """What told the steps apart, most trustworthy first."""

    TRAINING_STEP = "nvtx training_step"
    USER_RANGE = "user's step range"
    OPTIMIZER = "optimizer phases"
    ONE_WINDOW = "one window"


@dataclass(frozen=True, slots=True)
class _Window:
    """A candidate step. ``opens_at_edge``: nothing before it was captured; ``closes_at_edge``: nothing after."""

    index: int
    start_ns: int
    end_ns: int
    opens_at_edge: bool
    closes_at_edge: bool


def find_steps(
    operations: pl.DataFrame, training_steps: pl.DataFrame, user_ranges: pl.DataFrame
) -> tuple[pl.DataFrame, dict[int, StepSource]]:
    """Steps of every track (schemas.STEPS), sorted, and what told them apart on each track.

    ``operations`` are classified, with launches; the ranges are NVTX ranges of the same processes.
    """
    found: list[pl.DataFrame] = []
    sources: dict[int, StepSource] = {}
    for (rank_index,), mine in operations.sort("rank_index", "start_ns").group_by(["rank_index"], maintain_order=True):
        windows, source = _windows_of(mine, training_steps, user_ranges)
        sources[int(rank_index)] = source
        found.append(_judge(int(rank_index), windows, source))
    return pl.concat(found).sort("rank_index", "start_ns"), sources


def _windows_of(
    mine: pl.DataFrame, training_steps: pl.DataFrame, user_ranges: pl.DataFrame
) -> tuple[list[_Window], StepSource]:
    for ranges, source in ((training_steps, StepSource.TRAINING_STEP), (user_ranges, StepSource.USER_RANGE)):
        windows = _windows_from_ranges(mine, ranges)
        if windows:
            return windows, source
    windows = _windows_from_anchors(mine)
    if windows:
        return windows, StepSource.OPTIMIZER
    first, last = _extent(mine)
    return [_Window(0, first, last, opens_at_edge=True, closes_at_edge=True)], StepSource.ONE_WINDOW


def _extent(mine: pl.DataFrame) -> tuple[int, int]:
    first, last = mine.select(first=pl.col("start_ns").min(), last=pl.col("end_ns").max()).row(0)
    return int(first), int(last)


def _windows_from_ranges(mine: pl.DataFrame, ranges: pl.DataFrame) -> list[_Window]:
    """Host ranges projected to the device: a step runs from its first kernel to the next step's first kernel."""
    capture_id, process = mine.select("capture_id", "process").row(0)
    of_this_process = (pl.col("capture_id") == capture_id) & (pl.col("process") == process)
    outermost = _outermost(ranges.filter(of_this_process & pl.col("end_ns").is_not_null()))
    if not outermost:
        return []
    kernels = mine.filter(pl.col("kind").is_in(["kernel", "graph"]) & pl.col("launch_start_ns").is_not_null())
    projected: list[tuple[int, int, int]] = []
    for text, start_ns, end_ns in outermost:
        own = kernels.filter(pl.col("launch_start_ns").is_between(start_ns, end_ns, closed="left"))
        if own.is_empty():
            continue
        first, last = _extent(own)
        projected.append((_number_in(text, len(projected)), first, last))
    first_of_all, _ = _extent(mine)
    windows = []
    for order, (index, first, last) in enumerate(projected):
        is_last = order == len(projected) - 1
        # The host works between two ranges too (logging, data): that is the earlier step's time. A pause far
        # longer than the step (evaluation, a checkpoint) is not.
        next_first = last if is_last else projected[order + 1][1]
        end_ns = next_first if is_last or next_first - last <= (last - first) // 2 else last
        windows.append(_Window(index, first, max(end_ns, first + 1), first <= first_of_all, is_last))
    return windows


def _outermost(ranges: pl.DataFrame) -> list[tuple[str, int, int]]:
    kept: list[tuple[str, int, int]] = []
    for text, start_ns, end_ns in (
        ranges.sort("start_ns", "end_ns", descending=[False, True]).select("text", "start_ns", "end_ns").rows()
    ):
        if not kept or start_ns >= kept[-1][2]:
            kept.append((text, start_ns, end_ns))
    return kept


def _number_in(text: str, otherwise: int) -> int:
    numbers = re.findall(r"\d+", text)
    return int(numbers[-1]) if numbers else otherwise


def _windows_from_anchors(mine: pl.DataFrame) -> list[_Window]:
    """A step runs from the end of one optimizer phase to the end of the next."""
    ends = phase_ends(mine)
    if not ends:
        return []
    first, _ = _extent(mine)
    goes_on = not mine.filter(pl.col("start_ns") >= ends[-1]).is_empty()  # something follows the last update
    starts = [first, *ends[:-1]]
    return [
        _Window(order, start, end, opens_at_edge=order == 0, closes_at_edge=order == len(ends) - 1 and not goes_on)
        for order, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _judge(rank_index: int, windows: Sequence[_Window], source: StepSource) -> pl.DataFrame:
    """Keeps the windows that conclusions may rest on, and says why not of the others."""
    clean = [window for window in windows if not window.opens_at_edge and not window.closes_at_edge]
    rows = []
    for window in windows:
        if clean:
            kept = window in clean
            reason = _edge_sentence(window) or (_ONE_OF_TWO if len(windows) == 2 else "")
        elif len(windows) == 1:
            kept, reason = True, "the capture holds no other: it may be cut at either end"
        else:
            # Two steps. The first contains the profiler's start, which takes seconds and differs per rank.
            kept = not window.opens_at_edge
            reason = _kept_of_two(source) if kept else _edge_sentence(window)
        rows.append((rank_index, window.index, window.start_ns, window.end_ns, kept, reason))
    return pl.DataFrame(rows, schema=STEPS, orient="row")


_ONE_OF_TWO = "the only whole step: two were captured, and the first starts where the capture starts"


def _edge_sentence(window: _Window) -> str:
    if window.opens_at_edge:
        return "starts where the capture starts: it may be cut, and holds the profiler's own start"
    if window.closes_at_edge:
        return "ends where the capture ends: it may be cut, or held up by the profiler's stop"
    return ""


def _kept_of_two(source: StepSource) -> str:
    end = "its end is the capture's last optimizer update" if source is StepSource.OPTIMIZER else "its range was closed"
    return f"kept though it ends near the capture's end: only two steps were captured, and {end}"
