"""Changes the work of a step as an edit would: the primitives of every prediction.

Each takes the work that the changes before it left. Columns that labels would fill (``layers/labels.py``) may be
missing: a selection by such a label then selects nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from three_walls.replay import replay_thresholds
from three_walls.replay.step_graph import NONE, Edges, Kind, StepGraph, Work, replay
from three_walls.replay.transformation import CATEGORY_GROUPS, NOTHING, Action, Level, Selection, Transformation
from three_walls.replay.unseen_shapes import meet_known_shapes
from three_walls.step.step_tables import Operations
from three_walls.tables.buckets import COMMUNICATION_CATEGORIES, COMPUTE_CATEGORIES, GEMM_CATEGORIES
from three_walls.tables.model_parts import (
    BACKWARD,
    FORWARD,
    GRADIENT_REDUCTION,
    RECOMPUTE,
    WGRAD_ACCUMULATION,
)
from three_walls.tables.prediction_intervals import Levels
from three_walls.trace.schemas import BoolArray, Float64Array, Int64Array

_MODULE_PASS = ("micro_batch", "layer", "direction", "module")
_COMPUTED = {
    "layer of a kind": ("layer",),
    "between GEMMs": _MODULE_PASS,
    "follows": ("direction", "part", "launch_thread", "launch_start_ns"),
}
"""Of a condition that is no column: the labels that it needs."""


def transform(graph: StepGraph, work: Work, transformations: Sequence[Transformation], level: Level) -> Work:
    """``work`` after all ``transformations``, in their order, with their parameters at ``level``."""
    for transformation in transformations:
        work = _ACTIONS[transformation.action](graph, work, transformation, level)
    return work


def select_operations(graph: StepGraph, select: Selection) -> BoolArray:
    """Which operations of ``graph`` are meant. A label that is not known matches nothing."""
    return graph.once(select, lambda: _find_operations(graph.operations, select))


def _find_operations(operations: Operations, select: Selection) -> BoolArray:
    categories = [name for each in select.categories for name in CATEGORY_GROUPS.get(each, (each,))]
    layer, category = pl.col("layer"), pl.col("category").cast(pl.String)
    direction, work = pl.col("direction"), pl.coalesce("operator", "part")
    by_column = {
        "category": category.is_in(categories) if categories else None,
        "part": work.is_in(list(select.work)) if select.work else None,
        "module": pl.col("module").is_in(list(select.modules)) if select.modules else None,
        "direction": direction.is_in(list(select.directions)) if select.directions else None,
        "rank_number": pl.col("rank_number").is_in(list(select.ranks)) if select.ranks else None,
        "name": pl.col("name").str.contains(select.kernels) if select.kernels else None,
        "layer": (layer > 0) & (layer < layer.max().over("rank")) if select.inner_layers else None,
    }
    if select.layers_with:
        of_layer = category.is_in(list(select.layers_with)).any().over("rank", "layer")
        by_column["layer of a kind"] = of_layer & layer.is_not_null()
    if select.follows_recompute:
        is_repeated = direction == RECOMPUTE
        before = (is_repeated & work.is_in(list(select.follows_recompute))).shift()
        follows = before.over("rank", "launch_thread", order_by="launch_start_ns") & ~is_repeated
        by_column["follows"] = follows
    if select.after_gemm or select.before_gemm:
        is_gemm = category.is_in(list(GEMM_CATEGORIES)).cast(pl.Int64)
        earlier = is_gemm.cum_sum().over("rank", *_MODULE_PASS) - is_gemm
        is_between = (earlier >= select.after_gemm) & (earlier + is_gemm < (select.before_gemm or math.inf))
        by_column["between GEMMs"] = is_between & layer.is_not_null()
    conditions = {name: condition for name, condition in by_column.items() if condition is not None}
    needed = {column for name in conditions for column in _COMPUTED.get(name, (name,))}
    if not needed <= set(operations.columns):
        return np.zeros(operations.height, dtype=bool)
    if not conditions:
        return np.ones(operations.height, dtype=bool)
    is_meant = pl.all_horizontal(condition.fill_null(value=False) for condition in conditions.values())
    return operations.select(is_meant).to_series().to_numpy()


def _at(levels: Levels, level: Level) -> float:
    return {Level.LOW: levels.low, Level.LIKELY: levels.likely, Level.HIGH: levels.high}[level]


def _scale(graph: StepGraph, work: Work, change: Transformation, level: Level) -> Work:
    selected = select_operations(graph, change.select)
    time, host = _at(change.time, level), _at(change.host, level)
    scaled = _scale_operations(graph, work, selected, time, host, graph.silent_ns)
    if change.added_host_us != NOTHING:
        passes = _number_passes(graph, "rank", "micro_batch", "layer", "direction")
        scaled = _delay_passes(graph, scaled, selected, passes, change, level)
    transfer_ns = work.duration_ns - work.wait_ns
    return _add_kernels(graph, work, scaled, np.flatnonzero(selected), transfer_ns[selected], change, level)


def _delay_passes(
    graph: StepGraph, work: Work, members: BoolArray, passes: Int64Array, change: Transformation, level: Level
) -> Work:
    """``work`` with ``added_host_us`` before the first launch of ``members`` in each of the ``passes``."""
    launched = np.flatnonzero(members & (graph.call_of != NONE) & (passes != NONE))
    launched = launched[np.argsort(graph.calls["start_ns"].to_numpy()[graph.call_of[launched]], kind="stable")]
    _, first = np.unique(passes[launched], return_index=True)
    host_segment_ns = work.host_segment_ns.copy()
    delayed = _places_before(graph, graph.call_of[launched[first]])
    np.add.at(host_segment_ns, delayed, round(1000 * _at(change.added_host_us, level)))
    return replace(work, host_segment_ns=host_segment_ns)


def _add_kernels(
    graph: StepGraph,
    work: Work,
    changed: Work,
    before: Int64Array,
    took_ns: Float64Array | Int64Array,
    change: Transformation,
    level: Level,
) -> Work:
    """``changed``, which was ``work``, with new kernels before the operations ``before``.

    ``took_ns``: the device time of which they take ``added_time``.
    """
    kernels, share = _at(change.added_kernels, level), _at(change.added_time, level)
    launch_us = _at(change.added_launch_us, level)
    if not kernels and not share and not launch_us:
        return changed
    least_ns = kernels * (replay_thresholds.LEAST_KERNEL_NS + replay_thresholds.LEAST_STREAM_GAP_NS)
    duration_ns, host_segment_ns = changed.duration_ns.copy(), changed.host_segment_ns.copy()
    duration_ns[before] += np.rint(np.maximum(share * took_ns, least_ns)).astype(np.int64)
    # A graph launches what is added to it, too.
    is_launched = (graph.call_of != NONE) & ~graph.once("in graph", lambda: _is_in_graph(graph))
    launches = np.flatnonzero(np.bincount(graph.call_of[before[is_launched[before]]]))
    added_ns = kernels * _usual_launch_ns(graph, work) + 1000 * launch_us
    places = _places_before(graph, launches)
    host_segment_ns[places] += round(added_ns)
    return replace(changed, host_segment_ns=host_segment_ns, duration_ns=duration_ns)


def _places_before(graph: StepGraph, launches: Int64Array) -> Int64Array:
    """The host segments before ``launches``, or those of the calls where the thread begins or resumes with them."""
    return np.where(graph.points.sync_node[2 * launches] == NONE, 2 * launches, 2 * launches + 1)


def _is_in_graph(graph: StepGraph) -> BoolArray:
    """Operations that a CUDA graph launches: several of one call."""
    launched = np.bincount(graph.call_of[graph.call_of != NONE], minlength=graph.calls.height)
    return np.asarray((graph.call_of != NONE) & (launched[graph.call_of] > 1))


def _usual_launch_ns(graph: StepGraph, work: Work) -> float:
    """Host time of a launch and the think time before it: the median of the step's launches."""
    launches = graph.once("launches", lambda: np.unique(graph.call_of[graph.call_of != NONE]))
    before_ns = np.where(graph.points.sync_node[2 * launches] == NONE, work.host_segment_ns[2 * launches], 0)
    return float(np.median(before_ns + work.host_segment_ns[2 * launches + 1])) if len(launches) else 0.0


