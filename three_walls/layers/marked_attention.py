"""Attention without kernels of its own, found by the ranges around its launches.

In PyTorch's operators, sparse attention (DSA) runs products, gathers and sorts that a router runs, too. Each of its
passes calls one autograd function (``tables/torch-operators.yaml``), the first launch of which takes the place of the
attention kernel.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import Annotated

import polars as pl

from three_walls.step.operators import EVALUATES, Operators
from three_walls.step.step_tables import Operations
from three_walls.tables.model_parts import BACKWARD, FORWARD, PERMUTE, ROUTER
from three_walls.tables.nvtx_ranges import torch_operators

_ATTENTION, _NORM = "attention", "norm"
_BACKWARD_PASS = "Backward"
_PRODUCTS = ("aten::bmm", f"{EVALUATES}BmmBackward0")
"""Ranges around the products of queries, keys and values; linear layers have functions of their own."""

PlacedOperations = Annotated[
    Operations,
    {
        "placed_as": pl.String,  # the category by which the launch is placed in its layer
    },
]


def mark_attention(launches: Operations, operators: Operators) -> PlacedOperations:
    """``launches`` of one rank, in their order, with ``placed_as``, and with ``phase`` where no kernel has any."""
    placed_as = launches["category"].cast(pl.String).to_list()
    phases = launches["phase"].cast(pl.String).to_list()
    if not any(phases):
        at_launch = launches.select("launch_thread", "launch_start_ns").iter_rows()
        around = [[*operators.around(operators.innermost(*launch))] for launch in at_launch]
        of_thread: dict[int | None, list[int]] = defaultdict(list)
        for place, thread in enumerate(launches["launch_thread"]):
            of_thread[thread].append(place)
        for phase, thread, places in _find_passes(launches, around, operators):
            phases[places[0]] = phase
            for place in places:
                placed_as[place] = _ATTENTION
            _place_rest(of_thread[thread], places, phase, around, operators, placed_as)
    return launches.with_columns(
        pl.Series("placed_as", placed_as, dtype=pl.String),
        pl.Series("phase", phases, dtype=pl.String).cast(launches.schema["phase"]),
    )


def _find_passes(
    launches: Operations, around: list[list[int]], operators: Operators
) -> list[tuple[str, int | None, list[int]]]:
    """(phase, thread, launches) of each call of a function of attention, and of each evaluation of its node."""
    functions = {row.function for row in torch_operators().attention}
    phase_of = dict.fromkeys(functions, FORWARD) | {f"{name}{_BACKWARD_PASS}": BACKWARD for name in functions}
    passes: dict[int, tuple[str, int | None, list[int]]] = {}
    for place, thread in enumerate(launches["launch_thread"]):
        names = {index: operators.found[index].name.removeprefix(EVALUATES) for index in around[place]}
        outermost = next((index for index in reversed(around[place]) if names[index] in phase_of), None)
        if outermost is not None:
            passes.setdefault(outermost, (phase_of[names[outermost]], thread, []))[2].append(place)
    return list(passes.values())


def _place_rest(
    own: list[int], places: list[int], phase: str, around: list[list[int]], operators: Operators, placed_as: list[str]
) -> None:
    """From ``places`` to the norm of the MLP all is attention: no launch there is a router's or permutes tokens.

    ``own``: the launches of the thread. Up to the last product it is its core.
    """
    begin = bisect_left(own, places[-1]) + 1
    rest = own[begin:] if phase == FORWARD else own[: bisect_left(own, places[0])][::-1]
    end = next((number for number, place in enumerate(rest) if placed_as[place] == _NORM), 0)
    rest = rest[:end]
    products = [
        number
        for number, place in enumerate(rest)
        if any(operators.found[index].name in _PRODUCTS for index in around[place])
    ]
    core = products[-1] + 1 if products else 0
    for number, place in enumerate(rest):
        if number < core:
            placed_as[place] = _ATTENTION
        elif placed_as[place] in (ROUTER, PERMUTE):
            placed_as[place] = "elementwise"
