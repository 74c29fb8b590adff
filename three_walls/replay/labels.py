"""What each operation of a step is part of, so that an edit can select it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, pairwise
from types import MappingProxyType
from typing import Annotated, NamedTuple

import polars as pl

from three_walls.facts.unfused_ops import UnfusedWork, classify_unfused
from three_walls.layers.attention_passes import BACKWARD, FORWARD, RECOMPUTE
from three_walls.layers.layer_order import (
    ATTENTION,
    EXPERT,
    EXPERTS,
    OUTSIDE,
    Launches,
    SharedExperts,
    place_in_layers,
)
from three_walls.layers.moe_passes import COMBINE, DISPATCH, EXPERT_GEMM, PERMUTE, ROUTER, UNPERMUTE
from three_walls.megatron.parallel_layout import read_layout
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.replay import replay_thresholds
from three_walls.replay.step_graph import RankOperations, StepGraph
from three_walls.step.operators import EVALUATES, Operators, read_operators
from three_walls.step.step_tables import Operations
from three_walls.tables.buckets import GEMM_CATEGORIES, TOKEN_EXCHANGES
from three_walls.tables.nvtx_ranges import WGRAD_ACCUMULATION, torch_operators
from three_walls.trace.read_trace import Trace

LABELS = pl.Schema(
    {
        "name": pl.String,  # of the kernel; null for copies and memsets
        "rank_number": pl.Int64,  # global rank
        "work": pl.String,  # what it does; null where not known
        "module": pl.String,  # layer_order.MODULES
        "direction": pl.String,  # forward, backward or recompute
        "micro_batch": pl.Int64,  # of the step, from 0 in the order of execution
        "layer": pl.Int64,  # of the rank's layers, from 0
        "fused_kernel": pl.Int64,  # number of the fused kernel that would take it over; null where not known
    }
)

LabelledOperations = Annotated[RankOperations, LABELS]
"""What every operation of a step is, and of which part of the model."""

OPTIMIZER, GRADIENT_REDUCTION = "optimizer", "gradient_reduction"

_PLAIN_WORK = {ROUTER: ROUTER, DISPATCH: PERMUTE, EXPERTS: EXPERT, COMBINE: UNPERMUTE}
"""What launches of a module are that are neither GEMMs nor token exchanges."""
_DELAYED = " wgrad"


def label_operations(
    graph: StepGraph,
    traces: Sequence[Trace],
    config: RunConfig,
    unfused: Mapping[int, UnfusedWork] = MappingProxyType({}),
) -> LabelledOperations:
    """``graph.operations`` in the same order, with the columns of LABELS.

    ``unfused``: by rank index the unfused work among the same operations, where it was found before. Raises InputError
    where a trace cannot be read any more.

    The direction of a launch is that of the range around it: autograd evaluates the backward pass in ranges of its own.
    Without ranges it is that of the thread, if one thread launches attention forward and another one backward. Module
    and layer follow from the order of the launches of one direction (``layer_order``).
    """
    place_of = {rank.rank_index: (trace, rank) for trace in traces for rank in trace.ranks}
    read_all = len(graph.ranks) <= replay_thresholds.MOST_RANKS_READ
    reference = graph.ranks[0]
    rows = graph.operations.with_row_index("row")
    labelled: dict[int, pl.DataFrame] = {}
    for index in graph.ranks:
        trace, rank = place_of[index]
        of_rank = rows.filter(pl.col("rank_index") == index).with_columns(
            name=pl.col("name_id").replace_strict(trace.names, default=None, return_dtype=pl.String),
            rank_number=pl.lit(rank.rank, dtype=pl.Int64),
        )
        in_order = [pl.coalesce("launch_start_ns", "start_ns"), "start_ns", "row"]
        if read_all or index == reference:
            operators = read_operators(trace, rank.process, of_rank)
            work = unfused[index] if index in unfused else classify_unfused(of_rank, operators, config)
            classified = of_rank.with_columns(work.operations.select("op", "fused_kernel"))
            labelled[index] = _label_rank(classified.sort(in_order, maintain_order=True), operators, config)
        else:
            labelled[index] = _carry_over(of_rank.sort(in_order, maintain_order=True), labelled[reference])
    columns = [*rows.columns, *LABELS]
    return pl.concat(frame.select(columns) for frame in labelled.values()).sort("row").drop("row")


class _Context(NamedTuple):
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


@dataclass(slots=True)
class _Labels:
    """Labels by the place of the launch. Each step of the labelling adds some."""

    work: dict[int, str] = field(default_factory=dict)
    module: dict[int, str] = field(default_factory=dict)
    direction: dict[int, str] = field(default_factory=dict)
    micro_batch: dict[int, int] = field(default_factory=dict)
    layer: dict[int, int] = field(default_factory=dict)

    def copy(self, source: int, target: int) -> None:
        """Labels the launch ``target`` as part of what ``source`` is part of."""
        self.module[target] = self.module[source]
        for column in (self.micro_batch, self.layer):
            column.pop(target, None)
            if source in column:
                column[target] = column[source]


def _label_rank(operations: Operations, operators: Operators, config: RunConfig) -> Operations:
    """``operations``: of one rank, in the order of their launches, with name, rank_number and UnfusedWork's columns."""
    categories = operations["category"].cast(pl.String).to_list()
    phases = operations["phase"].cast(pl.String).to_list()
    contexts = _read_contexts(operations, operators)
    # Autograd's ranges are around every backward pass, or around none: some functions write ranges of their own.
    are_inside = [contexts[place].node is not None for place, phase in enumerate(phases) if phase == BACKWARD]
    by_range = are_inside and all(are_inside)
    directions = [context.direction for context in contexts] if by_range else _direct_by_thread(operations)
    labels = _Labels(
        direction={place: direction for place, direction in enumerate(directions) if direction is not None}
    )
    view = _View(categories, phases, operations["stream"].to_list(), _find_shared_experts(operations, config))
    _label_layers(operations, view, contexts, config, labels)
    work = operations["op"].to_list()
    _follow_accumulation(operations, work, labels)
    _label_delayed(categories, contexts, labels)
    for place, category in enumerate(categories):
        if category in replay_thresholds.CATEGORIES_OUTSIDE_LAYERS:
            labels.module[place] = OUTSIDE
            if not category.startswith("pipeline"):
                labels.work[place] = OPTIMIZER if category == OPTIMIZER else GRADIENT_REDUCTION
            if category == OPTIMIZER:
                labels.direction.pop(place, None)
    labels.work.update((place, op) for place, op in enumerate(work) if op is not None)
    columns = {column.name: getattr(labels, column.name) for column in fields(labels)}
    return operations.with_columns(
        pl.Series(name, [column.get(place) for place in range(operations.height)], dtype=LABELS[name])
        for name, column in columns.items()
    )