def _scale_operations(
    graph: StepGraph,
    work: Work,
    selected: BoolArray,
    time: float | Float64Array,
    host: float,
    silent_ns: Int64Array | int = 0,
) -> Work:
    """``time``: what remains of the ``selected`` operations' durations; one number, or one for each of all.

    ``silent_ns``: what stays of the host segments, as far as they are that long. Where whole passes go, nothing does.
    """
    edges = work.edges
    # A wait for a rank that was not captured is no work of this one.
    transfer_ns = _scale_chosen(work.duration_ns - work.wait_ns, selected, time)
    is_gone = np.ndim(time) == 0 and bool(time == 0)
    wait_ns = np.where(selected, 0, work.wait_ns) if is_gone and host == 0 else work.wait_ns
    if is_gone:  # what is gone leaves no gap on its stream, and takes no multiprocessors
        edges = _without_gaps(graph, edges, selected)
    if is_gone and host == 0:  # and no call waits for it, nor for what ran on its stream before
        edges = edges.drop((edges.kind == Kind.AWAITED) & selected[np.maximum(edges.operation, 0)])
    host_segment_ns = work.host_segment_ns
    if host != 1.0:
        host_segment_ns = _scale_host(host_segment_ns, _host_segments_of(graph, selected), host, silent_ns)
    return Work(host_segment_ns, wait_ns + transfer_ns, edges, wait_ns)


def _scale_chosen(values_ns: Int64Array, chosen: BoolArray, factor: float | Float64Array) -> Int64Array:
    if np.ndim(factor) == 0 and factor == 1.0:
        return values_ns
    return np.where(chosen, np.rint(values_ns * factor).astype(np.int64), values_ns)


def _scale_host(
    host_segment_ns: Int64Array, chosen: BoolArray, factor: float, silent_ns: Int64Array | int
) -> Int64Array:
    """``host_segment_ns`` with ``factor`` of what is done in the ``chosen``: where nothing is, nothing goes."""
    kept_ns = np.minimum(silent_ns, host_segment_ns)
    return kept_ns + _scale_chosen(host_segment_ns - kept_ns, chosen, factor)


def _host_segments_of(graph: StepGraph, selected: BoolArray) -> BoolArray:
    """The host segments that lead to the launches of the ``selected`` operations: all since the launch before.

    What a thread waited for (at a sync point) is no work of its own.
    """
    return graph.once(("host segments", selected.tobytes()), lambda: _find_host_segments(graph, selected))


def _find_host_segments(graph: StepGraph, selected: BoolArray) -> BoolArray:
    leads_to = find_next_launches(graph)
    launches_selected = np.zeros(graph.calls.height, dtype=bool)
    launched = graph.call_of[selected & (graph.call_of != NONE)]
    launches_selected[launched] = True
    leads = (leads_to != NONE) & launches_selected[np.maximum(leads_to, 0)] & ~_is_synchronizing(graph)
    host_segments = np.repeat(leads, 2)
    is_sync_point = graph.points.sync_node != NONE
    return np.asarray(host_segments & ~is_sync_point)


def find_next_launches(graph: StepGraph) -> Int64Array:
    """Per call the next call of its thread that launches something, itself included; NONE after the last."""
    return graph.once("leads_to", lambda: _search_next_launches(graph))


def _search_next_launches(graph: StepGraph) -> Int64Array:
    count = graph.calls.height
    launches = np.zeros(count, dtype=bool)
    launches[graph.call_of[graph.call_of != NONE]] = True
    key = _thread_numbers(graph)
    places = np.where(launches, np.arange(count, dtype=np.int64), count)
    following = np.minimum.accumulate(places[::-1])[::-1] if count else places
    inside = following < count
    same = inside & (key[np.minimum(following, max(0, count - 1))] == key)
    return np.where(same, following, NONE)


def _thread_numbers(graph: StepGraph) -> Int64Array:
    """A number per call that differs between threads, also of different ranks."""

    def count() -> Int64Array:
        rank, thread = (graph.calls[name].to_numpy() for name in ("rank", "thread"))
        return np.cumsum(np.append(0, (rank[1:] != rank[:-1]) | (thread[1:] != thread[:-1])))[: len(rank)]

    return graph.once("threads", count)


