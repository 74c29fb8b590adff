"""The labels of the operations of all ranks of a step, so that an edit can select them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from three_walls.layers.directions import align, list_keys
from three_walls.layers.label_operations import label_operations
from three_walls.layers.labels import LABELS, LabelledOperations
from three_walls.layers.unfused_work import classify_unfused
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.replay import replay_thresholds
from three_walls.replay.step_graph import RankOperations, StepGraph
from three_walls.step.operators import read_operators
from three_walls.tables.buckets import GEMM_CATEGORIES
from three_walls.tables.model_parts import EXPERT, EXPERT_GEMM, EXPERTS
from three_walls.trace.read_trace import Trace


def label_ranks(
    graph: StepGraph, traces: Sequence[Trace], config: RunConfig, known: Mapping[int, LabelledOperations]
) -> RankOperations:
    """``graph.operations`` in the same order, with ``name``, ``rank_number`` (global) and the columns of LABELS.

    ``known``: by rank index what was labelled before. Raises InputError where a trace cannot be read any more.
    """
    place_of = {rank.rank_index: (trace, rank) for trace in traces for rank in trace.ranks}
    read_all = len(graph.ranks) <= replay_thresholds.MOST_RANKS_READ
    columns = ["name", *LABELS]
    rows = graph.operations.with_row_index("row")
    labelled: dict[int, pl.DataFrame] = {}
    reference = next((index for index in graph.ranks if index in known), graph.ranks[0])
    for index in sorted(graph.ranks, key=lambda index: index != reference):
        trace, rank = place_of[index]
        of_rank = rows.filter(pl.col("rank_index") == index).with_columns(rank_number=pl.lit(rank.rank, dtype=pl.Int64))
        if index in known:
            labelled[index] = of_rank.hstack(known[index].select(columns))
        elif read_all or index == reference:
            operators = read_operators(trace, rank.process, of_rank)
            work = classify_unfused(of_rank, operators, config).operations
            labelled[index] = label_operations(work, trace.names, operators, config)
        else:
            name = pl.col("name_id").replace_strict(trace.names, default=None, return_dtype=pl.String)
            labelled[index] = _carry_over(*map(_in_order, (of_rank.with_columns(name=name), labelled[reference])))
    selected = [*rows.columns, "rank_number", *columns]
    return pl.concat(frame.select(selected) for frame in labelled.values()).sort("row").drop("row")


def _in_order(operations: RankOperations) -> RankOperations:
    """In the order of their launches."""
    return operations.sort(pl.coalesce("launch_start_ns", "start_ns"), "start_ns", "row")


def _carry_over(operations: pl.DataFrame, reference: pl.DataFrame) -> pl.DataFrame:
    """``operations`` of one rank with the labels of the ``reference`` rank where both launch the same.

    Experts' GEMMs differ with the tokens they get, in their kernels and in copies and fills around them.
    """

    place = ["module", "stack", "direction", "pass", "micro_batch", "layer"]
    counterparts = align(list_keys(operations), list_keys(reference))
    filled = _fill_between(counterparts, reference.select(place).rows())
    same, between = (pl.Series(places, dtype=pl.UInt32) for places in (counterparts, filled))
    is_gemm = pl.col("category").cast(pl.String).is_in(list(GEMM_CATEGORIES))
    expert = pl.when(pl.col("module") == EXPERTS).then(
        pl.when(is_gemm).then(pl.lit(EXPERT_GEMM)).otherwise(pl.lit(EXPERT))
    )
    return operations.with_columns(
        *(reference[name].gather(same) for name in ("part", "operator", "fused_kernel", "operator_range")),
        *(reference[name].gather(between) for name in place),
    ).with_columns(part=pl.when(same.is_null()).then(expert).otherwise("part"))


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
