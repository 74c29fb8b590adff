"""What each operation of a rank's step is part of: the one recognizer of layers.

``operations -> module, part, direction, layer, micro_batch, operator``. The time of MoE layers, recompute, unfused
work, the places of kernels, the timeline and every change that a replay makes are selections of this table. Directions
come first (``directions.py``), then the order of launches within one direction (``layer_order.py``) gives module, part
and layer, and the operators around the launches what a fused kernel would take over (``unfused_work.py``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

import polars as pl

from three_walls.layers.directions import Context, Directions, find_directions
from three_walls.layers.labels import LABELS, LabelledOperations
from three_walls.layers.layer_order import Launches, SharedExperts, bound_layers, place_in_layers
from three_walls.layers.marked_attention import mark_attention
from three_walls.layers.unfused_work import UnfusedOperations, UnfusedWork
from three_walls.lib.declare import artifact
from three_walls.megatron.model_shape import read_hybrid_layers
from three_walls.megatron.parallel_layout import layers_of_stage, read_layout
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.operators import Operators
from three_walls.step.step_tables import Operations
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import COMPUTE_CATEGORIES, GEMM_CATEGORIES, TOKEN_EXCHANGES
from three_walls.tables.model_parts import (
    ATTENTION,
    BACKWARD,
    COMBINE,
    DISPATCH,
    EXPERT,
    EXPERT_GEMM,
    EXPERTS,
    FORWARD,
    GRADIENT_REDUCTION,
    MLP,
    MTP,
    OPTIMIZER,
    OUTSIDE,
    PERMUTE,
    PROJECTION,
    RECOMPUTE,
    ROUTER,
    SHARED_EXPERT,
    UNPERMUTE,
    VISION,
    WGRAD_ACCUMULATION,
)

CATEGORIES_OUTSIDE_LAYERS = ("data_parallel", "reduce_scatter", "optimizer", "pipeline_p2p")
"""Launched at any time between the operations of layers, and part of none."""
CATEGORIES_BEFORE_MICRO_BATCH = ("all_reduce", "optimizer", "copy_d2h_pinned", "broadcast")
"""What a step launches before its first micro-batch: it checks and updates parameters, and reads a norm or a flag."""

_HYBRID_MLPS = ("E", "-")
_MLP_MODULES = (ROUTER, DISPATCH, EXPERTS, COMBINE, MLP)
_PLAIN_PARTS = {ROUTER: ROUTER, DISPATCH: PERMUTE, EXPERTS: EXPERT, COMBINE: UNPERMUTE}
"""What launches of a module are that are neither GEMMs nor token exchanges."""


@artifact
def labelled_step(step: StepView, unfused_work: UnfusedWork, operators: Operators) -> LabelledOperations:
    """The operations that start in the step, labelled."""
    return label_operations(unfused_work.operations, step.names, operators, step.config)


def label_operations(
    operations: UnfusedOperations, names: Mapping[int, str], operators: Operators, config: RunConfig
) -> LabelledOperations:
    """``operations`` of one rank's step in the same order, with ``name`` and the columns of LABELS.

    ``names``: texts by ``name_id``. ``operators``: the ranges around the launches.
    """
    rows = operations.with_row_index("position").with_columns(
        name=pl.col("name_id").replace_strict(names, default=None, return_dtype=pl.String)
    )
    launches = mark_attention(rows.sort(pl.coalesce("launch_start_ns", "start_ns"), "start_ns", "position"), operators)
    labelled = _label_launches(launches, find_directions(launches, operators), config)
    return labelled.sort("position").drop("position")


@dataclass(slots=True)
class _Labels:
    """Labels by the place of the launch. Each step of the labelling adds some."""

    part: dict[int, str] = field(default_factory=dict)
    module: dict[int, str] = field(default_factory=dict)
    stack: dict[int, str] = field(default_factory=dict)
    direction: dict[int, str] = field(default_factory=dict)
    number: dict[int, int] = field(default_factory=dict)
    """Of the pass through a layer."""
    micro_batch: dict[int, int] = field(default_factory=dict)
    layer: dict[int, int] = field(default_factory=dict)

    def copy(self, source: int, target: int) -> None:
        """Labels the launch ``target`` as part of what ``source`` is part of."""
        self.module[target] = self.module[source]
        self.stack.pop(target, None)
        if source in self.stack:
            self.stack[target] = self.stack[source]
        for column in (self.number, self.micro_batch, self.layer):
            column.pop(target, None)
            if source in column:
                column[target] = column[source]


def _label_launches(operations: Operations, directions: Directions, config: RunConfig) -> LabelledOperations:
    """``operations``: of one rank, in the order of their launches, with the columns of UnfusedOperations."""
    labels = _Labels(
        direction={place: direction for place, direction in enumerate(directions.of_launch) if direction is not None}
    )
    launches = Launches.of(operations, "placed_as", _find_shared_experts(operations, config))
    categories = launches.categories
    contexts = _find_run_again(launches, directions)
    _label_layers(operations, launches, replace(directions, contexts=contexts), config, labels)
    _follow_accumulation(operations, labels)
    _label_delayed(categories, contexts, labels)
    _label_run_again(categories, contexts, labels)
    for place, category in enumerate(categories):
        if category in CATEGORIES_OUTSIDE_LAYERS:
            labels.module[place] = OUTSIDE
            if not category.startswith("pipeline"):
                labels.part[place] = OPTIMIZER if category == OPTIMIZER else GRADIENT_REDUCTION
            if category == OPTIMIZER:
                labels.direction.pop(place, None)
    _follow_optimizer(categories, labels)
    columns: dict[str, Mapping[int, object]] = {
        "module": labels.module,
        "stack": labels.stack,
        "part": labels.part,
        "direction": labels.direction,
        "pass": labels.number,
        "layer": labels.layer,
        "micro_batch": labels.micro_batch,
    }
    return operations.drop("placed_as").with_columns(
        pl.Series(name, [column.get(place) for place in range(operations.height)], dtype=LABELS[name])
        for name, column in columns.items()
    )


def _find_run_again(launches: Launches, directions: Directions) -> list[Context]:
    """The contexts; a replay without attention, router and token exchange counts as run again, as if by a hook.

    It is of one module, a dense MLP or shared experts, whose backward GEMMs are then counted without it.
    """
    replays: dict[int, list[int]] = defaultdict(list)
    for place, replay in enumerate(directions.replay):
        if replay is not None:
            replays[replay].append(place)
    contexts = directions.contexts.copy()
    for replay, places in replays.items():
        is_of_several = any(
            launches.phases[place] is not None or launches.categories[place] in (ROUTER, PERMUTE, *TOKEN_EXCHANGES)
            for place in places
        )
        if not is_of_several:
            for place in places:
                contexts[place] = contexts[place]._replace(runs_again=True, node=replay)
    return contexts


def _label_layers(
    operations: Operations, launches: Launches, directions: Directions, config: RunConfig, labels: _Labels
) -> None:
    """Labels the passes through layers, and what lies between them; ``labels`` has the directions."""
    contexts = directions.contexts
    in_layers = [
        place
        for place, (category, context) in enumerate(zip(launches.categories, contexts, strict=True))
        if category not in CATEGORIES_OUTSIDE_LAYERS and not context.is_delayed and not context.runs_again
    ]
    replays: dict[int, list[int]] = defaultdict(list)
    for place in in_layers:
        replay = directions.replay[place]
        if replay is not None:
            replays[replay].append(place)
    is_of_layer = [
        category in TOKEN_EXCHANGES or phase is not None
        for category, phase in zip(launches.categories, launches.phases, strict=True)
    ]
    whole = [places for places in replays.values() if any(is_of_layer[place] for place in places)]
    in_whole = set(chain.from_iterable(whole))
    forward = [place for place in in_layers if labels.direction.get(place) == FORWARD]
    # What is replayed of a part of a layer runs between the operations of its backward pass.
    backward = [
        place for place in in_layers if labels.direction.get(place) in (BACKWARD, RECOMPUTE) and place not in in_whole
    ]
    every_backward = backward
    forward = _take_tower(forward, FORWARD, launches, config, labels)
    backward = _take_tower(backward[::-1], BACKWARD, launches, config, labels)[::-1]
    forward_breaks, backward_breaks = _breaks(forward, backward), _breaks(backward, forward, from_end=True)
    forward_passes = _place_passes(launches, forward, FORWARD, labels, forward_breaks)
    layers = _count_layers(forward_passes, backward, config)
    _number_passes(forward_passes, layers, labels)
    backward_passes = _place_passes(launches, backward[::-1], BACKWARD, labels, backward_breaks)
    _number_passes(backward_passes, layers, labels, goes_back=True)
    _place_outside(launches.categories, forward, forward_breaks, labels)
    _place_outside(launches.categories, backward[::-1], backward_breaks, labels)
    _follow_nodes(operations, contexts, labels)
    _number_hybrid_layers(read_hybrid_layers(config), layers, labels)
    number = 0
    for places in whole:
        passes = _place_passes(launches, places, FORWARD, labels)
        later = every_backward[bisect_left(every_backward, places[-1]) :]
        _number_replay(passes, number, [place for place in later if launches.phases[place] == BACKWARD], labels)
        number += len(passes)
    _name_prediction_layers(layers, config, labels)


def _place_passes(
    launches: Launches, places: Sequence[int], phase: str, labels: _Labels, breaks: frozenset[int] | None = None
) -> list[list[int]]:
    """Labels the launches at ``places`` with module and part; returns those of each pass through a layer.

    ``breaks``: see Launches; None for a replay.
    """
    passes: dict[int, list[int]] = defaultdict(list)
    spots = place_in_layers(launches.take(places, breaks or frozenset()), phase, is_replay=breaks is None)
    for place, spot in zip(places, spots, strict=True):
        if spot is None:
            continue
        passes[spot.number].append(place)
        if spot.module is not None:
            labels.module[place] = spot.module
        if spot.part is not None:
            labels.part[place] = spot.part
    return [passes[number] for number in sorted(passes)]


def _take_tower(places: list[int], phase: str, launches: Launches, config: RunConfig, labels: _Labels) -> list[int]:
    """``places`` without those of a vision tower, which are labelled.

    ``places``: launches of one direction in the order of layers. In each micro-batch, the tower's layers come before
    the model's, which are as many as the configuration states. All of ``places`` where there is no such tower.
    """
    layout, layers, added = read_layout(config), layers_of_stage(config), config.whole_number("mtp_num_layers") or 0
    microbatches = layout.microbatches
    if layers is None or (added and layout.pipeline != 1):  # whose stage predicts more tokens is not known
        return places
    layers += added
    marks = [position for position, place in enumerate(places) if launches.phases[place] == phase]
    if not config.knows("freeze_vision_model") or not microbatches or len(marks) % microbatches:
        return places
    found = len(marks) // microbatches
    towers: set[int] = set()
    for number in range(microbatches if found > layers else 0):
        group = marks[number * found : (number + 1) * found]
        begin, end = marks[number * found - 1] + 1 if number else 0, group[found - layers]
        own = [mark - begin for mark in group[: found - layers]]
        bounds = bound_layers(launches.take(places[begin:end]), own, phase)
        tower = range(begin + bounds[0][0], begin + bounds[-1][1])
        towers.update(tower)
        for place in (places[position] for position in tower):
            labels.module[place], labels.stack[place] = OUTSIDE, VISION
            labels.micro_batch[place] = number if phase == FORWARD else microbatches - 1 - number
    return [place for position, place in enumerate(places) if position not in towers]


def _name_prediction_layers(layers: int | None, config: RunConfig, labels: _Labels) -> None:
    """Names the last of the ``layers`` where multi-token prediction adds them to those of the rank's stage."""
    own, added = layers_of_stage(config), config.whole_number("mtp_num_layers")
    if layers and own and added and layers == own + added:
        labels.stack.update({place: MTP for place, layer in labels.layer.items() if layer >= own})


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


