"""Thresholds: one model per YAML of thresholds, one field per threshold.

An entry of a file is ``name: {value: ..., reason: ...}``. To add a threshold, add the entry and a field of the same
name. The file gives the reason of the value, the docstring of the field its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Annotated

from three_walls.lib.load_documents import Row, Text, between, check_value, load_table, one_of
from three_walls.lib.resources import TABLES_DIR
from three_walls.log.log_lines import EVENT_KINDS
from three_walls.log.training_log import LogLayout
from three_walls.tables.buckets import CATEGORIES
from three_walls.tables.rows import BeforeValidator


class ReasonedNumber(Row):
    """An entry of a file of thresholds."""

    value: float
    reason: Text


class ReasonedWholeNumber(Row):
    """An entry whose value is a whole number."""

    value: int
    reason: Text


def _value_of(entry: object) -> float:
    return check_value(entry, ReasonedNumber).value


def _whole_value_of(entry: object) -> int:
    return check_value(entry, ReasonedWholeNumber).value


def _number_generations(generations: object) -> object:
    if not isinstance(generations, list) or not all(isinstance(families, list) for families in generations):
        raise ValueError("expected a list of lists of GPU families")
    return {family: place for place, families in enumerate(generations) for family in families}


Reasoned = BeforeValidator(_value_of)
"""Reads an entry as its value."""
Fraction = Annotated[float, between(0, 1), Reasoned]
Ratio = Annotated[float, between(0, 100), Reasoned]
Count = Annotated[float, between(0, 100), Reasoned]
Milliseconds = Annotated[float, between(0, 10), Reasoned]
WholeCount = Annotated[int, between(1, 1_000), BeforeValidator(_whole_value_of)]
Categories = tuple[Annotated[Text, one_of(CATEGORIES)], ...]
Nanoseconds = Annotated[int, between(1, 1_000_000_000), BeforeValidator(_whole_value_of)]


class AttributionThresholds(Row):
    """``attribution.yaml``: what the timeline, the matching of ranks and the attribution take for granted."""

    maximum_operations_between_gemms: WholeCount
    """Operations around a softmax that count as unfused attention."""
    same_optimizer_phase_fraction: Fraction
    """Of a step's model work: clusters of optimizer kernels with less between them are one phase."""
    maximum_pause_fraction: Fraction
    """Of the step: a longer pause between two step ranges belongs to no step."""
    minimum_common_steps: WholeCount
    """Step ends that two captures must have in common before their steps are numbered alike."""
    same_step_fraction: Fraction
    """Of the step: ends within this distance are of the same step."""
    different_step_fraction: Fraction
    """Of the step: ends further apart are of different steps."""
    minimum_common_ends: WholeCount
    """Matched ends that two captures need before a clock is fitted."""
    better_clock_fraction: Fraction
    """Of a simpler clock's error: a fitted clock must have less."""
    maximum_same_host_error_ns: Nanoseconds
    """Error of session clocks up to which two captures are taken to be of one host."""
    maximum_launch_latency_ns: Nanoseconds
    """From the end of a launch call to the start of an operation that nothing delays."""
    maximum_return_ns: Nanoseconds
    """From the end of an operation to the return of the call that waited for it."""
    maximum_event_latency_ns: Nanoseconds
    """From the end of an operation to the start of the next one on a stream that waited for it."""
    followed_events: WholeCount
    """Events in a row that are followed from a waiting operation to its producers."""
    most_attributed_operations: Annotated[int, between(1, 10_000_000), BeforeValidator(_whole_value_of)]
    """Operations of all ranks up to which all steps are attributed, and about those of the steps that else are."""
    fewest_attributed_steps: WholeCount
    """Steps that are attributed however many operations they have."""
    attributed_stretches: WholeCount
    """Stretches of consecutive steps that these are."""
    longest_attributed_steps: WholeCount
    """The longest steps, which are attributed besides."""
    ready_quantile: Fraction
    """Quantile of the durations of a kind of call, other than token exchanges, that counts as its transfer."""
    minimum_calls: WholeCount
    """Calls of a kind that are needed for that quantile."""
    maximum_control_ns: Nanoseconds
    """Transfer of a call that carries next to nothing."""
    minimum_small_exchange_ratio: Ratio
    """Jump in the sorted durations that separates exchanges of counts from exchanges of tokens."""
    maximum_small_exchange_ns: Nanoseconds
    """Duration of an exchange of counts."""
    minimum_joined_launches_fraction: Fraction
    """Of the kernels: those that need their launch call for launches to count as recorded."""


