"""The entry of this package: replays the kept steps of a run, and hands the representative one to whoever predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import polars as pl

from three_walls.facts.fact_rows import CriticalPath
from three_walls.facts.log_facts import UNPROFILED_STEP, UNPROFILED_STEP_HIGH, UNPROFILED_STEP_LOW
from three_walls.facts.replayed_step import (
    CRITICAL_PATH_COMMUNICATION,
    CRITICAL_PATH_COMPUTE,
    CRITICAL_PATH_HOST,
    PREDICTED_STEP,
    PREDICTED_STEP_HIGH,
    PREDICTED_STEP_LOW,
    PREDICTION_ERROR,
    REPLAY_ERROR,
    measure_critical_path,
)
from three_walls.lib.fact import FactSheet, Measurements
from three_walls.lib.measurement import known, known_or_missing, missing
from three_walls.lib.text import in_ms
from three_walls.replay import replay_thresholds
from three_walls.replay.build_graph import RunCalls, build_graphs
from three_walls.replay.find_critical_path import summarize_critical_path
from three_walls.replay.labels import label_operations
from three_walls.replay.predictor import LogSteps, StepReplay, fit_profiler_cost
from three_walls.replay.profiler_cost import measure_profiler_cost
from three_walls.replay.step_graph import Fractions, StepGraph, replay, with_operations
from three_walls.replay.transformation import NoPredictor, Predictor
from three_walls.step.attribute_steps import Attribution
from three_walls.step.build_timeline import Timeline
from three_walls.step.intervals import DURATION
from three_walls.step.operators import read_range_times
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.step_view import NO_STEP, StepView, find_shared_gpus
from three_walls.step.transfer import estimate_ready_durations
from three_walls.trace.read_trace import Trace

_NO_LAUNCHES = "the launches of {missing:.1%} of the operations were not recorded (capture with -t cuda,nvtx)"
_LATE_LAUNCHES = (
    "{share:.1%} of the operations start before their launch call begins, so the clocks of host and device differ "
    "(capture again)"
)
_ENVELOPES = (
    "{share:.1%} of the step is inside CUDA graphs that were recorded as a whole (capture with --cuda-graph-trace=node)"
)
_LARGE_ERROR = (
    "the unchanged replay is {error:.1%} off the captured step (more than {limit:.1%}): the capture lacks dependencies "
    "(capture every rank, with -t cuda,nvtx and without dropped events)"
)


@dataclass(frozen=True, slots=True)
class RunReplay:
    """What the replay of a run gives: facts, and a predictor where it could be built."""

    facts: Measurements
    predictor: Predictor
    """Where no graph can be built, or its replay is not to be trusted, it predicts nothing (``reason_withheld``)."""
    critical_path: CriticalPath | None = None
    """Of the unprofiled step; None where nothing is predicted."""


def replay_steps(
    timeline: Timeline,
    matched_ranks: MatchedRanks,
    attribution: Attribution,
    traces: Sequence[Trace],
    step: StepView | None,
    facts: FactSheet,
) -> RunReplay:
    """Replays kept steps as they were captured, and builds the predictor of ``step``, the representative one.

    Raises InputError where a trace cannot be read any more.
    """
    if step is None:
        return _withhold(NO_STEP)
    if reason := _lacks(step, facts):
        return _withhold(reason)
    shared_gpus = find_shared_gpus(attribution.kernel_spread)
    run_calls = RunCalls(attribution.event_calls, estimate_ready_durations(timeline))

    replayed = [step.step, *_choose_compared(timeline.steps, step.step)]
    windows = [timeline.steps.filter(pl.col("kept") & (pl.col("step") == number)) for number in replayed]
    graphs = build_graphs(timeline, matched_ranks, windows, shared_gpus, run_calls)
    graph = next(graphs)
    if not graph.calls.height:
        return _withhold(_NO_LAUNCHES.format(missing=1.0))
    error = max(map(_measure_error, chain([graph], graphs)))  # one graph after the other, so that each leaves memory
    limit = replay_thresholds.MAXIMUM_REPLAY_ERROR_FRACTION
    reason = _LARGE_ERROR.format(error=error, limit=limit) if error > limit else ""
    graph = with_operations(graph, label_operations(graph, traces, step.config))
    place = graph.ranks.index(step.rank_index)
    added_ns = np.concatenate([_measure_cost(graph, traces, place) for place in range(len(graph.ranks))])
    tail_ns = max(0, step.step_ns - int(graph.measured_ns[place]))
    log_steps = read_log_steps(facts)
    log_step_ns = log_steps.median_ns if log_steps else None
    cost = fit_profiler_cost(graph, added_ns, tail_ns, log_steps)
    predictor = StepReplay(graph, added_ns, tail_ns, error, cost, reason, log_step_ns, place)
    if reason:
        measured = _withhold(reason).facts
        return RunReplay({**measured, REPLAY_ERROR: known(error)}, predictor)
    without_log = predictor
    if log_step_ns is not None:
        without_log = StepReplay(graph, added_ns, tail_ns, error, fit_profiler_cost(graph, added_ns, tail_ns, None))
    predicted = without_log.step_ns
    off = (predicted.likely_ns - log_step_ns) / log_step_ns if log_step_ns else None
    numbers = dict(graph.operations.select("rank_index", "rank_number").unique().drop_nulls().iter_rows())
    path = summarize_critical_path(graph, predictor.critical_path(), numbers)
    return RunReplay(
        {
            **measure_critical_path(path),
            REPLAY_ERROR: known(error),
            PREDICTED_STEP: known(predicted.likely_ns),
            PREDICTED_STEP_LOW: known(predicted.low_ns),
            PREDICTED_STEP_HIGH: known(predicted.high_ns),
            PREDICTION_ERROR: known_or_missing(off, "no log gives the unprofiled step (give --log)"),
        },
        predictor,
        path,
    )


def read_log_steps(facts: FactSheet) -> LogSteps | None:
    """The quartiles of the log's unprofiled steps; None without them."""
    quartiles = [facts.number(each.name) for each in (UNPROFILED_STEP_LOW, UNPROFILED_STEP, UNPROFILED_STEP_HIGH)]
    known_ns = [round(quartile) for quartile in quartiles if quartile is not None]
    return LogSteps(*known_ns) if len(known_ns) == len(quartiles) else None


