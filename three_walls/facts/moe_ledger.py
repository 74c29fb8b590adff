"""The ledger of MoE layers in the representative step: what each part of each layer takes, in each direction.

``ns`` of a part is the union of its operations within each pass, summed over the passes of the layer (micro-batches);
``exposed_ns`` is the part of it in which no compute kernel runs; ``calls`` counts operations (kernels and copies).
Where the layer of a pass is not certain, it is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from three_walls.facts.fact_rows import MoePart
from three_walls.facts.token_exchange import ExchangeRates, TokenRates, kernel_kind, measure_rates
from three_walls.layers.labels import LabelledOperations
from three_walls.lib.declare import artifact, duration
from three_walls.lib.measurement import Measurement, known, missing, unstated
from three_walls.lib.report_warning import ReportWarning
from three_walls.megatron.model_shape import find_moe_layers
from three_walls.megatron.parallel_layout import has_uneven_stages
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.intervals import DURATION, intersect, merge_overlapping
from three_walls.step.ownership import COMPUTE_MASK
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.step_tables import Slices
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import GEMM_CATEGORIES
from three_walls.tables.model_parts import (
    BACKWARD,
    COMBINE,
    DIRECTIONS,
    DISPATCH,
    EXPERT_GEMM,
    FORWARD,
    MOE_PARTS,
    SHARED_EXPERT,
)

_NO_LAYERS = (
    "no passes through layers were recognized: attention kernels mark them, and ranges of PyTorch's operators, or the "
    "threads that launch, show their direction"
)
_NO_MOE = "no MoE layer runs in the step"
_UNEVEN = "passes through MoE layers exchange tokens in different numbers of calls"
_NO_SHARED_EXPERTS = (
    "the GEMMs around the router are not in the order of shared experts, nor on one stream of their own"
)

MoeOperations = LabelledOperations
"""Those that are a part of a pass through an MoE layer."""


@dataclass(frozen=True, slots=True)
class MoeLedger:
    """``rows`` in order of layer, direction and part."""

    rows: tuple[MoePart, ...]
    rates: ExchangeRates
    warnings: tuple[ReportWarning, ...] = ()


@artifact
def moe_operations(labelled_step: LabelledOperations) -> Measurement[MoeOperations]:
    """The operations of MoE layers; missing where there are none, or where layers cannot be separated."""
    if labelled_step["pass"].null_count() == labelled_step.height:
        return missing(_NO_LAYERS)
    of_moe = labelled_step.filter(pl.col("pass").is_not_null() & pl.col("part").is_in(MOE_PARTS))
    if of_moe.is_empty():
        return missing(_NO_MOE)
    return known(of_moe) if _exchange_alike(of_moe) else missing(_UNEVEN)


@artifact
def moe_ledger(
    step: StepView,
    moe_operations: MoeOperations,
    matched_ranks: MatchedRanks,
    ep_link_bytes_per_s: Measurement[float],
) -> MoeLedger:
    """The ledger of the step."""
    if not _run_shared_experts_alike(moe_operations):
        moe_operations = moe_operations.filter(pl.col("part") != SHARED_EXPERT)
    mismatch = _find_mismatch(moe_operations, step.config, step.layout.microbatches)
    if mismatch is not None:
        moe_operations = moe_operations.with_columns(layer=pl.lit(None, dtype=pl.Int64))
    exchanges = moe_operations.filter(pl.col("part").is_in([DISPATCH, COMBINE]))
    of_rank = matched_ranks.arrivals.filter(pl.col("rank_index") == step.rank_index)
    rates = measure_rates(exchanges, of_rank, step.config)
    rows = [
        _with_rate(row, passes, rates, ep_link_bytes_per_s.value)
        for row, passes in _sum_parts(moe_operations, step.slices)
    ]
    if mismatch is None:
        return MoeLedger(tuple(rows), rates)
    message = f"{mismatch}. The MoE layers are shown without their numbers. Check that the config is of this run."
    return MoeLedger(tuple(rows), rates, (ReportWarning("moe-layers-mismatch", message),))


@artifact
def moe_layers(moe_ledger: MoeLedger) -> tuple[MoePart, ...]:
    """The rows of the ledger."""
    return moe_ledger.rows


@artifact
def token_rates(moe_ledger: MoeLedger) -> Measurement[TokenRates]:
    """How fast the step's exchanges of tokens ran."""
    return moe_ledger.rates.measured


@duration("shared expert time per step")
def shared_expert_ns(step: StepView, moe_ledger: MoeLedger) -> Measurement[int]:
    """Time per step that shared experts take, in all MoE layers and directions."""
    if not step.config.knows("moe_shared_expert_intermediate_size"):
        return unstated("moe_shared_expert_intermediate_size")
    rows = [row for row in moe_ledger.rows if row.part == SHARED_EXPERT]
    if step.config.get("moe_shared_expert_intermediate_size") and not rows:
        return missing(_NO_SHARED_EXPERTS)
    return known(sum(row.ns for row in rows))


@duration("backward expert GEMM time per step")
def expert_backward_gemm_ns(moe_ledger: MoeLedger) -> int:
    """Time per step that GEMMs of routed experts take in backward passes, in all MoE layers."""
    return sum(row.ns for row in moe_ledger.rows if (row.direction, row.part) == (BACKWARD, EXPERT_GEMM))


