"""Which part of which layer each launch is, by the fixed order in which a transformer layer launches its work.

A forward layer of Megatron Core (transformer/transformer_layer.py, transformer/moe/moe_layer.py) launches::

    norm, qkv, rotary embedding, attention, projection, residual | norm, router, maps and counts |
    permute, dispatch | experts | permute, combine, unpermute, residual

A backward layer launches the same in reverse, so it is read backwards. Only what can be recognized by kernels alone
separates the parts: the attention kernel of each pass, norms, routers' kernels, GEMMs, permutations and token
exchanges. Without expert parallelism there are no exchanges; the experts' GEMMs then follow the router's kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from three_walls.layers.attention_passes import BACKWARD, FORWARD
from three_walls.layers.moe_passes import COMBINE, DISPATCH, EXPERT_GEMM, PERMUTE, ROUTER, SHARED_EXPERT, UNPERMUTE
from three_walls.tables.buckets import GEMM_CATEGORIES, TOKEN_EXCHANGES

ATTENTION, EXPERTS, OUTSIDE = "attention", "experts", "outside"
MODULES = (ATTENTION, ROUTER, DISPATCH, EXPERTS, COMBINE, OUTSIDE)
"""``router`` begins with the norm before it; ``dispatch`` and ``combine`` contain the permutations of tokens."""

EXPERT, PREPROCESS, ATTENTION_CORE, PROJECTION = "expert", "preprocess", "attention_core", "projection"

FORWARD_GEMMS, BACKWARD_GEMMS = 2, 4
"""GEMMs of shared experts in one pass through an MoE layer."""

_CATEGORIES_BEFORE_DISPATCH = ("ep_control", "tensor_parallel", "all_gather", "copy_d2h_pinned", "copy_d2h_pageable")
"""What prepares a dispatch: ranks exchange the counts of their tokens, and the host reads them."""
_CATEGORIES_AFTER_LAYERS = ("optimizer", "pipeline_p2p", "copy_h2d_pinned", "copy_h2d_pageable", "all_reduce")
"""What ends the last layer of a micro-batch where no norm follows it."""

_NORM = "norm"
_ATTENTION = ("attention", "attention_unfused")


@dataclass(frozen=True, slots=True)
class Launches:
    """Launches of one direction: in their order, or for the backward pass in the reverse order."""

    categories: Sequence[str]
    phases: Sequence[str | None]
    streams: Sequence[int]
    breaks: frozenset[int] = frozenset()
    """Places before which the other direction was launched."""

    def __len__(self) -> int:
        return len(self.categories)

    def places(self, begin: int, end: int, *categories: str) -> list[int]:
        """Places in [begin, end) of launches of ``categories``."""
        return [place for place in range(begin, end) if self.categories[place] in categories]

    def first(self, begin: int, end: int, *categories: str) -> int | None:
        """The first place in [begin, end) of a launch of ``categories``."""
        return next((place for place in range(begin, end) if self.categories[place] in categories), None)

    def last(self, begin: int, end: int, *categories: str) -> int | None:
        """The last place in [begin, end) of a launch of ``categories``."""
        return next((place for place in reversed(range(begin, end)) if self.categories[place] in categories), None)

    def begin_of_run(self, place: int, begin: int) -> int:
        """Where the consecutive launches of the category at ``place`` begin, not before ``begin``."""
        while place > begin and self.categories[place - 1] == self.categories[place]:
            place -= 1
        return place


@dataclass(frozen=True, slots=True)
class Place:
    """Where a launch belongs."""

    module: str | None
    work: str | None
    number: int
    """Of the pass through a layer, from 0 in the order of the launches given."""


@dataclass(frozen=True, slots=True)
class SharedExperts:
    """How a layer's shared experts run."""

    stream: int | None
    """The stream of their own, with which they overlap the exchanges; else they run before the router."""


