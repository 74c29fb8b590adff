"""Which way each launch of a step goes: forward, backward, or forward again in the backward pass (recompute).

The ranges around a launch show it, where they were recorded. Without them the passes of attention do, whose direction
the kernels' names tell: autograd runs the backward pass on a thread of its own. A forward pass there is a replay, and
so it is where a micro-batch runs forward more often than backward. How far a replay extends is what it launches like a
forward layer, before its attention and after it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import polars as pl

from three_walls.layers.layer_order import Launches, bound_layers, read_phases
from three_walls.step.operators import EVALUATES, Operators
from three_walls.step.step_tables import Operations
from three_walls.tables.buckets import GEMM_CATEGORIES
from three_walls.tables.model_parts import BACKWARD, FORWARD, RECOMPUTE
from three_walls.tables.nvtx_ranges import torch_operators

MINIMUM_RECOMPUTE_RATIO = 1.25
"""Attention forward passes per backward pass from which layers are taken to be replayed. The ratio is 2 if every layer
is replayed and 1.25 if a quarter of them is."""
MINIMUM_FULL_RECOMPUTE_RATIO = 1.5
"""GEMMs between a replayed attention and its backward pass, in units of a forward layer's GEMMs: from here on recompute
is full. With full recompute the replay and the backward pass of what follows attention have three times the GEMMs of
its forward pass. In a dense layer, where the least follows attention, these are 9 GEMMs against the forward layer's 4
(fused attention), or 12 against 6. If only core attention is replayed, at most 3 GEMMs are there, those of the
scores."""
RESYNCHRONIZE_LAUNCHES = 200
"""How far ahead two sequences of launches are searched for a place from which they agree again. Experts that got no
tokens launch nothing: two ranks differ by some dozens of launches, and a layer has some hundreds."""
AGREEING_LAUNCHES = 4
"""How many launches in a row have to agree there. So many are the same by chance in few places of a layer."""

_REPLAY_DIFFERS_BY = 64
"""By how many launches in a row a replay may differ from the forward pass, which computes without gradients and the
balancing loss."""
_MOST_FORWARD_LAYERS = 8
"""Forward layers that a replay is compared with. A model has few kinds of them; experts differ by their tokens."""
_DELAYED = " wgrad"


class Context(NamedTuple):
    """What the ranges around a launch show."""

    direction: str | None = None
    """Null where they show none."""
    node: int | None = None
    """The range of the autograd node that is evaluated."""
    replay: int | None = None
    """The range that runs a part of the forward pass again."""
    is_delayed: bool = False
    """Whether it is a weight gradient that the schedule put off."""
    sequence: int | None = None
    """Number of the operator; that of a backward operator is the number of the forward one."""
    runs_again: bool = False
    """Whether a hook of a node of the backward pass runs it again, as the up-projections before attention goes back."""


@dataclass(frozen=True, slots=True)
class Directions:
    """Per launch its direction; None where nothing shows it."""

    of_launch: list[str | None]
    replay: list[int | None]
    """Per launch a number of the replay that it is part of, where that contains a whole layer or more."""
    contexts: list[Context] = field(default_factory=list)


def find_directions(launches: Operations, operators: Operators) -> Directions:
    """``launches``: of one rank, in their order, with ``name``."""
    contexts = _read_contexts(launches, operators)
    phases = read_phases(launches)
    # Autograd's ranges are around every backward pass, or around none: some functions write ranges of their own.
    are_inside = [contexts[place].node is not None for place, phase in enumerate(phases) if phase == BACKWARD]
    if (are_inside and all(are_inside)) or (not are_inside and any(context.node is not None for context in contexts)):
        replays = [context.replay if context.direction == RECOMPUTE else None for context in contexts]
        return Directions([context.direction for context in contexts], replays, contexts)
    of_launch, replays = _direct_by_attention(launches, phases)
    return Directions(of_launch, replays, contexts)


def _read_contexts(launches: Operations, operators: Operators) -> list[Context]:
    """Per launch what the ranges around it show. Inside of none it goes the way of the one before it on its thread."""
    table = torch_operators()
    of_range: dict[int | None, Context] = {None: Context()}

    def read(index: int) -> Context:
        """What the range ``index`` shows of a launch inside it, given what those around it show."""
        operator = operators.found[index]
        outer = of_range[operator.parent]
        name = operator.name.removeprefix(EVALUATES)
        is_evaluated = len(name) < len(operator.name)
        inner = outer._replace(is_delayed=outer.is_delayed or name.endswith(_DELAYED))
        if name in table.replays:
            # What autograd does around the replaying function adds up gradients.
            direction, replay = BACKWARD if is_evaluated else RECOMPUTE, index if outer.replay is None else outer.replay
            return inner._replace(direction=direction, node=None, replay=replay, sequence=None)
        if is_evaluated or table.backward.search(name):
            node = index if outer.node is None else outer.node
            sequence = operator.sequence if outer.sequence is None else outer.sequence
            return inner._replace(direction=BACKWARD, node=node, sequence=sequence)
        # A hook runs what autograd numbers between the begin of the node and that of its function.
        around = "" if operator.parent is None else operators.found[operator.parent].name
        if operator.sequence is not None and around.startswith(EVALUATES) and around != f"{EVALUATES}{name}":
            inner = inner._replace(runs_again=True)
        if outer.node is None and operator.sequence is not None:
            return inner._replace(sequence=operator.sequence)
        return inner

    contexts = []
    last: dict[int | None, str] = {}
    for thread, at_ns in zip(launches["launch_thread"], launches["launch_start_ns"], strict=True):
        index = operators.innermost(thread, at_ns)
        if index not in of_range:
            for around in reversed([around for around in operators.around(index) if around not in of_range]):
                of_range[around] = read(around)
        context = of_range[index]
        direction = context.direction or (last.get(thread, FORWARD) if index is None else FORWARD)
        last[thread] = BACKWARD if direction == RECOMPUTE else direction
        contexts.append(context._replace(direction=direction))
    return contexts


def direct_attention(phases: Sequence[str], threads: Sequence[int | None]) -> list[str] | None:
    """Directions of passes of attention in their order; None where replays cannot be distinguished from the others.

    ``phases``: forward or backward, from the kernels' names. ``threads``: which one launched each.
    """
    backward_threads = {thread for phase, thread in zip(phases, threads, strict=True) if phase == BACKWARD}
    on_both = [thread in backward_threads for thread in threads]
    if any(phase == FORWARD and not both for phase, both in zip(phases, on_both, strict=True)):
        return [RECOMPUTE if both and phase == FORWARD else phase for phase, both in zip(phases, on_both, strict=True)]
    replays = _find_replays(phases)
    if replays is None:
        return None
    return [RECOMPUTE if place in replays else phase for place, phase in enumerate(phases)]


def is_recomputing(forward: int, backward: int) -> bool:
    """Whether ``forward`` passes outnumber ``backward`` passes by so much that layers are replayed."""
    return backward > 0 and forward >= MINIMUM_RECOMPUTE_RATIO * backward


def _find_replays(phases: Sequence[str]) -> set[int] | None:
    """Places of the replayed passes; None where they cannot be distinguished from the other forward passes."""
    forward, backward = phases.count(FORWARD), phases.count(BACKWARD)
    if not is_recomputing(forward, backward):
        return set()
    for replays in (_replays_of_every_layer(phases), _replays_of_some_layers(phases)):
        if replays is not None and len(replays) == forward - backward:
            return replays
    return None


def _replays_of_every_layer(phases: Sequence[str]) -> set[int]:
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


def _replays_of_some_layers(phases: Sequence[str]) -> set[int] | None:
    """Only some layers are replayed: a micro-batch of L layers begins with L forward passes; its others are replays.

    L is the smallest number that fits all of the step.
    """
    backward = phases.count(BACKWARD)
    for layers in (number for number in range(1, backward + 1) if backward % number == 0):
        replays = _replays_with_layers(phases, layers)
        if replays is not None:
            return replays
    return None


def _replays_with_layers(phases: Sequence[str], layers: int) -> set[int] | None:
    """Places of the replays if each micro-batch ends with its ``layers``-th backward pass; None where it cannot."""
    replays: set[int] = set()
    begin = 0
    backward_places = [place for place, phase in enumerate(phases) if phase == BACKWARD]
    for end in backward_places[layers - 1 :: layers]:
        if list(phases[begin : begin + layers]) != [FORWARD] * layers:
            return None
        replayed = {place for place in range(begin + layers, end) if phases[place] == FORWARD}
        if len(replayed) > layers:
            return None
        replays |= replayed
        begin = end + 1
    return replays


@dataclass(frozen=True, slots=True)
class _Forward:
    """What forward layers launch before their attention and after it, the most frequent first."""

    before: tuple[list[str], ...]
    after: tuple[list[str], ...]
    gemms: float
    """GEMMs of a layer."""


def _direct_by_attention(
    launches: Operations, phases: Sequence[str | None]
) -> tuple[list[str | None], list[int | None]]:
    """Directions and replays by the passes of attention; none where they do not show one."""
    threads = launches["launch_thread"].to_list()
    of_launch: list[str | None] = [None] * launches.height
    replay: list[int | None] = [None] * launches.height
    marks = [place for place, phase in enumerate(phases) if phase is not None]
    known = direct_attention([str(phases[place]) for place in marks], [threads[place] for place in marks])
    if known is None:
        return of_launch, replay
    direction_of = dict(zip(marks, known, strict=True))
    of_thread: dict[int | None, set[str]] = defaultdict(set)
    for place, direction in direction_of.items():
        of_thread[threads[place]].add(direction)
    rows, keys = Launches.of(launches, "category"), list_keys(launches)
    forward_threads = {thread for thread, found in of_thread.items() if found == {FORWARD}}
    forward = [place for place, thread in enumerate(threads) if thread in forward_threads]
    for place in forward:
        of_launch[place] = FORWARD
    mixed = [place for place, thread in enumerate(threads) if thread in of_thread.keys() - forward_threads]
    runs = [forward] if forward else list(_forward_runs(mixed, direction_of))
    lengths = {sum(direction_of.get(place) == FORWARD for place in run) for run in runs}
    if not forward and len(lengths) > 1 and 1 in lengths:
        return of_launch, replay  # layers of two micro-batches interleave, and nothing shows who launched what
    usual = _describe_forward(rows, keys, runs, direction_of, is_whole=bool(forward))
    if RECOMPUTE in known and not usual.gemms:
        return [None] * launches.height, replay  # nothing tells a replayed layer from attention alone
    _direct_in_order(rows, keys, mixed, direction_of, usual, of_launch, replay)
    return of_launch, replay


def list_keys(launches: Operations) -> list[str]:
    """Per launch what two runs of one program agree in: the kernel's name, or the category where tokens choose it."""
    category = pl.col("category").cast(pl.String)
    key = pl.when(category.is_in(list(GEMM_CATEGORIES))).then(category).otherwise(pl.coalesce("name", category))
    return launches.select(key.alias("key"))["key"].to_list()