def _column_of(graph: StepGraph, name: str) -> Int64Array:
    """A column of the operations, with NONE where it is null."""
    return graph.once(name, lambda: graph.operations[name].fill_null(NONE).to_numpy())


def _is_synchronizing(graph: StepGraph) -> BoolArray:
    return graph.once("synchronizing", lambda: graph.calls["kind"].eq_missing("synchronize").to_numpy())


def _without_gaps(graph: StepGraph, edges: Edges, operations: BoolArray) -> Edges:
    """``edges`` in which ``operations`` follow at once on their streams and wait for no multiprocessors."""
    at_start = np.zeros(graph.nodes_count, dtype=bool)
    at_start[graph.start_node[operations]] = True
    into = at_start[edges.target]
    fixed_ns = np.where(into & (edges.kind == Kind.STREAM), 0, edges.fixed_ns)
    return replace(edges, fixed_ns=fixed_ns).drop(into & (edges.kind == Kind.RESOURCE))


def _fuse(graph: StepGraph, work: Work, change: Transformation, level: Level) -> Work:
    selected = select_operations(graph, change.select)
    runs = graph.once(
        (Action.FUSE, change.select, change.launches),
        lambda: _shorten_runs(graph, selected, max(1, change.launches), _fused_kernel_of_calls(graph, selected)),
    )
    call_of, run, is_removed, is_kept = graph.call_of, runs.run, runs.is_removed, runs.is_kept
    duration_ns = np.where(selected, work.duration_ns * _at(change.time, level), work.duration_ns.astype(np.float64))
    runs_count = int(run.max()) + 1 if len(run) else 0
    of_run = run[np.maximum(call_of, 0)]
    moved_ns = np.bincount(of_run[is_removed], duration_ns[is_removed], runs_count)
    keepers = np.bincount(of_run[is_kept], minlength=runs_count)
    duration_ns[is_kept] += (moved_ns / np.maximum(1, keepers))[of_run[is_kept]]
    duration_ns[is_removed] = 0
    edges = _without_gaps(graph, _launch_together(graph, work.edges, runs), is_removed)
    within, host = runs.within, _at(change.host, level)
    is_known = runs.kernel[np.maximum(call_of, 0)] != NONE
    left_ns = _scale_host(work.host_segment_ns, within, 0, graph.silent_ns)
    host_segment_ns = _scale_host(left_ns, _host_segments_of(graph, is_kept & ~is_known), host, graph.silent_ns)
    first_calls = runs.first_calls
    replaced_ns = _sum_by_run(work.host_segment_ns - left_ns, first_calls)
    first_calls, replaced_ns = (values[runs.kernel[first_calls] != NONE] for values in (first_calls, replaced_ns))
    # At a sync point the wait may hide the host segment before the call, but never that of the call.
    points = 2 * first_calls + (graph.points.sync_node[2 * first_calls] != NONE)
    host_segment_ns[points] += np.rint(host * replaced_ns).astype(np.int64)
    return Work(
        host_segment_ns,
        np.rint(duration_ns).astype(np.int64),
        edges,
        np.minimum(work.wait_ns, np.rint(duration_ns).astype(np.int64)),
    )


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of launches that become fewer."""

    run: Int64Array
    """Per call its run, or NONE."""
    first_calls: Int64Array
    """Per run."""
    is_removed: BoolArray
    """Operations whose launch goes, """
    is_kept: BoolArray
    """and those of the runs whose launch stays."""
    launched_by: Int64Array
    """Per node, the start of an operation whose launch goes: the last call of its run that stays; else NONE."""
    within: BoolArray
    """The host segments that go."""
    kernel: Int64Array
    """Per call the fused kernel that would take over; NONE if not known."""


def _shorten_runs(graph: StepGraph, selected: BoolArray, kept_launches: int, kernel: Int64Array) -> _Runs:
    """The runs of ``selected`` operations, of each of which ``kept_launches`` launches stay."""
    run, position = _find_runs(graph, selected, kernel)
    call_of = graph.call_of
    in_run = selected & (call_of != NONE) & (run[np.maximum(call_of, 0)] != NONE)
    is_removed = np.zeros(len(call_of), dtype=bool)
    is_removed[in_run] = position[call_of[in_run]] >= kept_launches
    return _Runs(
        run=run,
        first_calls=np.flatnonzero((run != NONE) & (position == 0)),
        is_removed=is_removed,
        is_kept=in_run & ~is_removed,
        launched_by=_find_new_launches(graph, run, position, is_removed, kept_launches),
        within=_host_segments_within(graph, run, position, kept_launches),
        kernel=kernel,
    )


def _fused_kernel_of_calls(graph: StepGraph, selected: BoolArray) -> Int64Array:
    """Per call the fused kernel that would take over the ``selected`` operation that it launches; NONE if not known."""
    kernels = np.full(graph.calls.height, NONE, dtype=np.int64)
    if "fused_kernel" in graph.operations.columns:
        of_operation = _column_of(graph, "fused_kernel")
        launched = selected & (graph.call_of != NONE)
        kernels[graph.call_of[launched]] = of_operation[launched]
    return kernels


def _sum_by_run(host_segment_ns: Int64Array, first_calls: Int64Array) -> Float64Array:
    """The sum of ``host_segment_ns`` of each run, by the ascending first calls of the runs; it is 0 outside of runs."""
    places = np.flatnonzero(host_segment_ns)
    run = np.searchsorted(first_calls, places // 2, side="right") - 1
    return np.bincount(run, host_segment_ns[places].astype(np.float64), len(first_calls)).astype(np.float64)


def _graph(graph: StepGraph, work: Work, change: Transformation, level: Level) -> Work:
    selected = select_operations(graph, change.select)
    unknown = np.full(graph.calls.height, NONE)
    runs = graph.once((Action.GRAPH, change.select), lambda: _shorten_runs(graph, selected, 1, unknown))
    edges = _launch_together(graph, work.edges, runs)
    at_start = np.zeros(graph.nodes_count, dtype=bool)
    at_start[graph.start_node[runs.is_removed]] = True
    spaced = at_start[edges.target] & (edges.kind == Kind.STREAM)
    node_gap_ns = replay_thresholds.LEAST_STREAM_GAP_NS
    edges = replace(edges, fixed_ns=np.where(spaced, np.minimum(edges.fixed_ns, node_gap_ns), edges.fixed_ns))
    host_segment_ns = _scale_host(work.host_segment_ns, runs.within, 0, graph.silent_ns)
    # The first launch of a run becomes the launch of the graph.
    host_segment_ns[2 * runs.first_calls + 1] = round(1000 * _at(change.overhead_us, level))
    launched = replace(
        work,
        host_segment_ns=host_segment_ns,
        duration_ns=_scale_chosen(work.duration_ns, selected, _at(change.time, level)),
        edges=edges,
    )
    before, took_ns = _find_graphs(graph, work, runs)
    return _add_kernels(graph, work, launched, before, took_ns, change, level)


def _find_graphs(graph: StepGraph, work: Work, runs: _Runs) -> tuple[Int64Array, Float64Array]:
    """The first operation of each graph that ``runs`` become, and the device time of what it launches.

    The runs that begin in one pass through a layer are one graph: what cuts them in the capture may look like a wait
    only. Where passes are not known, each run is one.
    """
    members = np.flatnonzero(runs.is_kept | runs.is_removed)
    members = members[np.argsort(graph.call_of[members], kind="stable")]
    run = runs.run[graph.call_of[members]]
    numbers, first = np.unique(run, return_index=True)
    passes = _number_passes(graph, "rank", "micro_batch", "layer", "direction")[members[first]]
    _, first_run, of_run = np.unique(
        np.where(passes == NONE, NONE - 1 - numbers, passes), return_index=True, return_inverse=True
    )
    took_ns = np.bincount(of_run[run], (work.duration_ns - work.wait_ns)[members], len(first_run))
    return members[first[first_run]], np.asarray(took_ns, dtype=np.float64)


def _number_passes(graph: StepGraph, *parts: str) -> Int64Array:
    """Per operation the number of its pass: the columns ``parts`` tell passes apart. NONE where one is not known."""

    def number() -> Int64Array:
        if not set(parts) <= set(graph.operations.columns):
            return np.full(graph.operations.height, NONE, dtype=np.int64)
        is_known = pl.all_horizontal(pl.col(parts).is_not_null())
        passes = pl.when(is_known).then(pl.struct(parts).rank("dense").cast(pl.Int64)).otherwise(NONE)
        return graph.operations.select(passes).to_series().to_numpy()

    return graph.once(parts, number)


def _ungraph(graph: StepGraph, work: Work, change: Transformation, level: Level) -> Work:
    """Nodes are launched in the order in which they ran; those that stay in the graph follow the ones before them."""
    launched = find_graph_nodes(graph, change.select)
    launch_ns = 1000 * _at(change.added_host_us, level)
    nodes = np.flatnonzero(graph.once("in graph", lambda: _is_in_graph(graph)))
    nodes = nodes[np.lexsort((graph.start_node[nodes], graph.call_of[nodes]))]
    call = graph.call_of[nodes]
    is_apart = launched[nodes].astype(np.int64)
    before: Int64Array = np.cumsum(is_apart) - is_apart
    _, first, of_call = np.unique(call, return_index=True, return_inverse=True)
    later_ns = np.rint(launch_ns * (before - before[first][of_call])).astype(np.int64)
    is_launch = work.edges.kind == Kind.LAUNCH
    by_node = np.zeros(graph.nodes_count, dtype=np.int64)
    by_node[graph.start_node[nodes]] = later_ns
    fixed_ns = work.edges.fixed_ns + np.where(is_launch, by_node[work.edges.target], 0)
    host_segment_ns = work.host_segment_ns.copy()
    counts = np.bincount(graph.call_of[launched], minlength=graph.calls.height)
    host_segment_ns[1::2] += np.rint(launch_ns * counts).astype(np.int64)
    return replace(work, host_segment_ns=host_segment_ns, edges=replace(work.edges, fixed_ns=fixed_ns))


def find_graph_nodes(graph: StepGraph, select: Selection) -> BoolArray:
    """The operations of ``select`` that CUDA graphs launch."""
    return np.asarray(select_operations(graph, select) & graph.once("in graph", lambda: _is_in_graph(graph)))


def _find_runs(graph: StepGraph, selected: BoolArray, kernel: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Per call the run of launches of ``selected`` operations that it is part of (or NONE), and its place in the run.

    A launch of other work ends a run, and so does a call that waits for the device, or another thread. ``kernel``: per
    call the kernel that it shall belong to; one of another kernel begins another run.
    """
    count = graph.calls.height
    has_call = graph.call_of != NONE
    launches_selected, launches_other = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    launches_selected[graph.call_of[has_call & selected]] = True
    launches_other[graph.call_of[has_call & ~selected]] = True
    waits = (graph.points.sync_node[1::2] != NONE) | _is_synchronizing(graph)
    ends_run = launches_other | waits
    key = _thread_numbers(graph)
    changes = np.concatenate([[True], key[1:] != key[:-1]]) if count else np.zeros(0, dtype=bool)
    # Runs lie between the calls that end one; a thread's first call ends the run of the thread before.
    stretch = np.cumsum(ends_run.astype(np.int64) + changes)
    member = launches_selected & ~ends_run
    run, position = np.full(count, NONE, dtype=np.int64), np.zeros(count, dtype=np.int64)
    places = np.flatnonzero(member)
    if len(places):
        is_first = np.diff(stretch[places], prepend=NONE) != 0
        is_first |= np.diff(kernel[places], prepend=NONE) != 0
        run[places] = np.cumsum(is_first) - 1
        position[places] = np.arange(len(places)) - np.flatnonzero(is_first)[run[places]]
    return run, position