def place_in_layers(launches: Launches, phase: str, shared: SharedExperts | None = None) -> list[Place | None]:
    """Per launch its place; None outside of the layers.

    ``phase``: of the attention kernel that each layer has once. Launches without any are one layer without attention
    where they route or exchange tokens (recompute of the MoE layer alone).
    """
    places: list[Place | None] = [None] * len(launches)
    marks = [place for place, other in enumerate(launches.phases) if other == phase]
    is_part = not marks
    if is_part and launches.first(0, len(launches), ROUTER, *TOKEN_EXCHANGES) is None:
        return places
    bounds = [(0, len(launches))] if is_part else _bound_layers(launches, marks)
    for number, (begin, end) in enumerate(bounds):
        mark = None if is_part else marks[number]
        for place, module, work in _split_layer(launches, (begin, end), mark, phase, shared):
            places[place] = Place(module, work, number)
    return places


def _bound_layers(launches: Launches, marks: list[int]) -> list[tuple[int, int]]:
    """[begin, end) of the layer around each attention kernel."""
    limits = [*marks[1:], len(launches)]
    ends = [_end_layer(launches, mark, limit) for mark, limit in zip(marks, limits, strict=True)]
    norms = [len(launches.places(end, mark, _NORM)) for end, mark in zip(ends, marks[1:], strict=False)]
    # Between two micro-batches lies the model's last norm too.
    usual = min((count for count in norms if count), default=None)
    begins = []
    for number, mark in enumerate(marks):
        earliest = 0 if number == 0 else ends[number - 1]
        norms_before = launches.places(earliest, mark, _NORM)
        if norms_before:
            begins.append(norms_before[-usual] if usual and usual <= len(norms_before) else norms_before[0])
        else:
            begins.append(mark if number == 0 else earliest)
    limits = [*begins[1:], len(launches)]
    return [(begin, min(end, limit)) for begin, end, limit in zip(begins, ends, limits, strict=True)]


def _end_layer(launches: Launches, mark: int, limit: int) -> int:
    """Where the layer with attention at ``mark`` ends: at the norm after its combine. ``limit``: the next attention."""
    last_exchange = launches.last(mark, limit, *TOKEN_EXCHANGES)
    first_router = launches.first(mark, limit, ROUTER)
    if last_exchange is not None:
        after = last_exchange + 1
    elif first_router is not None:
        norm = launches.first(first_router, limit, _NORM)
        turn = next((place for place in range(first_router + 1, limit) if place in launches.breaks), limit)
        gemm = launches.last(first_router, min(limit if norm is None else norm, turn), *GEMM_CATEGORIES)
        after = first_router if gemm is None else gemm + 1
    else:
        norm = launches.first(mark, limit, _NORM)
        after = limit if norm is None else norm
        while after < limit and launches.categories[after] == _NORM:
            after += 1
    ends = (_NORM, *_CATEGORIES_AFTER_LAYERS)
    for place in range(after, limit):
        if launches.categories[place] in ends:
            return place
        if place in launches.breaks:
            return place
    return limit


def _split_layer(
    launches: Launches, bounds: tuple[int, int], mark: int | None, phase: str, shared: SharedExperts | None
) -> Iterator[tuple[int, str | None, str | None]]:
    """(place, module, work) of the launches of one layer."""
    begin, end = bounds
    from_attention = begin if mark is None else mark + 1
    side = shared.stream if shared else None
    gemms = [
        place for place in launches.places(from_attention, end, *GEMM_CATEGORIES) if launches.streams[place] != side
    ]
    routed = launches.first(from_attention, end, ROUTER, *TOKEN_EXCHANGES)
    if routed is None:
        # A dense layer: the norm before its MLP ends the attention.
        norm = launches.first(from_attention, end, _NORM)
        dense = end if norm is None else norm
        yield from _split_attention(launches, (begin, dense), mark, phase)
        yield from ((place, None, None) for place in range(dense, end))
        return
    norm = launches.last(from_attention, routed, _NORM)
    router = begin if mark is None else routed if norm is None else launches.begin_of_run(norm, from_attention)
    yield from _split_attention(launches, (begin, router), mark, phase)
    dispatch, experts, combine = _find_experts(launches, (routed, end), gemms)
    yield from _split_router(launches, (router, dispatch), routed, phase, shared)
    for place in range(dispatch, end):
        category = launches.categories[place]
        if side is not None and launches.streams[place] == side and category not in TOKEN_EXCHANGES:
            yield place, ROUTER, SHARED_EXPERT
        elif place < experts:
            yield place, DISPATCH, DISPATCH if category in TOKEN_EXCHANGES else PERMUTE
        elif place < combine:
            yield place, EXPERTS, EXPERT_GEMM if category in GEMM_CATEGORIES else EXPERT
        else:
            yield place, COMBINE, COMBINE if category in TOKEN_EXCHANGES else UNPERMUTE