@duration("exposed backward dispatch time per step")
def dispatch_backward_exposed_ns(moe_ledger: MoeLedger) -> int:
    """Time per step in which the backward pass of the dispatch (the exchange of what leaves the experts) runs and no
    compute kernel does, waiting included."""
    return sum(row.exposed_ns for row in moe_ledger.rows if (row.direction, row.part) == (BACKWARD, DISPATCH))


def _exchange_alike(operations: MoeOperations) -> bool:
    """Whether all passes of one direction that exchange tokens do so both ways, in as many calls each."""
    counts = (
        operations.group_by("direction", "pass")
        .agg((pl.col("part") == part).sum().alias(part) for part in (DISPATCH, COMBINE))
        .filter((pl.col(DISPATCH) > 0) | (pl.col(COMBINE) > 0))
    )
    patterns = counts.group_by("direction").agg(pl.struct(DISPATCH, COMBINE).n_unique().alias("patterns"))
    is_complete = (counts[DISPATCH] > 0) & (counts[COMBINE] > 0)
    return bool(is_complete.all()) and bool((patterns["patterns"] == 1).all())


def _run_shared_experts_alike(operations: MoeOperations) -> bool:
    """Whether every pass of one direction runs as many GEMMs of shared experts, forward and backward: all or none."""
    is_gemm = (pl.col("part") == SHARED_EXPERT) & pl.col("category").cast(pl.String).is_in(list(GEMM_CATEGORIES))
    counts = (
        operations.filter(pl.col("direction").is_in([FORWARD, BACKWARD]))
        .group_by("direction", "pass")
        .agg(gemms=is_gemm.sum())
    )
    each = counts.group_by("direction").agg(pl.col("gemms").unique())["gemms"].to_list()
    return all(len(gemms) == 1 for gemms in each) and len({gemms[0] > 0 for gemms in each}) <= 1


def _sum_parts(operations: MoeOperations, slices: Slices) -> list[tuple[MoePart, int]]:
    """Rows per layer, direction and part, each with the number of its passes."""
    key = ["direction", "pass", "part"]
    union = merge_overlapping(operations, key)
    not_computing = merge_overlapping(slices.filter((pl.col("active") & COMPUTE_MASK) == 0), ["rank_index"])
    # Only an exchange can be exposed: the other parts compute.
    exchanges = union.filter(pl.col("part").is_in([DISPATCH, COMBINE])).join(
        not_computing.select("rank_index").head(1), how="cross"
    )
    exposed = intersect(exchanges, not_computing, ["rank_index"]).group_by(key).agg(exposed_ns=DURATION.sum())
    sums = (
        union.group_by(key)
        .agg(ns=DURATION.sum())
        .join(exposed, on=key, how="left")
        .join(operations.group_by(key).agg(pl.col("layer", "stack").max(), calls=pl.len()), on=key, how="left")
        .group_by("layer", "stack", "direction", "part")
        .agg(pl.col("ns").sum(), pl.col("exposed_ns").fill_null(0).sum(), pl.col("calls").sum(), passes=pl.len())
    )
    rows = sums.select("layer", "direction", "part", "ns", "exposed_ns", "calls", "passes", "stack").rows()
    rows.sort(key=lambda row: (row[0] is None, row[0] or 0, DIRECTIONS.index(row[1]), MOE_PARTS.index(row[2])))
    return [
        (MoePart(layer, direction, part, int(ns), int(exposed_ns), calls, stack=stack), passes)
        for layer, direction, part, ns, exposed_ns, calls, passes, stack in rows
    ]


def _with_rate(row: MoePart, passes: int, rates: ExchangeRates, link: float | None) -> MoePart:
    """``row`` of so many passes with what it moved and how fast, if it is an exchange."""
    if row.part not in (DISPATCH, COMBINE):
        return row
    return replace(
        row,
        bytes_moved=None if rates.sent_bytes is None else rates.sent_bytes * passes,
        bytes_per_s=rates.by_kind.get(kernel_kind(row.direction, row.part)),
        limit_bytes_per_s=link,
    )


def _find_mismatch(operations: MoeOperations, config: RunConfig, microbatches: int | None) -> str | None:
    """How the passes contradict the MoE layers and micro-batches that the config gives this rank.

    None where they agree, or where the config leaves the number open.
    """
    layers = _count_layers_of_rank(config)
    if layers is None or microbatches is None:
        return None
    counts = dict(operations.group_by("direction").agg(pl.col("pass").n_unique()).iter_rows())
    expected, forward, backward = layers * microbatches, counts.get(FORWARD, 0), counts.get(BACKWARD, 0)
    if forward == expected and backward == expected:
        return None
    return (
        f"{forward} forward and {backward} backward passes of MoE layers in the step, expected {expected} each "
        f"({layers} layers x {microbatches} micro-batches)"
    )


def _count_layers_of_rank(config: RunConfig) -> int | None:
    """How many MoE layers a rank runs; None where the config does not state it or stages differ.

    None with multi-token prediction too: the step then runs more layers than the model's.
    """
    stages, count = config.whole_number("pipeline_model_parallel_size"), config.whole_number("num_layers")
    if not count or not stages or config.get("mtp_num_layers"):
        return None
    if stages == 1:
        layers = find_moe_layers(config, count).value
        return None if layers is None else len(layers)
    has_dense = config.knows("moe_layer_freq") and config.get("moe_layer_freq") != 1
    return None if count % stages or has_dense or has_uneven_stages(config) else count // stages