def _label_layers(
    operations: Operations, view: _View, contexts: Sequence[_Context], config: RunConfig, labels: _Labels
) -> None:
    """Labels the passes through layers, and what lies between them; ``labels`` has the directions."""
    in_layers = [
        place
        for place, category in enumerate(view.categories)
        if category not in replay_thresholds.CATEGORIES_OUTSIDE_LAYERS and not contexts[place].is_delayed
    ]
    replays: dict[int, list[int]] = defaultdict(list)
    for place in in_layers:
        replay = contexts[place].replay
        if labels.direction.get(place) == RECOMPUTE and replay is not None:
            replays[replay].append(place)
    whole = {replay: places for replay, places in replays.items() if view.has_layer(places)}
    in_whole = set(chain.from_iterable(whole.values()))
    forward = [place for place in in_layers if labels.direction.get(place) == FORWARD]
    # What is replayed of a part of a layer runs between the operations of its backward pass.
    backward = [
        place for place in in_layers if labels.direction.get(place) in (BACKWARD, RECOMPUTE) and place not in in_whole
    ]
    forward_breaks, backward_breaks = _breaks(forward, backward), _breaks(backward, forward, from_end=True)
    _number(view.place(forward, FORWARD, labels, forward_breaks), False, config, labels)
    _number(view.place(backward[::-1], BACKWARD, labels, backward_breaks), True, config, labels)
    _place_outside(view.categories, forward, forward_breaks, labels)
    _place_outside(view.categories, backward[::-1], backward_breaks, labels)
    _follow_nodes(operations, contexts, labels)
    backward_of: dict[int, list[int]] = defaultdict(list)
    for place in backward:
        replay = contexts[place].replay
        if replay is not None and place in labels.layer:
            backward_of[replay].append(place)
    for replay, places in whole.items():
        _number_replay(view.place(places, FORWARD, labels, frozenset()), backward_of[replay], labels)


