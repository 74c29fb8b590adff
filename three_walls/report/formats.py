"""The only place where numbers become strings: milliseconds, shares, bandwidths, ranges, "unknown".

Takes nanoseconds, bytes and fractions, as the model holds them. ``None`` always reads "unknown":
a missing number must never look like zero.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from three_walls.model.buckets import SubWall, Wall
from three_walls.model.fact import Fact, FactValue
from three_walls.model.finding import Gain
from three_walls.model.rule import FREES_MEMORY, UPPER_BOUND
from three_walls.model.units import NS_PER_MS, NS_PER_US

if TYPE_CHECKING:
    from three_walls.model.report import (
        GemmShape,  # its module takes long to import, and every command formats something
    )

UNKNOWN = "unknown"
UNSET = "unset"

_CLAUSE_END = re.compile(r"[.;](?= )")
_BYTES_PER_GIB = 1 << 30
_BYTES_PER_GB = 1_000_000_000
_FLOP_PER_TFLOP = 1_000_000_000_000

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


def _decimals(value_ms: float) -> int:
    """Decimals that leave about three significant digits. More would claim a precision that no step time has."""
    size = abs(value_ms)
    return 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.0995 else 3


def _write(value: float, decimals: int) -> str:
    if value == 0:
        return "0"
    return "<0.001" if 0 < value < 0.0005 else f"{value:,.{decimals}f}"


def format_ms(value_ns: float | None) -> str:
    """Nanoseconds as ``412 ms``."""
    if value_ns is None:
        return UNKNOWN
    value_ms = value_ns / NS_PER_MS
    return f"{_write(value_ms, _decimals(value_ms))} ms"


def format_us(value_ns: float | None) -> str:
    """Nanoseconds as ``3.49 us``, for kernels and calls."""
    if value_ns is None:
        return UNKNOWN
    value_us = value_ns / NS_PER_US
    return f"{_write(value_us, min(2, _decimals(value_us)))} us"


def format_ms_change(change_ns: float | None) -> str:
    """A difference in nanoseconds as ``+12.3 ms`` or ``-4.56 ms``."""
    return UNKNOWN if change_ns is None else f"{_sign(change_ns)}{format_ms(abs(change_ns))}"


def format_share_change(fraction: float | None) -> str:
    """A relative difference as ``+3.1%`` or ``-0.8%``."""
    return UNKNOWN if fraction is None else f"{_sign(fraction)}{format_share(abs(fraction))}"


def format_count_change(change: float | None) -> str:
    """A difference of numbers as ``+12``."""
    return UNKNOWN if change is None else f"{_sign(change)}{format_count(abs(change))}"


def _sign(value: float) -> str:
    return "+" if value > 0 else "-" if value < 0 else ""


def format_ms_range(low: float | None, high: float | None) -> str:
    """Two bounds in nanoseconds as ``12-30 ms``, or ``-12 to 30 ms``; bounds that read the same are written once."""
    if low is None and high is None:
        return UNKNOWN
    if low is None or high is None:
        return f"at least {format_ms(low)}" if high is None else f"up to {format_ms(high)}"
    low, high = low / NS_PER_MS, high / NS_PER_MS
    decimals = _decimals_of_estimate(max(high, -low))
    low = 0.0 if low < 0 and round(low, decimals) == 0 else low  # not -0.0
    texts = _write(low, decimals), _write(high, decimals)
    if texts[0] == texts[1]:
        return f"{texts[0]} ms"
    return f"{texts[0]}{' to ' if low < 0 else '-'}{texts[1]} ms"


def _decimals_of_estimate(value_ms: float) -> int:
    """One digit fewer than a measured time has: bounds are estimates."""
    return max(0, _decimals(value_ms) - 1)


def describe_gain(gain: Gain) -> str:
    """What an edit gains, with its basis.

    ``gain 12-30 ms, likely 20 ms (measured)``, ``gain -12 to 30 ms, likely 20 ms, may cost up to 12 ms (replayed)``,
    ``costs 12-30 ms, likely 20 ms (replayed)``, ``gain up to 12.3 ms (upper bound)``,
    ``frees memory, costs about 1.5% of the step``, ``gain unknown``.
    """
    if gain.basis == FREES_MEMORY:
        return f"{format_gain_bounds(gain)}, {format_cost(gain.cost_fraction, gain.cost_is_estimated)}"
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


def format_name(identifier: str) -> str:
    """An identifier in words: ``upper bound`` for ``upper_bound``."""
    return identifier.replace("_", " ")


def format_gain_bounds(gain: Gain) -> str:
    """The range of a gain: ``12-30 ms``, ``up to 12.3 ms`` for an upper bound, or ``frees memory``."""
    if gain.basis == FREES_MEMORY:
        return "frees memory"
    if gain.basis == UPPER_BOUND and gain.high is not None:
        return f"up to {format_ms(gain.high)}"
    return format_ms_range(gain.low, gain.high)


def format_likely(gain: Gain) -> str:
    """The likely gain, as precise as its range: ``20 ms``."""
    if gain.likely is None:
        return UNKNOWN
    likely_ms = gain.likely / NS_PER_MS
    widest_ns = gain.likely if gain.high is None else max(gain.high, -(gain.low or 0))
    return f"{_write(likely_ms, _decimals_of_estimate(widest_ns / NS_PER_MS))} ms"


def format_cost(fraction: float | None, is_estimated: bool) -> str:
    """What an edit that frees memory costs: ``costs about 1.5% of the step``."""
    if fraction == 0:
        return "costs no time"
    estimated = " (estimated)" if is_estimated else ""
    return f"costs about {format_share(fraction)} of the step{estimated}"


def format_share(fraction: float | None) -> str:
    """A fraction as ``12.3%``. One that rounds to zero without being zero reads ``<0.1%``."""
    if fraction is None:
        return UNKNOWN
    if fraction == 0:
        return "0%"
    return "<0.1%" if 0 < fraction < 0.0005 else f"{fraction:.1%}"


def format_css_percent(fraction: float) -> str:
    """A fraction as a CSS length between 0% and 100%: ``12.346%``."""
    return f"{min(max(fraction, 0.0), 1.0):.3%}"


def format_count(value: float | None) -> str:
    """A number of things as ``12,288``."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def format_gib(value_bytes: float | None) -> str:
    """Bytes as ``79.1 GiB``."""
    return UNKNOWN if value_bytes is None else f"{value_bytes / _BYTES_PER_GIB:,.1f} GiB"


