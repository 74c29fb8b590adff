"""A summary of each rank of a run with many: what comparing the ranks needs of it, in about 100 KB instead of 10 MB.

One task reads several captures, so that the fixed cost of every operation on frames is shared. It attributes the time
of each rank by itself, and keeps the calls of communication, the stretches in which they are exposed, sums per step.
Summaries of several tasks are joined. What needs all ranks (matched calls, the clock, waits, late ranks) is then worked
out from the joined summary by the functions that work it out for ranks read in full, with the same results. Of long
captures the same steps of all ranks are attributed: those that the first one gives.
"""

from __future__ import annotations

import copyreg
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

import polars as pl

from three_walls.lib.errors import InputError, UsageError
from three_walls.lib.threads import read_each
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.step.build_timeline import Timeline, build_timeline, wanted_ranges
from three_walls.step.find_steps import NUMBERED_IN_ORDER, STEP
from three_walls.step.intervals import merge_overlapping
from three_walls.step.ownership import (
    IS_EXPOSED,
    label_idle,
    measure_budget,
    measure_exposure,
    slice_steps,
    union_where,
)
from three_walls.step.ranks.attributed_steps import UnreadStepError, check_are_kept, leave_out
from three_walls.step.ranks.match_calls import RankOutline
from three_walls.step.ranks.steps_to_read import outline_run, take_sampled
from three_walls.step.slow_ranks import MINIMUM_REPEATED_KERNEL_NS, PacedCalls, list_paced_calls, measure_step_spreads
from three_walls.step.step_rows import StepSource
from three_walls.step.step_tables import BudgetRows, ExposureRows, StepIntervals, Steps, StepSpreads, StepTimes
from three_walls.tables.buckets import COMMUNICATION_CATEGORIES, COMPUTE_CATEGORIES
from three_walls.tables.kernel_names import KernelPack, load_api_patterns, union_of
from three_walls.trace.api_calls import ApiCalls
from three_walls.trace.identity import Rank
from three_walls.trace.read_inputs import Progress
from three_walls.trace.read_trace import Capture, Trace, list_steps_to_read, read_trace
from three_walls.trace.schemas import AnyTable
from three_walls.trace.spans import SampledSteps, StepsToRead
from three_walls.trace.trace_files import keep_unpacked

MOST_RANKS_PER_TASK = 16
"""Captures that one task of a survey reads. polars takes about as long for the operations of one rank of 6 MB as for
those of several. Sixteen such ranks take 2 s, so a lost worker costs little, and 1,024 ranks are 64 tasks."""
MOST_MIB_PER_TASK = 128
"""Size of the captures that one task reads together, if they are several. A process then takes less than 0.5 GB, and
one large capture is a task of its own."""

_CALL = (
    "rank_index",
    "capture_id",
    "stream",
    "start_ns",
    "end_ns",
    "category",
    "name_id",
    "message_bytes",
    "communicator",
)
"""Columns of Timeline.operations by which calls of communication are matched and their transfer measured."""

_OUT_OF_MEMORY = "it takes more memory than a process may have"


def _make_mapping(entries: dict[str, ConfigValue]) -> MappingProxyType[str, ConfigValue]:
    return MappingProxyType(entries)


# Settings are read-only mappings, which pickle does not know.
copyreg.pickle(MappingProxyType, lambda mapping: (_make_mapping, (dict(mapping),)))


@dataclass(frozen=True, slots=True)
class SurveyTask:
    """Captures that are read together, and how."""

    captures: tuple[tuple[int, Path], ...]
    """Capture id and path of each."""
    config: RunConfig
    """The run's."""
    step_range: str | None
    sample: SampledSteps | None = None
    """The steps that are attributed; None: all."""
    own_names: KernelPack | None = None
    """The user's names of kernels."""


@dataclass(frozen=True, slots=True)
class LostCapture:
    """A capture that could not be read: nothing is known of its ranks."""

    capture_id: int
    path: Path
    reason: str
    """The message of the error, with the path."""