def _find_new_launches(
    graph: StepGraph, run: Int64Array, position: Int64Array, is_removed: BoolArray, kept_launches: int
) -> Int64Array:
    places = np.flatnonzero((run != NONE) & (position < kept_launches))
    last_kept = np.full(int(run.max()) + 1 if len(run) else 0, NONE, dtype=np.int64)
    last_kept[run[places]] = places  # ascending: the last of each run stays
    launched_by = np.full(graph.nodes_count, NONE, dtype=np.int64)
    removed = np.flatnonzero(is_removed)
    launched_by[graph.start_node[removed]] = last_kept[run[graph.call_of[removed]]]
    return launched_by


def _launch_together(graph: StepGraph, edges: Edges, runs: _Runs) -> Edges:
    """``edges`` in which operations whose launch goes are launched by the last launch of their run that stays."""
    launched_by = runs.launched_by[edges.target]
    moved = (edges.kind == Kind.LAUNCH) & (launched_by != NONE)
    point = np.where(moved, 2 * launched_by, edges.point)
    source = edges.source.copy()
    source[moved] = graph.points.last_sync_node(point[moved])
    return replace(edges, point=point, source=source)


def _host_segments_within(graph: StepGraph, run: Int64Array, position: Int64Array, kept_launches: int) -> BoolArray:
    """The host segments between the last launch of a run that is left and the last one of all.

    Those that end at a sync point stay.
    """
    count = len(run)
    inside = np.zeros(count + 1, dtype=np.int64)
    places = np.flatnonzero(run != NONE)
    if not len(places):
        return np.zeros(2 * count, dtype=bool)
    runs_count = int(run.max()) + 1
    last = np.full(runs_count, NONE, dtype=np.int64)
    last[run[places]] = places
    last_kept = np.full(runs_count, NONE, dtype=np.int64)
    keeping = places[position[places] < kept_launches]
    last_kept[run[keeping]] = keeping
    inside[last_kept + 1] += 1
    inside[last + 1] -= 1
    within = np.repeat(np.cumsum(inside)[:count] > 0, 2)
    return np.asarray(within & (graph.points.sync_node == NONE))


