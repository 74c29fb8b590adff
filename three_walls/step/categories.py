"""What each device operation is: kernels by name, copies by direction, some by what surrounds them.

Kernel names are matched against the packs of ``tables/kernel-names/`` (add a kernel name there), once per distinct name
(thousands) of all ranks, and never per kernel (millions).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from three_walls.step.step_tables import ClassifiedOperations, LaunchedOperations, Operations
from three_walls.tables.buckets import CATEGORIES, GEMM_CATEGORIES, SEND_RECV, TOKEN_EXCHANGES
from three_walls.tables.kernel_names import KernelPack, match_kernel
from three_walls.trace.schemas import ROWS_AT_ONCE, BoolArray, distinct_rows

MAXIMUM_OPERATIONS_BETWEEN_GEMMS = 24
"""Operations around a softmax that count as unfused attention. Between the two GEMMs around it the backward pass of
Megatron's local attention runs about ten operations; a longer stretch holds other work too."""

CATEGORY = pl.Enum(CATEGORIES)
"""Categories in order of precedence; casting any other name raises."""

CATEGORY_OR_SEND_RECV = pl.Enum([*CATEGORIES, SEND_RECV])
"""The same, until the owner of each NCCL SendRecv kernel is known."""

PHASE = pl.Enum(["forward", "backward"])

UNCLASSIFIED = "unclassified"
UNFUSED_ATTENTION = "attention_unfused"

_GENERIC_CATEGORIES = ("elementwise", "copy_d2d", "memset", UNCLASSIFIED)
"""Categories that count as unfused attention where they surround its softmax."""

_ATTENTION = ("attention", UNFUSED_ATTENTION, "linear_attention")
_ROUTES = ("router", "ep_control", *TOKEN_EXCHANGES)
"""Categories of MoE layers that nothing else runs, where experts are selected."""

_PRODUCTS_OF_OPTIMIZER = (*GEMM_CATEGORIES, "elementwise", "permute")
"""Categories that count as the optimizer's between two of its kernels."""
_OF_LAYERS = ("attention", UNFUSED_ATTENTION, "linear_attention", "norm", "cuda_graph", *TOKEN_EXCHANGES)
"""Categories that every pass through a layer has some of, and no optimizer."""

# ENUM_CUDA_MEMCPY_OPER and ENUM_CUDA_MEM_KIND of the export.
_HOST_TO_DEVICE, _DEVICE_TO_HOST, _DEVICE_TO_DEVICE, _PEER_TO_PEER = 1, 2, 8, 10
_PAGEABLE = 0


def classify(
    operations: LaunchedOperations, names: Mapping[int, str], own: KernelPack | None = None
) -> ClassifiedOperations:
    """Adds what each of ``operations`` is. ``own``: kernel names of the user, which come before the program's."""
    key = ["rank_index", "kind", "name_id", "short_name_id"]
    distinct = distinct_rows(operations.select(key)).filter(pl.col("kind") == "kernel")
    pairs = distinct.select("name_id", "short_name_id").unique().sort("name_id", "short_name_id").rows()
    rows = [_classify_name(name_id, short_name_id, names, own) for name_id, short_name_id in pairs]
    schema = pl.Schema(
        {
            "name_id": pl.Int64(),
            "short_name_id": pl.Int64(),
            "category": CATEGORY_OR_SEND_RECV,
            "phase": PHASE,
            "anchor": pl.Boolean(),
            "unknown": pl.Categorical(),
            "selects_experts": pl.Boolean(),
            "without_experts": CATEGORY_OR_SEND_RECV,
        }
    )
    by_name = pl.DataFrame(rows, schema=schema, orient="row")
    kernels = distinct.join(by_name, on=["name_id", "short_name_id"], nulls_equal=True)
    # Softmax, sorting and counting are in every program: only where experts are selected are they a router's.
    routes = pl.col("selects_experts").any().over("rank_index")
    is_fused = (pl.col("category") == "attention").any().over("rank_index")  # then no softmax is attention's
    is_softmax = pl.col("without_experts") == UNFUSED_ATTENTION
    category = (
        pl.when(routes | pl.col("without_experts").is_null())
        .then("category")
        .when(is_fused & is_softmax)
        .then(_category("elementwise"))
        .otherwise("without_experts")
    )
    kinds = kernels.with_columns(category=category).drop("selects_experts", "without_experts")
    if distinct["rank_index"].n_unique() == 1:
        key.remove("rank_index")
        kinds = kinds.drop("rank_index")
    copied = ["copy_kind", "source_kind", "target_kind"]
    key_columns = operations.select(*key, *copied)
    firsts = range(0, max(operations.height, 1), ROWS_AT_ONCE)  # a join takes much more memory than it adds
    parts = [_find_categories(key_columns[first : first + ROWS_AT_ONCE], key, kinds) for first in firsts]
    return operations.hstack(pl.concat(parts))