def _number_passes(
    passes: Sequence[Sequence[int]], layers: int | None, labels: _Labels, *, goes_back: bool = False
) -> None:
    """Numbers passes, and labels them with micro-batch and layer. ``goes_back``: of the backward pass, the last first.

    ``layers``: how many each micro-batch runs through; None where it is not known.
    """
    if layers is not None and len(passes) % layers:
        layers = None
    for number, places in enumerate(passes):
        order = len(passes) - 1 - number if goes_back else number
        for place in places:
            labels.number[place] = order
            if layers is not None:
                labels.micro_batch[place] = order // layers
                labels.layer[place] = layers - 1 - order % layers if goes_back else order % layers


def _count_layers(forward: Sequence[Sequence[int]], backward: Sequence[int], config: RunConfig) -> int | None:
    """Layers that each micro-batch runs through on the rank; None where they are several chunks, or not known.

    Where the config does not state them: the forward passes that run between two backward passes, if all such runs are
    a multiple of the shortest, and no backward pass is launched within a forward pass.
    """
    if config.get("virtual_pipeline_model_parallel_size"):
        return None
    mixing = [kind for kind in read_hybrid_layers(config) if kind not in _HYBRID_MLPS]
    layers = len(mixing) or config.whole_number("num_layers")
    is_whole = config.whole_number("pipeline_model_parallel_size") == 1 and not config.get("mtp_num_layers")
    microbatches = read_layout(config).microbatches or (len(forward) // layers if layers and is_whole else None)
    if microbatches:
        found, rest = divmod(len(forward), microbatches)
        return None if rest or not found or (layers and is_whole and found != layers) else found
    if layers:
        return None
    edges = [(bisect_left(backward, places[0]), bisect_left(backward, places[-1])) for places in forward]
    if not edges or not backward or any(begin != end for begin, end in edges):
        return None
    runs = Counter(begin for begin, _ in edges).values()
    return min(runs) if all(run % min(runs) == 0 for run in runs) else None


def _number_hybrid_layers(pattern: str, layers: int | None, labels: _Labels) -> None:
    """In a hybrid model what mixes tokens and the MLP or experts after it are layers of their own.

    ``pattern``: a letter for each layer. ``layers``: those that mix tokens.
    """
    mixing = [number for number, kind in enumerate(pattern) if kind not in _HYBRID_MLPS]
    if layers is None or len(mixing) != layers:
        return
    for place, layer in labels.layer.items():
        number = mixing[layer]
        has_mlp = pattern[number + 1 : number + 2] in _HYBRID_MLPS
        labels.layer[place] = number + (has_mlp and labels.module.get(place) in _MLP_MODULES)


def _number_replay(passes: Sequence[Sequence[int]], first: int, marks: Sequence[int], labels: _Labels) -> None:
    """Numbers replayed ``passes`` from ``first``; layer and micro-batch are those of the backward passes at ``marks``,
    which follow them."""
    if marks and labels.stack.get(marks[0]) == VISION:
        for place in chain.from_iterable(passes):
            labels.module[place], labels.stack[place] = OUTSIDE, VISION
            labels.part.pop(place, None)
        return
    numbers = ((labels.micro_batch.get(place), labels.layer.get(place)) for place in marks)
    layers = list(islice(dict.fromkeys(numbers), len(passes)))[::-1]
    for number, places in enumerate(passes):
        micro_batch, layer = layers[number] if len(layers) == len(passes) else (None, None)
        for place in places:
            labels.number[place] = first + number
            if micro_batch is not None and layer is not None:
                labels.micro_batch[place], labels.layer[place] = micro_batch, layer


def _follow_nodes(operations: Operations, contexts: Sequence[Context], labels: _Labels) -> None:
    """All launches of an autograd node belong to the part of the model that the first one belongs to.

    A graph contains several parts, and ends with attention. Where the forward operator of its number launched
    something, it is part of the same module, and its GEMMs of what the GEMMs of that are part of.
    """
    is_gemm = [category in GEMM_CATEGORIES for category in operations["category"].cast(pl.String)]
    in_graph = (operations["graph_node"].is_not_null() | (operations["kind"] == "graph")).to_list()
    of_node: dict[int, list[int]] = defaultdict(list)
    modules: dict[tuple[int | None, int], set[str]] = defaultdict(set)
    gemm_parts: dict[tuple[int | None, int], set[str | None]] = defaultdict(set)
    for place, context in enumerate(contexts):
        if context.runs_again:
            continue
        if context.node is not None:
            of_node[context.node].append(place)
        elif context.sequence is not None and place in labels.module:
            modules[context.replay, context.sequence].add(labels.module[place])
            if is_gemm[place]:
                gemm_parts[context.replay, context.sequence].add(labels.part.get(place))
    for places in of_node.values():
        first = places[0]
        graphed = [place for place in places if in_graph[place]]
        if graphed:
            last = next((place for place in reversed(graphed) if labels.module.get(place) == ATTENTION), graphed[-1])
            for place in places:
                if place > last and last in labels.module:
                    labels.part.pop(place, None)
                    labels.copy(last, place)
            continue
        if first not in labels.module:
            continue
        sequence = next((contexts[place].sequence for place in places if contexts[place].sequence is not None), None)
        operator = (contexts[first].replay, sequence) if sequence is not None else None
        forward = modules.get(operator, set()) if operator else set()
        module = min(forward) if len(forward) == 1 else labels.module[first]
        parts = gemm_parts.get(operator, set()) if operator and len(forward) == 1 else set()
        gemm_part = next(iter(parts)) if len(parts) == 1 else None
        for place in places:
            if labels.module.get(place) != module:
                labels.part.pop(place, None)
                if module in _PLAIN_PARTS:
                    labels.part[place] = _PLAIN_PARTS[module]
            if place != first:
                labels.copy(first, place)
            labels.module[place] = module
            if gemm_part is not None and is_gemm[place]:
                labels.part[place] = gemm_part


def _follow_accumulation(operations: Operations, labels: _Labels) -> None:
    """The gradient of a weight is accumulated after the GEMM that computes it, on the same thread."""
    last: dict[int | None, int] = {}
    for place, (thread, operator) in enumerate(operations.select("launch_thread", "operator").iter_rows()):
        if operator != WGRAD_ACCUMULATION:
            last[thread] = place
        elif thread in last and last[thread] in labels.module:
            gemm = last[thread]
            labels.copy(gemm, place)
            of_shared = labels.part.get(gemm) == SHARED_EXPERT
            part = SHARED_EXPERT if of_shared else _PLAIN_PARTS.get(labels.module[gemm])
            labels.part.pop(place, None)
            if part is not None:
                labels.part[place] = part


def _label_delayed(categories: Sequence[str], contexts: Sequence[Context], labels: _Labels) -> None:
    """Delayed weight gradients belong to the layer that went back last."""
    last: int | None = None
    for place, category in enumerate(categories):
        if contexts[place].is_delayed:
            labels.direction[place], labels.module[place] = BACKWARD, EXPERTS
            if last is not None:
                labels.copy(last, place)
                labels.module[place] = EXPERTS
            if category in GEMM_CATEGORIES:
                labels.part[place] = EXPERT_GEMM
        elif labels.direction.get(place) == BACKWARD and place in labels.number and place in labels.module:
            last = place


def _label_run_again(categories: Sequence[str], contexts: Sequence[Context], labels: _Labels) -> None:
    """What runs again is recompute, and part of the module whose backward pass follows.

    In attention a replay with GEMMs is of the projections, with all that lies between them. The norm before the router
    runs again first, before the combine goes back.
    """
    following: int | None = None
    of_node: dict[int | None, list[int]] = defaultdict(list)
    for place in reversed(range(len(categories))):
        if not contexts[place].runs_again:
            following = place if labels.direction.get(place) == BACKWARD and place in labels.module else following
        elif following is not None:
            labels.copy(following, place)
            labels.part.pop(place, None)
            labels.direction[place] = RECOMPUTE
            of_node[contexts[place].node].append(place)
    for places in of_node.values():
        module, found = labels.module[places[0]], {categories[place] for place in places}
        part = _PLAIN_PARTS.get(module)
        if not found.isdisjoint(GEMM_CATEGORIES):
            part = {ATTENTION: PROJECTION, ROUTER: SHARED_EXPERT}.get(module)
        elif "norm" in found and module == COMBINE:
            module = part = ROUTER
        for place in places:
            labels.module[place] = module
            if part is not None:
                labels.part[place] = part
            elif module == MLP and categories[place] in GEMM_CATEGORIES:
                labels.part[place] = PROJECTION


def _follow_optimizer(categories: Sequence[str], labels: _Labels) -> None:
    """What computes from the optimizer's first kernel on, after the last layer went back, is its work."""
    is_updating = False
    for place in range(max(labels.number, default=-1) + 1, len(categories)):
        is_updating = is_updating or labels.part.get(place) == OPTIMIZER
        if is_updating and place not in labels.part and categories[place] in COMPUTE_CATEGORIES:
            labels.module[place], labels.part[place] = OUTSIDE, OPTIMIZER


def _place_outside(categories: Sequence[str], places: Sequence[int], breaks: frozenset[int], labels: _Labels) -> None:
    """Labels what one direction launches outside of its layers, with the micro-batch that it belongs to.

    ``places``: in the order of layers; ``breaks``: positions among them before which the other direction was launched.
    Before the first layer of a micro-batch lies its embedding, after the last one its loss.
    """
    layered = [position for position, place in enumerate(places) if place in labels.module or place in labels.number]
    if not layered:
        return
    first_categories = CATEGORIES_BEFORE_MICRO_BATCH
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
        sides = [places[side] for side in (before, after) if 0 <= side < len(places)]
        numbers, layers = ([column.get(side) for side in sides] for column in (labels.micro_batch, labels.layer))
        if len(sides) == 2 and numbers[0] == numbers[1] and (None in layers or layers[0] == layers[1]):
            continue  # Between two parts of a layer, or of layers of which not all may have been found.
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
