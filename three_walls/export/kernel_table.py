"""The kernels of the representative step: how often and how long they ran, where they came from, what they cost."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any

import polars as pl

from three_walls.export.lanes import MeasuredStep
from three_walls.export.step_detail_rows import KernelPlace, KernelRow
from three_walls.facts.gemm_shapes import LaunchedGemms
from three_walls.lib.declare import artifact
from three_walls.lib.measurement import NS_PER_S
from three_walls.megatron.count_flops import precision_of
from three_walls.step.intervals import DURATION
from three_walls.step.operators import LONGEST_SHOWN_NAME, Operators, generalize, is_place
from three_walls.step.step_tables import Operations
from three_walls.step.step_view import StepView
from three_walls.tables.kernel_names import peak_of, precision_of_kernel
from three_walls.tables.model_parts import OUTSIDE

MOST_PLACES = 4
LEAST_FRACTION = 0.001
"""Kernels that take this share of the step have a row of their own, and so have the longest of each bucket."""
LONGEST_OF_BUCKET = 5

_KEY = ("bucket", "kind", "name_id")
_NAME_OF_KIND = {"memcpy": "copies", "memset": "fills (memset)", "graph": "CUDA graphs"}
_VARIANT = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
_NAMESPACE = re.compile(r"\b[A-Za-z_]\w*::|^::")
_LAMBDA = re.compile(r"(?:::(?:operator)? *(?:const)? *)+")
"""What is left of a lambda's name where its scope and arguments are cut, if its argument list ends there."""
_LEADING_NUMBERS = re.compile(r"<(?:\d+, )+")
_LONGEST_READ = 4_000


@artifact
def kernels(
    step: StepView, described_operations: DescribedOperations, launched_gemms: LaunchedGemms
) -> tuple[KernelRow, ...]:
    """Rows by bucket; those of a bucket sum to the durations of its operations that start in the step.

    Raises AssertionError unless the rows sum to the operations.
    """
    operations = described_operations
    if operations.is_empty():
        return ()
    flops_per_s = _measure_rates(launched_gemms)
    places = _list_places(operations)
    least_ns = LEAST_FRACTION * step.step_ns
    rows: list[KernelRow] = []
    ordered = _summarize(operations).sort(
        pl.col("ns").sum().over("bucket"), "bucket", "ns", *_KEY[1:], descending=[True, False, True, False, False]
    )
    for _, of_bucket in ordered.group_by("bucket", maintain_order=True):
        single = [
            _make_row(step, kernel, places, flops_per_s)
            for place, kernel in enumerate(of_bucket.iter_rows(named=True))
            if place < LONGEST_OF_BUCKET or kernel["ns"] >= least_ns
        ]
        rows += single
        rest = of_bucket[len(single) :]
        if rest.height == 1:
            rows.append(_make_row(step, rest.row(0, named=True), places, flops_per_s))
        elif rest.height:
            rows.append(_sum_rest(step, operations.join(rest, on=_KEY, how="semi", nulls_equal=True), rest.height))
    total_ns = operations.select(DURATION.sum()).item()
    assert sum(row.ns for row in rows) == total_ns, "kernels do not sum to the operations of the step"
    return tuple(rows)


@lru_cache(maxsize=2000)
def shorten_name(full_name: str) -> str:
    """A demangled name without return type, namespaces, parameters, lambdas and leading numbers.

    ``void at::native::elementwise_kernel<(int)128, (int)4, void at::native::gpu_kernel_impl_nocast<at::native::
    CUDAFunctor_add<float>>(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)`` is
    ``elementwise_kernel<gpu_kernel_impl_nocast<CUDAFunctor_add<float>>>``.
    """
    characters: list[str] = []
    depth = 0
    for character in full_name[:_LONGEST_READ]:
        depth += character in "(["
        if not depth:
            characters.append(character)
        depth -= character in ")]" and depth > 0
    name = "".join(characters).replace("<unnamed>::", "").replace("void ", "")
    name = _LAMBDA.sub(
        lambda match: match[0] if name[match.end() : match.end() + 1] not in ("", ",", ">") else "", name
    )
    name = _NAMESPACE.sub("", name)
    return _LEADING_NUMBERS.sub("<", name).strip()


