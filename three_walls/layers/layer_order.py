"""Which part of which layer each launch is, by the fixed order in which a transformer layer launches its work.

A forward layer of Megatron Core (transformer/transformer_layer.py, transformer/moe/moe_layer.py) launches::

    norm, qkv, rotary embedding, attention, projection, residual | norm, router, maps and counts |
    permute, dispatch | experts | permute, combine, unpermute, residual

A backward layer launches the same in reverse, so it is read backwards. Only what can be recognized by kernels alone
separates the parts: the attention kernel of each pass, norms, routers' kernels, GEMMs, permutations and token
exchanges. Without expert parallelism there are no exchanges; the experts' GEMMs then follow the router's kernels.
A dense layer has an MLP after the second norm. Linear attention and state space models take the place of attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from three_walls.step.step_tables import Operations
from three_walls.tables.buckets import GEMM_CATEGORIES, TOKEN_EXCHANGES
from three_walls.tables.model_parts import (
    ATTENTION,
    ATTENTION_CORE,
    BACKWARD,
    COMBINE,
    DISPATCH,
    EXPERT,
    EXPERT_GEMM,
    EXPERTS,
    FORWARD,
    MLP,
    PERMUTE,
    PREPROCESS,
    PROJECTION,
    ROUTER,
    SHARED_EXPERT,
    UNPERMUTE,
)

FORWARD_GEMMS, BACKWARD_GEMMS = 2, 4
"""GEMMs of an MLP, and of shared experts, in one pass through a layer."""

_CATEGORIES_BEFORE_DISPATCH = ("ep_control", "tensor_parallel", "all_gather", "copy_d2h_pinned", "copy_d2h_pageable")
"""What prepares a dispatch: ranks exchange the counts of their tokens, and the host reads them."""
_CATEGORIES_AFTER_LAYERS = ("optimizer", "pipeline_p2p", "copy_h2d_pinned", "copy_h2d_pageable", "all_reduce")
"""What ends the last layer of a micro-batch where no norm follows it."""

_NORM = "norm"
_ATTENTION = ("attention", "attention_unfused", "linear_attention")


@dataclass(frozen=True, slots=True)
class SharedExperts:
    """How a layer's shared experts run."""

    stream: int | None
    """The stream of their own, with which they overlap the exchanges; else they run before the router."""


@dataclass(frozen=True, slots=True)
class Launches:
    """Launches of a rank, or of one direction: in their order, or for the backward pass in the reverse order."""

    categories: Sequence[str]
    phases: Sequence[str | None]
    streams: Sequence[int]
    shared: SharedExperts | None = None
    """None without any, or where it is not known how they run."""
    breaks: frozenset[int] = frozenset()
    """Places before which the other direction was launched."""

    @staticmethod
    def of(operations: Operations, category: str, shared: SharedExperts | None = None) -> Launches:
        """``operations`` of a rank in the order of their launches; ``category``: the column with their categories."""
        categories = operations[category].cast(pl.String).to_list()
        return Launches(categories, read_phases(operations), operations["stream"].to_list(), shared)

    def take(self, places: Sequence[int], breaks: frozenset[int] = frozenset()) -> Launches:
        """The launches at ``places``, in that order."""
        return Launches(
            [self.categories[place] for place in places],
            [self.phases[place] for place in places],
            [self.streams[place] for place in places],
            self.shared,
            breaks,
        )

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

    def marks(self, phase: str) -> list[int]:
        """The places of the one kernel of each pass of attention in ``phase``."""
        return [place for place, other in enumerate(self.phases) if other == phase]

    def mlp_norms(self, mark: int, limit: int, phase: str) -> tuple[int, int] | None:
        """The norm before the MLP of the dense layer with attention at ``mark``, and the first norm after the layer.

        None where the norm after attention is the next layer's. ``limit``: the next attention, or the end. Gemma's
        layers have a norm after attention, before the MLP's own, and one after the MLP.
        """
        projection = self.first(mark + 1, limit, *GEMM_CATEGORIES)
        norm, gemms, following = self._next_norm(limit if projection is None else projection, limit)
        norm_ends_attention = not gemms and following < limit
        if norm_ends_attention:
            norm, gemms, following = self._next_norm(following, limit)
        if gemms < (FORWARD_GEMMS if phase == FORWARD else BACKWARD_GEMMS):
            return None
        return norm, self._next_norm(following, limit)[2] if norm_ends_attention else following

    def _next_norm(self, begin: int, limit: int) -> tuple[int, int, int]:
        """The first norm in [begin, limit), how many GEMMs follow its kernels up to the next norm, and that norm."""
        norm = self.first(begin, limit, _NORM)
        after = norm = limit if norm is None else norm
        while after < limit and self.categories[after] == _NORM:
            after += 1
        following = self.first(after, limit, _NORM)
        following = limit if following is None else following
        return norm, len(self.places(after, following, *GEMM_CATEGORIES)), following

    def begin_of_run(self, place: int, begin: int) -> int:
        """Where the consecutive launches of the category at ``place`` begin, not before ``begin``."""
        while place > begin and self.categories[place - 1] == self.categories[place]:
            place -= 1
        return place


