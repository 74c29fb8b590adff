"""Read-only views of why the time went: idle causes, waits, parts of MoE layers. Selections, orders and sums.

Every order is total; its tie-break is the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from three_walls.model.buckets import BUCKETS
from three_walls.model.report import (
    GapCause,
    MoePart,
    OverlapSlowdown,
    PipelinePhase,
    RankReport,
    Report,
    Straggler,
    Wait,
)

DIRECTIONS = ("forward", "recompute", "backward")
MOE_PARTS = ("router", "permute", "dispatch", "expert_gemm", "combine", "unpermute", "shared_expert")
"""In the order in which a token passes them."""

PHASES = ("warm-up", "steady", "cool-down", "update", "step")
"""Of a pipeline's schedule, in the order of time."""

CARRYING_PARTS = ("dispatch", "combine")
"""Parts that move tokens between ranks: only of them is a missing bandwidth worth the word "unknown"."""

_CLASS_ORDER = {bucket.name: place for place, bucket in enumerate(BUCKETS)}


@dataclass(frozen=True, slots=True)
class MergedCause:
    """All idle time of one cause on one rank; ``details`` hold the parts that say more, longest first."""

    cause: str
    ns: int
    fraction: float | None
    """Of the rank's median step."""
    details: tuple[GapCause, ...]


def merge_gap_causes(rank: RankReport) -> tuple[MergedCause, ...]:
    """Idle causes of ``rank``, one row per cause, longest first."""
    sums: dict[str, dict[str, int]] = {}
    for one in rank.gap_causes:
        details = sums.setdefault(one.cause, {})
        details[one.detail] = details.get(one.detail, 0) + one.ns
    step_ns = sum(rank.budget_ns.values())
    merged = (_merge_cause(cause, details, step_ns) for cause, details in sums.items())
    return tuple(sorted((one for one in merged if one.ns > 0), key=lambda one: (-one.ns, one.cause)))


def _merge_cause(cause: str, details: Mapping[str, int], step_ns: int) -> MergedCause:
    total_ns = sum(details.values())
    told = sorted(
        (GapCause(cause, ns, detail) for detail, ns in details.items() if detail and ns > 0),
        key=lambda one: (-one.ns, one.detail),
    )
    return MergedCause(cause, total_ns, total_ns / step_ns if step_ns else None, tuple(told))


def order_stragglers(report: Report) -> tuple[Straggler, ...]:
    """The rank that costs the others most first."""
    return tuple(sorted(report.stragglers, key=lambda one: (-one.late_ns, one.rank, one.cause)))


def order_waits(report: Report) -> tuple[Wait, ...]:
    """By class in order of precedence, then by rank."""
    return tuple(sorted(report.waits, key=lambda one: (_class_key(one.communication_class), one.rank)))


def _class_key(name: str) -> tuple[int, str]:
    return _CLASS_ORDER.get(name, len(_CLASS_ORDER)), name


def find_longest_wait_ns(report: Report) -> int:
    """The longest wait and transfer of a row together: the common scale of their bars; 0 when none is known."""
    return max(((one.wait_ns or 0) + (one.transfer_ns or 0) for one in report.waits), default=0)


@dataclass(frozen=True, slots=True)
class ClassWait:
    """Waits of one communication class over the ranks: bounds of what is known, and how it is known."""

    communication_class: str
    wait_low_ns: int | None
    wait_high_ns: int | None
    transfer_low_ns: int | None
    transfer_high_ns: int | None
    mostly_for: int | None
    """The rank that most of the waiting is for, of what can be told."""
    rank_count: int
    resolved_count: int
    unknown_count: int
    notes: tuple[str, ...]

    @property
    def is_without_wait(self) -> bool:
        return self.wait_high_ns == 0 and not self.unknown_count


def summarize_waits(report: Report) -> tuple[ClassWait, ...]:
    """One row per communication class, in order of precedence."""
    names = dict.fromkeys(one.communication_class for one in order_waits(report))
    return tuple(_summarize_class(name, [w for w in report.waits if w.communication_class == name]) for name in names)


def _summarize_class(name: str, waits: list[Wait]) -> ClassWait:
    known = [one.wait_ns for one in waits if one.wait_ns is not None]
    transfers = [one.transfer_ns for one in waits if one.transfer_ns is not None]
    return ClassWait(
        communication_class=name,
        wait_low_ns=min(known, default=None),
        wait_high_ns=max(known, default=None),
        transfer_low_ns=min(transfers, default=None),
        transfer_high_ns=max(transfers, default=None),
        mostly_for=_find_most_awaited(waits),
        rank_count=len(waits),
        resolved_count=sum(one.resolved for one in waits),
        unknown_count=sum(one.wait_ns is None for one in waits),
        notes=tuple(sorted({one.note for one in waits if one.note})),
    )


def _find_most_awaited(waits: list[Wait]) -> int | None:
    awaited: dict[int, int] = {}
    for one in waits:
        if one.awaited_rank is not None and one.wait_ns:
            awaited[one.awaited_rank] = awaited.get(one.awaited_rank, 0) + one.wait_ns
    return min(awaited, key=lambda rank: (-awaited[rank], rank), default=None)


@dataclass(frozen=True, slots=True)
class StagePhase:
    """One phase of one pipeline stage: bounds over its ranks; ``bubble_high_ns`` None where no rank's is known."""

    stage: int | None
    phase: str
    rank_count: int
    low: int
    high: int
    p2p_low_ns: int
    p2p_high_ns: int
    bubble_low_ns: int | None
    bubble_high_ns: int | None
    notes: tuple[str, ...]