def name_part(module: str | None, direction: str | None) -> str:
    """A part of the model in words: ``experts forward``, ``forward outside of layers``; empty where it is not known."""
    words = (direction, "outside of layers") if module == OUTSIDE else (module, direction)
    return " ".join(word for word in words if word)


DescribedOperations = Annotated[
    Operations,
    {
        "module": pl.String,  # of the model; null where not known, as in a step that was not replayed
        "stack": pl.String,  # of layers besides the model's own
        "direction": pl.String,
        "layer": pl.Int64,
        "operator": pl.String,  # around the launch
        "bucket": pl.String,
    },
]
"""What started in the representative step."""


@artifact
def described_operations(step: StepView, measured_step: MeasuredStep, operators: Operators) -> DescribedOperations:
    """What started in the step, with ``bucket``, labels, and the ``operator`` around the launch.

    Labels are null where not known, as those of a step that was not replayed.
    """
    operations, graph = step.started, measured_step.graph
    dtypes = {"module": pl.String, "stack": pl.String, "direction": pl.String, "layer": pl.Int64}
    labels: list[pl.Expr | pl.Series] = [pl.lit(None, dtype=dtype).alias(name) for name, dtype in dtypes.items()]
    if graph is not None and step.rank_index in graph.ranks:
        of_rank = graph.operations.filter(pl.col("rank_index") == step.rank_index)
        identity = ("start_ns", "end_ns", "stream")
        if of_rank.select(identity).equals(operations.select(identity)):
            labels = [of_rank[name] for name in dtypes]
    names = []
    for thread, at_ns in operations.select("launch_thread", "launch_start_ns").iter_rows():
        ranges = operators.around(operators.innermost(thread, at_ns))
        around = (operators.found[index].name for index in ranges)
        names.append(next((generalize(name) for name in around if is_place(name)), ""))
    return operations.with_columns(
        *labels,
        pl.Series("operator", names, dtype=pl.String),
        bucket=pl.col("category").cast(pl.String),
        kind=pl.col("kind").cast(pl.String),
    )


def _summarize(operations: Operations) -> pl.DataFrame:
    """A row per bucket and kernel, in no order."""
    is_graph_node = pl.col("graph_node").is_not_null()
    launch_ns = pl.when(~is_graph_node).then(pl.col("launch_end_ns") - pl.col("launch_start_ns"))
    sums = operations.group_by(_KEY).agg(
        calls=pl.len(),
        ns=DURATION.sum(),
        fastest_ns=DURATION.min(),
        median_ns=DURATION.quantile(0.5, "lower"),
        p95_ns=DURATION.quantile(0.95, "nearest"),
        slowest_ns=DURATION.max(),
        launch_ns=pl.when(launch_ns.count() > 0).then(launch_ns.sum()),
        layers=pl.when(pl.col("layer").count() > 0).then(pl.col("layer").n_unique() - pl.col("layer").has_nulls()),
    )
    variants = operations.group_by(*_KEY, *_VARIANT).len("launched").sort("launched", *_VARIANT, descending=True)
    first = variants.group_by(_KEY, maintain_order=True).agg(pl.col(*_VARIANT).first(), variants=pl.len())
    return sums.join(first, on=_KEY, nulls_equal=True)


_Places = Mapping[tuple[str, str, int | None], list[KernelPlace]]


