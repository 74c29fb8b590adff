"""When the steps of each rank of a long capture ran, found in one pass before anything else of it is read.

The pass goes over the NVTX ranges that mark steps and over the kernels: where no range marks a step, steps are found by
the kernels of optimizer and model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from three_walls.step.categories import CATEGORY_OR_SEND_RECV, classify
from three_walls.step.find_steps import MODEL_WORK, TRAINING_STEP_TEXT, list_marked_steps, list_optimizer_steps
from three_walls.step.step_tables import Steps
from three_walls.trace.identity import read_host
from three_walls.trace.nsys_export import NsysExport
from three_walls.trace.read_tables import GRAPHS, HAS_ENDED, KERNELS, WantedRanges, read_ranges
from three_walls.trace.read_trace import cut_names, read_session_start
from three_walls.trace.schemas import KINDS
from three_walls.trace.spans import Device, Span
from three_walls.trace.trace_files import plain_sqlite


@dataclass(frozen=True, slots=True)
class RankSteps:
    """What one pass shows of a rank."""

    device: Device
    steps: Steps
    """STEPS, of rank index 0; counted from 0 where no range marks them."""
    is_marked: bool
    kernels: int
    begins: Span
    """The earliest start and the earliest end of a kernel."""


@dataclass(frozen=True, slots=True)
class CaptureSteps:
    """What one pass shows of a capture."""

    ranks: Sequence[RankSteps]
    host: str | None
    session_start_ns: int | None


class UnknownStepsError(Exception):
    """Some rank's steps are not found in one pass."""


def find_step_times(path: Path, step_range: str | None) -> CaptureSteps:
    """The steps of all ranks in the capture at ``path``. ``step_range``: of the user, for the ranges that are steps.

    Raises UnknownStepsError where one pass does not show the steps of every rank, and InputError if the file cannot be
    read.
    """
    with plain_sqlite(path) as plain, NsysExport(plain, path) as export:
        ranges = read_ranges(export, WantedRanges((TRAINING_STEP_TEXT,), step_range, numbered=TRAINING_STEP_TEXT))
        signs = _StepSigns(export, of_names=ranges.is_empty())
        ranks: list[RankSteps] = []
        for (process, device), (begin, end, kernels) in sorted(signs.kernels.items()):
            steps = list_marked_steps(ranges.filter(pl.col("process") == process), step_range, begin)
            is_marked = steps is not None
            if steps is None and ranges.is_empty():
                is_own = (pl.col("process") == process) & (pl.col("device") == device)
                steps = list_optimizer_steps(signs.rows.filter(is_own))
            if steps is None or steps.is_empty():
                raise UnknownStepsError
            ranks.append(RankSteps((process, device), steps, is_marked, kernels, (begin, end)))
        return CaptureSteps(ranks, read_host(export), read_session_start(export))


_COLUMNS = {"start_ns": "start", "end_ns": "end", "process": "globalPid", "device": "deviceId"}
_NAMES = {"name_id": "demangledName", "short_name_id": "shortName"}
_DEVICE = ("process", "device")
_SIGNS = pl.Schema(
    {
        "process": pl.Int64(),
        "device": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "category": CATEGORY_OR_SEND_RECV,
        "anchor": pl.Boolean(),
    }
)


class _StepSigns:
    """What one pass over the kernels and graphs of an export shows."""

    def __init__(self, export: NsysExport, *, of_names: bool) -> None:
        """``of_names``: whether kernels are told apart. Raises UnknownStepsError where one states no process."""
        self.kernels: dict[Device, tuple[int, int, int]] = {}
        """Of each device the earliest start, the earliest end, and how many there are."""
        self._export = export
        self._known = pl.DataFrame(
            schema={**dict.fromkeys(_NAMES, pl.Int64()), "category": CATEGORY_OR_SEND_RECV, "anchor": pl.Boolean()}
        )
        if of_names:
            kernels = export.frame(KERNELS, _COLUMNS | _NAMES, reduce=self._keep_signs)
        else:
            kernels = export.frame(KERNELS, _COLUMNS, reduce=lambda rows: _as_work(self._count(rows).clear()))
        graphs = export.frame(GRAPHS, _COLUMNS, reduce=lambda rows: _as_work(self._count(rows)))
        self.rows = pl.concat([kernels, graphs]).sort("start_ns", "end_ns")
        """The operations by which steps are found: updates, model work, and the first and last kernel of each part.

        Columns: _SIGNS; sorted by start.
        """

    def _count(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Counts ``rows``, kernels or graphs, and gives those with usable times."""
        timed = rows.filter(HAS_ENDED & (pl.col("start_ns") > 0))
        counts = timed.group_by(_DEVICE).agg(pl.col("start_ns").min(), pl.col("end_ns").min(), pl.len())
        if counts.select(pl.any_horizontal(pl.col(_DEVICE).is_null().any())).item():
            raise UnknownStepsError
        for process, device, start_ns, end_ns, count in counts.rows():
            start, end, before = self.kernels.get((process, device), (start_ns, end_ns, 0))
            self.kernels[process, device] = min(start, start_ns), min(end, end_ns), before + count
        return timed

    def _keep_signs(self, rows: pl.DataFrame) -> pl.DataFrame:
        timed, name = self._count(rows), list(_NAMES)
        new = timed.select(name).unique().join(self._known, on=name, how="anti", nulls_equal=True)
        if new.height:
            texts = self._export.strings({*new["name_id"].drop_nulls(), *new["short_name_id"].drop_nulls()})
            absent = [pl.lit(None, dtype=pl.Int8).alias(each) for each in ("copy_kind", "source_kind", "target_kind")]
            kernel = [pl.lit(0, dtype=pl.Int64).alias("rank_index"), pl.lit("kernel", dtype=KINDS).alias("kind")]
            found = classify(new.with_columns(*kernel, *absent), cut_names(texts))
            self._known = pl.concat([self._known, found.select(self._known.columns)])
        is_sign = pl.col("anchor") | pl.col("category").is_in(list(MODEL_WORK))
        start_ns = pl.col("start_ns")
        is_edge = (start_ns == start_ns.min().over(_DEVICE)) | (start_ns == start_ns.max().over(_DEVICE))
        signs = timed.join(self._known.filter(is_sign), on=name, nulls_equal=True)
        edges = timed.filter(is_edge).join(self._known.filter(~is_sign), on=name, nulls_equal=True)
        return pl.concat([signs.select(_SIGNS.names()), edges.select(_SIGNS.names())])


def _as_work(rows: pl.DataFrame) -> pl.DataFrame:
    """``rows`` as _SIGNS: graphs are model work."""
    category = pl.lit("cuda_graph", dtype=CATEGORY_OR_SEND_RECV)
    return rows.with_columns(category=category, anchor=pl.lit(value=False)).select(_SIGNS.names())
