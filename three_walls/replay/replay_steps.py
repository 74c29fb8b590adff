"""Replays the kept steps of a run, and makes the predictor of the representative one: the entry of this package."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import polars as pl

from three_walls.facts.fact_rows import CriticalPath, Prediction, Synchronizations
from three_walls.layers.labels import LabelledOperations
from three_walls.lib.declare import artifact
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.lib.text import in_ms
from three_walls.replay import replay_thresholds
from three_walls.replay.build_graph import build_graphs
from three_walls.replay.find_critical_path import summarize_critical_path
from three_walls.replay.host_chains import measure_silences
from three_walls.replay.label_ranks import label_ranks
from three_walls.replay.loader_waits import LoaderWaits, find_loader_waits
from three_walls.replay.predictor import LogSteps, PauseCost, StepReplay, fit_profiler_cost, without_profiler
from three_walls.replay.profiler_cost import measure_profiler_cost
from three_walls.replay.step_graph import RankOperations, StepGraph, Work, find_steady, replay
from three_walls.replay.synchronizations import label_synchronizations, measure_synchronizations
from three_walls.replay.transform_graph import transform
from three_walls.replay.transformation import FREE_HOST, Level, NoPredictor, Predictor
from three_walls.step.attribute_steps import Attribution
from three_walls.step.build_timeline import Timeline, take_rank
from three_walls.step.intervals import DURATION
from three_walls.step.joined_log import JoinedLog
from three_walls.step.operators import read_named_ranges, read_range_times
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.step_rows import Straggler
from three_walls.step.step_tables import NamedRanges, Steps
from three_walls.step.step_view import StepView, find_shared_gpus
from three_walls.trace.read_inputs import Inputs, Progress
from three_walls.trace.read_trace import Trace
from three_walls.trace.schemas import Float64Array, Int64Array

_NO_LAUNCHES = "the launches of {missing:.1%} of the operations were not recorded (capture with -t cuda,nvtx)"
_LATE_LAUNCHES = (
    "{share:.1%} of the operations start before their launch call begins, so the clocks of host and device differ "
    "(capture again)"
)
_ENVELOPES = (
    "{share:.1%} of the step is inside CUDA graphs that were recorded as a whole (capture with --cuda-graph-trace=node)"
)
_LARGE_ERROR = "the unchanged replay is {error:.1%} off the captured step (more than {limit:.1%}){why}"
_LACKS_DEPENDENCIES = (
    ": the capture lacks dependencies (capture every rank, with -t cuda,nvtx and without dropped events)"
)
_CLOCKS_CONTRADICT = (
    ", and calls that ranks leave together end up to {apart} apart by their clocks: a clock jumped, or the captures "
    "are not of one run (capture all ranks again, at once)"
)


@dataclass(frozen=True, slots=True)
class CapturedReplay:
    """The representative step as it was captured, before anything is known of the log."""

    graph: StepGraph
    added_ns: Float64Array
    """Per host point what the profiler is taken to have added."""
    place: int
    """Of the representative rank in the graph."""
    error: float
    """The largest error of the unchanged replay over all kept steps and ranks; sick ones count where all are sick."""
    loader: LoaderWaits | None
    """The waiting for a data loader."""
    pauses_ns: Mapping[int, int]
    """What the pauses of the host cost each replayed step as captured, by its number."""


@dataclass(frozen=True, slots=True)
class RunReplay:
    """What the replay of a run gives."""

    predictor: Predictor
    """Where no graph can be built, or its replay is not to be trusted, it predicts nothing (``missing_reason``)."""
    error: Measurement[float]
    """The largest error of the unchanged replay."""
    predicted: Measurement[Prediction]
    """The unprofiled step, without the log."""
    critical_path: Measurement[CriticalPath]
    """Of the unprofiled step."""
    synchronizations: Measurement[Synchronizations]
    """Of the representative rank, also where the replay is not to be trusted."""
    pause_cost_ns: Measurement[int]
    """The unprofiled step less its replay without pauses of the host; 0 where it has none."""
    is_batch_late_once: bool = False
    """Whether the only kept step waits for a batch, and those of the log do not."""


@artifact
def replay_error(run_replay: RunReplay) -> Measurement[float]:
    """The largest error of the unchanged replay."""
    return run_replay.error


@artifact
def predicted_step(run_replay: RunReplay) -> Measurement[Prediction]:
    """The unprofiled step by replay, without the log."""
    return run_replay.predicted


@artifact
def critical_path(run_replay: RunReplay) -> Measurement[CriticalPath]:
    """The critical path of the unprofiled step."""
    return run_replay.critical_path


@artifact
def synchronizations(run_replay: RunReplay) -> Measurement[Synchronizations]:
    """Where host threads wait for the device, and the step without these calls."""
    return run_replay.synchronizations


@artifact
def pause_cost_ns(run_replay: RunReplay) -> Measurement[int]:
    """What the pauses of the host cost by replay."""
    return run_replay.pause_cost_ns


@artifact
def captured_pauses_ns(run_replay: RunReplay, captured_replay: CapturedReplay) -> Measurement[Mapping[int, int]]:
    """What the pauses of the host cost each replayed step as captured, by its number."""
    return run_replay.pause_cost_ns.map(lambda _: captured_replay.pauses_ns)


@artifact
def is_batch_late_once(run_replay: RunReplay) -> bool:
    """Whether the only kept step waits for a batch, and those of the log do not."""
    return run_replay.is_batch_late_once


@artifact
def predictor(run_replay: Measurement[RunReplay]) -> Predictor:
    """Predicts the step after edits; nothing where there is no step to replay."""
    return run_replay.value.predictor if run_replay.value else NoPredictor(str(run_replay.missing_reason))


@artifact
def log_steps(
    unprofiled_step_lower_quartile_ns: int, unprofiled_step_ns: int, unprofiled_step_upper_quartile_ns: int
) -> LogSteps:
    """The quartiles of the log's unprofiled steps."""
    return LogSteps(unprofiled_step_lower_quartile_ns, unprofiled_step_ns, unprofiled_step_upper_quartile_ns)


