"""The replay of a run's representative step: whether it can be trusted, and what the step would be after changes.

All predictions are of the step that nobody profiled. What the profiler added to the host is an estimate with a range
(``profiler_cost.py``); with a training log the unprofiled step is known, and the estimate is scaled so that the replay
meets it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from three_walls.facts.fact_rows import Prediction
from three_walls.replay import replay_thresholds
from three_walls.replay.find_critical_path import CriticalNodes, find_critical_path
from three_walls.replay.loader_waits import LoaderWaits, find_paced
from three_walls.replay.step_graph import NONE, StepGraph, Times, Work, find_steady, replay
from three_walls.replay.transform_graph import (
    find_graph_nodes,
    knows_passes,
    select_operations,
    transform,
)
from three_walls.replay.transformation import Action, Level, Selection, Transformation
from three_walls.step.find_steps import STEP
from three_walls.step.host_activity import THREAD
from three_walls.step.ownership import label_idle, measure_budget, slice_steps
from three_walls.tables.buckets import BUCKETS, COMPUTE_CATEGORIES
from three_walls.tables.prediction_intervals import Levels, prediction_intervals
from three_walls.trace.schemas import BoolArray, Float64Array, Int64Array


@dataclass(frozen=True, slots=True)
class ProfilerCost:
    """How many times the estimated cost of the profiler is taken out of the host segments."""

    least: float
    likely: float
    most: float


@dataclass(frozen=True, slots=True)
class LogSteps:
    """Quartiles of the log's unprofiled steps, in ns."""

    low_ns: int
    median_ns: int
    high_ns: int


@dataclass(frozen=True, slots=True)
class PauseCost:
    """What the pauses of the host cost in the step, whatever else changes in it."""

    ns: int = 0
    by_rank_ns: Mapping[int, int] = field(default_factory=dict)
    """How long each rank (its place in the graph) pauses, which goes where that rank is healed."""

    def after(self, graph: StepGraph, changes: Sequence[Transformation]) -> int:
        """What is left of it after ``changes``. Healing a rank saves no pause that others have, too."""
        healed = {place for place in self.by_rank_ns if any(_heals(graph, change, place) for change in changes)}
        left_ns = sum(ns for place, ns in self.by_rank_ns.items() if place not in healed)
        return min(self.ns, left_ns) if healed else self.ns


def _heals(graph: StepGraph, change: Transformation, place: int) -> bool:
    if change.action is not Action.HEAL:
        return False
    return bool((graph.operations["rank"].to_numpy()[select_operations(graph, change.select)] == place).any())


