"""The ledger of MoE layers in the representative step: what each part of each layer takes, in each direction.

``ns`` of a part is the union of its operations within each pass, summed over the passes of the layer (micro-batches);
``exposed_ns`` is the share of it with no compute kernel beside; ``calls`` counts operations (kernels and copies).
Shared experts have a row where their products can be told from others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import polars as pl

from three_walls.attribution.ownership import COMPUTE_MASK
from three_walls.facts.attention_passes import BACKWARD, FORWARD, RECOMPUTE
from three_walls.facts.ep_link import ep_link_bytes_per_s
from three_walls.facts.exchange_volume import exchange_bytes
from three_walls.facts.moe_layers import count_mismatch, number_layers
from three_walls.facts.moe_parts import ATTACHED, EXPERT_GEMM, PARTS, attach_operations
from three_walls.facts.moe_passes import COMBINE, DISPATCH, EXCHANGES, LayerPasses, find_layer_passes
from three_walls.facts.overlap_schedule import infer_schedule_nodes
from three_walls.facts.overlapped_passes import find_overlapped_passes
from three_walls.facts.shared_experts import SHARED_EXPERT, attach_shared_experts
from three_walls.facts.stream_order import PRODUCTS
from three_walls.model.config import RunConfig
from three_walls.model.fact import FactValue
from three_walls.model.report import MoePart
from three_walls.tables.attribution_thresholds import attribution_thresholds
from three_walls.tables.hardware import GpuModel
from three_walls.timeline.intervals import intersect, merge_overlapping

_DIRECTIONS = (FORWARD, RECOMPUTE, BACKWARD)


@dataclass(frozen=True, slots=True)
class MoeLedger:
    """``parts`` in order of layer, direction and part; empty, or with ``layer`` None, for the reason ``reason``."""

    parts: tuple[MoePart, ...] = ()
    layers: int | None = None
    reason: str | None = None
    achieved_bytes_per_s: float | None = None
    """Bytes per second of the fastest tenth of the token exchanges: those found their peers ready."""
    because_no_speed: str | None = None
    link_bytes_per_s: float | None = None
    because_no_link: str | None = None
    because_no_shared_experts: str | None = None
    mismatch: str | None = None
    """How the passes in the trace contradict the number of layers in the config."""

    def facts(self) -> dict[str, tuple[FactValue, str | None]]:
        """The glossary's facts of this ledger, each missing with its reason."""
        return {
            "moe_layers_count": (self.layers, self.reason),
            "ep_achieved_bytes_per_s": (self.achieved_bytes_per_s, self.because_no_speed),
            "shared_expert_ns": self._shared_expert_ns(),
            "expert_backward_gemm_ns": self._in_backward(EXPERT_GEMM, lambda one: one.ns),
            "dispatch_backward_exposed_ns": self._in_backward(COMBINE, lambda one: one.exposed_ns),
            "ep_link_bytes_per_s": (self.link_bytes_per_s, self.because_no_link),
        }

    def _shared_expert_ns(self) -> tuple[FactValue, str | None]:
        if missing := self.because_no_shared_experts:
            return None, missing
        return sum(one.ns for one in self.parts if one.part == SHARED_EXPERT), None

    def _in_backward(self, part: str, measure: Callable[[MoePart], int]) -> tuple[FactValue, str | None]:
        """The sum of ``part`` over backward passes: there COMBINE, after the experts' products, undoes a dispatch."""
        if not self.parts:
            return None, self.reason
        return sum(measure(one) for one in self.parts if (one.part, one.direction) == (part, BACKWARD)), None