def read_phases(operations: Operations) -> list[str | None]:
    """Per launch of a rank, in their order, the phase of the attention that it begins; None of all others.

    With context parallelism a layer launches a kernel of attention for each part of its sequence. No GEMM lies between
    them, as there does between two layers.
    """
    phases: list[str | None] = []
    begun: dict[int | None, str | None] = {}
    columns = (operations[name] for name in ("launch_thread", "category", "phase"))
    for thread, category, phase in zip(*(column.to_list() for column in columns), strict=True):
        phases.append(phase if phase != begun.get(thread) else None)
        if category in GEMM_CATEGORIES:
            begun[thread] = None
        elif phase is not None:
            begun[thread] = phase
    return phases


@dataclass(frozen=True, slots=True)
class Place:
    """Where a launch belongs."""

    module: str | None
    part: str | None
    number: int
    """Of the pass through a layer, from 0 in the order of the launches given."""


def place_in_layers(launches: Launches, phase: str, *, is_replay: bool = False) -> list[Place | None]:
    """Per launch its place; None outside of the layers.

    ``phase``: of the attention kernel that each layer has once. A replay without any is one layer without attention
    where it routes or exchanges tokens (recompute of the MoE layer alone); of others without any nothing is known.
    """
    places: list[Place | None] = [None] * len(launches)
    marks = launches.marks(phase)
    is_part = not marks
    if is_part and not is_replay:
        return places
    if is_part and launches.first(0, len(launches), ROUTER, *TOKEN_EXCHANGES) is None:
        return places
    bounds = [(0, len(launches))] if is_part else bound_layers(launches, marks, phase)
    for number, (begin, end) in enumerate(bounds):
        mark = None if is_part else marks[number]
        for place, module, part in _split_layer(launches, (begin, end), mark, phase):
            places[place] = Place(module, part, number)
    return places


def bound_layers(launches: Launches, marks: Sequence[int], phase: str) -> list[tuple[int, int]]:
    """[begin, end) of the layer around each of ``marks``."""
    limits = [*marks[1:], len(launches)]
    ends = [_end_layer(launches, mark, limit, phase) for mark, limit in zip(marks, limits, strict=True)]
    usual = _count_norms(launches, ends, marks)
    begins = []
    for number, mark in enumerate(marks):
        earliest = 0 if number == 0 else ends[number - 1]
        norms = launches.places(earliest, mark, _NORM)
        if norms:
            begins.append(norms[-min(usual.get(launches.categories[mark], len(norms)), len(norms))])
        else:
            begins.append(mark if number == 0 else earliest)
    limits = [*begins[1:], len(launches)]
    return [(begin, min(end, limit)) for begin, end, limit in zip(begins, ends, limits, strict=True)]