@dataclass(frozen=True, slots=True)
class StepReplay:
    """The graph of one step with what the profiler added to it; a ``Predictor``.

    The graph is without the pauses of the host: no edit shortens or hides one.
    """

    graph: StepGraph
    added_ns: Float64Array
    """Per host point what the profiler is taken to have added."""
    tail_ns: int
    """From the end of the last operation to the end of the step, on the representative rank."""
    error_fraction: float
    """The largest error of an unchanged replay over all kept steps and ranks."""
    cost: ProfilerCost
    missing_reason: str = ""
    log_step_ns: int | None = None
    place: int = 0
    """Of the representative rank in the graph."""
    loader: LoaderWaits | None = None
    """The waiting for a data loader; None where no thread waits."""
    pauses: PauseCost = PauseCost()
    _known: dict[tuple[tuple[Transformation, ...], Level, float], int] = field(default_factory=dict, compare=False)
    _unprofiled: dict[float, tuple[Work, Times]] = field(default_factory=dict, compare=False)
    _busy: dict[float, Float64Array] = field(default_factory=dict, compare=False)
    _shrinking: dict[float, float] = field(default_factory=dict, compare=False)

    @property
    def step_ns(self) -> Prediction:
        """The step as it is, unprofiled; the log's where one was given.

        Without a log the range holds what a faster or slower host and link of another run change, and how steps differ
        that the device or the data loader decides, as many times as logs of other runs ask for.
        """
        likely = self._now_ns
        if self.log_step_ns is not None:
            return Prediction(likely, likely, likely)
        faster, slower = (self._step_after(_drift(sign), Level.LIKELY, self.cost.likely) for sign in (-1, 1))
        is_paced = self.loader is not None and self.loader.period_ns
        drift = replay_thresholds.LOADER_DRIFT_FRACTION if is_paced else replay_thresholds.STEP_DRIFT_FRACTION
        error_ns = round((self.error_fraction + drift) * likely)
        ratio = prediction_intervals().step_ratio
        below_ns, above_ns = max(0, likely - faster) + error_ns, max(0, slower - likely) + error_ns
        return Prediction(max(0, likely - round(ratio * below_ns)), likely, likely + round(ratio * above_ns))

    @property
    def _now_ns(self) -> int:
        """The likely step as it is."""
        return self._step_after((), Level.LIKELY, self.cost.likely) if self.log_step_ns is None else self.log_step_ns

    def predict(self, transformations: Sequence[Transformation]) -> Prediction:
        """The step with all ``transformations`` applied in their order, from the likely step as it is.

        The range is that of the gain: over the ends of the parameters, and over what the profiler may have added; the
        replay's error widens it in proportion to what changes.
        """
        changes = tuple(transformations)
        now_ns = self._now_ns
        gains = {
            (level, cost): self._gain(changes, level, cost)
            for level, cost in (
                (Level.LIKELY, self.cost.likely),
                *((level, cost) for level in (Level.LOW, Level.HIGH) for cost in {self.cost.least, self.cost.most}),
            )
        }
        likely = gains[Level.LIKELY, self.cost.likely]
        low = min(likely, *(gain for (level, _), gain in gains.items() if level is Level.LOW))
        high = max(likely, *(gain for (level, _), gain in gains.items() if level is Level.HIGH))
        error_ns = round(self.error_fraction * abs(likely))
        return Prediction(max(0, now_ns - high - error_ns), max(0, now_ns - likely), now_ns - low + error_ns)

    def explain(self, transformation: Transformation) -> str:
        """Why ``transformation`` changes nothing here, or empty."""
        if transformation.action is Action.BALANCE and len(self.graph.ranks) < 2:
            return "one rank was captured, so how the work is spread over the ranks is not known"
        if transformation.action is Action.MICRO_BATCH and not knows_passes(self.graph):
            return "which micro-batch each launch belongs to is not known"
        if transformation.action is Action.UNGRAPH and not find_graph_nodes(self.graph, transformation.select).any():
            return "no CUDA graph of the step is known to launch what these edits take out of it"
        if transformation.action is Action.HOST or select_operations(self.graph, transformation.select).any():
            return ""
        return "no operation of the step is known to be what these edits change"

    def budget_after(self, transformations: Sequence[Transformation]) -> Mapping[str, int]:
        """Bucket to its time in the likely step of the representative rank after ``transformations``.

        The buckets sum to that rank's step in the replay. A log's step may differ from it by what the estimate of the
        profiler's cost cannot explain.
        """
        work, times = self._settle(tuple(transformations), Level.LIKELY, self.cost.likely)
        budget = measure_replayed_budget(self.graph, work, times, self.place)
        paused_ns = self.paused_after(transformations)
        return budget | ({"host_pause": paused_ns} if paused_ns else {})

    def paused_after(self, transformations: Sequence[Transformation]) -> int:
        return self.pauses.after(self.graph, transformations)

    def limits_after(self, transformations: Sequence[Transformation]) -> Mapping[str, int]:
        """What the critical path of the likely step after ``transformations`` is made of."""
        return self.critical_path(transformations).sum_by_limit()

    @property
    def absent_fraction(self) -> float:
        work, times = self._settle((), Level.LIKELY, self.cost.likely)
        return self._sum_waits(work) / max(1, times.longest_ns)

    def critical_path(self, transformations: Sequence[Transformation] = ()) -> CriticalNodes:
        """What determines the length of the likely step after ``transformations``."""
        work, times = self._settle(tuple(transformations), Level.LIKELY, self.cost.likely)
        return find_critical_path(self.graph, work, times)

    def predict_likely_ns(self, transformations: Sequence[Transformation]) -> int:
        """The likely step alone, from one replay."""
        gain_ns = self._gain(tuple(transformations), Level.LIKELY, self.cost.likely)
        return max(0, self._now_ns - gain_ns)

    def _gain(self, changes: tuple[Transformation, ...], level: Level, cost: float) -> int:
        before, after = self._step_after((), Level.LIKELY, cost), self._step_after(changes, level, cost)
        gain = before - after
        if self.log_step_ns is None or before <= self.pauses.ns:
            return gain
        # What the estimate of the profiler's cost cannot explain is spread over the whole step, but for its pauses.
        of_pauses_ns = self.pauses.ns - self.paused_after(changes)
        scale = max(0, self.log_step_ns - self.pauses.ns) / (before - self.pauses.ns)
        return round((gain - of_pauses_ns) * scale) + of_pauses_ns

    def _step_after(self, changes: tuple[Transformation, ...], level: Level, cost: float) -> int:
        key = (changes, level if changes else Level.LIKELY, cost)
        if key not in self._known:
            replayed_ns = self._settle(changes, level, cost)[1].longest_ns
            self._known[key] = replayed_ns + self.tail_ns + self.paused_after(changes)
        return self._known[key]

    def _settle(self, changes: tuple[Transformation, ...], level: Level, cost: float) -> tuple[Work, Times]:
        """The work of the steady step without the profiler after ``changes``, and its replay."""
        if cost not in self._unprofiled:
            unprofiled = find_steady(self.graph, without_profiler(self.graph, self.added_ns, cost, self.loader))
            self._unprofiled[cost] = _limit_clocks(self.graph, *unprofiled, _find_captured_busy(self.graph))
        if not changes:
            if self.loader is None:
                return find_steady(self.graph, *self._unprofiled[cost])
            return find_paced(self.graph, self._unprofiled[cost][0], self.loader)
        work = transform(self.graph, self._unprofiled[cost][0], changes, level)
        work = _shorten_waits(work, self._unprofiled[cost][0], self._find_shrinking(level, cost))
        settled = find_steady(self.graph, work) if self.loader is None else find_paced(self.graph, work, self.loader)
        if cost not in self._busy:
            self._busy[cost] = find_busy_fractions(self.graph, self._settle((), level, cost)[1])
        return _limit_clocks(self.graph, *settled, self._busy[cost])

    def _find_shrinking(self, level: Level, cost: float) -> float:
        """Of the waiting for ranks that were not captured the part that shrinks with the work of the hosts.

        Their hosts are taken to hold a captured rank up in proportion to what its own host costs it, but where several
        ranks were captured by no more than these wait for each other: ranks that come together to one that is late
        wait for something else than hosts. Nothing shows it, so at the ends it is none, and all.
        """
        if level is not Level.LIKELY:
            return float(level is Level.HIGH)
        if cost not in self._shrinking:
            work, times = self._settle((), level, cost)
            free = replace(work, host_segment_ns=np.zeros_like(work.host_segment_ns))
            costs_ns = times.longest_ns - replay(self.graph, free).longest_ns
            hosts_ns = min(replay_thresholds.WAITS_OF_A_HOST_RATIO * costs_ns, self._sum_waits_among(work, times))
            self._shrinking[cost] = min(1.0, hosts_ns / max(1.0, self._sum_waits(work)))
        return self._shrinking[cost]

    def _sum_waits_among(self, work: Work, times: Times) -> float:
        """How long a captured rank waits for other captured ones where it waits for absent ones, too, in ns, the mean;
        infinite where none meet."""
        meets = (work.wait_ns > 0) & (self.graph.end_node != self.graph.start_node)
        waits_ns = (times.node_ns[self.graph.end_node] - times.start_ns)[meets]
        return int(waits_ns.sum()) / len(self.graph.ranks) if meets.any() else math.inf

    def _sum_waits(self, work: Work) -> float:
        """How long a captured rank waits for others in ns, their mean."""
        return int(work.wait_ns.sum()) / len(self.graph.ranks)


