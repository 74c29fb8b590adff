"""Charts as plain values: what is drawn, in data units. Renderers (SVG in the page, plotly in notebooks) draw them.

Every number in a chart is in a table too. Compute is blue and green, communication orange and red, copies are purple.
Idle time is grey: colour marks work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from three_walls.lib.text import format_bandwidth, format_flops_rate, format_gib, format_ms, format_share
from three_walls.tables.buckets import Group, Wall

_MOST_TICKS = 8
_ROUND_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class Unit:
    """What the lengths of a chart are, and how its axis writes them."""

    size: float
    """Of the number that the axis counts in, in data units: 1,000,000 for milliseconds of nanoseconds."""
    suffix: str
    write: Callable[[float], str]
    """A value with its unit, as in tables."""


MILLISECONDS = Unit(1e6, "ms", format_ms)
GIBIBYTES = Unit(float(1 << 30), "GiB", format_gib)
GIGABYTES_PER_S = Unit(1e9, "GB/s", format_bandwidth)
TERAFLOPS = Unit(1e12, "TFLOP/s", format_flops_rate)


@dataclass(frozen=True, slots=True)
class Piece:
    """A rectangle of a bar."""

    start: float
    length: float
    colour: str
    name: str
    detail: str
    """Shown on hover, after the name."""
    label: str = ""
    """Written inside where it has room."""
    opacity: float = 1.0


@dataclass(frozen=True, slots=True)
class BarRow:
    """One bar: pieces from left to right."""

    label: str
    pieces: tuple[Piece, ...]
    value: str = ""
    """Written behind the bar."""

    @property
    def end(self) -> float:
        return max((piece.start + piece.length for piece in self.pieces), default=0.0)


@dataclass(frozen=True, slots=True)
class Bars:
    """Horizontal bars on one scale from 0 to ``end``, the first on top."""

    rows: tuple[BarRow, ...]
    end: float
    unit: Unit

    @property
    def ticks(self) -> tuple[tuple[float, str], ...]:
        """Where the axis has a line, and its text."""
        step = _round_step(self.end / self.unit.size / _MOST_TICKS) * self.unit.size
        count = int(self.end / step + 1e-9) if step else 0
        decimals = max(0, -math.floor(math.log10(step / self.unit.size) + 1e-9)) if step else 0
        decimals += step / self.unit.size * 10**decimals % 1 > 0 if step else 0
        return tuple(
            (step * index, f"{step * index / self.unit.size:,.{decimals}f} {self.unit.suffix}")
            for index in range(count + 1)
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """One series of stacked bars: its length in each bar, and what is shown on hover."""

    name: str
    colour: str
    lengths: tuple[float, ...]
    details: tuple[str, ...]
    label: str = ""


@dataclass(frozen=True, slots=True)
class HeatCell:
    """One cell: ``depth`` is 0 to 1, ``hue`` the colour that it shades."""

    depth: float
    hue: str
    text: str
    detail: str


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Rows of cells under columns, which neighbouring columns of the same group share a heading. None: no cell."""

    rows: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    """Group and name of each column."""
    cells: tuple[tuple[HeatCell | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Point:
    """GEMMs of one shape: operations per byte and per second, and how much of the time they take (0 to 1)."""

    intensity: float
    rate: float
    weight: float
    name: str
    detail: str
    group: str


@dataclass(frozen=True, slots=True)
class Roofline:
    """Points below a roof: memory bandwidth times intensity, up to the peaks of the number formats."""

    points: tuple[Point, ...]
    peaks: tuple[tuple[str, float], ...]
    """Number format and its peak in operations per second, the highest first."""
    bytes_per_s: float | None
    """Memory bandwidth; None: not known, so that the roof has no slope."""

    @property
    def x_range(self) -> tuple[float, float]:
        """Around the points and the ridge."""
        known = [point.intensity for point in self.points]
        known += [peak / self.bytes_per_s for _, peak in self.peaks if self.bytes_per_s]
        return _surround(known)

    @property
    def y_range(self) -> tuple[float, float]:
        return _surround([point.rate for point in self.points] + [peak for _, peak in self.peaks])


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart: a value at each place of the axis."""

    name: str
    colour: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines over the same places, the later ones in front, and a limit across them."""

    places: tuple[float, ...]
    """Ascending."""
    series: tuple[Series, ...]
    unit: Unit
    place_name: str
    """What the places are."""
    limit: float | None = None
    limit_name: str = ""


Plot = Bars | HeatMap | Roofline | Lines


def draw_whole(parts: Sequence[tuple[str, float, str]]) -> Bars | None:
    """A single bar that fills its width, of (name, length, colour); None where all parts are zero."""
    total = sum(length for _, length, _ in parts)
    if not total:
        return None
    segments = [
        Segment(name, colour, (length,), (f"{format_ms(length)}, {format_share(length / total)}",), name)
        for name, length, colour in parts
    ]
    return draw_bars([""], segments)


def draw_bars(labels: Sequence[str], segments: Sequence[Segment], values: Sequence[str] = ()) -> Bars:
    """Stacked bars of nanoseconds. ``values`` are written behind them."""
    rows = []
    for place, label in enumerate(labels):
        pieces, start = [], 0.0
        for segment in segments:
            length = segment.lengths[place]
            if length > 0:
                pieces.append(Piece(start, length, segment.colour, segment.name, segment.details[place], segment.label))
                start += length
        rows.append(BarRow(label, tuple(pieces), values[place] if values else ""))
    return Bars(tuple(rows), max((row.end for row in rows), default=0.0), MILLISECONDS)


def _round_step(least: float) -> float:
    """The least of 1, 2, 2.5 and 5 times a power of ten that is not below ``least``."""
    if least <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in _ROUND_STEPS if step * power >= least * (1 - 1e-9))


def _surround(values: Sequence[float]) -> tuple[float, float]:
    """Bounds of a logarithmic axis, with some room on both sides."""
    return min(values) / 1.8, max(values) * 1.8


BUCKET_COLOURS: dict[str, str] = {
    "grouped_gemm": "#1d4ed8",
    "gemm": "#3b82f6",
    "attention": "#0891b2",
    "attention_unfused": "#67c8dd",
    "linear_attention": "#0369a1",
    "permute": "#0d9488",
    "router": "#2dd4bf",
    "norm": "#86d99b",
    "elementwise": "#22a05a",
    "quantize": "#84b83c",
    "optimizer": "#166534",
    "unclassified": "#a5c4ec",
    "ep_all_to_all": "#ea580c",
    "ep_dispatch_combine": "#f97316",
    "ep_control": "#fdba74",
    "pipeline_p2p": "#b91c1c",
    "context_ring": "#ef4444",
    "send_recv_ambiguous": "#f8a5a5",
    "tensor_parallel": "#d97706",
    "data_parallel": "#f5a524",
    "all_gather": "#a16207",
    "reduce_scatter": "#ca8a04",
    "all_reduce": "#e11d48",
    "broadcast": "#fb7185",
    "other_collective": "#c2703d",
    "copy_d2d": "#6b21a8",
    "copy_p2p": "#7c3aed",
    "copy_h2d_pinned": "#9333ea",
    "copy_h2d_pageable": "#c084fc",
    "copy_d2h_pinned": "#a21caf",
    "copy_d2h_pageable": "#d687e8",
    "copy_other": "#8b7bd8",
    "memset": "#b8a6f0",
    "cuda_graph": "#6b7280",
    "profiler": "#dfe3e8",
    "host_pause": "#0f172a",
    "host_blocked": "#4b5563",
    "launch_starved": "#94a3b8",
    "idle_other": "#c3cad4",
}

GROUP_COLOURS: dict[str, str] = {
    Group.COMPUTE: "#3b82f6",
    Group.COMMUNICATION: "#ea580c",
    Group.COPY: "#9333ea",
    Group.GRAPH: "#6b7280",
    Group.IDLE: "#b3bcc8",
}

EXPOSED_COLOUR = "#ea580c"
HIDDEN_COLOUR = "#7fb2f5"
AFTER_COLOUR = "#16a34a"
NOW_COLOUR = "#64748b"
TICK_COLOUR = "#14532d"
FREE_COLOUR = "#e2e8f0"
WAIT_COLOUR = "#e9a23b"
TRANSFER_COLOUR = "#4f8fe6"

WALL_COLOURS = {Wall.MEMORY: "#7c3aed", Wall.COMMUNICATION: "#ea580c", Wall.COMPUTE_HOST: "#2563eb"}

MEMORY_COLOURS = {
    "parameters": ("#1d4ed8", "parameters"),
    "gradients": ("#0891b2", "gradients"),
    "optimizer": ("#7c3aed", "optimizer"),
    "activations": ("#ea580c", "activations"),
    "allocated": ("#4f8fe6", "allocated"),
    "driver": ("#64748b", "allocated by the driver"),
    "reserved": ("#a5c4ec", "reserved, not allocated"),
}
"""Part of the memory -> its colour and what it is called."""
