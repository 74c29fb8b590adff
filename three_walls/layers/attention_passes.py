"""Passes of attention in a step: forward, backward, and the forward passes that recompute replays.

Every layer runs attention forward once and backward once per micro-batch. Under recompute it runs forward again
right before its backward pass. So the order of the passes shows the layers, whatever else runs between them.
"""

from __future__ import annotations

from typing import Annotated

import polars as pl

from three_walls.lib.declare import artifact
from three_walls.step.step_tables import Operations
from three_walls.step.step_view import StepView

FORWARD, BACKWARD, RECOMPUTE = "forward", "backward", "recompute"

MINIMUM_RECOMPUTE_RATIO = 1.25
"""Attention forward passes per backward pass from which layers are taken to be replayed. The ratio is 2 if every layer
is replayed and 1.25 if a quarter of them is."""

PASSES = pl.Schema(
    {
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "stream": pl.Int64,
        "category": pl.String,
        "phase": pl.String,  # forward or backward, from the kernel's name
        "direction": pl.String,  # forward, backward or recompute
        "partner": pl.Int64,  # number (from 0) of the forward pass that it is, replays or reverses; null if unknown
    }
)

AttentionPasses = Annotated[pl.DataFrame, PASSES]
"""Passes of attention through the layers of a step, in order."""

REPLAYS = pl.Schema(
    {
        "partner": pl.Int64,  # number (from 0) of the forward pass that it replays
        "start_ns": pl.Int64,  # its first kernel
        "end_ns": pl.Int64,  # the first kernel of the backward pass that follows
    }
)

Replays = Annotated[pl.DataFrame, REPLAYS]
"""Replays of forward work in a step, as measured."""


@artifact
def attention_passes(step: StepView) -> AttentionPasses:
    """The attention passes of the representative step."""
    return find_passes(step.operations, step.window)


def find_passes(operations: Operations, window: tuple[int, int]) -> AttentionPasses:
    """The attention passes of one rank's ``operations`` that start in ``window`` [start, end), in order.

    ``direction`` is null throughout where attention is replayed and replays cannot be distinguished from the other
    forward passes.
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
    directions: list[str | None] = [None] * len(phases)
    partners: list[int | None] = [None] * len(phases)
    if replays is not None:
        known_directions = [RECOMPUTE if place in replays else phase for place, phase in enumerate(phases)]
        directions = list(known_directions)
        partners = _find_partners(known_directions)
    return passes.with_columns(
        direction=pl.Series(directions, dtype=pl.String), partner=pl.Series(partners, dtype=pl.Int64)
    ).match_to_schema(PASSES)


def count_phases(passes: AttentionPasses) -> tuple[int, int]:
    """(forward, backward) passes; replays count as forward."""
    forward = int((passes["phase"] == FORWARD).sum())
    return forward, passes.height - forward


def is_recomputing(forward: int, backward: int) -> bool:
    """Whether ``forward`` passes outnumber ``backward`` passes by so much that layers are replayed."""
    return backward > 0 and forward >= MINIMUM_RECOMPUTE_RATIO * backward


def _find_replays(phases: list[str]) -> set[int] | None:
    """Places of the replayed passes; None where they cannot be distinguished from the other forward passes."""
    forward, backward = phases.count(FORWARD), phases.count(BACKWARD)
    if not is_recomputing(forward, backward):
        return set()
    for replays in (_replays_of_every_layer(phases), _replays_of_some_layers(phases)):
        if replays is not None and len(replays) == forward - backward:
            return replays
    return None


def _replays_of_every_layer(phases: list[str]) -> set[int]:
    """Every backward pass has a replay: of the forward passes before n backward passes the last n are replays."""
    replays: set[int] = set()
    forward_run = backward_run = 0
    for place, phase in enumerate([*phases, FORWARD]):
        if phase == BACKWARD:
            backward_run += 1
        elif backward_run:
            replayed = min(forward_run, backward_run)
            replays |= set(range(place - backward_run - replayed, place - backward_run))
            forward_run, backward_run = 1, 0
        else:
            forward_run += 1
    return replays


def _replays_of_some_layers(phases: list[str]) -> set[int] | None:
    """Only some layers are replayed: a micro-batch of L layers begins with L forward passes; its others are replays.

    L is the smallest number that fits all of the step.
    """
    backward = phases.count(BACKWARD)
    for layers in (number for number in range(1, backward + 1) if backward % number == 0):
        replays = _replays_with_layers(phases, layers)
        if replays is not None:
            return replays
    return None


def _replays_with_layers(phases: list[str], layers: int) -> set[int] | None:
    """Places of the replays if each micro-batch ends with its ``layers``-th backward pass; None where it cannot."""
    replays: set[int] = set()
    begin = 0
    backward_places = [place for place, phase in enumerate(phases) if phase == BACKWARD]
    for end in backward_places[layers - 1 :: layers]:
        if phases[begin : begin + layers] != [FORWARD] * layers:
            return None
        replayed = {place for place in range(begin + layers, end) if phases[place] == FORWARD}
        if len(replayed) > layers:
            return None
        replays |= replayed
        begin = end + 1
    return replays


def _find_partners(directions: list[str]) -> list[int | None]:
    """Per pass the number of the forward pass of the same layer: layers go backward in the reverse order."""
    partners: list[int | None] = []
    open_passes: list[int] = []
    forward = 0
    remaining = _remaining_in_run(directions)
    for place, direction in enumerate(directions):
        if direction == FORWARD:
            partners.append(forward)
            open_passes.append(forward)
            forward += 1
        elif direction == BACKWARD:
            partners.append(open_passes.pop() if open_passes else None)
        else:
            # Replays run forward: the n-th from the end of a run belongs to the n-th layer from the last.
            partners.append(open_passes[-remaining[place]] if remaining[place] <= len(open_passes) else None)
    return partners


def _remaining_in_run(directions: list[str]) -> list[int]:
    """Per place the number of consecutive replays from there on, itself included; 0 for other passes."""
    remaining: list[int] = []
    for direction in reversed(directions):
        remaining.append(1 + (remaining[-1] if remaining else 0) if direction == RECOMPUTE else 0)
    return remaining[::-1]
