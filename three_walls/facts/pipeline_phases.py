"""Phases of a rank's step under pipeline parallelism: its edges in time, from the passes of attention.

A schedule (1F1B, interleaved or not) begins with forward passes alone, alternates, and ends with backward passes
alone (Narayanan et al., SC'21, arXiv 2104.04473). Attention's passes show the turns, replays told apart from forward
passes, whatever else runs beside them. An edge is where attention is: the rest of that one layer's pass lies beyond it.
"""

from __future__ import annotations

import polars as pl

from three_walls.facts.attention_passes import BACKWARD, FORWARD

WARM_UP, STEADY, COOL_DOWN, UPDATE = "warm-up", "steady", "cool-down", "update"
WHOLE_STEP = "step"
"""In place of the four where they cannot be told apart."""

EXCHANGE = "pipeline_p2p"

_UPDATING = ("all_reduce", "reduce_scatter", "optimizer")
"""What begins once the last backward pass is over: reducing gradients, their norm, the update."""

Phase = tuple[str, int, int]
"""Name, start and end (ns, half-open)."""


def find_phases(operations: pl.DataFrame, passes: pl.DataFrame, step: tuple[int, int]) -> tuple[list[Phase], str]:
    """The phases of one rank's ``step`` [start, end), in order and without gaps; one whole, and why, if not told.

    Warm-up: until the first backward pass begins. Steady: until the last forward pass ends. Cool-down: until the
    last backward pass is over and its gradient sent: where the first kernel of gradients or optimizer begins after
    it. Update: the rest. ``operations`` are the rank's in the step; ``passes``: see find_passes.
    """
    reason = _why_not_told(passes)
    if reason:
        return [(WHOLE_STEP, *step)], reason
    directions = pl.col("direction")
    first_backward, last_forward, last_backward = passes.select(
        pl.col("start_ns").filter(directions == BACKWARD).min(),
        last_forward=pl.col("end_ns").filter(directions == FORWARD).max(),
        last_backward=pl.col("end_ns").filter(directions == BACKWARD).max(),
    ).row(0)
    edges = [
        step[0],
        first_backward,
        max(first_backward, last_forward),
        _end_of_passes(operations, last_backward, step),
    ]
    edges = [min(edge, step[1]) for edge in edges] + [step[1]]
    names = (WARM_UP, STEADY, COOL_DOWN, UPDATE)
    return [(name, start, end) for name, start, end in zip(names, edges, edges[1:], strict=False)], ""


def _why_not_told(passes: pl.DataFrame) -> str:
    directions = passes["direction"].to_list()
    if not directions:
        return "no attention kernel shows where its passes begin"
    if None in directions:
        return "replays of attention cannot be told from forward passes"
    if BACKWARD not in directions:
        return "no attention kernel of a backward pass was recorded"
    if directions[0] != FORWARD or directions[-1] != BACKWARD:
        return "the step does not begin with a forward and end with a backward pass"
    return ""


def _end_of_passes(operations: pl.DataFrame, last_backward: int, step: tuple[int, int]) -> int:
    """The start of what follows the last backward pass, which reaches beyond attention and sends its gradient."""
    started = operations.filter(pl.col("start_ns").is_between(*step, closed="left"))
    sent = started.filter(pl.col("category") == EXCHANGE)["end_ns"].max()
    over = max(last_backward, sent) if isinstance(sent, int) else last_backward
    updating = started.filter(pl.col("category").is_in(list(_UPDATING)) & (pl.col("start_ns") >= over))
    begins = updating["start_ns"].min()
    return begins if isinstance(begins, int) else over
