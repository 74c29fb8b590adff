"""Numbers, words and lists as text. Takes nanoseconds, bytes and fractions.

``format_*`` is for what stands alone, as in a table, to about three significant digits; ``None`` reads "unknown" there:
a missing number must never look like zero. ``in_*`` and ``write_*`` are for numbers in a sentence, which are known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from three_walls.lib.measurement import NS_PER_MS, NS_PER_S

UNKNOWN = "unknown"
UNSET = "unset"

_CLAUSE_END = re.compile(r"[.;](?= )")
_NS_PER_US = 1_000
_BYTES_PER_GIB = 1 << 30
_BYTES_PER_GB = 1_000_000_000
_FLOP_PER_TFLOP = 1_000_000_000_000


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
    value_us = value_ns / _NS_PER_US
    return f"{_write(value_us, min(2, _decimals(value_us)))} us"


def format_ms_change(change_ns: float | None) -> str:
    """A difference in nanoseconds as ``+12.3 ms`` or ``-4.56 ms``."""
    return UNKNOWN if change_ns is None else f"{_sign(change_ns)}{format_ms(abs(change_ns))}"


def format_share_change(fraction: float | None) -> str:
    """A relative difference as ``+3.1%`` or ``-0.8%``."""
    return UNKNOWN if fraction is None else f"{_sign(fraction)}{format_share(abs(fraction))}"


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


def format_ms_estimate(value_ns: float, widest_ns: float) -> str:
    """Nanoseconds within a range as ``20 ms``, as precise as its widest bound is written."""
    return f"{_write(value_ns / NS_PER_MS, _decimals_of_estimate(widest_ns / NS_PER_MS))} ms"


def _decimals_of_estimate(value_ms: float) -> int:
    """One digit fewer than a measured time has: bounds are estimates."""
    return max(0, _decimals(value_ms) - 1)


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


def format_setting(value: object) -> str:
    """A setting as a config file spells it: ``true``, ``[moe_router, attn]``; ``unset`` for ``None``."""
    if value is None:
        return UNSET
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(format_setting(item) for item in value)}]"
    return show_control_characters(str(value))


NUMBER_FORMATS: Mapping[str, Callable[[float | None], str]] = {
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
"""Unit -> how a number of it is written."""

UNITS: Mapping[Callable[..., object], str] = {
    **{write: unit for unit, write in NUMBER_FORMATS.items()},
    format_us: "ns",
    format_ms_change: "ns",
    format_share_change: "fraction",
    format_moved: "bytes",
}
"""Unit of the number that a function writes: tables align such columns right, and CSV names their unit."""


def in_ms(value_ns: float, form: str = ",.1f") -> str:
    """Nanoseconds in a sentence as ``1,412.3 ms``; ``form`` is Python's format of the number."""
    return f"{round(value_ns / NS_PER_MS, 3):{form}} ms"


def show_time(since_epoch_ns: int) -> str:
    """A time in a sentence as ``2026-11-27 03:05:19``."""
    return f"{datetime.fromtimestamp(since_epoch_ns // NS_PER_S, UTC):%Y-%m-%d %H:%M:%S}"


def in_percent(fraction: float, decimals: int = 1) -> str:
    """A fraction in a sentence as ``12.3%``."""
    return f"{fraction:.{decimals}%}"


def write_times(ratio: float) -> str:
    """A ratio in a sentence as ``1.07 times``."""
    return f"{ratio:.2f} times"


def write_rounded(value: float, unit: str) -> str:
    """A number and its unit to three significant digits, as a sentence compares it: ``12.3 ms``, ``5%``, ``0.5``."""
    match unit:
        case "ns":
            return f"{_round(round(value / NS_PER_MS, 3))} ms"
        case "fraction":
            return f"{_round(value * 100)}%"
        case "bytes":
            return f"{_round(value / _BYTES_PER_GIB)} GiB"
        case "count" if isinstance(value, int):
            return f"{value:,}"
    return _round(value)


def _round(value: float) -> str:
    return f"{value:.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.3g}"


def plural(number: int, noun: str, nouns: str = "") -> str:
    """``noun`` as it stands after ``number``; ``nouns`` is its plural where an s does not make it."""
    return noun if number == 1 else nouns or f"{noun}s"


def count_of(number: int, noun: str, nouns: str = "") -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{format_count(number)} {plural(number, noun, nouns)}"


def join_words(words: Sequence[str], last: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def capitalize(text: str) -> str:
    """``text`` with a capital first letter; the others stay as they are."""
    return f"{text[:1].upper()}{text[1:]}"


def format_name(identifier: str) -> str:
    """An identifier in words: ``upper bound`` for ``upper_bound``."""
    return identifier.replace("_", " ")


def shorten(text: str, columns: int) -> str:
    """``text`` in at most ``columns`` characters: ``...`` replaces the middle of a longer one."""
    if len(text) <= columns:
        return text
    length = columns - 3
    return f"{text[: length - length // 3]}...{text[len(text) - length // 3 :]}"


def keep_sentences(text: str, columns: int) -> str:
    """The first sentences of ``text`` that fit in ``columns`` characters, or its first words; ``...`` marks the cut."""
    text = " ".join(text.split())
    if len(text) <= columns:
        return text
    start = text[: columns - 3]
    ends = [match.end() for match in _CLAUSE_END.finditer(start) if match.end() > columns // 3]
    return f"{start[: ends[-1]] if ends else start.rpartition(' ')[0] or start} ..."


def show_control_characters(text: str, kept: str = "\n") -> str:
    """``text`` with control characters but those in ``kept`` spelled out: they could steer the reader's terminal."""
    if text.isprintable():  # nearly every text; a page has ten thousand
        return text
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)


def escape_in_json(document: str) -> str:
    """``document`` with every character escaped that JSON allows in a text but that could steer a terminal."""
    return "\n".join(
        line if line.isprintable() else "".join(map(_escape_in_json, line)) for line in document.split("\n")
    )


def _escape_in_json(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]


def format_saved(saved_ns: int) -> str:
    """``12.3 ms saved``, ``12.3 ms lost`` or ``no change``."""
    if saved_ns == 0:
        return "no change"
    return f"{format_ms(abs(saved_ns))} {'saved' if saved_ns > 0 else 'lost'}"