@dataclass(frozen=True, slots=True)
class RankSurvey:
    """What is known of the surveyed ranks. Rank indices count from 0 over ``captures``; times are the captures' own."""

    captures: tuple[Capture, ...]
    lost: tuple[LostCapture, ...]
    steps: Steps
    """Timeline.steps."""
    sources: Mapping[int, StepSource]
    """Timeline.sources."""
    calls: AnyTable
    """The communication among Timeline.operations, with the columns of _CALL."""
    outline: RankOutline
    exposed: StepIntervals
    """The stretches of each step in which communication runs and no compute."""
    budget: BudgetRows
    exposure: ExposureRows
    compute: StepTimes
    """The time in which any compute kernel runs."""
    spreads: StepSpreads
    """measure_step_spreads, of all steps."""
    paced: PacedCalls
    """list_paced_calls, of all steps; ``ns`` is a list. Without kernels that are too short to compare ranks by."""

    @property
    def ranks(self) -> tuple[Rank, ...]:
        return tuple(rank for capture in self.captures for rank in capture.ranks)

    @property
    def timeline(self) -> Timeline:
        """The timeline of all ranks, without operations other than communication and without what hosts did."""
        nothing = pl.DataFrame()
        return Timeline(self.calls, self.steps, self.sources, nothing, nothing, ApiCalls(), nothing, nothing)

    def with_steps(self, steps: Steps) -> RankSurvey:
        """The same with the numbers of ``steps``, which are the same steps in other numbers, kept or not."""
        numbers = self.steps.select(*STEP, "start_ns").join(
            steps.select("rank_index", "start_ns", number="step"), on=["rank_index", "start_ns"]
        )

        def renumber(frame: pl.DataFrame) -> pl.DataFrame:
            with_numbers = frame.join(numbers.drop("start_ns"), on=STEP, how="left", maintain_order="left")
            return with_numbers.with_columns(step="number").drop("number")

        renumbered: dict[str, Any] = {name: renumber(getattr(self, name)) for name in _BY_STEP}
        paced = PacedCalls(renumber(self.paced.calls), renumber(self.paced.compute))
        return replace(self, steps=steps, paced=paced, **renumbered)


_BY_STEP = ("exposed", "budget", "exposure", "compute", "spreads")
"""Frames of a survey with the numbers of its steps."""


def plan_tasks(
    paths: Sequence[Path],
    config: RunConfig,
    step_range: str | None,
    sample: SampledSteps | None = None,
    own_names: KernelPack | None = None,
) -> list[SurveyTask]:
    """Tasks that read ``paths`` in order: a few small captures each, or a single large one."""
    tasks: list[SurveyTask] = []
    together: list[tuple[int, Path]] = []
    together_bytes = 0
    for capture_id, path in enumerate(paths):
        size_bytes = path.stat().st_size if path.is_file() else 0
        is_full = len(together) == MOST_RANKS_PER_TASK
        if together and (is_full or together_bytes + size_bytes > MOST_MIB_PER_TASK << 20):
            tasks.append(SurveyTask(tuple(together), config, step_range, sample, own_names))
            together, together_bytes = [], 0
        together.append((capture_id, path.absolute()))
        together_bytes += size_bytes
    return [*tasks, SurveyTask(tuple(together), config, step_range, sample, own_names)]