def _drift(sign: int) -> tuple[Transformation, ...]:
    """The host and the links of another run: faster for -1, slower for 1."""
    host, link = (
        1 + sign * drift for drift in (replay_thresholds.HOST_DRIFT_FRACTION, replay_thresholds.LINK_DRIFT_FRACTION)
    )
    transfers = Selection(categories=("communication",))
    return (
        Transformation(Action.HOST, host=Levels(host, host, host)),
        Transformation(Action.SCALE, transfers, time=Levels(link, link, link)),
    )


def without_profiler(graph: StepGraph, added_ns: Float64Array, cost: float, loader: LoaderWaits | None = None) -> Work:
    """The captured work less ``cost`` times what the profiler is taken to have added to every host segment.

    It is without the waiting for batches of ``loader``, too.
    """
    captured_ns, least_fraction = graph.host_segment_ns, replay_thresholds.LEAST_HOST_FRACTION
    if loader is not None:
        captured_ns = captured_ns - loader.wait_ns
    unprofiled_ns = np.rint(np.maximum(captured_ns * least_fraction, captured_ns - added_ns * cost))
    host_segment_ns = np.minimum(captured_ns, unprofiled_ns).astype(np.int64)
    return settle_waits(graph, replace(graph.work, host_segment_ns=host_segment_ns), int(graph.measured_ns.max()))


