"""Thresholds: one model per YAML of thresholds, one field per threshold.

An entry of the file is ``name: {value: ..., reason: ...}``. To add a threshold, add the entry and the field of the same
name. The reasons stand in the file; the docstrings here give the meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated

from pydantic import BeforeValidator

from three_walls.resources import TABLES_DIR
from three_walls.tables.loader import Row, Text, between, load_table


class ReasonedNumber(Row):
    """An entry of a file of thresholds."""

    value: float
    reason: Text


def _value_of(entry: object) -> float:
    return ReasonedNumber.model_validate(entry).value


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


class VerdictThresholds(Row):
    """``verdict.yaml``: when a verdict is given. Fractions of the step, unless the name states otherwise."""

    minimum_recoverable_fraction: Fraction
    """Below this recoverable time no wall is named."""
    minimum_margin_fraction: Fraction
    """Walls closer to each other than this are not ranked."""
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
    """A gain that is likely or at most below this leaves the edit out of the plan."""
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
    """Of the excess compute: the part outside of the experts from which on a slow GPU is the cause, not imbalance."""
    maximum_end_spread_ms: Milliseconds
    """Calls that end further apart are not matched as one collective."""
    maximum_even_end_spread_ms: Milliseconds
    """The same for collectives that end evenly: all-reduce and all-gather."""
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
    even_spread_ratio: Ratio
    """The same: up to here all kernels are slower alike, as with lower clocks."""

    @property
    def maximum_end_spread_ns(self) -> int:
        return round(self.maximum_end_spread_ms * 1e6)

    @property
    def maximum_even_end_spread_ns(self) -> int:
        return round(self.maximum_even_end_spread_ms * 1e6)


class LogThresholds(Row):
    """``log.yaml``: steady iterations, logs of another run, slow ranks, short memory."""

    minimum_step_tolerance_fraction: Fraction
    """Of the median iteration: one that differs by less is steady."""
    tolerance_in_deviations: Ratio
    """Times the run's own median deviation: the tolerance of a run that jitters more."""
    minimum_steady_count: Count
    """Steady iterations needed for a spread."""
    minimum_iterations_per_captured_step: Count
    """Iterations in the log per captured step from which on their median counts as unprofiled."""
    minimum_perturbation_ratio: Ratio
    """Traced step to unprofiled iteration: above it the profiler made the step longer."""
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
    """``facts.yaml``: from which values on a fact counts as known, and what the kernels of a step are taken to show."""

    maximum_ambiguous_fraction: Fraction
    """Of the step: with more in SendRecv kernels of unknown owner no time of expert parallelism is given."""
    minimum_recompute_ratio: Ratio
    """Attention forward passes per backward pass from which layers are taken to be replayed."""
    minimum_full_recompute_ratio: Ratio
    """GEMMs from a replayed attention to its backward pass, in forward layers: from here on recompute is full."""
    minimum_replayed_layer_ratio: Ratio
    """GEMMs of a backward layer per GEMM of a forward layer from which work other than attention is replayed."""
    minimum_shaped_fraction: Fraction
    """Of the pointwise work: the part that needs recorded shapes before work found by shapes is known."""
    minimum_overlap_calls: Count
    """Calls of a GEMM, alone and concurrent with communication, needed to compare their medians."""
    minimum_concurrent_fraction: Fraction
    """Of a GEMM's time: concurrent communication from which the call counts as concurrent."""
    maximum_alone_spread_ratio: Ratio
    """Ninth over first tenth of the GEMM calls that ran alone: above it they are not of one size."""
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
    """GPU family -> position of its generation, from 0; the file lists the families of each generation, older first."""
    benchmark_settings: frozenset[Text]
    """Settings of benchmarks only: they save work that production needs, or change what is learned."""
    batch_settings: frozenset[Text]
    """Settings that are shown and marked: they change what is learned, or follow memory."""
    newer_names: Mapping[str, Text]
    """Key of a recipe -> key that holds the same in newer releases."""


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