def _forward_runs(places: Sequence[int], direction_of: dict[int, str]) -> Iterable[list[int]]:
    """Stretches from one forward attention to the last before any of another direction."""
    run: list[int] = []
    last = 0
    for place in places:
        direction = direction_of.get(place)
        if direction == FORWARD or run:
            run.append(place)
        if direction == FORWARD:
            last = len(run)
        elif direction is not None:
            yield run[:last]
            run = []
    yield run[:last]


def _describe_forward(
    rows: Launches,
    keys: Sequence[str],
    runs: Iterable[Sequence[int]],
    direction_of: Mapping[int, str],
    *,
    is_whole: bool,
) -> _Forward:
    """``is_whole``: the runs hold whole layers; else each begins and ends with the attention of one."""
    before: Counter[tuple[str, ...]] = Counter()
    after: Counter[tuple[str, ...]] = Counter()
    gemms: list[int] = []
    for run in runs:
        marks = [number for number, place in enumerate(run) if direction_of.get(place) == FORWARD]
        if len(marks) < 1 + (not is_whole):
            continue
        bounds = bound_layers(rows.take(run), marks, FORWARD)
        for number, (mark, (begin, end)) in enumerate(zip(marks, bounds, strict=True)):
            if is_whole or number:
                before[tuple(keys[place] for place in run[begin:mark])] += 1
            if is_whole or number + 1 < len(marks):
                after[tuple(keys[place] for place in run[mark + 1 : end])] += 1
        gemms += [
            sum(rows.categories[place] in GEMM_CATEGORIES for place in run[first:second])
            for first, second in pairwise(marks)
        ]
    usual = sorted(gemms)[len(gemms) // 2] if gemms else 0
    return _Forward(_choose_frequent(before), _choose_frequent(after), usual)


def _choose_frequent(counts: Counter[tuple[str, ...]]) -> tuple[list[str], ...]:
    in_order = sorted(counts, key=lambda keys: (-counts[keys], keys))
    return tuple(map(list, in_order[:_MOST_FORWARD_LAYERS]))


def _direct_in_order(
    rows: Launches,
    every_key: Sequence[str],
    places: Sequence[int],
    direction_of: dict[int, str],
    usual: _Forward,
    of_launch: list[str | None],
    replay: list[int | None],
) -> None:
    """Directs the launches at ``places``, which hold backward passes: what no forward pass takes goes back."""
    marks = [(number, direction_of[place]) for number, place in enumerate(places) if place in direction_of]
    if not any(direction == BACKWARD for _, direction in marks):
        return
    keys = [every_key[place] for place in places]
    backward = [number for number, direction in marks if direction == BACKWARD]
    gemms = [number for number, place in enumerate(places) if rows.categories[place] in GEMM_CATEGORIES]
    for place in places:
        of_launch[place] = BACKWARD
    reached, number_of_replay = 0, -1
    previous: str | None = None
    for order, (mark, direction) in enumerate(marks):
        following = marks[order + 1] if order + 1 < len(marks) else None
        if direction != BACKWARD:
            is_attention_alone = direction == RECOMPUTE and not _is_whole(gemms, mark, backward, usual)
            begin, end = (
                _bound_core(gemms, mark, is_fused=rows.categories[places[mark]] != "attention_unfused")
                if is_attention_alone
                else (_find_begin(keys, mark, reached, usual), _find_end(keys, mark, following, usual))
            )
            if direction == previous:  # nothing but layers lies between two forward passes
                begin = reached
            if following is not None and following[1] == direction and not is_attention_alone:
                end = following[0]
            if direction == FORWARD and following is not None and following[1] == BACKWARD:
                end += _measure_head([rows.categories[place] for place in places[end : following[0]]])
            if direction != previous:
                number_of_replay += 1
            for place in places[begin:end]:
                of_launch[place] = direction
                if direction == RECOMPUTE and not is_attention_alone:
                    replay[place] = number_of_replay
            reached = end
            previous = None if is_attention_alone else direction
        else:
            reached, previous = mark + 1, direction


def _is_whole(gemms: Sequence[int], mark: int, backward: Sequence[int], usual: _Forward) -> bool:
    """Whether a replay whose attention is at ``mark`` runs the rest of the layer too."""
    after = bisect_left(backward, mark)
    if after == len(backward):
        return True
    between = bisect_left(gemms, backward[after]) - bisect_left(gemms, mark)
    return between >= MINIMUM_FULL_RECOMPUTE_RATIO * usual.gemms


def _bound_core(gemms: Sequence[int], mark: int, *, is_fused: bool) -> tuple[int, int]:
    """[begin, end) of attention alone: with a GEMM before and after it where it is not fused."""
    at = bisect_left(gemms, mark)
    if is_fused or not 0 < at < len(gemms):
        return mark, mark + 1
    return gemms[at - 1], gemms[at] + 1


def _find_begin(keys: Sequence[str], mark: int, reached: int, usual: _Forward) -> int:
    """Where the layer with the attention at ``mark`` begins: as far back as it launches what forward layers do."""

    def agreeing(before: Sequence[str]) -> int:
        pairs = zip(reversed(before), reversed(keys[reached:mark]), strict=False)
        return next(
            (number for number, (key, other) in enumerate(pairs) if key != other), min(len(before), mark - reached)
        )

    return mark - max(map(agreeing, usual.before), default=0)


def _find_end(keys: Sequence[str], mark: int, following: tuple[int, str] | None, usual: _Forward) -> int:
    """Where the layer ends: as far as it launches what forward layers do. ``following``: the next attention."""
    limit = len(keys) if following is None else following[0]
    ends = []
    for after in usual.after:
        here = keys[mark + 1 : min(limit, mark + 1 + len(after) + _REPLAY_DIFFERS_BY)]
        aligned = [
            number
            for number, source in enumerate(align(here, after, _REPLAY_DIFFERS_BY, ends=True))
            if source is not None
        ]
        ends.append((len(aligned), aligned[-1] + 1 if aligned else 0))
    return mark + 1 + max(ends, default=(0, 0))[1]


def _measure_head(categories: Sequence[str]) -> int:
    """Launches of the model's head among ``categories``, which follow the last layer: to the first GEMM, after a norm.

    On a stage without a head the backward pass begins there, and no norm comes before its first GEMM.
    """
    gemm = next((place for place, category in enumerate(categories) if category in GEMM_CATEGORIES), 0)
    return gemm + 1 if "norm" in categories[:gemm] else 0


def align(
    keys: Sequence[str], reference: Sequence[str], reach: int = RESYNCHRONIZE_LAUNCHES, *, ends: bool = False
) -> list[int | None]:
    """Per key its place in ``reference``, both read in order; None where they differ.

    ``reach``: how far ahead they are searched for a place from which they agree again. ``ends``: whether they differ
    from there on where there is none.
    """
    length = AGREEING_LAUNCHES

    def agrees(place: int, other: int) -> bool:
        return bool(keys[place : place + length]) and keys[place : place + length] == reference[other : other + length]

    source: list[int | None] = [None] * len(keys)
    here = there = 0
    while here < len(keys) and there < len(reference):
        if keys[here] == reference[there]:
            source[here] = there
            here, there = here + 1, there + 1
            continue
        ahead = next(
            (
                (ahead, total - ahead)
                for total in range(1, reach)
                for ahead in range(total + 1)
                if agrees(here + ahead, there + total - ahead)
            ),
            None,
        )
        if ahead is None and ends:
            break
        here, there = here + (ahead or (1, 1))[0], there + (ahead or (1, 1))[1]
    return source