def read_in_full(
    first: Trace,
    captures: Sequence[Capture],
    ranks: Collection[int],
    step_range: str | None,
    progress: Progress,
    jobs: int = 1,
) -> list[Trace]:
    """The captures that hold any of ``ranks`` (indices), and ``first``, which has been read, before them.

    Raises InputError where one cannot be read any more. ``jobs``: in how many threads they are read.
    """
    ranges, graph_launch = wanted_ranges(step_range), union_of(load_api_patterns(), "graph_launch")
    to_read_in_full = [
        capture
        for capture in captures
        if any(rank.rank_index in ranks for rank in capture.ranks) and capture.capture_id != first.capture_id
    ]

    def read(capture: Capture) -> Trace:
        first_rank_index, to_read = capture.ranks[0].rank_index, capture.to_read
        return read_trace(capture.path, capture.capture_id, first_rank_index, ranges, graph_launch, to_read=to_read)

    def begin(place: int) -> None:
        name = to_read_in_full[place].path.name
        progress(f"reading {name} in full ({place + 1} of {len(to_read_in_full)} of {len(captures):,})")

    return [first, *read_each(read, to_read_in_full, jobs, begin)]


def survey_captures(task: SurveyTask) -> RankSurvey:
    """Reads the captures of ``task`` and summarizes their ranks. A capture that cannot be read is lost.

    The only function that other processes run.
    """
    ranges, graph_launch = wanted_ranges(task.step_range), union_of(load_api_patterns(), "graph_launch")
    traces: list[Trace] = []
    lost = []
    for capture_id, path in task.captures:
        first_rank_index = sum(len(trace.ranks) for trace in traces)
        try:
            with keep_unpacked():  # for the two times that a long capture is read
                to_read = (
                    {} if task.sample is None else take_sampled(path, task.sample, task.step_range, task.own_names)
                )
                trace = read_trace(
                    path, capture_id, first_rank_index, ranges, graph_launch, with_events=False, to_read=to_read
                )
            traces.append(trace)
        except InputError as error:
            lost.append(LostCapture(capture_id, path, str(error)))
        except MemoryError:
            lost.append(LostCapture(capture_id, path, f"{path}: {_OUT_OF_MEMORY}"))
    try:
        return _summarize(traces, lost, task)
    except UnreadStepError:
        return survey_captures(replace(task, sample=None))


def _summarize(traces: Sequence[Trace], lost: Sequence[LostCapture], task: SurveyTask) -> RankSurvey:
    with_kernels = [trace for trace in traces if trace.ranks]
    # Without events.
    captures = tuple(
        Capture(**{name: getattr(trace, name) for name in Capture.__dataclass_fields__}) for trace in traces
    )
    if not with_kernels:
        return replace(_empty_survey(), captures=captures, lost=tuple(lost))
    try:
        timeline = build_timeline(with_kernels, task.config, task.step_range, task.own_names)
    except UsageError:  # these captures lack the range that marks the others' steps
        timeline = build_timeline(with_kernels, task.config, None, task.own_names)
    to_read = list_steps_to_read(with_kernels)
    check_are_kept(timeline.steps, to_read)
    outline = outline_run(timeline, to_read)
    every_step = timeline.steps
    if task.sample is not None and outline.unread is not None:
        every_step = _drop_others(pl.concat([every_step, outline.unread]), to_read, task.sample)
        timeline = timeline.with_steps(every_step.filter(pl.col("kept") | ~pl.col("rank_index").is_in(list(to_read))))
    operations, steps = timeline.operations, timeline.steps
    slices = slice_steps(operations, label_idle(operations, steps, timeline.synchronizing, timeline.overhead), steps)
    all_kept = steps.with_columns(kept=pl.lit(value=True))
    return RankSurvey(
        captures=captures,
        lost=tuple(lost),
        steps=every_step,
        sources=timeline.sources,
        calls=operations.filter(pl.col("category").is_in(list(COMMUNICATION_CATEGORIES))).select(_CALL),
        outline=replace(outline, unread=None),
        exposed=merge_overlapping(slices.filter(IS_EXPOSED), STEP),
        budget=measure_budget(slices, steps),
        exposure=measure_exposure(slices),
        compute=union_where(slices, COMPUTE_CATEGORIES),
        spreads=measure_step_spreads(operations, all_kept),
        paced=_condense(list_paced_calls(timeline.with_steps(all_kept), with_kernels)),
    )