def _count_norms(launches: Launches, ends: Sequence[int], marks: Sequence[int]) -> dict[str, int]:
    """Norms from the begin of a layer to its attention, by the category of that.

    Between two micro-batches lies the model's last norm too: there the other direction is launched.
    """
    inner: dict[str, int] = {}
    every: dict[str, int] = {}
    for end, mark in zip(ends, marks[1:], strict=False):
        kind, count = launches.categories[mark], len(launches.places(end, mark, _NORM))
        if count:
            is_inner = not any(place in launches.breaks for place in range(end, mark + 1))
            for counts in (every, inner) if is_inner else (every,):
                counts[kind] = min(counts.get(kind, count), count)
    least = min(every.values(), default=0)
    return {kind: inner.get(kind, least) for kind in every}


def _end_layer(launches: Launches, mark: int, limit: int, phase: str) -> int:
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
        norms = launches.mlp_norms(mark, limit, phase)
        if norms is not None:
            after = norms[1]
        else:
            projection = launches.first(mark + 1, limit, *GEMM_CATEGORIES)
            after = limit if projection is None else projection + 1
    ends = (_NORM, *_CATEGORIES_AFTER_LAYERS)
    for place in range(after, limit):
        if launches.categories[place] in ends:
            return place
        if place in launches.breaks:
            return place
    return limit


def _split_layer(
    launches: Launches, bounds: tuple[int, int], mark: int | None, phase: str
) -> Iterator[tuple[int, str | None, str | None]]:
    """(place, module, part) of the launches of one layer."""
    begin, end = bounds
    from_attention = begin if mark is None else mark + 1
    side = launches.shared.stream if launches.shared else None
    gemms = [
        place for place in launches.places(from_attention, end, *GEMM_CATEGORIES) if launches.streams[place] != side
    ]
    routed = launches.first(from_attention, end, ROUTER, *TOKEN_EXCHANGES)
    if routed is None:
        # A dense layer: the norm before its MLP ends the attention.
        norms = None if mark is None else launches.mlp_norms(mark, end, phase)
        dense = end if norms is None else norms[0]
        yield from _split_attention(launches, (begin, dense), mark)
        for place in range(dense, end):
            yield place, MLP, PROJECTION if launches.categories[place] in GEMM_CATEGORIES else None
        return
    norm = launches.last(from_attention, routed, _NORM)
    router = begin if mark is None else routed if norm is None else launches.begin_of_run(norm, from_attention)
    yield from _split_attention(launches, (begin, router), mark)
    dispatch, experts, combine = _find_experts(launches, (routed, end), gemms)
    yield from _split_router(launches, (router, dispatch), routed, phase)
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
    launches: Launches, bounds: tuple[int, int], routed: int, phase: str
) -> Iterator[tuple[int, str, str]]:
    """(place, module, part) between attention and dispatch: shared experts, the router, what prepares the dispatch."""
    begin, end = bounds
    shared = launches.shared
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
    launches: Launches, bounds: tuple[int, int], mark: int | None
) -> Iterator[tuple[int, str, str | None]]:
    """(place, module, part) of attention. Unfused, it multiplies once before and after its softmax, backward twice."""
    begin, end = bounds
    core: set[int] = set()
    if mark is not None and launches.categories[mark] == "attention_unfused":
        # A replay of core attention alone lies within the layer's backward pass.
        for softmax in (place for place in range(begin, end) if launches.phases[place]):
            around = 2 if launches.phases[softmax] == BACKWARD else 1
            core |= {
                *launches.places(begin, softmax, *GEMM_CATEGORIES)[-around:],
                *launches.places(softmax, end, *GEMM_CATEGORIES)[:around],
            }
    for place in range(begin, end):
        if place in core or launches.categories[place] in _ATTENTION:
            yield place, ATTENTION, ATTENTION_CORE
        else:
            yield place, ATTENTION, PROJECTION if launches.categories[place] in GEMM_CATEGORIES else None