def _find_categories(operations: pl.DataFrame, key: list[str], kernels: pl.DataFrame) -> pl.DataFrame:
    """The columns that :func:`classify` adds. ``kernels``: those of each kind of kernel."""
    with_kinds = operations.join(kernels, on=key, how="left", nulls_equal=True, maintain_order="left")
    of_kind = pl.when(pl.col("kind") == "kernel").then("category").otherwise(_category_without_name())
    return with_kinds.select(
        category=of_kind, phase="phase", anchor=pl.col("anchor").fill_null(value=False), unknown="unknown"
    )


def _classify_name(
    name_id: int | None, short_name_id: int | None, names: Mapping[int, str], own: KernelPack | None
) -> tuple[int | None, int | None, str, str | None, bool, str | None, bool, str | None]:
    demangled = names.get(name_id, "") if name_id is not None else ""
    short = names.get(short_name_id, "") if short_name_id is not None else ""
    pattern = match_kernel(f"{short} {demangled}".strip(), own)
    if pattern is None:
        return name_id, short_name_id, UNCLASSIFIED, None, False, short or demangled or "(no name)", False, None
    is_step, row = pattern.anchor == "step", pattern
    return name_id, short_name_id, row.category, row.phase, is_step, None, row.selects_experts, row.without_experts


def _category(name: str) -> pl.Expr:
    return pl.lit(name, dtype=CATEGORY_OR_SEND_RECV)


def _category_without_name() -> pl.Expr:
    """The category of graphs, memsets and copies."""
    copy = pl.col("copy_kind")
    from_pageable = (pl.col("source_kind") == _PAGEABLE).fill_null(value=False)
    to_pageable = (pl.col("target_kind") == _PAGEABLE).fill_null(value=False)
    return (
        pl.when(pl.col("kind") == "graph")
        .then(_category("cuda_graph"))
        .when(pl.col("kind") == "memset")
        .then(_category("memset"))
        .when((copy == _HOST_TO_DEVICE) & from_pageable)
        .then(_category("copy_h2d_pageable"))
        .when(copy == _HOST_TO_DEVICE)
        .then(_category("copy_h2d_pinned"))
        .when((copy == _DEVICE_TO_HOST) & to_pageable)
        .then(_category("copy_d2h_pageable"))
        .when(copy == _DEVICE_TO_HOST)
        .then(_category("copy_d2h_pinned"))
        .when(copy == _DEVICE_TO_DEVICE)
        .then(_category("copy_d2d"))
        .when(copy == _PEER_TO_PEER)
        .then(_category("copy_p2p"))
        .otherwise(_category("copy_other"))
    )


def mark_unfused_attention(operations: Operations) -> Operations:
    """Moves the generic kernels around each attention softmax in ``operations`` to ``attention_unfused``.

    Unfused attention is GEMM, mask, scale, softmax, GEMM. Its masks, scales and copies of the score matrix are
    generic pointwise kernels that no name identifies. Their place does: they run on one stream of a rank between two
    consecutive GEMMs, with a softmax among them, in a stretch too short to hold anything else. A fused kernel removes
    all of them, so they are counted together. ``operations`` are sorted by rank and start.
    """
    softmax = operations.select("rank_index", "stream", "category").filter(pl.col("category") == UNFUSED_ATTENTION)
    streams = softmax.select("rank_index", "stream").unique().sort("rank_index", "stream").rows()
    if not streams:
        return operations
    numbers = operations["category"].to_physical().to_numpy().copy()
    for rank_index, stream in streams:
        is_on_stream = (pl.col("rank_index") == rank_index) & (pl.col("stream") == stream)
        row = operations.select(is_on_stream.arg_true()).to_series().to_numpy()
        category = numbers[row]
        opens = _is_in(category, GEMM_CATEGORIES)
        opens[0] = True
        starts = np.flatnonzero(opens)
        lengths = np.diff(np.append(starts, len(row)))
        is_short = lengths <= MAXIMUM_OPERATIONS_BETWEEN_GEMMS
        has_softmax = np.logical_or.reduceat(category == CATEGORIES.index(UNFUSED_ATTENTION), starts)
        is_generic = _is_in(category, _GENERIC_CATEGORIES)
        is_within = np.repeat(is_short & has_softmax, lengths)
        numbers[row[is_generic & is_within]] = CATEGORIES.index(UNFUSED_ATTENTION)
    return operations.with_columns(category=pl.Series(numbers).cat.to(CATEGORY))