class ReplayThresholds(Row):
    """``replay.yaml``: what the replay of a step takes for granted."""

    silent_thread_ns: Nanoseconds
    """Silence of a thread after which another thread's call may be what it waited for."""
    long_allocation_ns: Nanoseconds
    """Duration from which on an allocation waited for the device."""
    long_launch_ns: Nanoseconds
    """Duration from which on a launch may have waited for a place in the launch queue."""
    full_queue_operations: WholeCount
    """Operations that wait to run while the launch queue is full, at least."""
    longest_allocation_tail_ns: Nanoseconds
    """From the end of the awaited operation to the return of such a call."""
    shortest_wait_ns: Nanoseconds
    """Duration of a synchronizing call that waits for nothing."""
    usual_stream_gap_ns: Nanoseconds
    """Longest gap between two operations of a stream that wait for nothing else."""
    least_stream_gap_ns: Nanoseconds
    """What is taken for a longer gap once nothing else holds the operation back."""
    least_kernel_ns: Nanoseconds
    """No kernel takes less."""
    longest_event_gap_ns: Nanoseconds
    """Longest gap between an operation and one that waited for its event."""
    launch_latency_quantile: Fraction
    """Of the times from launch to start: the one of launches that wait for nothing."""
    least_launch_latency_ns: Nanoseconds
    """No launch is faster."""
    longest_latency_ratio: Ratio
    """Of that latency: longest one on an idle stream."""
    late_after_launch_ns: Nanoseconds
    """After its launch: an operation that starts later was held back."""
    late_after_stream_ns: Nanoseconds
    """After the operation before it on its stream."""
    late_after_event_ns: Nanoseconds
    """After an operation whose event its stream waited for."""
    least_held_ns: Nanoseconds
    """Delay of an operation on a shared GPU from which on another process is taken to have held it up."""
    resource_reach_ns: Nanoseconds
    """How long ago an operation may have ended whose multiprocessors another one waited for."""
    resource_last_wave_fraction: Fraction
    """Of an operation's duration before its end: from then on another one may take its multiprocessors."""
    resource_last_wave_ns: Nanoseconds
    """The same for short operations."""
    categories_outside_layers: Categories
    """Launched at any time between the operations of layers."""
    categories_before_micro_batch: Categories
    """What a step launches before its first micro-batch."""
    categories_before_dispatch: Categories
    """What prepares a dispatch of tokens."""
    categories_after_layers: Categories
    """What ends the last layer of a micro-batch where no norm follows it."""
    most_ranks_read: WholeCount
    """With more ranks the ranges of one rank alone are read."""
    resynchronize_launches: WholeCount
    """How far ahead two ranks' launches are searched for a place from which they agree again."""
    agreeing_launches: WholeCount
    """How many launches in a row have to agree there."""
    steady_fraction: Fraction
    """Of the step: replays that differ by less are steady."""
    most_steady_replays: WholeCount
    """Replays of a step as it follows itself."""
    wait_replays: WholeCount
    """Replays in which the waiting for ranks that were not captured follows the step."""
    least_shrinking_wait_fraction: Fraction
    """Of the waiting for ranks that were not captured: what shrinks with the step, where an edit gains least."""
    likely_shrinking_wait_fraction: Fraction
    """The likely part."""
    most_shrinking_wait_fraction: Fraction
    """The part where an edit gains most."""
    profiler_costs_count: WholeCount
    """Costs of the profiler for which the step is replayed, to find the one that meets the log's step."""
    shortest_segment_fraction: Fraction
    """Of the step: shorter segments of the critical path are joined to short neighbours in the report."""
    most_compared_steps: WholeCount
    """Kept steps whose unchanged replays are compared with the capture."""
    maximum_replay_error_fraction: Fraction
    """Of the step: with a larger error nothing is predicted."""
    least_step_ns: Nanoseconds
    """Nothing is predicted of a shorter step."""
    minimum_launched_fraction: Fraction
    """Of the operations: with fewer recorded launches nothing is predicted."""
    maximum_envelope_fraction: Fraction
    """Of the step in CUDA graphs recorded as a whole: with more nothing is predicted."""
    least_profiler_cost_ratio: Ratio
    """Of the profiler's cost by the capture's own ranges and calls: the least that it can have been."""
    likely_profiler_cost_ratio: Ratio
    """The likely one."""
    most_profiler_cost_ratio: Ratio
    """The most."""
    host_drift_fraction: Fraction
    """By how much the host of another run of the same configuration is faster or slower."""
    step_drift_fraction: Fraction
    """By how much a step that the device decides is shorter or longer in another run."""
    same_step_fraction: Fraction
    """Replayed steps that differ by less than this share are the same when the profiler's cost is fitted."""
    least_host_fraction: Fraction
    """Of a host piece: what is left at least without the profiler."""


