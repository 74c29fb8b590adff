"""Walls, gains and facts as text."""

from __future__ import annotations

from three_walls.advice.finding import FREES_MEMORY, UPPER_BOUND, Gain
from three_walls.facts.fact_rows import GemmShape
from three_walls.lib.fact import Fact
from three_walls.lib.text import (
    NUMBER_FORMATS,
    UNKNOWN,
    format_count,
    format_dimension,
    format_ms,
    format_ms_estimate,
    format_ms_range,
    format_name,
    format_setting,
    format_share,
)
from three_walls.tables.buckets import SubWall, Wall

_WALL_NAMES = {
    Wall.MEMORY: "Memory wall",
    Wall.COMMUNICATION: "Communication wall",
    Wall.COMPUTE_HOST: "Compute/host wall",
}
SUB_WALL_NAMES = {SubWall.COMPUTE: "compute-bound", SubWall.HOST: "host-bound"}


def format_wall(wall: Wall | None, sub_wall: SubWall | None = None) -> str:
    """A wall as a heading, with its half where it has one: ``Compute/host wall: host-bound``."""
    if wall is None:
        return "No wall named"
    name = _WALL_NAMES[wall]
    return name if sub_wall is None else f"{name}: {SUB_WALL_NAMES[sub_wall]}"


def describe_gain(gain: Gain) -> str:
    """What an edit gains, with its basis.

    ``gain 12-30 ms, likely 20 ms (replayed)``, ``gain -12 to 30 ms, likely 20 ms, may cost up to 12 ms (replayed)``,
    ``costs 12-30 ms, likely 20 ms (replayed)``, ``gain up to 12.3 ms (upper bound)``,
    ``frees memory, costs about 1.5% of the step``, ``frees memory``, ``gain unknown``.
    """
    if gain.basis == FREES_MEMORY:
        known = gain.cost_fraction is not None
        costs = f", {format_cost(gain.cost_fraction)}" if known else ""
        return f"{format_gain_bounds(gain)}{costs}"
    if gain.high is None and gain.low is None:
        return f"gain {UNKNOWN}"
    if gain.low is not None and gain.high is not None and gain.high <= 0 and gain.low < 0:
        cost = Gain(-gain.high, None if gain.likely is None else -gain.likely, -gain.low, gain.basis)
        return describe_gain(cost).replace("gain ", "costs ", 1)
    has_likely = gain.likely is not None and gain.low != gain.high
    likely = f", likely {format_likely(gain)}" if has_likely else ""
    loss = f", {risk}" if (risk := describe_loss(gain)) else ""
    return f"gain {format_gain_bounds(gain)}{likely}{loss} ({format_name(gain.basis)})"


def describe_loss(gain: Gain) -> str:
    """``may cost up to 12 ms`` where the low end of a gain is a loss, as precise as its range, else empty."""
    if gain.low is None or format_gain_bounds(gain)[:1] != "-":
        return ""
    return f"may cost up to {format_ms_range(-gain.low, -gain.low)}"


def format_gain_bounds(gain: Gain) -> str:
    """The range of a gain: ``12-30 ms``, ``up to 12.3 ms`` for an upper bound, or ``frees memory``."""
    if gain.basis == FREES_MEMORY:
        return "frees memory"
    if gain.basis == UPPER_BOUND and gain.high is not None:
        return f"up to {format_ms(gain.high)}"
    return format_ms_range(gain.low, gain.high)


def format_gain(gain: Gain) -> str:
    """The likely gain with its range: ``20 ms (12-30 ms)``; the range alone where no replay gives more,
    ``gain unknown`` without one."""
    bounds = format_gain_bounds(gain)
    if bounds == UNKNOWN:
        return f"gain {UNKNOWN}"
    if gain.basis == FREES_MEMORY or gain.likely is None or gain.low == gain.high:
        return bounds
    return f"{format_likely(gain)} ({bounds})"


def format_likely(gain: Gain) -> str:
    """The likely gain, as precise as its range: ``20 ms``."""
    if gain.likely is None:
        return UNKNOWN
    widest_ns = gain.likely if gain.high is None else max(gain.high, -(gain.low or 0))
    return format_ms_estimate(gain.likely, widest_ns)


def format_cost(fraction: float | None) -> str:
    """What an edit that frees memory costs: ``costs about 1.5% of the step``."""
    if fraction == 0:
        return "costs no time"
    return f"costs about {format_share(fraction)} of the step"


def format_gemm(shape: GemmShape) -> str:
    """The sizes of a GEMM as ``8096-8217 x 4096 x 2048`` (m x k x n), of a batch as ``32 of 4096 x 128 x 4096``."""
    sizes = " x ".join(format_dimension(bounds) for bounds in (shape.m, shape.k, shape.n))
    return sizes if shape.batch == 1 else f"{format_count(shape.batch)} of {sizes}"


def format_fact(fact: Fact) -> str:
    """A fact's value in its unit; ``unknown`` when it is missing."""
    if fact.is_missing:
        return UNKNOWN
    value = fact.value
    if fact.unit == "flag" and isinstance(value, bool):
        return "yes" if value else "no"
    write_number = NUMBER_FORMATS.get(fact.unit)
    if write_number is None or isinstance(value, bool) or not isinstance(value, int | float):
        return format_setting(value)
    return write_number(value)