@artifact
def ranks_in_full(matched_ranks: MatchedRanks, timeline: Timeline, inputs: Inputs) -> MatchedRanks:
    """The ranks that were read in full: a call with other members counts as incomplete."""
    if not inputs.surveyed:
        return matched_ranks
    is_in_full = pl.col("rank_index").is_in(timeline.steps["rank_index"].unique().implode())
    arrivals = matched_ranks.arrivals
    partial = arrivals.filter(~is_in_full)["instance"].unique().implode()
    return replace(
        matched_ranks,
        ranks=tuple(rank for rank in matched_ranks.ranks if rank.rank_index in set(timeline.steps["rank_index"])),
        arrivals=arrivals.filter(is_in_full).with_columns(
            complete=pl.col("complete") & ~pl.col("instance").is_in(partial)
        ),
    )


@artifact
def captured_replay(
    step: StepView,
    inputs: Inputs,
    timeline: Timeline,
    ranks_in_full: MatchedRanks,
    attribution: Attribution,
    sick_ranks: tuple[Straggler, ...],
    labelled_step: LabelledOperations,
    cuda_graph_fraction: Measurement[float],
    starving_ranks: frozenset[int],
    progress: Progress,
) -> Measurement[CapturedReplay]:
    """Replays kept steps as they were captured.

    Raises InputError where a trace cannot be read any more.
    """
    progress("replaying the step")
    traces = inputs.with_kernels
    if reason := _find_lack(step, cuda_graph_fraction.value):
        return missing(reason)
    replayed = [step.step, *_choose_compared(timeline.steps, step.step)]
    windows = [timeline.steps.filter(pl.col("kept") & (pl.col("step") == number)) for number in replayed]
    shared_gpus = find_shared_gpus(attribution.kernel_spread)
    graphs = build_graphs(timeline, ranks_in_full, windows, attribution.event_calls, attribution.pauses, shared_gpus)
    graph = next(graphs)
    if not graph.calls.height:
        return missing(_NO_LAUNCHES.format(missing=1.0))
    late = {straggler.rank for straggler in sick_ranks}
    sick = {rank.rank_index for rank in ranks_in_full.ranks if rank.rank in late} | set(shared_gpus)
    # One graph after the other, so that each leaves memory.
    errors, pauses_ns = [], {}
    for number, each in zip(replayed, chain([graph], graphs), strict=True):
        errors.append(_measure_error(each, sick))
        paused_ns, left_ns = _replay_pauses(each, each.without_pauses(), each.work)
        pauses_ns[number] = max(0, paused_ns - left_ns)
    labelled = label_ranks(graph, traces, step.config, {step.rank_index: labelled_step})
    graph = replace(graph, operations=labelled)
    place = graph.ranks.index(step.rank_index)
    costs = [_measure_cost(graph, traces, place) for place in range(len(graph.ranks))]
    added_ns, silent_ns = (np.concatenate(each) for each in zip(*costs, strict=True))
    graph = replace(graph, silent_ns=silent_ns)
    ranges = [_read_ranges(graph, traces, place) for place in range(len(graph.ranks))]
    graph = label_synchronizations(graph, ranges)
    loader = find_loader_waits(graph, ranges, starving_ranks)
    return known(CapturedReplay(graph, added_ns, place, max(errors), loader, pauses_ns))