def _withhold(reason: str) -> RunReplay:
    lacking = missing(reason)
    predicted = (PREDICTED_STEP, PREDICTED_STEP_LOW, PREDICTED_STEP_HIGH, PREDICTION_ERROR)
    path = (CRITICAL_PATH_HOST, CRITICAL_PATH_COMMUNICATION, CRITICAL_PATH_COMPUTE)
    return RunReplay(dict.fromkeys((REPLAY_ERROR, *predicted, *path), lacking), NoPredictor(reason))


def _lacks(step: StepView, facts: FactSheet) -> str:
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
    share = facts.number("cuda_graph_fraction")
    if share is not None and share > replay_thresholds.MAXIMUM_ENVELOPE_FRACTION:
        return _ENVELOPES.format(share=share)
    return ""


def _choose_compared(steps: pl.DataFrame, representative: int) -> list[int]:
    """Kept steps besides the representative one whose replays are compared with the capture.

    Of many those at equal distances in the order of length, with the shortest and the longest.
    """
    others = steps.filter(pl.col("kept") & (pl.col("step") != representative))
    lengths = others.group_by("step").agg(length_ns=DURATION.max()).sort("length_ns", "step")
    most = replay_thresholds.MOST_COMPARED_STEPS - 1
    places = np.linspace(0, lengths.height - 1, min(most, lengths.height)).round().astype(np.int64)
    return sorted(lengths["step"].gather(places).to_list())


def _measure_error(graph: StepGraph) -> float:
    """The largest error of the unchanged replay over the ranks of ``graph``."""
    return float(np.abs(replay(graph).step_ns / graph.measured_ns - 1).max())


def _measure_cost(graph: StepGraph, traces: Sequence[Trace], place: int) -> Fractions:
    calls = graph.calls.filter(pl.col("rank") == place)
    if calls.is_empty():  # a rank whose launches were not recorded
        return np.zeros(0)
    operations = graph.operations.filter(pl.col("rank") == place)
    capture, process = operations.select("capture_id", "process").row(0)
    trace = next(trace for trace in traces if trace.capture_id == capture)
    end = calls["end_ns"].max()
    assert isinstance(end, int)
    return measure_profiler_cost(calls, read_range_times(trace, process, operations, end))