def settle_waits(graph: StepGraph, work: Work, before_ns: int) -> Work:
    """``work`` in which waiting for ranks that were not captured shrinks with the step, from ``before_ns`` on.

    The profiler delays those ranks too.
    """
    transfer_ns, captured_ns = work.duration_ns - work.wait_ns, work.wait_ns
    for _ in range(replay_thresholds.WAIT_REPLAYS if captured_ns.any() else 0):
        shrunk = min(1.0, replay(graph, work).longest_ns / max(1, before_ns))
        wait_ns = np.rint(captured_ns * shrunk).astype(np.int64)
        work = replace(work, duration_ns=transfer_ns + wait_ns, wait_ns=wait_ns)
    return work


def _shorten_waits(work: Work, before: Work, share: float) -> Work:
    """``work`` after an edit, with less waiting for ranks that were not captured where its hosts have less to do.

    An edit is made on all ranks. What it saves on the device before a call it saves on each, so the others wait for the
    last one as long as before. What hosts differ by grows with what they do: ``share`` of the waiting comes from that.
    """
    left = min(1.0, int(work.host_segment_ns.sum()) / max(1, int(before.host_segment_ns.sum())))
    wait_ns = np.rint(work.wait_ns * (1 - share * (1 - left))).astype(np.int64)
    return replace(work, duration_ns=work.duration_ns - work.wait_ns + wait_ns, wait_ns=wait_ns)


def find_busy_fractions(graph: StepGraph, times: Times) -> Float64Array:
    """Per rank of ``graph``, the part of the step (``times``) in which its device computes.

    Idle time costs a fraction of the power of GEMMs. Where the mean power is at its limit, a step that idles less has
    to do its work at a lower clock, and gives back a part of what it gained. Captures show it: attention and GEMMs of
    one shape differ by 7 to 12% within a step that computes most of the time, and are fastest after idle time; where
    hosts leave the device idle they differ by 1 to 2%.
    """
    rank, computes = graph.operations["rank"].to_numpy(), _computes(graph)
    busy_ns = np.zeros(len(graph.ranks))
    for place in range(len(graph.ranks)):
        own = np.flatnonzero(computes & (rank == place))
        own = own[np.argsort(times.start_ns[own], kind="stable")]
        ends_ns = np.maximum.accumulate(times.end_ns[own])
        begins_ns = np.maximum(times.start_ns[own], np.append(0, ends_ns[:-1])[: len(own)])
        busy_ns[place] = np.maximum(0, ends_ns - begins_ns).sum()
    return np.asarray(busy_ns / max(1, times.longest_ns))


