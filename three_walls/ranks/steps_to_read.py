"""Which steps of a long capture are read, chosen before anything else of it is: memory then does not grow with it.

Where the steps run is found in one pass over NVTX ranges, or over kernels where no range marks a step. That is known
of a capture of one rank whose steps all have numbers of their own, or that is the only one. Any other is read whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from three_walls.inputs.limits import LATEST_TIME_NS
from three_walls.inputs.nsys.export import NsysExport
from three_walls.inputs.nsys.reader import cut_names
from three_walls.inputs.nsys.schemas import KINDS
from three_walls.inputs.nsys.source import plain_sqlite
from three_walls.inputs.nsys.steps_to_read import Span, StepsToRead
from three_walls.inputs.nsys.tables import GRAPHS, HAS_ENDED, KERNELS, WantedRanges, count_operations, read_ranges
from three_walls.model.errors import InputError
from three_walls.model.record import dataclass
from three_walls.ranks.attributed_steps import choose_numbers
from three_walls.ranks.matching import RankOutline, outline_ranks
from three_walls.tables.thresholds import attribution_thresholds
from three_walls.timeline import excerpt
from three_walls.timeline.categories import CATEGORY_OR_SEND_RECV, classify
from three_walls.timeline.steps import MODEL_WORK, TRAINING_STEP_TEXT, list_marked_steps, list_optimizer_steps
from three_walls.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True)
class _Outline:
    """What one pass shows of a capture of a single rank."""

    steps: pl.DataFrame
    """STEPS."""
    is_marked: bool
    operations: int
    begins: Span


def choose_steps_to_read(
    paths: Sequence[Path], step_range: str | None, progress: Callable[[str], None]
) -> Mapping[Path, StepsToRead]:
    """For each of the captures at ``paths`` the steps to read; none where all are.

    They are the same of all ranks, so that the ranks can be compared. What cannot be read is left to whoever reads it.
    """
    limits = attribution_thresholds()
    with suppress(InputError):
        counts = [_count_operations(path) for path in paths]
        # As in choose_steps: leaving out fewer than half saves little.
        if None in counts or sum(filter(None, counts)) <= 2 * limits.most_attributed_operations:
            return {}
        progress("choosing the steps to read")
        outlines: dict[Path, _Outline] = {}
        for path, count in zip(paths, counts, strict=True):
            outline = _outline(path, count or 0, step_range, needs_marks=len(paths) > 1)
            if outline is None:
                return {}
            outlines[path] = outline
        return _choose(outlines)
    return {}


def _count_operations(path: Path) -> int | None:
    """How many there are, at most; None of a file that would have to be unpacked first."""
    if path.suffix != ".sqlite" or not path.is_file():
        return None
    with plain_sqlite(path) as plain, NsysExport(plain, path) as export:
        return count_operations(export)


def _outline(path: Path, operations: int, step_range: str | None, *, needs_marks: bool) -> _Outline | None:
    """None where the steps of the capture are not found in one pass, or where several ranks share it.

    ``needs_marks``: steps that no range marks do not count; their numbers need not be those of other ranks.
    """
    with plain_sqlite(path) as plain, NsysExport(plain, path) as export:
        if not export.has(KERNELS, *_COLUMNS.values(), "globalPid", "deviceId"):
            return None
        owners = export.rows(f"SELECT globalPid, deviceId FROM {KERNELS} LIMIT 1")
        others = f"SELECT 1 FROM {KERNELS} WHERE globalPid IS NOT ? OR deviceId IS NOT ? LIMIT 1"
        if not owners or export.rows(others, owners[0]):
            return None
        is_timed = f"start > 0 AND end BETWEEN start AND {LATEST_TIME_NS}"
        begins = export.rows(f"SELECT min(start), min(end) FROM {KERNELS} WHERE {is_timed}")[0]
        if not all(isinstance(number, int) for number in (*owners[0], *begins)):
            return None
        ranges = read_ranges(export, WantedRanges((TRAINING_STEP_TEXT,), step_range, numbered=TRAINING_STEP_TEXT))
        steps = list_marked_steps(ranges.filter(pl.col("process") == owners[0][0]), step_range, begins[0])
        is_marked = steps is not None
        if steps is None and not needs_marks:
            steps = list_optimizer_steps(_read_step_signs(export))
        return None if steps is None or steps.is_empty() else _Outline(steps, is_marked, operations, begins)


_COLUMNS = {"start_ns": "start", "end_ns": "end", "name_id": "demangledName", "short_name_id": "shortName"}
_SIGNS = pl.Schema(
    {"start_ns": pl.Int64(), "end_ns": pl.Int64(), "category": CATEGORY_OR_SEND_RECV, "anchor": pl.Boolean()}
)


def _read_step_signs(export: NsysExport) -> pl.DataFrame:
    """The operations by which steps are found: updates, model work, and the first and last kernel of each part.

    Columns: start_ns, end_ns, category, anchor; sorted by start.
    """
    name, is_timed = ["name_id", "short_name_id"], HAS_ENDED & (pl.col("start_ns") > 0)
    absent = [pl.lit(None, dtype=pl.Int8).alias(column) for column in ("copy_kind", "source_kind", "target_kind")]
    kernel = [pl.lit(0, dtype=pl.Int64).alias("rank_index"), pl.lit("kernel", dtype=KINDS).alias("kind"), *absent]
    known = pl.DataFrame(
        schema={**dict.fromkeys(name, pl.Int64()), "category": CATEGORY_OR_SEND_RECV, "anchor": pl.Boolean()}
    )

    def keep_signs(rows: pl.DataFrame) -> pl.DataFrame:
        nonlocal known
        timed = rows.filter(is_timed)
        new = timed.select(name).unique().join(known, on=name, how="anti", nulls_equal=True)
        if new.height:
            texts = export.strings({*new["name_id"].drop_nulls(), *new["short_name_id"].drop_nulls()})
            known = pl.concat([known, classify(new.with_columns(kernel), cut_names(texts)).select(known.columns)])
        is_sign = pl.col("anchor") | pl.col("category").is_in(list(MODEL_WORK))
        edges = timed.filter(pl.col("start_ns").is_in([timed["start_ns"].min(), timed["start_ns"].max()]))
        found = timed.join(known.filter(is_sign), on=name, nulls_equal=True)
        outer = edges.join(known.filter(~is_sign), on=name, nulls_equal=True)
        return pl.concat([found.select(_SIGNS.names()), outer.select(_SIGNS.names())])

    kernels = export.frame(KERNELS, _COLUMNS, reduce=keep_signs)
    graphs = export.frame(GRAPHS, {"start_ns": "start", "end_ns": "end"}).filter(is_timed)
    as_work = {"category": pl.lit("cuda_graph", dtype=CATEGORY_OR_SEND_RECV), "anchor": pl.lit(value=False)}
    return pl.concat([kernels, graphs.with_columns(**as_work)]).sort("start_ns", "end_ns")


def _choose(outlines: Mapping[Path, _Outline]) -> dict[Path, StepsToRead]:
    operations = sum(outline.operations for outline in outlines.values())
    steps = pl.concat(
        outline.steps.with_columns(rank_index=pl.lit(place, dtype=pl.Int64))
        for place, outline in enumerate(outlines.values())
    )
    numbers = choose_numbers(steps, operations)
    if numbers is None:
        return {}
    return {path: _take(outline, numbers) for path, outline in outlines.items()}


def _take(outline: _Outline, numbers: frozenset[int]) -> StepsToRead:
    """``numbers`` of the steps of a capture, with as many others around them as excerpt may need."""
    steps = outline.steps
    margin = 1 + -(-excerpt.LARGEST_MARGIN * steps.height // max(1, outline.operations))
    places = np.flatnonzero(steps["step"].is_in(sorted(numbers)).to_numpy())
    around = np.zeros(steps.height + 2 * margin + 2, dtype=bool)
    for shift in range(2 * margin + 1):
        around[places + shift] = True
    are_read = around[margin : margin + steps.height]
    # What the host launches in a range runs later, so that the ranges before and after belong to it.
    more = 2 if outline.is_marked else 0
    starts, ends = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    spans: list[Span] = []
    for place in np.flatnonzero(are_read).tolist():
        begin, end = int(starts[max(0, place - more // 2)]), int(ends[min(steps.height - 1, place + more)])
        if spans and begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((begin, end))
    read = frozenset(steps.filter(pl.Series(are_read))["step"].to_list())
    return StepsToRead(steps, outline.is_marked, numbers, read, tuple(spans), outline.begins)


def outline_run(timeline: Timeline, to_read: Mapping[int, StepsToRead]) -> RankOutline:
    """What comparing the ranks of ``timeline`` needs; of a rank in ``to_read``, when its whole capture began."""
    outline = outline_ranks(timeline.operations)
    if not to_read:
        return outline
    begins = [
        {"rank_index": rank_index, "start_ns": read.begins[0], "end_ns": read.begins[1]}
        for rank_index, read in to_read.items()
    ]
    others = outline.begins.filter(~pl.col("rank_index").is_in(list(to_read)))
    known = pl.DataFrame(begins, schema=outline.begins.schema)
    return replace(outline, begins=pl.concat([others, known]).sort("rank_index"))