@dataclass(frozen=True, slots=True)
class _View:
    """The launches of one rank, by place."""

    categories: list[str]
    phases: list[str | None]
    streams: list[int]
    shared: SharedExperts | None

    def has_layer(self, places: Sequence[int]) -> bool:
        """Whether launches run attention, or exchange tokens."""
        return any(self.phases[place] is not None or self.categories[place] in TOKEN_EXCHANGES for place in places)

    def place(self, places: Sequence[int], phase: str, labels: _Labels, breaks: frozenset[int]) -> list[list[int]]:
        """Labels the launches at ``places`` with module and work; returns those of each pass through a layer."""
        launches = Launches(
            [self.categories[place] for place in places],
            [self.phases[place] for place in places],
            [self.streams[place] for place in places],
            breaks,
        )
        passes: dict[int, list[int]] = defaultdict(list)
        for place, spot in zip(places, place_in_layers(launches, phase, self.shared), strict=True):
            if spot is None:
                continue
            passes[spot.number].append(place)
            if spot.module is not None:
                labels.module[place] = spot.module
            if spot.work is not None:
                labels.work[place] = spot.work
        return [passes[number] for number in sorted(passes)]


def _read_contexts(operations: Operations, operators: Operators) -> list[_Context]:
    """Per launch what the ranges around it show. Inside of none it goes the way of the one before it on its thread."""
    table = torch_operators()
    of_range: dict[int | None, _Context] = {None: _Context()}

    def read(index: int) -> _Context:
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
        if outer.node is None and operator.sequence is not None:
            return inner._replace(sequence=operator.sequence)
        return inner

    contexts = []
    last: dict[int | None, str] = {}
    for thread, at_ns in zip(operations["launch_thread"], operations["launch_start_ns"], strict=True):
        index = None if thread is None or at_ns is None else operators.innermost(thread, at_ns)
        if index not in of_range:
            for around in reversed([around for around in operators.around(index) if around not in of_range]):
                of_range[around] = read(around)
        context = of_range[index]
        direction = context.direction or (last.get(thread, FORWARD) if index is None else FORWARD)
        last[thread] = BACKWARD if direction == RECOMPUTE else direction
        contexts.append(context._replace(direction=direction))
    return contexts


def _direct_by_thread(operations: Operations) -> list[str | None]:
    """Directions of launches by their thread; None for one that launches no attention, or replays whole layers.

    A thread that launches attention both ways replays it in the backward pass, if another one launches it forward
    only. Where it replays attention alone, no router runs between the replay and its backward pass.
    """
    columns = operations.select("launch_thread", pl.col("phase", "category").cast(pl.String)).iter_rows()
    phases: dict[int | None, list[str]] = defaultdict(list)
    for thread, phase, category in columns:
        if phase is not None or category == ROUTER:
            phases[thread].append(phase or ROUTER)
    direction_of: dict[int | None, str] = {}
    for thread, in_order in phases.items():
        of_attention = {phase for phase in in_order if phase != ROUTER}
        if len(of_attention) == 1:
            direction_of[thread] = of_attention.pop()
    if FORWARD in direction_of.values():
        for thread, in_order in phases.items():
            replays_whole = (FORWARD, ROUTER) in pairwise(in_order)
            if thread not in direction_of and BACKWARD in in_order and not replays_whole:
                direction_of[thread] = BACKWARD
    directions = [direction_of.get(thread) for thread in operations["launch_thread"]]
    return [
        RECOMPUTE if direction == BACKWARD and phase == FORWARD else direction
        for direction, phase in zip(directions, operations["phase"].cast(pl.String), strict=True)
    ]


def _find_shared_experts(operations: Operations, config: RunConfig) -> SharedExperts | None:
    """How shared experts run; None without any, or where the stream of their own is not the only one with GEMMs."""
    if not config.get("moe_shared_expert_intermediate_size"):
        return None
    if config.get("moe_shared_expert_overlap") is not True:
        return SharedExperts(None)
    attention = operations.drop_nulls("phase")["stream"].unique().to_list()
    gemms = operations.filter(
        pl.col("category").cast(pl.String).is_in(list(GEMM_CATEGORIES)) & ~pl.col("stream").is_in(attention)
    )
    streams = gemms["stream"].unique().to_list()
    return SharedExperts(streams[0]) if len(streams) == 1 else None


def _breaks(places: Sequence[int], others: Sequence[int], *, from_end: bool = False) -> frozenset[int]:
    """Positions in ``places`` (counted in reverse order ``from_end``) before which some of ``others`` were launched.

    Both in the order of launches.
    """
    before = [bisect_left(others, place) for place in places]
    breaks = [position for position in range(1, len(places)) if before[position] != before[position - 1]]
    return frozenset(len(places) - position for position in breaks) if from_end else frozenset(breaks)