def _find_captured_busy(graph: StepGraph) -> Float64Array:
    return graph.once("busy as captured", lambda: find_busy_fractions(graph, replay(graph)))


def _limit_clocks(graph: StepGraph, work: Work, times: Times, before: Float64Array) -> tuple[Work, Times]:
    """``work`` and its replay, slower where the device now computes more of the step than the fraction ``before``."""
    after = find_busy_fractions(graph, times)
    if max(*before, *after) <= replay_thresholds.LIMITED_BUSY_FRACTION:
        return work, times
    limited = slow_clocks(graph, work, before, after)
    return limited, replay(graph, limited)


def slow_clocks(graph: StepGraph, work: Work, before: Float64Array, after: Float64Array) -> Work:
    """``work`` at the clock that its power allows: per rank the device computed ``before`` an edit, and ``after`` it.

    Power grows with the third power of the clock, so the clock falls with the square root of the time in which the
    device computes (``POWER_EXPONENT``), from ``LIMITED_BUSY_FRACTION`` of the step on. A slower clock leaves the step
    less idle time still: ``slower`` is where both agree.
    """
    slower = np.ones(len(after))
    least = replay_thresholds.LIMITED_BUSY_FRACTION
    for _ in range(replay_thresholds.CLOCK_ROUNDS):
        busy = after * slower / (1 + after * (slower - 1))
        slower = (np.maximum(least, busy) / np.maximum(least, before)) ** replay_thresholds.POWER_EXPONENT
    factor = np.where(_computes(graph), slower[graph.operations["rank"].to_numpy()], 1.0)
    transfer_ns = np.rint((work.duration_ns - work.wait_ns) * factor).astype(np.int64)
    return replace(work, duration_ns=work.wait_ns + transfer_ns)


def _computes(graph: StepGraph) -> BoolArray:
    return select_operations(graph, Selection(categories=COMPUTE_CATEGORIES))


def fit_profiler_cost(
    graph: StepGraph, added_ns: Float64Array, tail_ns: int, log: LogSteps | None, loader: LoaderWaits | None = None
) -> ProfilerCost:
    """The cost at which the replayed step is nearly the log's; without a log the range that runs with logs have shown.

    The steps of a log differ, because the pace of the host does: the ends are where the replayed step is the log's
    upper and lower quartile. Many costs give nearly the same step, the more so where the device decides: of these it is
    the nearest to what the measured edits of other runs ask for.
    """
    usual = ProfilerCost(
        replay_thresholds.LEAST_PROFILER_COST_RATIO,
        replay_thresholds.LIKELY_PROFILER_COST_RATIO,
        replay_thresholds.MOST_PROFILER_COST_RATIO,
    )
    if log is None:
        return usual
    costs = np.linspace(0, 2 * usual.most, replay_thresholds.PROFILER_COSTS_COUNT)
    works = [without_profiler(graph, added_ns, cost, loader) for cost in costs]
    steady = (find_paced(graph, work, loader) if loader else find_steady(graph, work) for work in works)
    # The profiler holds up the host, so the captured device rests more than without it, and its clock is higher.
    limited = (_limit_clocks(graph, *each, _find_captured_busy(graph)) for each in steady)
    steps_ns = np.minimum.accumulate([times.longest_ns + tail_ns for _, times in limited])
    tolerance_ns = replay_thresholds.SAME_STEP_FRACTION * log.median_ns

    def find_cost(step_ns: int, usual_cost: float) -> float:
        reached_ns = min(max(step_ns, steps_ns[-1]), steps_ns[0])
        # np.interp wants rising values: the step falls with the cost.
        least, most = np.interp([-reached_ns - tolerance_ns, -reached_ns + tolerance_ns], -steps_ns, costs)
        if reached_ns - tolerance_ns <= steps_ns[-1]:
            most = costs[-1]
        return float(min(max(usual_cost, least), most))

    likely = find_cost(log.median_ns, replay_thresholds.LOGGED_PROFILER_COST_RATIO)
    return ProfilerCost(
        min(likely, find_cost(log.high_ns, usual.least)), likely, max(likely, find_cost(log.low_ns, usual.most))
    )