def _list_places(operations: Operations) -> _Places:
    """Where each kernel is launched from, the longest first."""
    sums = (
        operations.group_by(*_KEY, "module", "direction", "operator")
        .agg(calls=pl.len(), ns=DURATION.sum())
        .sort("ns", "module", "direction", "operator", descending=[True, False, False, False])
    )
    places: dict[tuple[str, str, int | None], list[KernelPlace]] = {}
    columns = (*_KEY, "module", "direction", "operator", "calls", "ns")
    for bucket, kind, name_id, module, direction, operator, calls, ns in sums.select(columns).iter_rows():
        places.setdefault((bucket, kind, name_id), []).append(KernelPlace(module, direction, operator, calls, ns))
    return places


def _measure_rates(launched: LaunchedGemms) -> dict[int | None, float]:
    """Operations per second by name_id of the kernel, where all shapes are known.

    A GEMM may take several kernels. Its operations are then shared among them in proportion to their time.
    """
    times = launched.kernels.select("name_id", "start_ns", "end_ns").rows()
    ns_of_gemm: dict[int, int] = {}
    for gemm, (_, start_ns, end_ns) in zip(launched.ranges, times, strict=True):
        if gemm is not None:
            ns_of_gemm[gemm] = ns_of_gemm.get(gemm, 0) + end_ns - start_ns
    sums: dict[int | None, tuple[float, int]] = {}
    unknown: set[int | None] = set()
    for gemm, (name_id, start_ns, end_ns) in zip(launched.ranges, times, strict=True):
        if gemm is None or not launched.gemms[gemm].flops:
            unknown.add(name_id)
            continue
        flops, ns = sums.get(name_id, (0.0, 0))
        share = (end_ns - start_ns) / max(1, ns_of_gemm[gemm])
        sums[name_id] = flops + share * launched.gemms[gemm].flops, ns + end_ns - start_ns
    return {name: flops * NS_PER_S / ns for name, (flops, ns) in sums.items() if ns and name not in unknown}


def _make_row(
    step: StepView, kernel: Mapping[str, Any], places: _Places, flops_per_s: Mapping[int | None, float]
) -> KernelRow:
    bucket, kind, name_id = kernel["bucket"], kernel["kind"], kernel["name_id"]
    full_name = "" if name_id is None else step.names.get(name_id, "")
    peak = peak_of(step.gpu, precision_of_kernel(full_name, precision_of(step.config).value))
    rate = flops_per_s.get(name_id)
    of_kernel = places[bucket, kind, name_id]
    return KernelRow(
        bucket=bucket,
        name=shorten_name(full_name)[:LONGEST_SHOWN_NAME] or _NAME_OF_KIND.get(kind, "(no name)"),
        full_name=full_name[:LONGEST_SHOWN_NAME],
        **_read_times(kernel),
        grid=_read_sides(kernel, "grid"),
        block=_read_sides(kernel, "block"),
        variants=kernel["variants"],
        places=tuple(of_kernel[:MOST_PLACES]),
        other_places=max(0, len(of_kernel) - MOST_PLACES),
        layers=kernel["layers"],
        launch_ns=kernel["launch_ns"],
        fraction_of_peak=rate / peak if rate is not None and peak else None,
    )


def _sum_rest(step: StepView, operations: Operations, kernels: int) -> KernelRow:
    """The ``operations`` of several kernels of one bucket as one row."""
    as_one = operations.with_columns(pl.lit(None, dtype=pl.Int64).alias("name_id"), kind=pl.lit("kernel"))
    row = _make_row(step, _summarize(as_one).row(0, named=True), _list_places(as_one), {})
    return replace(row, name=f"{kernels} more", grid=None, block=None, kernels=kernels)


def _read_times(kernel: Mapping[str, Any]) -> dict[str, int]:
    calls, ns = kernel["calls"], kernel["ns"]
    names = ("fastest_ns", "median_ns", "p95_ns", "slowest_ns")
    return {"calls": calls, "ns": ns, "mean_ns": round(ns / calls), **{name: int(kernel[name]) for name in names}}


def _read_sides(kernel: Mapping[str, Any], what: str) -> tuple[int, int, int] | None:
    x, y, z = (kernel[f"{what}_{side}"] for side in "xyz")
    return None if None in (x, y, z) else (x, y, z)