def _number(passes: Sequence[Sequence[int]], goes_back: bool, config: RunConfig, labels: _Labels) -> None:
    """Labels passes with micro-batch and layer; ``goes_back``: they are of the backward pass, the last one first."""
    layers = _count_layers(len(passes), config)
    if layers is None:
        return
    for number, places in enumerate(passes):
        order = len(passes) - 1 - number if goes_back else number
        layer = order % layers
        for place in places:
            labels.micro_batch[place] = order // layers
            labels.layer[place] = layers - 1 - layer if goes_back else layer


def _count_layers(passes: int, config: RunConfig) -> int | None:
    """Layers that each micro-batch runs through on the rank; None where they are several chunks, or not known."""
    if config.get("virtual_pipeline_model_parallel_size"):
        return None
    microbatches = read_layout(config).microbatches
    if microbatches:
        return None if passes % microbatches else passes // microbatches
    layers = config.whole_number("num_layers")
    is_whole = config.whole_number("pipeline_model_parallel_size") == 1 and not config.get("mtp_num_layers")
    return layers if layers and is_whole and passes % layers == 0 else None


def _number_replay(passes: Sequence[Sequence[int]], backward: Sequence[int], labels: _Labels) -> None:
    """Labels replayed ``passes`` with micro-batch and layer of the ``backward`` launches that follow them.

    Some of these belong to the layer before or after: as many layers as are replayed launch most of them.
    """
    counts = Counter((labels.micro_batch[place], labels.layer[place]) for place in backward)
    layers = sorted(layer for layer, _ in counts.most_common(len(passes)))
    if len(layers) != len(passes):
        return
    for (micro_batch, layer), places in zip(layers, passes, strict=True):
        for place in places:
            labels.micro_batch[place], labels.layer[place] = micro_batch, layer


def _follow_nodes(operations: Operations, contexts: Sequence[_Context], labels: _Labels) -> None:
    """All launches of an autograd node belong to the part of the model that the first one belongs to.

    A graph contains several parts, and ends with attention. Where the forward operator of its number launched
    something, it is part of the same module.
    """
    in_graph = (operations["graph_node"].is_not_null() | (operations["kind"] == "graph")).to_list()
    of_node: dict[int, list[int]] = defaultdict(list)
    modules: dict[tuple[int | None, int], set[str]] = defaultdict(set)
    for place, context in enumerate(contexts):
        if context.node is not None:
            of_node[context.node].append(place)
        elif context.sequence is not None and place in labels.module:
            modules[context.replay, context.sequence].add(labels.module[place])
    for places in of_node.values():
        first = places[0]
        graphed = [place for place in places if in_graph[place]]
        if graphed:
            last = next((place for place in reversed(graphed) if labels.module.get(place) == ATTENTION), graphed[-1])
            for place in places:
                if place > last and last in labels.module:
                    labels.work.pop(place, None)
                    labels.copy(last, place)
            continue
        if first not in labels.module:
            continue
        sequence = next((contexts[place].sequence for place in places if contexts[place].sequence is not None), None)
        forward = modules.get((contexts[first].replay, sequence), set()) if sequence is not None else set()
        module = min(forward) if len(forward) == 1 else labels.module[first]
        for place in places:
            if labels.module.get(place) != module:
                labels.work.pop(place, None)
                if module in _PLAIN_WORK:
                    labels.work[place] = _PLAIN_WORK[module]
            if place != first:
                labels.copy(first, place)
            labels.module[place] = module


def _follow_accumulation(operations: Operations, work: Sequence[str | None], labels: _Labels) -> None:
    """The gradient of a weight is accumulated after the GEMM that computes it, on the same thread."""
    last: dict[int | None, int] = {}
    for place, thread in enumerate(operations["launch_thread"]):
        if work[place] != WGRAD_ACCUMULATION:
            last[thread] = place
        elif thread in last and last[thread] in labels.module:
            labels.work.pop(place, None)
            labels.copy(last[thread], place)


def _label_delayed(categories: Sequence[str], contexts: Sequence[_Context], labels: _Labels) -> None:
    """Delayed weight gradients belong to the layer that went back last."""
    last: int | None = None
    for place, category in enumerate(categories):
        if contexts[place].is_delayed:
            labels.direction[place], labels.module[place] = BACKWARD, EXPERTS
            if last is not None:
                labels.micro_batch[place], labels.layer[place] = labels.micro_batch[last], labels.layer[last]
            if category in GEMM_CATEGORIES:
                labels.work[place] = EXPERT_GEMM
        elif labels.direction.get(place) == BACKWARD and place in labels.layer:
            last = place


