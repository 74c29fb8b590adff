"""GEMMs by shape: what each reaches of the GPU's peak in the representative step.

Sizes are those that PyTorch's operators were called with, so routing is as it was and a replay is told from the forward
pass; nothing here is derived from the config but the names of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from three_walls.facts.weight_roles import SCORES, Weights
from three_walls.model.report import GemmShape
from three_walls.model.units import NS_PER_S
from three_walls.tables.hardware import GpuModel
from three_walls.tables.kernels import peak_of, precision_of_kernel
from three_walls.tables.torch_operators import torch_operators
from three_walls.timeline.categories import GEMM_CATEGORIES
from three_walls.timeline.gemms import Product, find_gemms, gemms_of_operations
from three_walls.timeline.operators import Operators

NO_SIZES = (
    "no range around the GEMMs says the sizes of its arguments (recapture with --profile and -t cuda,nvtx; "
    "Megatron-Bridge also needs profiling.record_shapes=true)"
)

_Key = tuple[str, str | None, tuple[int, ...]]


@dataclass(slots=True)
class _Row:
    """Products of one key. ``ns_of``: time per kernel name."""

    role: str | None
    sizes: list[Product] = field(default_factory=list)
    ns_of: dict[str, int] = field(default_factory=dict)


def tabulate_gemms(
    operations: pl.DataFrame,
    operators: Operators,
    names: Mapping[int, str],
    weights: Weights,
    gpu: GpuModel | None,
    precision: str | None,
    may_gather_tokens: bool,
) -> tuple[tuple[GemmShape, ...], float | None]:
    """(rows by falling time, share of the products' time that they hold); the share is None without products.

    ``operations``: the representative rank's in its step. ``names``: texts by name id. ``weights``: what weights of a
    size are called. ``precision``: of products whose kernel's name does not say. ``may_gather_tokens``: whether
    sequence parallelism may be on (``find_gemms``).
    """
    kernels = operations.filter(
        pl.col("category").cast(pl.String).is_in(GEMM_CATEGORIES) & (pl.col("kind").cast(pl.String) == "kernel")
    )
    found = find_gemms(operators, torch_operators(), may_gather_tokens)
    ranges = gemms_of_operations(operators, found, kernels.select("launch_thread", "launch_start_ns").rows())
    rows: dict[_Key, _Row] = {}
    counted: set[int] = set()
    known_ns = all_ns = 0
    for index, (start, end, name) in zip(ranges, kernels.select("start_ns", "end_ns", "name_id").rows(), strict=True):
        all_ns += end - start
        if index is None or not found[index].flops:
            continue
        known_ns += end - start
        role = _role(found[index], weights)
        row = rows.setdefault(_key_of(found[index], role), _Row(role))
        row.ns_of[names.get(name, "")] = row.ns_of.get(names.get(name, ""), 0) + end - start
        if index not in counted:
            counted.add(index)
            row.sizes.append(found[index])
    shapes = [_shape(row, gpu, precision) for row in rows.values() if sum(row.ns_of.values())]
    shapes.sort(key=lambda one: (-one.ns, one.direction, one.batch, one.m, one.n, one.k))
    return tuple(shapes), known_ns / all_ns if all_ns else None


def _key_of(product: Product, role: str | None) -> _Key:
    """What products of one row share: the weight, whatever the number of tokens, or all sizes."""
    if product.weight is not None:
        return product.direction, role, (*product.weight, product.count)
    return product.direction, role, (product.batch, product.m, product.n, product.k)


def _shape(row: _Row, gpu: GpuModel | None, default: str | None) -> GemmShape:
    first = row.sizes[0]
    flops = sum(one.flops for one in row.sizes)
    ns = sum(row.ns_of.values())
    kernel = min(row.ns_of, key=lambda name: (-row.ns_of[name], name))
    precision = precision_of_kernel(kernel, default)
    peak = peak_of(gpu, precision)
    achieved = flops * NS_PER_S / ns
    return GemmShape(
        role=row.role,
        direction=first.direction,
        batch=first.batch,
        m=_span([one.m for one in row.sizes]),
        n=_span([one.n for one in row.sizes]),
        k=_span([one.k for one in row.sizes]),
        calls=sum(one.count for one in row.sizes),
        flops=flops,
        ns=ns,
        achieved_flops_per_s=achieved,
        precision=precision,
        peak_flops_per_s=peak,
        fraction=achieved / peak if peak else None,
        kernel=kernel,
    )


def _role(product: Product, weights: Weights) -> str | None:
    if product.weight is not None:
        return weights.role_of(product.weight, product.tokens)
    return SCORES if product.batch > 1 else None


def _span(values: Sequence[int]) -> tuple[int, int]:
    return min(values), max(values)
