"""The answer to ``what if`` as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from three_walls.advice.what_if import WhatIf
from three_walls.facts.fact_rows import Prediction
from three_walls.lib.text import UNKNOWN, format_ms, format_ms_range, format_share, show_control_characters
from three_walls.tables.buckets import BUCKET_BY_NAME, BUCKETS

LIMIT_NAMES = {
    "host": "the host",
    "gap": "launch latency and gaps",
    "compute": "compute kernels",
    "communication": "communication",
    "copy": "copies",
    "graph": "CUDA graphs recorded whole",
}
"""What a critical path is made of, in words."""

_MOST_BUCKETS = 12
_NAME, _TIME = 36, 12


def describe_what_if(what_if: WhatIf) -> Iterator[str]:
    """The lines of ``what_if``: the step now and then, what limits it then, and the budget then."""
    yield f"Step now   {_describe_step(what_if.step)}{f' ({what_if.step_source})' if what_if.step else ''}"
    if what_if.after is None:
        yield f"Step then  {UNKNOWN}: {show_control_characters(what_if.because_unknown)}"
    else:
        yield f"Step then  {_describe_step(what_if.after)}{_describe_change(what_if.step, what_if.after)}"
    if what_if.limits_after:
        yield f"Limit      {_describe_limits(what_if.limits_after)}"
    for note in what_if.refused:
        yield f"Refused: {show_control_characters(note.text)}{f' [{note.source}]' if note.source else ''}"
    yield from (f"Note: {show_control_characters(note)}" for note in what_if.notes)
    if what_if.budget_after:
        yield ""
        yield f"{'Budget then':{_NAME}}{'now':>{_TIME}}{'then':>{_TIME}}{'share':>8}"
        yield from _list_budget(what_if)


def _describe_step(step: Prediction | None) -> str:
    if step is None:
        return UNKNOWN
    likely = format_ms(step.likely_ns)
    spread = format_ms_range(step.low_ns, step.high_ns)
    return f"{likely} (range {spread})" if "-" in spread else likely


def _describe_change(step: Prediction | None, after: Prediction) -> str:
    if step is None or not step.likely_ns:
        return ""
    saved_ns = step.likely_ns - after.likely_ns
    if saved_ns == 0:
        return ", no change"
    word = "shorter" if saved_ns > 0 else "longer"
    return f", {format_ms(abs(saved_ns))} {word} ({format_share(abs(saved_ns) / step.likely_ns)})"


def _describe_limits(limits: Mapping[str, int]) -> str:
    total_ns = sum(limits.values())
    in_order = sorted(limits.items(), key=lambda row: (-row[1], row[0]))
    parts = [f"{LIMIT_NAMES.get(name, name)} {format_share(ns / total_ns)}" for name, ns in in_order if ns]
    if not parts:
        return UNKNOWN
    others = f"; then {', '.join(parts[1:])}" if parts[1:] else ""
    return f"{parts[0]} of the critical path{others}"


def _list_budget(what_if: WhatIf) -> Iterator[str]:
    total_ns = sum(what_if.budget_after.values())
    names = [b.name for b in BUCKETS if what_if.budget_after.get(b.name) or what_if.budget.get(b.name)]
    in_order = sorted(names, key=lambda name: (-what_if.budget_after.get(name, 0), -what_if.budget.get(name, 0)))
    for name in in_order[:_MOST_BUCKETS]:
        yield _row(BUCKET_BY_NAME[name].title, what_if.budget.get(name, 0), what_if.budget_after.get(name, 0), total_ns)
    if rest := in_order[_MOST_BUCKETS:]:
        now_ns, then_ns = (sum(part.get(name, 0) for name in rest) for part in (what_if.budget, what_if.budget_after))
        yield _row(f"{len(rest)} more", now_ns, then_ns, total_ns)


def _row(title: str, now_ns: int, then_ns: int, total_ns: int) -> str:
    share = format_share(then_ns / total_ns) if total_ns else UNKNOWN
    return f"  {title:{_NAME - 2}}{format_ms(now_ns):>{_TIME}}{format_ms(then_ns):>{_TIME}}{share:>8}"