@artifact
def free_host_step_ns(joined_log: JoinedLog, captured_replay: CapturedReplay) -> Measurement[int]:
    """The captured step if its host, and waiting for ranks that were not captured, took no time.

    No run of it is shorter; so it is made where a log has steps to compare.
    """
    captured = captured_replay
    if joined_log.quartiles_ns is None or captured.error > replay_thresholds.MAXIMUM_REPLAY_ERROR_FRACTION:
        return missing(joined_log.why_no_median or "the unchanged replay is too far off the captured step")
    graph = captured.graph.without_pauses()
    work = replace(graph.work, duration_ns=graph.work.duration_ns - graph.work.wait_ns, wait_ns=0 * graph.work.wait_ns)
    return known(find_steady(graph, transform(graph, work, (FREE_HOST,), Level.LIKELY))[1].longest_ns)


@artifact
def run_replay(
    step: StepView,
    timeline: Timeline,
    ranks_in_full: MatchedRanks,
    attribution: Attribution,
    captured_replay: Measurement[CapturedReplay],
    log_steps: Measurement[LogSteps],
    host_pauses_recur: bool,
) -> RunReplay:
    """The predictor of the representative step, and what it says of the step as it is."""
    captured = captured_replay.value
    if captured is None:
        return _without_replay(str(captured_replay.missing_reason))
    added_ns, place, error, loader = captured.added_ns, captured.place, captured.error, captured.loader
    tail_ns = max(0, step.step_ns - int(captured.graph.measured_ns[place]))
    log_step_ns = log_steps.value.median_ns if log_steps.value else None
    other_ns = None if host_pauses_recur else log_step_ns
    is_lone = attribution.steps.filter("kept")["step"].n_unique() == 1
    is_late = is_lone and _is_late_once(captured.graph.without_pauses(), added_ns, log_step_ns, loader)
    if loader and is_late:
        loader = replace(loader, period_ns=0)
    graph, pauses = _price_pauses(captured.graph, added_ns, other_ns, loader)
    cost = fit_profiler_cost(graph, added_ns, tail_ns + pauses.ns, log_steps.value, loader)
    limit = replay_thresholds.MAXIMUM_REPLAY_ERROR_FRACTION
    apart_ns = ranks_in_full.clock.error_ns
    is_apart = apart_ns > limit * step.step_ns
    why = _CLOCKS_CONTRADICT.format(apart=in_ms(apart_ns)) if is_apart else _LACKS_DEPENDENCIES
    reason = _LARGE_ERROR.format(error=error, limit=limit, why=why) if error > limit else ""
    predictor = StepReplay(graph, added_ns, tail_ns, error, cost, reason, log_step_ns, place, loader, pauses)
    of_rank = take_rank(timeline.operations, step.rank_index)
    synchronizations = known(measure_synchronizations(graph, place, of_rank, predictor))
    if reason:
        unpredicted = replace(_without_replay(reason), synchronizations=synchronizations)
        return replace(unpredicted, predictor=predictor, error=known(error), is_batch_late_once=is_late)
    without_log = predictor
    if log_step_ns is not None:
        usual = fit_profiler_cost(graph, added_ns, tail_ns, None, loader)
        without_log = StepReplay(graph, added_ns, tail_ns, error, usual, place=place, loader=loader, pauses=pauses)
    numbers = dict(graph.operations.select("rank_index", "rank_number").unique().drop_nulls().iter_rows())
    path = summarize_critical_path(graph, predictor.critical_path(), numbers)
    return RunReplay(
        predictor, known(error), known(without_log.step_ns), known(path), synchronizations, known(pauses.ns), is_late
    )


def _is_late_once(
    graph: StepGraph, added_ns: Float64Array, log_step_ns: int | None, loader: LoaderWaits | None
) -> bool:
    """Whether steps of the log are nearer to the step without its waiting for batches than to the one with it.

    A loader that sets the pace makes all steps as long.
    """
    if log_step_ns is None or loader is None or not loader.period_ns:
        return False
    usual = replay_thresholds.LIKELY_PROFILER_COST_RATIO
    waiting_ns, left_ns = (
        find_steady(graph, without_profiler(graph, added_ns, usual, waits))[1].longest_ns for waits in (None, loader)
    )
    return abs(log_step_ns - left_ns) < abs(log_step_ns - waiting_ns)