def mark_attention_copies(operations: Operations) -> Operations:
    """Moves what attention joins and gathers (queries, keys, rotary embeddings) from ``permute`` to ``elementwise``.

    Where experts are selected, the names of these kernels do not tell them from permutations of tokens. Their place
    does: on the stream of attention no norm, router or token exchange lies between them and attention, or, in the
    backward pass, a norm lies between them and the router or exchange that follows. Without norms nothing moves.
    ``operations`` are sorted by rank and start.
    """
    numbers = operations["category"].to_physical().to_numpy().copy()
    rank_index, stream = operations["rank_index"].to_numpy(), operations["stream"].to_numpy()
    is_attention = _is_in(numbers, _ATTENTION)
    is_permute = _is_in(numbers, ("permute",))
    if not is_permute.any():
        return operations
    for rank in np.unique(rank_index[is_attention]):
        is_rank = rank_index == rank
        routes = np.flatnonzero(is_rank & _is_in(numbers, _ROUTES))
        for own in np.unique(stream[is_rank & is_attention]):
            is_own = is_rank & (stream == own)
            places = np.flatnonzero(is_own & is_permute)
            marks = np.flatnonzero(is_own & is_attention)
            norms = np.flatnonzero(is_own & _is_in(numbers, ("norm",)))
            if not len(norms):
                continue
            (mark, next_mark), (norm, next_norm), (route, next_route) = (
                _around(places, events, len(numbers)) for events in (marks, norms, routes)
            )
            follows = mark > np.maximum(norm, route)
            precedes = next_mark < np.minimum(next_norm, next_route)
            goes_back = (mark > route) & (next_norm < next_route) & (next_route < next_mark)
            numbers[places[follows | precedes | goes_back]] = CATEGORIES.index("elementwise")
    return operations.with_columns(category=pl.Series(numbers).cat.to(CATEGORY))


def _around(
    places: npt.NDArray[np.int64], events: npt.NDArray[np.int64], end: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The last of ``events`` before each of ``places``, or -1, and the first after it, or ``end``."""
    after = np.searchsorted(events, places)
    return np.append(events, -1)[after - 1], np.append(events, end)[after]


def mark_matrix_optimizer(operations: Operations) -> Operations:
    """Moves the GEMMs of an optimizer, with what it runs around them, to ``optimizer``.

    Muon orthogonalizes each update by a chain of matrix products (Newton-Schulz), in kernels that layers run, too. Its
    place tells it apart: between two kernels of the optimizer (the gradient norm, the update of what Adam takes), with
    no part of a layer in between. After an update the next step begins, so nothing that follows one moves. With Adam
    nothing moves because no GEMM lies there.
    ``operations`` are sorted by rank and start.
    """
    numbers = operations["category"].to_physical().to_numpy().copy()
    optimizer = CATEGORIES.index("optimizer")
    is_optimizer = numbers == optimizer
    opens = is_optimizer | _is_in(numbers, _OF_LAYERS)
    rank_index = operations["rank_index"].to_numpy()
    opens[:1] = True
    opens[1:] |= rank_index[1:] != rank_index[:-1]
    starts = np.flatnonzero(opens)
    ends_step = operations["anchor"].to_numpy()
    is_between = is_optimizer[starts] & ~ends_step[starts] & np.append(is_optimizer[starts][1:], [False])
    is_between[:-1] &= rank_index[starts[1:]] == rank_index[starts[:-1]]
    if not is_between.any():
        return operations
    has_gemm = np.logical_or.reduceat(_is_in(numbers, GEMM_CATEGORIES), starts)
    lengths = np.diff(np.append(starts, len(numbers)))
    is_moved = np.repeat(is_between & has_gemm, lengths) & _is_in(numbers, _PRODUCTS_OF_OPTIMIZER)
    numbers[is_moved] = optimizer
    return operations.with_columns(category=pl.Series(numbers).cat.to(CATEGORY))


def _is_in(numbers: npt.NDArray[np.uint8], categories: Sequence[str]) -> BoolArray:
    return np.isin(numbers, [CATEGORIES.index(name) for name in categories])