def format_bandwidth(value_bytes_per_s: float | None) -> str:
    """Bytes per second as ``48.0 GB/s`` (powers of ten, as links are sold)."""
    return UNKNOWN if value_bytes_per_s is None else f"{value_bytes_per_s / _BYTES_PER_GB:,.1f} GB/s"


def format_moved(value_bytes: float | None) -> str:
    """Bytes that crossed a link as ``1.34 GB``: powers of ten, so that it divides by a bandwidth."""
    if value_bytes is None:
        return UNKNOWN
    value_gb = value_bytes / _BYTES_PER_GB
    return f"{_write(value_gb, _decimals(value_gb))} GB"


def format_tflops(value: float | None) -> str:
    """A rate of floating point operations as ``65.9 TFLOP/s``."""
    return UNKNOWN if value is None else f"{value:,.1f} TFLOP/s"


def format_flops(value: float | None) -> str:
    """Floating point operations as ``37.8 TFLOP``."""
    return UNKNOWN if value is None else f"{value / _FLOP_PER_TFLOP:,.1f} TFLOP"


def format_flops_rate(value_per_s: float | None) -> str:
    """Floating point operations per second as ``512.3 TFLOP/s``."""
    return UNKNOWN if value_per_s is None else f"{format_flops(value_per_s)}/s"


def format_dimension(bounds: tuple[int, int]) -> str:
    """A dimension, or the bounds of one that varies: ``4096`` or ``8096-8217``."""
    low, high = bounds
    return f"{low}" if low == high else f"{low}-{high}"