def measure_replayed_budget(graph: StepGraph, work: Work, times: Times, rank: int) -> dict[str, int]:
    """Bucket to its time in the replayed step of ``rank`` (a place in the graph), in the order of precedence.

    The attribution is that of a captured step. The operations take the starts and ends of the replay, and their
    launches and the synchronizing calls the times of their host points. Idle time is then the host's up to the launch
    of the operation that ends it. The profiler owns nothing: what delayed a host thread is part of its segments.
    ``times``: ``replay(graph, work)``. The buckets sum to ``times.step_ns[rank]``; raises ConservationError otherwise.
    """
    points_ns = find_point_times(graph, work, times)
    operations = _replay_operations(graph, times, points_ns, rank)
    calls = graph.calls.with_columns(start_ns=pl.Series(points_ns[0::2]), end_ns=pl.Series(points_ns[1::2]))
    capture = operations["capture_id"].first() if operations.height else 0
    synchronizing = calls.filter(
        (pl.col("rank") == rank) & (pl.col("kind") == "synchronize") & (pl.col("end_ns") > pl.col("start_ns"))
    ).select(pl.lit(capture, dtype=pl.Int64).alias("capture_id"), "thread", "start_ns", "end_ns")
    start_ns = int(graph.rank_start_ns[rank])
    steps = pl.DataFrame(
        [(graph.ranks[rank], 0, start_ns, start_ns + int(times.step_ns[rank]))],
        schema={**dict.fromkeys(STEP, pl.Int64), "start_ns": pl.Int64, "end_ns": pl.Int64},
        orient="row",
    )
    overhead = synchronizing.clear().select(*THREAD, "start_ns", "end_ns")
    causes = label_idle(operations, steps, synchronizing, overhead)
    budget = measure_budget(slice_steps(operations, causes, steps), steps)
    owned_ns = dict(budget.select("bucket", "ns").iter_rows())
    return {bucket.name: int(owned_ns[bucket.name]) for bucket in BUCKETS if bucket.name in owned_ns}


def find_point_times(graph: StepGraph, work: Work, times: Times) -> Int64Array:
    """When every host point is reached: 2i is the start of call i, 2i + 1 its end."""
    offsets_ns = graph.points.offsets_ns(work.host_segment_ns)
    return np.asarray(times.node_ns[graph.points.last_sync_node()] + offsets_ns, dtype=np.int64)


def _replay_operations(graph: StepGraph, times: Times, points_ns: Int64Array, rank: int) -> pl.DataFrame:
    """The operations of ``rank`` at the times of the replay; those that take no time any more are left out."""
    call_of = graph.call_of
    has_call = call_of != NONE
    launch_ns = np.where(has_call, points_ns[2 * np.maximum(call_of, 0)] if len(points_ns) else NONE, NONE)
    return (
        graph.operations.with_columns(
            start_ns=pl.Series(times.start_ns),
            end_ns=pl.Series(times.end_ns),
            launch_start_ns=pl.Series(launch_ns),
            has_call=pl.Series(has_call),
        )
        .filter((pl.col("rank") == rank) & (pl.col("end_ns") > pl.col("start_ns")))
        .with_columns(pl.when("has_call").then("launch_start_ns").alias("launch_start_ns"))
        .sort("start_ns", "end_ns", "stream", "correlation")
    )