def _drop_others(steps: Steps, to_read: Mapping[int, StepsToRead], sample: SampledSteps) -> Steps:
    """``steps`` in order, with those dropped that are not attributed of the ranks in ``to_read``."""
    keys = [(rank_index, step) for rank_index, read in to_read.items() for step in read.attributed]
    columns = pl.DataFrame(keys, {"rank_index": pl.Int64, "step": pl.Int64}, orient="row")
    with_marks = steps.join(columns.with_columns(is_in=pl.lit(value=True)), on=STEP, how="left", maintain_order="left")
    is_whole = ~pl.col("rank_index").is_in(sorted(to_read))
    fewer = leave_out(with_marks, is_whole | pl.col("is_in").is_not_null(), sample.all_count, len(sample.numbers))
    return fewer.drop("is_in").sort("rank_index", "start_ns", "step")


def _condense(paced: PacedCalls) -> PacedCalls:
    """The calls of a kernel and grid as one row, without kernels whose median cannot be long enough to compare."""
    kernel = [name for name in paced.calls.columns if name not in ("step", "ns")]
    least_ns = MINIMUM_REPEATED_KERNEL_NS
    # A name is hundreds of characters long, and all ranks have the same.
    long = paced.calls.filter(pl.col("ns").max().over(kernel) >= least_ns).cast({"kernel": pl.Categorical})
    return PacedCalls(long.group_by([*kernel, "step"], maintain_order=True).agg("ns"), paced.compute)


def _empty_survey() -> RankSurvey:
    """The survey of no rank: every frame without rows."""
    empty = pl.DataFrame(schema={"rank_index": pl.Int64, "step": pl.Int64})
    outline, paced_calls = RankOutline(empty, empty), PacedCalls(empty, empty)
    return RankSurvey((), (), empty, {}, empty, outline, empty, empty, empty, empty, empty, paced_calls)


def join_surveys(surveys: Sequence[RankSurvey]) -> RankSurvey:
    """The survey of all captures of ``surveys``, in the order of capture ids.

    Raises InputError where no capture could be read.
    """
    lost = sorted((each for survey in surveys for each in survey.lost), key=lambda each: each.capture_id)
    in_order = sorted(
        (survey for survey in surveys if survey.captures), key=lambda survey: survey.captures[0].capture_id
    )
    if not in_order:
        raise InputError(lost[0].reason if lost else "no capture was read")
    firsts = accumulate((len(survey.ranks) for survey in in_order), initial=0)
    parts = list(zip(firsts, in_order, strict=False))  # with the index of the first rank of each

    def join(name: str) -> pl.DataFrame:
        frame_of, index = attrgetter(name), pl.col("rank_index")
        frames = [frame_of(survey).with_columns(index + first) for first, survey in parts if survey.ranks]
        return pl.concat(frames) if frames else pl.DataFrame()

    survey_of_all = RankSurvey(
        captures=tuple(
            replace(capture, ranks=tuple(rank.after(first) for rank in capture.ranks))
            for first, survey in parts
            for capture in survey.captures
        ),
        lost=tuple(lost),
        sources={index + first: source for first, survey in parts for index, source in survey.sources.items()},
        outline=RankOutline(join("outline.roles"), join("outline.begins")),
        paced=PacedCalls(join("paced.calls"), join("paced.compute")),
        **{name: join(name) for name in ("steps", "calls", *_BY_STEP)},
    )
    return _number_alike(survey_of_all)


def _number_alike(survey: RankSurvey) -> RankSurvey:
    """The steps of all ranks numbered in their order, if those of some rank are, as find_steps does."""
    if not set(survey.sources.values()) & set(NUMBERED_IN_ORDER.values()):
        return survey
    order = pl.col("start_ns").rank("ordinal").over("rank_index").cast(pl.Int64) - 1
    sources = {index: NUMBERED_IN_ORDER.get(source, source) for index, source in survey.sources.items()}
    return replace(survey.with_steps(survey.steps.with_columns(step=order)), sources=sources)