class VerdictThresholds(Row):
    """``verdict.yaml``: when a verdict is given. Fractions of the step, unless the name states otherwise."""

    minimum_recoverable_fraction: Fraction
    """Below this recoverable time no wall is named."""
    minimum_margin_fraction: Fraction
    """Walls closer to each other than this are not ranked."""
    minimum_culprit_to_wall_fraction: Fraction
    """Of what the largest wall gives back by replay: a late rank that costs less is not what holds the run back."""
    minimum_compute_busy_fraction: Fraction
    """From this much compute on, the step is compute-bound."""
    notable_wait_fraction: Fraction
    """Waiting for peers above this is reported."""
    maximum_wait_fraction: Fraction
    """Above this much unexplained waiting for peers no wall is named."""
    maximum_unexplained_idle_fraction: Fraction
    """Above this much idle time that belongs to no wall no wall is named."""
    maximum_cuda_graph_fraction: Fraction
    """Above this much time in CUDA graphs recorded as a whole no wall is named."""
    maximum_unclassified_fraction: Fraction
    """Above this much time in unclassified kernels no wall is named."""
    minimum_plan_gain_fraction: Fraction
    """An edit whose likely or largest gain is below this is left out of the plan."""
    near_threshold_fraction: Fraction
    """Of a threshold: a measured value that misses it by less is near it, and so is a gain that a plan needs."""
    reachable_gemm_efficiency_fraction: Fraction
    """Of the dense peak: what GEMMs reach at best."""
    same_gain_fraction: Fraction
    """Of the largest replayed gain: gains above this count as equal, and the wall of the verdict goes first."""
    comparable_gain_fraction: Fraction
    """Of the largest likely gain: gains above this count as equal, and the wall of the verdict goes first."""