def _price_pauses(
    graph: StepGraph, added_ns: Float64Array, other_ns: int | None, loader: LoaderWaits | None
) -> tuple[StepGraph, PauseCost]:
    """The graph without the pauses of the host, and what these cost in the step that is predicted.

    ``other_ns``: what other steps take by the log, where they may be without pauses. If they are, none costs anything.
    """
    without = graph.without_pauses()
    if without is graph:
        return graph, PauseCost()
    usual = replay_thresholds.LIKELY_PROFILER_COST_RATIO
    paused_ns, left_ns = _replay_pauses(graph, without, without_profiler(without, added_ns, usual, loader))
    if other_ns is not None and abs(other_ns - left_ns) < abs(other_ns - paused_ns):
        return without, PauseCost()
    return without, PauseCost(max(0, paused_ns - left_ns), dict(enumerate(graph.sum_pauses())))


def _replay_pauses(graph: StepGraph, without: StepGraph, work: Work) -> tuple[int, int]:
    """The step with the pauses of the host, and ``without``.

    A pause makes waiting for ranks that were not captured no shorter: it is that of ``work`` in both.
    """
    if without is graph:
        return 0, 0
    paused_ns, left_ns = (
        find_steady(each, replace(work, edges=each.work.edges))[1].longest_ns for each in (graph, without)
    )
    return paused_ns, left_ns


def _without_replay(reason: str) -> RunReplay:
    absent = missing(reason)
    return RunReplay(NoPredictor(reason), absent, absent, absent, absent, absent)


def _find_lack(step: StepView, envelope_fraction: float | None) -> str:
    """What the capture lacks for a replay; empty where it lacks nothing."""
    if step.step_ns < replay_thresholds.LEAST_STEP_NS:
        return f"the step takes only {in_ms(step.step_ns, '.3f')}"
    started = step.started
    launched = started["launch_start_ns"].is_not_null().mean()
    if not isinstance(launched, float) or launched < replay_thresholds.MINIMUM_LAUNCHED_FRACTION:
        return _NO_LAUNCHES.format(missing=1.0 if not isinstance(launched, float) else 1 - launched)
    too_late = started.select((pl.col("launch_start_ns") > pl.col("start_ns")).mean()).item()
    if isinstance(too_late, float) and too_late > 1 - replay_thresholds.MINIMUM_LAUNCHED_FRACTION:
        return _LATE_LAUNCHES.format(share=too_late)
    if envelope_fraction is not None and envelope_fraction > replay_thresholds.MAXIMUM_ENVELOPE_FRACTION:
        return _ENVELOPES.format(share=envelope_fraction)
    return ""


def _choose_compared(steps: Steps, representative: int) -> list[int]:
    """Kept steps besides the representative one whose replays are compared with the capture.

    Of many those at equal distances in the order of length, with the shortest and the longest.
    """
    others = steps.filter(pl.col("kept") & (pl.col("step") != representative))
    lengths = others.group_by("step").agg(length_ns=DURATION.max()).sort("length_ns", "step")
    most = replay_thresholds.MOST_COMPARED_STEPS - 1
    places = np.linspace(0, lengths.height - 1, min(most, lengths.height)).round().astype(np.int64)
    return sorted(lengths["step"].gather(places).to_list())


def _measure_error(graph: StepGraph, sick: Collection[int]) -> float:
    """The largest error of the unchanged replay over the ranks of ``graph`` but those with an index in ``sick``.

    What slows a sick rank down can happen anywhere in it, and gains are those of the step without it.
    """
    is_healthy = ~np.isin(graph.ranks, list(sick))
    errors = np.abs(replay(graph).step_ns / graph.measured_ns - 1)
    return float(errors[is_healthy].max() if is_healthy.any() else errors.max())


def _read_ranges(graph: StepGraph, traces: Sequence[Trace], place: int) -> NamedRanges:
    trace, process, operations = _find_rank(graph, traces, place)
    return read_named_ranges(trace, process, operations)


def _find_rank(graph: StepGraph, traces: Sequence[Trace], place: int) -> tuple[Trace, int, RankOperations]:
    """The trace, the process and the operations of the rank at ``place`` in ``graph``."""
    operations = graph.operations.filter(pl.col("rank") == place)
    capture, process = operations.select("capture_id", "process").row(0)
    return next(trace for trace in traces if trace.capture_id == capture), process, operations


def _measure_cost(graph: StepGraph, traces: Sequence[Trace], place: int) -> tuple[Float64Array, Int64Array]:
    """Per host point of the rank at ``place`` what the profiler added, and how long nothing was recorded."""
    calls = graph.calls.filter(pl.col("rank") == place)
    if calls.is_empty():  # a rank whose launches were not recorded
        return np.zeros(0), np.zeros(0, dtype=np.int64)
    trace, process, operations = _find_rank(graph, traces, place)
    end = calls["end_ns"].max()
    assert isinstance(end, int)
    ranges = read_range_times(trace, process, operations, end)
    return measure_profiler_cost(calls, ranges), measure_silences(calls, ranges)