def build_moe_ledger(
    operations: pl.DataFrame,
    slices: pl.DataFrame,
    attention: pl.DataFrame,
    replays: pl.DataFrame | None,
    nodes: pl.DataFrame,
    step: tuple[int, int],
    config: RunConfig,
    gpu: GpuModel | None,
    layout: dict[str, tuple[FactValue, str | None]],
) -> MoeLedger:
    """The ledger of one rank's step [start, end).

    ``operations`` and ``slices``: that rank's, of the step. ``attention``: its passes (attention_passes.PASSES),
    without the replays of attention alone, which exchange no tokens.
    ``replays``: where they begin and end (recompute.REPLAYS), if known. ``nodes``: of overlapped layers, if the trace
    names them (schedule_ranges.SCHEDULE_NODES); they go before order. ``layout``: facts of ``derive_layout``.
    """
    link, no_link = ep_link_bytes_per_s(config, gpu, layout)
    begun = operations.filter(pl.col("start_ns").is_between(step[0], step[1], closed="left"))
    mine = begun.filter(pl.col("category").is_in([*EXCHANGES, *ATTACHED])).with_columns(
        category=pl.col("category").cast(pl.String)
    )
    found, attached = find_overlapped_passes(mine, nodes) or _find_by_order(begun, mine, attention, replays, config)
    if found.passes is None or found.exchanges is None:
        no = found.reason
        return MoeLedger((), None, no, None, no, link, no_link, no)
    streams = attention["stream"].unique().to_list()
    shared, no_shared = attach_shared_experts(begun, found.passes, streams, config)
    attached = attached if shared is None else pl.concat([attached, shared])
    microbatches, _ = layout["num_microbatches"]
    passes, layers, reason = number_layers(found.passes, config, microbatches)
    rows = _measure(passes, attached, slices)
    speeds, achieved, no_speed = _speeds(found, passes, config)
    sent, _ = exchange_bytes(config)
    parts = tuple(_with_speed(row, passes, sent, speeds, link) for row in rows)
    mismatch = count_mismatch(passes, config, microbatches)
    return MoeLedger(parts, layers, reason, achieved, no_speed, link, no_link, no_shared, mismatch)


def _find_by_order(
    begun: pl.DataFrame,
    mine: pl.DataFrame,
    attention: pl.DataFrame,
    replays: pl.DataFrame | None,
    config: RunConfig,
) -> tuple[LayerPasses, pl.DataFrame]:
    """Passes and the operations of their parts: by the order on the device, under overlap by that of the launches."""
    in_order = _find_by_device_order(mine, attention, replays, config)
    if in_order[0].passes is not None or config.get("overlap_moe_expert_parallel_comm") is not True:
        return in_order
    nodes = infer_schedule_nodes(begun, attention)
    overlapped = None if nodes is None else find_overlapped_passes(mine, nodes)
    return overlapped if overlapped and overlapped[0].passes is not None else in_order


def _find_by_device_order(
    mine: pl.DataFrame, attention: pl.DataFrame, replays: pl.DataFrame | None, config: RunConfig
) -> tuple[LayerPasses, pl.DataFrame]:
    products = mine.filter(pl.col("category").is_in(PRODUCTS))
    if config.get("moe_shared_expert_overlap") is True:
        # Shared experts then run on a stream of their own, beside the exchanges: they part no dispatch from combine.
        products = products.filter(pl.col("stream").is_in(attention["stream"].unique().to_list()))
    exchanges = mine.filter(pl.col("category").is_in(EXCHANGES)).select("start_ns", "end_ns")
    found = find_layer_passes(exchanges, products, attention, replays)
    if found.passes is None or found.exchanges is None:
        return found, pl.DataFrame()
    goes_back = pl.col("direction") == BACKWARD
    passes = found.passes.with_columns(
        route_from_ns=pl.when(goes_back).then("combine_end_ns").otherwise("from_ns"),
        route_until_ns=pl.when(goes_back).then("until_ns").otherwise("dispatch_start_ns"),
    )
    return replace(found, passes=passes), attach_operations(mine, passes, found.exchanges)