class RankThresholds(Row):
    """``ranks.yaml``: when a rank is reported as a straggler."""

    minimum_late_fraction: Fraction
    """Of the step: a rank that delays its group by less is not a straggler."""
    minimum_late_launches_fraction: Fraction
    """Of the step: a rank with late launches is not to be fixed first below this, where no log shows what of them the
    profiler caused."""
    minimum_blame_fraction: Fraction
    """Of a wait: the part that has to end with one rank's arrival before that rank is blamed for the wait."""
    minimum_resolved_fraction: Fraction
    """Of a class's time: the part whose calls have to match before the class is split into wait and transfer."""
    minimum_cause_fraction: Fraction
    """Of the time a rank was late: the part that a cause has to explain to be named."""
    minimum_slow_outside_fraction: Fraction
    """Of the excess compute: from this part outside of the experts on, a slow GPU is the cause and not imbalance."""
    maximum_end_spread_ms: Milliseconds
    """Calls that end further apart are not matched as one collective."""
    maximum_even_end_spread_ms: Milliseconds
    """The same for all-reduce and all-gather, whose members end closer together."""
    maximum_even_end_spread_fraction: Fraction
    """Of the shortest call: what a long transfer may add to :attr:`maximum_even_end_spread_ms`."""
    minimum_start_skew_fraction: Fraction
    """Of the step: captures that start further apart than this affect the first captured steps."""
    minimum_repeated_calls: Count
    """Calls of a kernel in a step from which it counts as repeated."""
    minimum_repeated_kernel_ms: Milliseconds
    """Kernels that take less on average do not count as repeated."""
    minimum_repeated_fraction: Fraction
    """Of the compute: with less of it in repeated kernels their spread is not known."""
    shared_gpu_spread_ratio: Ratio
    """A slow rank's spread of repeated kernels to its peers': from here on another process is likely on its GPU."""
    minimum_shared_gpu_spread_ratio: Ratio
    """Mean over fastest call of repeated kernels: a rank above it does not represent the run, also where no call shows
    it late."""
    minimum_slow_kernels_ratio: Ratio
    """Time for the same kernels over that of the usual rank: a rank above it is slow."""
    even_spread_ratio: Ratio
    """The same: up to here all kernels are slower alike, as with lower clocks."""
    most_slow_ranks_compared: WholeCount
    """Ranks that are slow together: of more, only the slowest are each compared with the others."""
    most_ranks_in_full: WholeCount
    """Captures of a run that are all read in full; of more, all are surveyed and some are read in full."""
    most_late_ranks_in_full: WholeCount
    """Late ranks of a surveyed run that are read in full, the latest first."""
    peers_of_late_rank: WholeCount
    """Ranks that are read in full with each of them, to find the cause by comparison."""
    most_stages_in_full: WholeCount
    """Pipeline stages of a surveyed run of which one rank each is read in full."""
    most_ranks_per_task: WholeCount
    """Captures that one task of a survey reads."""
    most_mib_per_task: WholeCount
    """Size of the captures that one task reads together, if they are several."""

    @property
    def maximum_end_spread_ns(self) -> int:
        return round(self.maximum_end_spread_ms * 1e6)

    @property
    def maximum_even_end_spread_ns(self) -> int:
        return round(self.maximum_even_end_spread_ms * 1e6)


class LogThresholds(Row):
    """``log.yaml``: steady iterations, logs of another run, slow ranks, short memory."""

    disturbing_events: frozenset[Annotated[Text, one_of(EVENT_KINDS)]]
    """Kinds of lines after whose iteration the next one is not steady."""
    plateau_fraction: Fraction
    """Of the undisturbed iterations: the last part, whose median is the length of a steady iteration."""
    minimum_step_tolerance_fraction: Fraction
    """Of the median iteration: one that differs by less is steady."""
    tolerance_in_deviations: Ratio
    """Times the run's own median deviation: the tolerance of a run that jitters more."""
    minimum_steady_count: Count
    """Steady iterations needed for a spread."""
    minimum_iterations_per_captured_step: Count
    """Iterations in the log per captured step from which on their median counts as unprofiled."""
    captured_step_tolerance_fraction: Fraction
    """Of a captured step: an iteration of the log that differs by less may be this step."""
    minimum_perturbation_ratio: Ratio
    """Traced step to unprofiled iteration: above it the profiler made the step longer."""
    compared_layout_sizes: tuple[Annotated[Text, one_of([field.name for field in fields(LogLayout)])], ...]
    """Sizes of the parallel layout: a log that prints another one than the trace records is of another run."""
    compared_arguments: tuple[Text, ...]
    """Config keys of the model and the batch: the same for Megatron-LM's arguments in the log."""
    minimum_step_ratio: Ratio
    """Traced step to unprofiled iteration: below it the log is of another run."""
    maximum_step_ratio: Ratio
    """Traced step to unprofiled iteration: above it the log is of another run."""
    slow_rank_ratio: Ratio
    """A rank's own work to that of the typical rank: above it the rank is slow."""
    slow_rank_prints_fraction: Fraction
    """Of the timer prints: the part in which a rank has to be slow."""
    near_limit_fraction: Fraction
    """Of the device's memory, allocated: above it memory is short."""
    reserved_limit_fraction: Fraction
    """Of the device's memory, reserved: above it memory is short."""