def _place_outside(categories: Sequence[str], places: Sequence[int], breaks: frozenset[int], labels: _Labels) -> None:
    """Labels what one direction launches outside of its layers, with the micro-batch that it belongs to.

    ``places``: in the order of layers; ``breaks``: positions among them before which the other direction was launched.
    Before the first layer of a micro-batch lies its embedding, after the last one its loss.
    """
    layered = [position for position, place in enumerate(places) if place in labels.module or place in labels.layer]
    if not layered:
        return
    first_categories = replay_thresholds.CATEGORIES_BEFORE_MICRO_BATCH
    runs = zip([-1, *layered], [*layered, len(places)], strict=True)
    for before, after in runs:
        positions = range(before + 1, after)
        turns = [position for position in positions if position in breaks]
        if after == len(places):
            turn = turns[-1] if turns else after
        elif len(turns) == 1:
            turn = turns[0]
        else:  # Where two micro-batches overlap, launches of the other direction lie everywhere: a copy begins it.
            turn = next((at for at in positions if categories[places[at]].startswith("copy_h2d")), after)
        if before < 0:
            turn = next(
                (at + 1 for at in reversed(positions) if categories[places[at]] in first_categories), before + 1
            )
        numbers = [labels.micro_batch.get(places[side]) for side in (before, after) if 0 <= side < len(places)]
        if len(numbers) == 2 and numbers[0] == numbers[1]:
            continue  # Between two layers of a micro-batch: of one of them, or of a layer that was not found.
        for position in positions:
            place = places[position]
            labels.module[place] = OUTSIDE
            source = before if position < turn else after
            if 0 <= source < len(places):
                neighbour = labels.micro_batch.get(places[source])
                if neighbour is not None:
                    labels.micro_batch[place] = neighbour
            elif labels.direction.get(place) == FORWARD:
                labels.direction.pop(place)


def _carry_over(operations: pl.DataFrame, reference: pl.DataFrame) -> pl.DataFrame:
    """``operations`` of one rank with the labels of the ``reference`` rank where both launch the same.

    Experts' GEMMs differ with the tokens they get, in their kernels and in copies and fills around them.
    """

    def list_keys(frame: pl.DataFrame) -> list[str]:
        category = pl.col("category").cast(pl.String)
        key = pl.when(category.is_in(list(GEMM_CATEGORIES))).then(category).otherwise(pl.coalesce("name", category))
        return frame.select(key.alias("key"))["key"].to_list()

    part = ["module", "direction", "micro_batch", "layer"]
    counterparts = _align(list_keys(operations), list_keys(reference))
    filled = _fill_between(counterparts, reference.select(part).rows())
    same, between = (pl.Series(places, dtype=pl.UInt32) for places in (counterparts, filled))
    is_gemm = pl.col("category").cast(pl.String).is_in(list(GEMM_CATEGORIES))
    expert = pl.when(pl.col("module") == EXPERTS).then(
        pl.when(is_gemm).then(pl.lit(EXPERT_GEMM)).otherwise(pl.lit(EXPERT))
    )
    return operations.with_columns(
        reference["work"].gather(same),
        *(reference[name].gather(between) for name in part),
        reference["fused_kernel"].gather(same),
    ).with_columns(work=pl.when(same.is_null()).then(expert).otherwise("work"))


def _fill_between(source: Sequence[int | None], parts: Sequence[object]) -> list[int | None]:
    """``source`` filled up between two places of the same one of ``parts``: what is launched there is of that part."""
    filled = list(source)
    before: int | None = None
    for place, counterpart in enumerate(source):
        if counterpart is None:
            continue
        if before is not None and parts[source[before] or 0] == parts[counterpart]:
            filled[before + 1 : place] = [source[before]] * (place - before - 1)
        before = place
    return filled


def _align(keys: Sequence[str], reference: Sequence[str]) -> list[int | None]:
    """Per key its place in ``reference``, both read in order; None where they differ."""
    length = replay_thresholds.AGREEING_LAUNCHES

    def agrees(place: int, other: int) -> bool:
        return bool(keys[place : place + length]) and keys[place : place + length] == reference[other : other + length]

    source: list[int | None] = [None] * len(keys)
    here = there = 0
    while here < len(keys) and there < len(reference):
        if keys[here] == reference[there]:
            source[here] = there
            here, there = here + 1, there + 1
            continue
        ahead, other_ahead = next(
            (
                (ahead, total - ahead)
                for total in range(1, replay_thresholds.RESYNCHRONIZE_LAUNCHES)
                for ahead in range(total + 1)
                if agrees(here + ahead, there + total - ahead)
            ),
            (1, 1),
        )
        here, there = here + ahead, there + other_ahead
    return source