def _hide(graph: StepGraph, work: Work, change: Transformation, level: Level) -> Work:
    """Compute that waits for the selected communication waits for ``1 - share`` of its transfer only.

    It still waits for the last member to arrive: overlap hides a transfer, not a rank that is late. With micro-batches
    known, the first forward and the last backward pass have nothing to hide under. Where the transfers take longer than
    all compute, the share is that of what compute can cover.
    """
    selected = select_operations(graph, change.select) & graph.once("covered", lambda: _can_be_covered(graph))
    computes = select_operations(graph, Selection(categories=COMPUTE_CATEGORIES))
    starts_compute = np.zeros(graph.nodes_count, dtype=bool)
    starts_compute[graph.start_node[computes]] = True
    hidden_ns = int((work.duration_ns - work.wait_ns)[selected].sum())
    compute_ns = int(work.duration_ns[computes].sum())
    covered = min(1.0, compute_ns / max(1, hidden_ns))
    edges, share = work.edges, _at(change.share, level) * covered
    is_released = (edges.operation != NONE) & selected[np.maximum(edges.operation, 0)] & starts_compute[edges.target]
    is_released[is_released] = np.isin(edges.kind[is_released], (Kind.EVENT, Kind.STREAM, Kind.RESOURCE))
    released = replace(edges, share=np.where(is_released, edges.share * (1 - share), edges.share))
    slower = 1 + (_at(change.slowdown, level) - 1) * share * min(1.0, hidden_ns / max(1, compute_ns))
    return replace(work, duration_ns=_scale_chosen(work.duration_ns, computes, slower), edges=released)


def _expose(graph: StepGraph, work: Work, change: Transformation, _: Level) -> Work:
    """Each transfer begins after the compute that began before it, and compute that begins later waits for its end."""
    selected = select_operations(graph, change.select)
    computes = select_operations(graph, Selection(categories=COMPUTE_CATEGORIES))
    key = graph.operations.select(pl.struct("rank", "stream").rank("dense")).to_series().to_numpy()
    rank = graph.operations["rank"].to_numpy()
    pairs: list[tuple[Int64Array, Int64Array]] = []
    for number in np.unique(key[computes]):
        of_stream = np.flatnonzero(computes & (key == number))
        of_stream = of_stream[np.argsort(graph.start_node[of_stream])]
        sent = np.flatnonzero(selected & (rank == rank[of_stream[0]]))
        before = np.searchsorted(graph.start_node[of_stream], graph.start_node[sent]) - 1
        after = np.searchsorted(graph.start_node[of_stream], graph.end_node[sent], side="right")
        has_before, has_after = before >= 0, after < len(of_stream)
        pairs.append((of_stream[before[has_before]], sent[has_before]))
        pairs.append((sent[has_after], of_stream[after[has_after]]))
    if not pairs:
        return work
    first, second = (np.concatenate(side) for side in zip(*pairs, strict=True))
    edges = work.edges.add(Kind.RESOURCE, first, graph.end_node[first], graph.start_node[second])
    return replace(work, edges=edges)


def _can_be_covered(graph: StepGraph) -> BoolArray:
    """Operations of passes beside which another micro-batch computes: all but the first forward and last backward."""
    operations = graph.operations
    if "micro_batch" not in operations.columns or "direction" not in operations.columns:
        return np.ones(operations.height, dtype=bool)
    last = operations["micro_batch"].max()
    if last is None:  # no micro-batch is known
        return np.ones(operations.height, dtype=bool)
    alone = ((pl.col("direction") == FORWARD) & (pl.col("micro_batch") == 0)) | (
        (pl.col("direction") == BACKWARD) & (pl.col("micro_batch") == last)
    )
    return ~operations.select(alone.fill_null(value=False)).to_series().to_numpy()


def _host(_: StepGraph, work: Work, change: Transformation, level: Level) -> Work:
    # Where a sync point waited for the device, its segment is a fraction of a call: it scales like any other.
    return replace(work, host_segment_ns=np.rint(work.host_segment_ns * _at(change.host, level)).astype(np.int64))


def _unwait(graph: StepGraph, work: Work, change: Transformation, level: Level) -> Work:
    selected = select_operations(graph, change.select)
    edges, share = work.edges, _at(change.share, level)
    released = (edges.kind == Kind.AWAITED) & selected[np.maximum(edges.operation, 0)]
    if change.select.calls or change.select.sites:
        call_of_node = np.full(graph.nodes_count, NONE, dtype=np.int64)
        ends = graph.points.sync_node[1::2]
        call_of_node[ends[ends != NONE]] = np.flatnonzero(ends != NONE)
        is_meant = graph.once(("calls", change.select), lambda: _select_calls(graph, change.select))
        released &= is_meant[np.maximum(call_of_node[edges.target], 0)]
    if share < 1:  # every n-th wait stays
        places = np.flatnonzero(released)
        stays = np.floor(np.arange(len(places)) * (1 - share)) != np.floor((np.arange(len(places)) + 1) * (1 - share))
        released[places[stays]] = False
    return replace(work, edges=edges.drop(released))