def summarize_stages(report: Report) -> tuple[StagePhase, ...]:
    """One row per stage and phase, in order of stage and of time."""
    groups: dict[tuple[int, str], list[PipelinePhase]] = {}
    for one in report.pipeline_phases:
        groups.setdefault((-1 if one.stage is None else one.stage, one.phase), []).append(one)
    rows = sorted(groups, key=lambda key: (key[0], _place(key[1], PHASES)))
    return tuple(_summarize_phase(groups[key]) for key in rows)


def _summarize_phase(phases: list[PipelinePhase]) -> StagePhase:
    bubbles = [one.bubble_ns for one in phases if one.bubble_ns is not None]
    return StagePhase(
        stage=phases[0].stage,
        phase=phases[0].phase,
        rank_count=len(phases),
        low=min(one.ns for one in phases),
        high=max(one.ns for one in phases),
        p2p_low_ns=min(one.p2p_exposed_ns for one in phases),
        p2p_high_ns=max(one.p2p_exposed_ns for one in phases),
        bubble_low_ns=min(bubbles, default=None),
        bubble_high_ns=max(bubbles, default=None),
        notes=tuple(sorted({one.note for one in phases if one.note})),
    )


def count_moe_layers(report: Report) -> int:
    """How many MoE layers were told apart."""
    return len({part.layer for part in report.moe_layers if part.layer is not None})


def sum_moe_parts(report: Report) -> tuple[MoePart, ...]:
    """One row per direction and part: what the report says of all layers, else the sum over its layers."""
    groups: dict[tuple[str, str], list[MoePart]] = {}
    for part in report.moe_layers:
        groups.setdefault((part.direction, part.part), []).append(part)
    of_all = {key: [part for part in parts if part.layer is None] for key, parts in groups.items()}
    return tuple(
        replace(_add_parts(of_all[key] or parts), layer=None)
        for key, parts in sorted(groups.items(), key=lambda item: _moe_key(*item[0]))
    )


def _moe_key(direction: str, part: str) -> tuple[int, str, int, str]:
    return _place(direction, DIRECTIONS), direction, _place(part, MOE_PARTS), part


def _place(name: str, order: tuple[str, ...]) -> int:
    return order.index(name) if name in order else len(order)


def _add_parts(parts: list[MoePart]) -> MoePart:
    """The sum of ``parts``; one unknown makes the sum unknown. Its rate is that of all bytes, each at its own rate."""
    if len(parts) == 1:
        return parts[0]
    moved = [part.bytes_moved for part in parts if part.bytes_moved is not None]
    seconds = [p.bytes_moved / p.bytes_per_s for p in parts if p.bytes_moved is not None and p.bytes_per_s]
    limits = {part.limit_bytes_per_s for part in parts}
    total_bytes = sum(moved) if len(moved) == len(parts) else None
    is_timed = total_bytes is not None and len(seconds) == len(parts)
    return replace(
        parts[0],
        ns=sum(part.ns for part in parts),
        exposed_ns=sum(part.exposed_ns for part in parts),
        calls=sum(part.calls for part in parts),
        bytes_moved=total_bytes,
        bytes_per_s=total_bytes / sum(seconds) if is_timed and total_bytes is not None else None,
        limit_bytes_per_s=limits.pop() if len(limits) == 1 else None,
    )


@dataclass(frozen=True, slots=True)
class LayerTable:
    """Layers by parts in one direction. A row is a layer (None: all of them) and its cells; None: no such part."""

    direction: str
    parts: tuple[str, ...]
    rows: tuple[tuple[int | None, tuple[MoePart | None, ...]], ...]


def tabulate_moe_layers(report: Report) -> tuple[LayerTable, ...]:
    """One table per direction, layers in order, what is said or summed of all layers last."""
    sums = sum_moe_parts(report)
    return tuple(
        _tabulate_direction(
            direction,
            tuple(total.part for total in sums if total.direction == direction),
            [p for p in (*report.moe_layers, *sums) if p.direction == direction],
        )
        for direction in dict.fromkeys(total.direction for total in sums)
    )


def _tabulate_direction(direction: str, parts: tuple[str, ...], cells: list[MoePart]) -> LayerTable:
    found = {(cell.layer, cell.part): cell for cell in cells}
    layers = sorted({cell.layer for cell in cells if cell.layer is not None})
    return LayerTable(
        direction,
        parts,
        tuple((layer, tuple(found.get((layer, part)) for part in parts)) for layer in (*layers, None)),
    )


def list_moe_parts(report: Report) -> tuple[MoePart, ...]:
    """Every part of every layer, in order of layer, direction and part."""
    told = (part for part in report.moe_layers if part.layer is not None)
    return tuple(sorted(told, key=lambda part: (part.layer or 0, _moe_key(part.direction, part.part))))


def find_longest_part_ns(report: Report) -> int:
    """The longest part of a single layer: the common scale of the shades; 0 when no layer was told apart."""
    return max((part.ns for part in report.moe_layers if part.layer is not None), default=0)


def order_overlap_slowdown(report: Report) -> tuple[OverlapSlowdown, ...]:
    """The dearest GEMM first."""
    return tuple(sorted(report.overlap_slowdown, key=lambda one: (-one.slowdown_ns, one.kernel, one.grid)))


def sum_overlap_slowdown_ns(report: Report) -> int:
    """What overlap costs per step, over all GEMMs that the report compares."""
    return sum(one.slowdown_ns for one in report.overlap_slowdown)
