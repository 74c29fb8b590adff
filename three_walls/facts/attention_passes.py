"""Passes of attention in a step: which are forward, which backward, which forward ones are replays.

Every layer runs attention forward once and backward once per micro-batch; under recompute it runs forward again
right before its backward. So the order of the passes shows the layers, whatever else runs between them.
"""

from __future__ import annotations

import polars as pl

FORWARD, BACKWARD, RECOMPUTE = "forward", "backward", "recompute"

RECOMPUTES_RATIO = 1.25
"""Below this ratio no layer is taken to be replayed: every layer replayed gives 2, a quarter of them 1.25."""

PASSES = pl.Schema(
    {
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "stream": pl.Int64,
        "category": pl.String,
        "phase": pl.String,  # forward or backward, as the kernel's name says
        "direction": pl.String,  # forward, backward or recompute
        "partner": pl.Int64,  # which forward pass of the step (from 0) it is, replays, or goes back through; or null
    }
)


def find_passes(operations: pl.DataFrame, window: tuple[int, int]) -> pl.DataFrame:
    """The passes of one rank's ``operations`` that start in ``window`` [start, end), in order (PASSES).

    ``direction`` is null throughout where attention is replayed but the replays cannot be told from the others.
    """
    passes = (
        operations.filter(
            pl.col("phase").is_not_null() & pl.col("start_ns").is_between(window[0], window[1], closed="left")
        )
        .sort("start_ns", "end_ns", "stream")
        .select("start_ns", "end_ns", "stream", pl.col("category").cast(pl.String), pl.col("phase").cast(pl.String))
    )
    phases = passes["phase"].to_list()
    replays = _find_replays(phases)
    directions = None if replays is None else _directions(phases, replays)
    partners = [None] * len(phases) if directions is None else _partners(directions)
    return passes.with_columns(
        direction=pl.Series(directions or [None] * len(phases), dtype=pl.String),
        partner=pl.Series(partners, dtype=pl.Int64),
    ).match_to_schema(PASSES)


def count_phases(passes: pl.DataFrame) -> tuple[int, int]:
    """(forward, backward) passes, replays among the forward ones."""
    forward = int((passes["phase"] == FORWARD).sum())
    return forward, passes.height - forward


def _directions(phases: list[str], replays: set[int]) -> list[str]:
    return [RECOMPUTE if place in replays else phase for place, phase in enumerate(phases)]


def _find_replays(phases: list[str]) -> set[int] | None:
    """Places of the replayed passes; None where they cannot be told from the other forward passes."""
    forward, backward = phases.count(FORWARD), phases.count(BACKWARD)
    if not backward or forward < RECOMPUTES_RATIO * backward:
        return set()
    for found in (_before_each_backward(phases), _beyond_each_micro_batch(phases)):
        if found is not None and len(found) == forward - backward:
            return found
    return None


def _before_each_backward(phases: list[str]) -> set[int]:
    """Every backward pass replays: of the forward passes before n backward passes the last n are replays."""
    found: set[int] = set()
    before = after = 0
    for place, phase in enumerate([*phases, FORWARD]):
        if phase == BACKWARD:
            after += 1
        elif after:
            replayed = min(before, after)
            found |= set(range(place - after - replayed, place - after))
            before, after = 1, 0
        else:
            before += 1
    return found


def _beyond_each_micro_batch(phases: list[str]) -> set[int] | None:
    """Only some layers replay: a micro-batch of L layers begins with L forward passes; the others in it are replays.

    L is the smallest number that fits all of the step: micro-batches end with their L-th backward pass.
    """
    backward = phases.count(BACKWARD)
    for layers in (number for number in range(1, backward + 1) if backward % number == 0):
        found = _split_by(phases, layers)
        if found is not None:
            return found
    return None


def _split_by(phases: list[str], layers: int) -> set[int] | None:
    found: set[int] = set()
    place = 0
    ends = [at for at, phase in enumerate(phases) if phase == BACKWARD]
    for last in ends[layers - 1 :: layers]:
        if phases[place : place + layers] != [FORWARD] * layers:
            return None
        again = {at for at in range(place + layers, last) if phases[at] == FORWARD}
        if len(again) > layers:
            return None
        found |= again
        place = last + 1
    return found


def _partners(directions: list[str]) -> list[int | None]:
    """Per pass the forward pass (counted from 0) of the same layer: layers go back in the reverse order."""
    partners: list[int | None] = []
    open_passes: list[int] = []
    forward = 0
    left = _left_in_run(directions)
    for place, direction in enumerate(directions):
        if direction == FORWARD:
            partners.append(forward)
            open_passes.append(forward)
            forward += 1
        elif direction == BACKWARD:
            partners.append(open_passes.pop() if open_passes else None)
        else:
            # Replays run forward: the n-th from the end of a run belongs to the n-th layer from the top.
            partners.append(open_passes[-left[place]] if left[place] <= len(open_passes) else None)
    return partners


def _left_in_run(directions: list[str]) -> list[int]:
    """Per place how many replays follow one another from there on, itself included."""
    left: list[int] = []
    for direction in reversed(directions):
        left.append(1 + (left[-1] if left else 0) if direction == RECOMPUTE else 0)
    return left[::-1]