def _select_calls(graph: StepGraph, select: Selection) -> BoolArray:
    """Which calls are meant by their names and places in the code. A place that is not known matches nothing."""
    is_meant = pl.lit(value=True)
    if select.calls:
        is_meant &= pl.col("name").cast(pl.String).str.contains(select.calls)
    if select.sites:
        site = pl.col("site") if "site" in graph.calls.columns else pl.lit(None, dtype=pl.Int64)
        is_meant &= site.is_in(list(select.sites))
    return graph.calls.select(is_meant.fill_null(value=False)).to_series().to_numpy()


def _repeat(graph: StepGraph, work: Work, change: Transformation, level: Level) -> Work:
    """Backward work of each rank takes longer by its repeated forward work, on the device and on the host.

    What repeating costs the host besides, ``added_host_us``, delays the first launch of each backward pass through a
    layer of which something is repeated.
    """
    operations = graph.operations
    if "direction" not in operations.columns:
        return work
    selected = (
        select_operations(graph, change.select) & (operations["direction"] == FORWARD).fill_null(value=False).to_numpy()
    )
    backward = (operations["direction"] == BACKWARD).fill_null(value=False).to_numpy()
    duration_ns, host_segment_ns = work.duration_ns.astype(np.float64), work.host_segment_ns.astype(np.float64)
    rank, call_rank = operations["rank"].to_numpy(), np.repeat(graph.calls["rank"].to_numpy(), 2)
    forward_segments, backward_segments = _host_segments_of(graph, selected), _host_segments_of(graph, backward)
    for number in range(len(graph.ranks)):
        repeated, longer = selected & (rank == number), backward & (rank == number)
        # Streams run beside each other more in one direction than in the other: what counts is the time they cover.
        concurrency = _covered_fraction(operations, repeated) / _covered_fraction(operations, longer)
        _stretch(duration_ns, repeated, longer, _at(change.time, level) * concurrency)
        on_rank = call_rank == number
        _stretch(host_segment_ns, forward_segments & on_rank, backward_segments & on_rank, _at(change.host, level))
    again = replace(
        work,
        host_segment_ns=np.rint(host_segment_ns).astype(np.int64),
        duration_ns=np.rint(duration_ns).astype(np.int64),
    )
    passes = _number_passes(graph, "rank", "micro_batch", "layer")
    repeats = backward & (passes != NONE) & np.isin(passes, passes[selected])
    return _delay_passes(graph, again, repeats, passes, change, level)


def _covered_fraction(operations: pl.DataFrame, chosen: BoolArray) -> float:
    """The time that ``chosen`` operations cover in the capture, over the sum of their durations; 1 for none."""
    captured = operations.filter(pl.Series(chosen)).select("start_ns", "end_ns").sort("start_ns")
    before_ns = pl.col("end_ns").cum_max().shift(1).fill_null(pl.col("start_ns").min())
    covered_ns = (pl.col("end_ns") - pl.max_horizontal("start_ns", before_ns)).clip(lower_bound=0).sum()
    covered, total = captured.select(covered_ns.alias("covered"), (pl.col("end_ns") - pl.col("start_ns")).sum()).row(0)
    return covered / total if total else 1.0


def _stretch(values: Float64Array, repeated: BoolArray, longer: BoolArray, times: float) -> None:
    """Makes ``longer`` values longer in proportion, by ``times`` the sum of the ``repeated`` ones."""
    total = values[longer].sum()
    if total:
        values[longer] *= 1 + times * values[repeated].sum() / total


def _change_micro_batch(graph: StepGraph, work: Work, change: Transformation, level: Level) -> Work:
    """Passes of ``factor`` times as many samples, in as many fewer passes.

    The first passes stay: they are in the order of a pipeline's schedule with fewer of them, and its dependencies make
    a bubble of longer passes longer. Without a pipeline the last backward pass takes the place of an earlier one,
    because gradients are reduced beside it. ``time`` and ``host`` compound with every doubling or halving. ``host`` is
    what the host takes for a pass of so many samples, as a share of what it took.

    A smaller micro-batch (``factor`` below 1) multiplies the host time instead. Every pass then stands for several,
    those of the bubble too: of ``m`` passes and ``p - 1`` that fill and drain the pipeline, ``m / factor + p - 1``
    shorter ones are run. So all take ``(m + factor (p - 1)) / (m + p - 1)`` of that, be it the host or the device that
    decides how long a pass takes.

    What a step does once with its gradients stays, and what every pass adds to them takes as long for more samples.
    """
    factor = change.factor
    if not knows_passes(graph) or factor <= 0:
        return work
    number = _column_of(graph, "micro_batch")
    inside = (number != NONE) & ~select_operations(graph, Selection(work=(GRADIENT_REDUCTION,)))
    is_added = select_operations(graph, Selection(work=(WGRAD_ACCUMULATION,)))
    is_sent = select_operations(graph, Selection(categories=COMMUNICATION_CATEGORIES))
    doublings = abs(math.log2(factor))
    time, host = _at(change.time, level) ** doublings, _at(change.host, level) ** doublings
    # The start and the end of a kernel take as long for more samples.
    once_ns, kernel_ns = replay_thresholds.LEAST_KERNEL_NS, np.maximum(1, work.duration_ns - work.wait_ns)
    start = np.minimum(1.0, once_ns / kernel_ns)
    samples = np.where(is_added, 1.0, factor * np.where(is_sent, 1.0, start / factor + time * (1 - start)))
    if factor < 1:
        passes, filling = number.max() + 1, _count_filling_passes(graph, number)
        ratio = (passes + factor * filling) / (passes + filling)
        changed = _scale_operations(graph, work, inside, ratio / factor * samples, host * ratio / factor)
        return _lengthen_pipeline_waits(graph, work, changed, factor, level)
    is_surplus, fewer = graph.once(("surplus passes", factor), lambda: _find_surplus_passes(graph, number, factor))
    left_out, stays = inside & is_surplus, inside & ~is_surplus
    once = np.where(inside, graph.once("share done once", lambda: _find_share_done_once(graph, number)), 0.0)
    shorter = _scale_operations(graph, work, left_out & (once == 0), 0.0, 0.0)
    shorter = _scale_operations(graph, shorter, left_out & (once > 0), once, 0.0)
    # All passes do the same, but not equally fast: of one step a host took them 60 to 110 ms. A device whose power is
    # limited is faster in the first pass than in the others, transfers of gradients slow down the last one, and the
    # first one fills buffers of the step. So those that stay take the mean of all.
    took_ns = (work.duration_ns - work.wait_ns) * (1 - once)
    narrow, wide = graph.once("kinds of work", lambda: _number_kinds(graph))
    pace = _find_mean_pace(took_ns, narrow, inside, stays, fewer)
    pace = pace * _find_mean_pace(took_ns, wide, inside, stays, fewer, pace)
    wait_pace = _find_mean_pace(work.wait_ns, wide, inside, stays, fewer)
    segments, kept_segments = (_host_segments_of(graph, chosen) for chosen in (inside, stays))
    rank = np.repeat(graph.calls["rank"].to_numpy(), 2)
    host_pace = _find_mean_pace(work.host_segment_ns, rank, segments, kept_segments, fewer)
    # Twice the bytes take twice as long; what a kernel gains by more samples, a transfer does not.
    scaled = _scale_operations(graph, shorter, stays, once + (1 - once) * samples * pace, host)
    host_segment_ns = _scale_chosen(scaled.host_segment_ns, kept_segments, host_pace)
    # Ranks differ by the samples that they process: fewer passes do not make them wait less.
    wait_ns = _scale_chosen(scaled.wait_ns, inside, factor * wait_pace)
    duration_ns = scaled.duration_ns + wait_ns - scaled.wait_ns
    changed = replace(scaled, host_segment_ns=host_segment_ns, duration_ns=duration_ns, wait_ns=wait_ns)
    return _lengthen_pipeline_waits(graph, work, changed, factor, level)


