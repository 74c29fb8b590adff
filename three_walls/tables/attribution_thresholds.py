"""The thresholds of ``tables/attribution.yaml``: what the timeline, the ranks and the attribution take for granted."""

from __future__ import annotations

from functools import cache
from typing import Annotated

from pydantic import BeforeValidator

from three_walls.resources import TABLES_DIR
from three_walls.tables.loader import Row, Text, between, load_table
from three_walls.tables.thresholds import Fraction, Ratio


class ReasonedWholeNumber(Row):
    """An entry of the file whose value is a whole number."""

    value: int
    reason: Text


def _value_of(entry: object) -> int:
    return ReasonedWholeNumber.model_validate(entry).value


Count = Annotated[int, between(1, 1_000), BeforeValidator(_value_of)]
Nanoseconds = Annotated[int, between(1, 1_000_000_000), BeforeValidator(_value_of)]


class AttributionThresholds(Row):
    """``attribution.yaml``. The reasons stand in the file; the docstrings here give the meaning."""

    maximum_operations_between_gemms: Count
    """Operations around a softmax that count as unfused attention."""
    same_optimizer_phase_fraction: Fraction
    """Of a step's model work: clusters of optimizer kernels with less between them are one phase."""
    maximum_pause_fraction: Fraction
    """Of the step: a longer pause between two step ranges belongs to no step."""
    minimum_common_steps: Count
    """Step ends that two captures must have in common before their steps are numbered alike."""
    same_step_fraction: Fraction
    """Of the step: ends within this distance are of the same step."""
    different_step_fraction: Fraction
    """Of the step: ends further apart are of different steps."""
    minimum_common_ends: Count
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
    followed_events: Count
    """Events in a row that are followed from a waiting operation to its producers."""
    ready_quantile: Fraction
    """Quantile of the durations of a kind of call that counts as its transfer."""
    minimum_calls: Count
    """Calls of a kind that are needed for that quantile."""
    maximum_control_ns: Nanoseconds
    """Transfer of a call that carries next to nothing."""
    minimum_small_exchange_ratio: Ratio
    """Jump in the sorted durations that separates exchanges of counts from exchanges of tokens."""
    maximum_small_exchange_ns: Nanoseconds
    """Duration of an exchange of counts."""
    minimum_joined_launches_fraction: Fraction
    """Of the kernels: those that need their launch call for launches to count as recorded."""


@cache
def attribution_thresholds() -> AttributionThresholds:
    """The thresholds that ship with the program."""
    return load_table(TABLES_DIR / "attribution.yaml", AttributionThresholds)