def _measure(passes: pl.DataFrame, attached: pl.DataFrame, slices: pl.DataFrame) -> list[MoePart]:
    """Sums per layer, direction and part. ``attached``: pass, part, start_ns, end_ns of every operation."""
    key = ["pass", "part"]
    union = merge_overlapping(attached, key)
    alone = merge_overlapping(slices.filter((pl.col("active") & COMPUTE_MASK) == 0), ["rank_index"])
    # What computes is beside itself: only an exchange can be exposed.
    exchanged = union.filter(pl.col("part").is_in([DISPATCH, COMBINE])).join(
        alone.select("rank_index").head(1), how="cross"
    )
    length = pl.col("end_ns") - pl.col("start_ns")
    sums = (
        union.group_by(key)
        .agg(ns=length.sum())
        .join(
            intersect(exchanged, alone, ["rank_index"]).group_by(key).agg(exposed_ns=length.sum()), on=key, how="left"
        )
        .join(attached.group_by(key).agg(calls=pl.len()), on=key, how="left")
        .join(passes.select("pass", "layer", "direction"), on="pass")
        .group_by("layer", "direction", "part")
        .agg(pl.col("ns").sum(), pl.col("exposed_ns").fill_null(0).sum(), pl.col("calls").sum())
    )
    order = (
        pl.col("layer"),
        pl.col("direction").replace_strict({name: n for n, name in enumerate(_DIRECTIONS)}, return_dtype=pl.Int64),
        pl.col("part").replace_strict({name: n for n, name in enumerate(PARTS)}, return_dtype=pl.Int64),
    )
    rows = sums.sort(order, nulls_last=True).select("layer", "direction", "part", "ns", "exposed_ns", "calls").rows()
    return [
        MoePart(layer, direction, part, int(ns), int(shown), calls) for layer, direction, part, ns, shown, calls in rows
    ]


def _speeds(
    found: LayerPasses, passes: pl.DataFrame, config: RunConfig
) -> tuple[dict[str, float], float | None, str | None]:
    """Bytes per second of dispatch and of combine, of both together, and why not.

    The duration is that of the fastest tenth of the calls, which found all peers ready; both directions move as much.
    """
    sent, reason = exchange_bytes(config)
    if not sent or found.exchanges is None:
        return {}, None, reason or "expert-parallel size 1: nothing is sent"
    calls = _token_calls(found.exchanges.join(passes.select("pass", "direction"), on="pass"))
    thresholds = attribution_thresholds()
    fastest = pl.col("duration_ns").quantile(thresholds.ready_quantile, interpolation="lower")
    is_known = (pl.col("calls") >= thresholds.minimum_calls) & (pl.col("duration_ns") > 0)
    by_part = calls.group_by("part").agg(fastest, calls=pl.len()).filter(is_known).rows()
    together = calls.select(fastest, calls=pl.len()).filter(is_known)
    if together.is_empty():
        return {}, None, f"fewer than {thresholds.minimum_calls} exchanges of tokens in the step"
    speeds = {str(part): sent * 1e9 / duration for part, duration, _ in by_part}
    return speeds, sent * 1e9 / float(together["duration_ns"][0]), None


def _token_calls(exchanges: pl.DataFrame) -> pl.DataFrame:
    """part and duration_ns of the exchanges that carry the tokens.

    One dispatch or combine may exchange their probabilities too, before or after: a call of small messages. Of the
    positions in a pass the one whose fastest call is longest carries the tokens; waiting lengthens single calls only.
    """
    kind = ["direction", "part"]
    timed = exchanges.with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"))
    positions = (
        timed.group_by(*kind, "position")
        .agg(pl.col("duration_ns").min())
        .sort("duration_ns", "position", descending=[True, False])
        .unique(kind, keep="first", maintain_order=True)
    )
    return timed.join(positions.select(*kind, "position"), on=[*kind, "position"]).select("part", "duration_ns")


def _with_speed(
    row: MoePart,
    passes: pl.DataFrame,
    sent: int | None,
    speeds: dict[str, float],
    link: float | None,
) -> MoePart:
    if row.part not in (DISPATCH, COMBINE):
        return row
    same_layer = pl.col("layer").eq_missing(pl.lit(row.layer, dtype=pl.Int64))
    count = passes.filter(same_layer & (pl.col("direction") == row.direction)).height
    return replace(
        row,
        bytes_moved=None if sent is None else sent * count,
        bytes_per_s=speeds.get(row.part),
        limit_bytes_per_s=link,
    )