def _find_surplus_passes(graph: StepGraph, number: Int64Array, factor: float) -> tuple[BoolArray, float]:
    """Operations of the passes that are left out for passes of ``factor`` times the samples.

    With them, how many times fewer passes stay.
    """
    passes = int(number.max()) + 1
    left = math.ceil(passes / factor)
    is_left_out = number >= left
    if "direction" in graph.operations.columns and not _is_pipeline_exchange(graph).any():
        goes_back = graph.operations["direction"].is_in((BACKWARD, RECOMPUTE)).fill_null(value=False).to_numpy()
        is_left_out = np.where(goes_back, (number >= left - 1) & (number < passes - 1), is_left_out)
    return is_left_out, passes / left


def _find_mean_pace(
    took_ns: Int64Array | Float64Array,
    kinds: Int64Array,
    inside: BoolArray,
    stays: BoolArray,
    fewer: float,
    pace: Float64Array | float = 1.0,
) -> Float64Array:
    """By how much what ``stays`` of the passes has to take longer so that each kind takes the mean of all passes.

    ``fewer``: by how many times fewer passes stay. ``pace``: by how much what stays is longer already.
    """
    all_ns = np.bincount(kinds, np.where(inside, took_ns, 0))
    kept_ns = np.bincount(kinds, np.where(stays, took_ns * pace, 0))
    return np.where(kept_ns > 0, all_ns / fewer / np.maximum(1, kept_ns), 1.0)[kinds]


def _number_kinds(graph: StepGraph) -> tuple[Int64Array, Int64Array]:
    """Per operation the number of its kind: that of a module in each pass, and what grows with the samples alike."""
    is_added = select_operations(graph, Selection(work=(WGRAD_ACCUMULATION,)))
    is_sent = select_operations(graph, Selection(categories=COMMUNICATION_CATEGORIES))
    columns = [
        name for name in ("rank", "layer", "module", "direction", "category") if name in graph.operations.columns
    ]
    kind = pl.struct(*columns, pl.Series("is_added", is_added)).rank("dense").cast(pl.Int64)
    narrow = graph.operations.select(kind).to_series().to_numpy()
    return narrow, 4 * graph.operations["rank"].to_numpy() + 2 * is_added + is_sent


def _find_share_done_once(graph: StepGraph, number: Int64Array) -> Float64Array:
    """Of each operation of the last micro-batch, the share of its kind's time that no other micro-batch has.

    Gradients are scaled once a step, by kernels that follow the last backward pass of their layer. They cannot be told
    from others of that pass one by one: its operations of one category, module and layer share what they take longer.
    """
    kinds, _ = graph.once("kinds of work", lambda: _number_kinds(graph))
    last = int(number.max())
    took_ns = graph.work.duration_ns - graph.work.wait_ns
    is_last, is_earlier = number == last, (number != NONE) & (number != last)
    count, earlier_count = (np.bincount(kinds, of) for of in (is_last, is_earlier))
    time_ns, earlier_ns = (np.bincount(kinds, np.where(of, took_ns, 0)) for of in (is_last, is_earlier))
    is_longer = (count * last > earlier_count) & (time_ns * last > earlier_ns)
    share = np.where(is_longer, 1 - earlier_ns / np.maximum(1, time_ns * last), 0.0)
    return np.where(is_last, share[kinds], 0.0)


def knows_passes(graph: StepGraph) -> bool:
    """Whether it is known of any launch which micro-batch it belongs to."""
    operations = graph.operations
    return "micro_batch" in operations.columns and bool((_column_of(graph, "micro_batch") != NONE).any())


def _count_filling_passes(graph: StepGraph, micro_batch: Int64Array) -> int:
    """Passes that fill the captured part of a pipeline: forward passes that its first stage begins before it goes back.

    0 where no stages exchange anything, or where they wait for stages that were not captured.
    """
    operations, is_exchange = graph.operations, _is_pipeline_exchange(graph)
    if not is_exchange.any() or graph.work.wait_ns[is_exchange].any() or "direction" not in operations.columns:
        return 0
    direction, start_ns = operations["direction"].to_numpy(), operations["start_ns"].to_numpy()
    rank = operations["rank"].to_numpy()
    most = 0
    for number in range(len(graph.ranks)):
        inside = (rank == number) & (micro_batch != NONE)
        backward = inside & (direction == BACKWARD)
        if backward.any():
            before = inside & (direction == FORWARD) & (start_ns < start_ns[backward].min())
            most = max(most, len(np.unique(micro_batch[before])) - 1)
    return most