class FactThresholds(Row):
    """``facts.yaml``: when a fact counts as known, and what is concluded from the kernels of a step."""

    maximum_ambiguous_fraction: Fraction
    """Of the step: with more in SendRecv kernels of unknown owner no time of expert parallelism is given."""
    minimum_recompute_ratio: Ratio
    """Attention forward passes per backward pass from which layers are taken to be replayed."""
    minimum_full_recompute_ratio: Ratio
    """GEMMs from a replayed attention to its backward pass, in forward layers: from here on recompute is full."""
    minimum_replayed_layer_ratio: Ratio
    """GEMMs of a backward layer per GEMM of a forward layer from which work other than attention is replayed."""
    minimum_shaped_fraction: Fraction
    """Of the pointwise operations: the part that must have recorded shapes before work found by shapes is known."""
    minimum_overlap_calls: Count
    """Calls of a GEMM, alone and concurrent with communication, needed to compare their medians."""
    minimum_concurrent_fraction: Fraction
    """Of a GEMM's time: concurrent communication from which the call counts as concurrent."""
    maximum_alone_spread_ratio: Ratio
    """Ninth over first decile of the GEMM calls that ran alone: above it they are not of one size."""
    minimum_link_fraction: Fraction
    """Of a link's bandwidth: communication that stays below it does not use the link."""
    minimum_outlier_steps: Count
    """Kept steps that a rank needs before one of them is reported as an outlier."""
    minimum_outlier_deviations: Ratio
    """Median absolute deviations above the median from which a step is an outlier."""
    minimum_outlier_excess_fraction: Fraction
    """Of the median step: a step that is longer by less is no outlier."""


class RecipeLimits(Row):
    """``nearest-recipe.yaml``: what counts as near when a tuned recipe is searched."""

    largest_size_ratio: Annotated[float, between(1, 100), Reasoned]
    """Hidden size, experts, top-k and expert FFN of a near recipe each differ by no more than this factor."""
    layers_weight: Fraction
    """Weight of the number of layers in the distance."""
    other_kind_ratio: Annotated[float, between(1, 100), Reasoned]
    """Factor that another kind of attention (MLA) or of layers (Mamba, linear attention) counts as."""
    generations: Annotated[Mapping[str, int], BeforeValidator(_number_generations)]
    """GPU family -> number of its generation, from 0. The file lists the families by generation, older first."""
    benchmark_settings: frozenset[Text]
    """Settings that only benchmarks use: they save work that production needs, or change what is learned."""
    batch_settings: frozenset[Text]
    """Settings that are shown with a mark: they change what is learned, or depend on memory."""
    newer_names: Mapping[str, Text]
    """Key of a recipe -> key that holds the same in newer releases."""


@cache
def attribution_thresholds() -> AttributionThresholds:
    """The thresholds of timeline, ranks and attribution that ship with the program."""
    return load_table(TABLES_DIR / "attribution.yaml", AttributionThresholds)


@cache
def replay_thresholds() -> ReplayThresholds:
    """What ships with the program."""
    return load_table(TABLES_DIR / "replay.yaml", ReplayThresholds)


@cache
def default_thresholds() -> VerdictThresholds:
    """The thresholds of the verdict that ship with the program."""
    return load_table(TABLES_DIR / "verdict.yaml", VerdictThresholds)


@cache
def default_rank_thresholds() -> RankThresholds:
    """The thresholds of the comparison of ranks that ship with the program."""
    return load_table(TABLES_DIR / "ranks.yaml", RankThresholds)


@cache
def default_log_thresholds() -> LogThresholds:
    """The thresholds of the training log that ship with the program."""
    return load_table(TABLES_DIR / "log.yaml", LogThresholds)


@cache
def fact_thresholds() -> FactThresholds:
    """The thresholds of facts that ship with the program."""
    return load_table(TABLES_DIR / "facts.yaml", FactThresholds)


@cache
def recipe_limits() -> RecipeLimits:
    """The limits of the search for a tuned recipe that ship with the program."""
    return load_table(TABLES_DIR / "nearest-recipe.yaml", RecipeLimits)