def format_gemm(shape: GemmShape) -> str:
    """The sizes of a GEMM as ``8096-8217 x 4096 x 2048`` (m x k x n), of a batch as ``32 of 4096 x 128 x 4096``."""
    sizes = " x ".join(format_dimension(bounds) for bounds in (shape.m, shape.k, shape.n))
    return sizes if shape.batch == 1 else f"{format_count(shape.batch)} of {sizes}"


def format_ratio(value: float | None) -> str:
    """A ratio as ``1.07x``."""
    return UNKNOWN if value is None else f"{value:.2f}x"


def format_rank(rank: int | None) -> str:
    """A rank as ``rank 3``; nothing where there is none."""
    return "" if rank is None else f"rank {rank}"


def format_text(value: object) -> str:
    """Any value as text, control characters spelled out; nothing for ``None``."""
    return "" if value is None else show_control_characters(str(value))


def format_known(value: str | int | None) -> str:
    """Text or the number of a thing; ``unknown`` where there is none."""
    return UNKNOWN if value in (None, "") else show_control_characters(str(value))


def format_setting(value: FactValue) -> str:
    """A setting as a config file spells it: ``true``, ``[moe_router, attn]``; ``unset`` for ``None``."""
    if value is None:
        return UNSET
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(format_setting(item) for item in value)}]"
    return show_control_characters(str(value))


_NUMBER_FORMATS = {
    "ns": format_ms,
    "fraction": format_share,
    "bytes": format_gib,
    "bytes_per_s": format_bandwidth,
    "count": format_count,
    "ratio": format_ratio,
    "tflops": format_tflops,
    "flops": format_flops,
    "flops_per_s": format_flops_rate,
}


def format_fact(fact: Fact) -> str:
    """A fact's value in its unit; ``unknown`` when it is missing."""
    if fact.is_missing:
        return UNKNOWN
    value = fact.value
    if fact.unit == "flag" and isinstance(value, bool):
        return "yes" if value else "no"
    write_number = _NUMBER_FORMATS.get(fact.unit)
    if write_number is None or isinstance(value, bool) or not isinstance(value, int | float):
        return format_setting(value)
    return write_number(value)


def shorten(text: str, columns: int) -> str:
    """``text`` in at most ``columns`` characters: ``...`` replaces the middle of a longer one."""
    if len(text) <= columns:
        return text
    kept = columns - 3
    return f"{text[: kept - kept // 3]}...{text[len(text) - kept // 3 :]}"


def keep_sentences(text: str, columns: int) -> str:
    """The first sentences of ``text`` that fit in ``columns`` characters, or its first words; ``...`` marks the cut."""
    text = " ".join(text.split())
    if len(text) <= columns:
        return text
    start = text[: columns - 3]
    ends = [found.end() for found in _CLAUSE_END.finditer(start) if found.end() > columns // 3]
    return f"{start[: ends[-1]] if ends else start.rpartition(' ')[0] or start} ..."


def show_control_characters(text: str) -> str:
    """``text`` with control characters spelled out, so that a value of the run cannot steer the reader's terminal."""
    if text.isprintable():  # nearly every text; a page has ten thousand
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def escape_in_json(document: str) -> str:
    """``document`` with every character escaped that JSON allows in a text but that could steer a terminal."""
    return "\n".join(
        line if line.isprintable() else "".join(map(_escape_in_json, line)) for line in document.split("\n")
    )


def _escape_in_json(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]


def count_of(number: int, noun: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{format_count(number)} {noun}{'' if number == 1 else 's'}"


UNITS: dict[Callable[..., object], str] = {
    format_ms: "ns",
    format_us: "ns",
    format_ms_change: "ns",
    format_share_change: "fraction",
    format_count_change: "count",
    format_share: "fraction",
    format_gib: "bytes",
    format_moved: "bytes",
    format_bandwidth: "bytes_per_s",
    format_count: "count",
    format_ratio: "ratio",
    format_tflops: "tflops",
    format_flops: "flops",
    format_flops_rate: "flops_per_s",
}
"""Unit of the number that a function writes: tables align such columns right, and CSV names their unit."""