def _is_pipeline_exchange(graph: StepGraph) -> BoolArray:
    return select_operations(graph, Selection(categories=("pipeline_p2p",)))


def _lengthen_pipeline_waits(graph: StepGraph, before: Work, after: Work, factor: float, level: Level) -> Work:
    """``after`` with longer waits for pipeline stages that were not captured.

    A pass takes such a stage as many times longer as a captured one. The passes that fill and drain the pipeline stay
    as many, and most of the waiting is theirs. At one end of the range all waiting is that of uneven stages: it depends
    on all passes together, be they few or many.
    """
    is_exchange = _is_pipeline_exchange(graph)
    if not before.wait_ns[is_exchange].any():
        return after
    own_before_ns, own_after_ns = (
        replay(graph, _without_waits(work, is_exchange)).longest_ns for work in (before, after)
    )
    filling = {Level.LOW: max(1.0, factor), Level.LIKELY: factor, Level.HIGH: min(1.0, factor)}[level]
    longer = own_after_ns / max(1, own_before_ns) * filling
    wait_ns = np.where(is_exchange, np.rint(before.wait_ns * longer).astype(np.int64), after.wait_ns)
    return replace(after, duration_ns=after.duration_ns + wait_ns - after.wait_ns, wait_ns=wait_ns)


def _without_waits(work: Work, operations: BoolArray) -> Work:
    wait_ns = np.where(operations, 0, work.wait_ns)
    return replace(work, duration_ns=work.duration_ns + wait_ns - work.wait_ns, wait_ns=wait_ns)


def _balance(graph: StepGraph, work: Work, change: Transformation, level: Level) -> Work:
    """Of each layer's pass, every rank does the mean of what the captured ranks did, in shapes that occurred before."""
    parts = [name for name in ("layer", "micro_batch", "direction", "module") if name in graph.operations.columns]
    transfer_ns = work.duration_ns - work.wait_ns
    selected = select_operations(graph, change.select)
    ranks_count = len(graph.ranks)
    total = pl.col("ns").sum()
    ratio = (
        graph.operations.select("rank", *parts)
        .with_columns(ns=pl.Series(np.where(selected, transfer_ns, 0), dtype=pl.Float64))
        .select(total.over(parts) / ranks_count / total.over("rank", *parts) if parts else pl.lit(1.0))
        .to_series()
        .to_numpy()
    )
    balanced_ns = np.where(selected & np.isfinite(ratio), np.rint(transfer_ns * np.nan_to_num(ratio)), transfer_ns)
    known = meet_known_shapes(graph, work, _thread_numbers(graph), selected, level)
    return replace(known, duration_ns=work.wait_ns + balanced_ns.astype(np.int64))


def _heal(graph: StepGraph, work: Work, change: Transformation, _: Level) -> Work:
    """The selected ranks work at the median pace of the others: kernels by category, and host segments.

    Beside another process on one GPU the collectives of all crawl: without it they take what the fastest of them take.
    """
    operations = graph.operations
    selected = np.unique(operations["rank"].to_numpy()[select_operations(graph, change.select)])
    peers = [number for number in range(len(graph.ranks)) if number not in selected]
    if not peers:
        return work
    rank, category = operations["rank"].to_numpy(), operations["category"].to_physical().to_numpy()
    is_work = ~select_operations(graph, Selection(categories=COMMUNICATION_CATEGORIES))
    duration_ns = work.duration_ns.copy()
    for name in np.unique(category[is_work]):
        of_kind = is_work & (category == name)
        usual = float(np.median([work.duration_ns[of_kind & (rank == number)].sum() for number in peers]))
        for number in selected:
            mine = of_kind & (rank == number)
            total = work.duration_ns[mine].sum()
            if total > usual > 0:
                duration_ns[mine] = np.rint(work.duration_ns[mine] * (usual / total)).astype(np.int64)
    call_rank = np.repeat(graph.calls["rank"].to_numpy(), 2)
    usual = float(np.median([work.host_segment_ns[call_rank == number].sum() for number in peers]))
    host_segment_ns = work.host_segment_ns.copy()
    for number in selected:
        total = work.host_segment_ns[call_rank == number].sum()
        if total > usual > 0:
            host_segment_ns = _scale_chosen(host_segment_ns, call_rank == number, usual / total)
    is_healed = np.isin(rank, selected)
    if graph.held_ns[is_healed].any():
        transfer_ns = duration_ns - work.wait_ns
        is_contended = ~is_work & (graph.ready_ns != NONE) & (transfer_ns > graph.ready_ns)
        duration_ns = np.where(is_contended, work.wait_ns + graph.ready_ns, duration_ns)
    edges = work.edges.delay(graph.start_node, np.where(is_healed, -graph.held_ns, 0))
    return replace(work, host_segment_ns=host_segment_ns, duration_ns=duration_ns, edges=edges)


def _even_hosts(graph: StepGraph, work: Work, change: Transformation, level: Level) -> Work:
    """Ranks run the same program, so the fastest host shows what the others take where nothing slows them down."""
    selected = np.unique(graph.operations["rank"].to_numpy()[select_operations(graph, change.select)])
    call_rank = np.repeat(graph.calls["rank"].to_numpy(), 2)
    total_ns = np.bincount(call_rank, work.host_segment_ns, len(graph.ranks))
    ratio = 1 - _at(change.share, level) * (1 - total_ns.min() / np.maximum(1, total_ns))
    host_segment_ns = _scale_chosen(work.host_segment_ns, np.isin(call_rank, selected), ratio[call_rank])
    return replace(work, host_segment_ns=host_segment_ns)


_ACTIONS: Mapping[Action, Callable[[StepGraph, Work, Transformation, Level], Work]] = {
    Action.SCALE: _scale,
    Action.FUSE: _fuse,
    Action.GRAPH: _graph,
    Action.UNGRAPH: _ungraph,
    Action.HIDE: _hide,
    Action.EXPOSE: _expose,
    Action.HOST: _host,
    Action.UNWAIT: _unwait,
    Action.REPEAT: _repeat,
    Action.MICRO_BATCH: _change_micro_batch,
    Action.BALANCE: _balance,
    Action.HEAL: _heal,
    Action.EVEN_HOSTS: _even_hosts,
}