def _find_experts(launches: Launches, bounds: tuple[int, int], gemms: list[int]) -> tuple[int, int, int]:
    """Where dispatch, experts and combine begin in a layer. ``bounds``: from the router's first kernel to the end."""
    routed, end = bounds
    exchanges = launches.places(routed, end, *TOKEN_EXCHANGES)
    gaps = [[gemm for gemm in gemms if before < gemm < after] for before, after in pairwise(exchanges)]
    most = max((len(gap) for gap in gaps), default=0)
    if most:
        split = next(number for number, gap in enumerate(gaps) if len(gap) == most)
        first_exchange, last_exchange = exchanges[split], exchanges[split + 1]
        first_gemm, last_gemm = gaps[split][0], gaps[split][-1]
        sent = exchanges[0]
    else:
        own = [gemm for gemm in gemms if gemm > routed]
        if not own:
            return exchanges[0] if exchanges else end, end, end
        first_gemm, last_gemm = own[0], own[-1]
        first_exchange, last_exchange, sent = routed, end, first_gemm
    permuted = launches.last(routed, sent, PERMUTE, ROUTER, "ep_control", _NORM, *GEMM_CATEGORIES)
    is_permuted = permuted is not None and launches.categories[permuted] == PERMUTE
    dispatch = launches.begin_of_run(permuted, routed) if permuted is not None and is_permuted else sent
    received = launches.last(max(first_exchange, dispatch), first_gemm, PERMUTE, *TOKEN_EXCHANGES)
    experts = max(dispatch, first_gemm if received is None else received + 1)
    gathered = launches.first(last_gemm, last_exchange, PERMUTE)
    combine = last_exchange if gathered is None else gathered
    return dispatch, experts, combine


def _split_router(
    launches: Launches, bounds: tuple[int, int], routed: int, phase: str, shared: SharedExperts | None
) -> Iterator[tuple[int, str, str]]:
    """(place, module, work) between attention and dispatch: shared experts, the router, what prepares the dispatch."""
    begin, end = bounds
    in_shared = range(0)
    if shared is not None and shared.stream is None:
        gemms = launches.places(begin, routed if phase == FORWARD else end, *GEMM_CATEGORIES)
        count = FORWARD_GEMMS if phase == FORWARD else BACKWARD_GEMMS
        if len(gemms) > count:
            in_shared = range(gemms[0], gemms[count - 1] + 1)
    prepares = launches.first(routed, end, *_CATEGORIES_BEFORE_DISPATCH) if phase == FORWARD else None
    for place in range(begin, end):
        is_side = shared is not None and launches.streams[place] == shared.stream
        if is_side or place in in_shared:
            yield place, ROUTER, SHARED_EXPERT
        else:
            yield place, ROUTER, ROUTER if prepares is None or place < prepares else PREPROCESS


def _split_attention(
    launches: Launches, bounds: tuple[int, int], mark: int | None, phase: str
) -> Iterator[tuple[int, str, str | None]]:
    """(place, module, work) of attention. Unfused, it multiplies once before and after its softmax, backward twice."""
    begin, end = bounds
    core: set[int] = set()
    if mark is not None and launches.categories[mark] == "attention_unfused":
        around = 2 if phase == BACKWARD else 1
        core = {
            *launches.places(begin, mark, *GEMM_CATEGORIES)[-around:],
            *launches.places(mark, end, *GEMM_CATEGORIES)[:around],
        }
    for place in range(begin, end):
        if place in core or launches.categories[place] in _ATTENTION:
            yield place, ATTENTION, ATTENTION_CORE
        else:
            yield place, ATTENTION, PROJECTION if launches.categories[place] in GEMM_CATEGORIES else None
