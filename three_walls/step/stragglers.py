"""Ranks that made the others wait: how much later than the second-to-last rank they arrived, and why.

Made from the arrivals at matched calls. The cause is found by comparison: what the late rank did before the calls at
which it arrived last, against what its peers did at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby

import polars as pl

from three_walls.lib.text import in_ms, in_percent, plural, write_times
from three_walls.step.build_timeline import Timeline
from three_walls.step.find_steps import STEP
from three_walls.step.intervals import DURATION, intersect, merge_overlapping
from three_walls.step.ownership import OWNER
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.ranks.pipeline_pairs import EXCHANGE
from three_walls.step.ranks.rank_groups import PAIRWISE, Pipeline
from three_walls.step.slow_ranks import GpuSuspicion, PeerMedians, leave_out, name_kernels, suspect_gpu
from three_walls.step.step_rows import Straggler
from three_walls.step.step_tables import Arrivals, Operations, Slices, Steps
from three_walls.tables.buckets import COMPUTE_CATEGORIES, EP_CATEGORIES
from three_walls.trace.read_trace import Trace

MINIMUM_LATE_FRACTION = 0.05
"""Of the step: a rank that delays its group by less is not a straggler. Of two healthy H200s in one host, one delays
the other by 3.2% of every step; with four it is 0 to 3.4%. A rank that delays its group by less than a twentieth of the
step, beyond what its peers do, cannot be distinguished from that."""
MINIMUM_CAUSE_FRACTION = 0.5
"""Of the time by which a rank was late: a cause is named only if it explains more than this part."""
MINIMUM_SLOW_OUTSIDE_FRACTION = 0.2
"""Of the excess compute: from this part outside of the experts on, a slow GPU is the cause and not imbalance. A slow
GPU is slow in every part of a layer; imbalance shows only between dispatch and combine. With less than a fifth of the
excess outside of the experts, the cause is imbalance."""
MOST_SLOW_RANKS_COMPARED = 16
"""Ranks that are slow together: of more, only the slowest are each compared with the others. Each takes a pass over the
calls of all ranks: 0.2 s with 1,024 of them. A run with more slow ranks has one cause for all, such as a power cap on a
rack, which the slowest show."""

ATTENTION = ("attention", "attention_unfused")
"""Runs between combine and the next dispatch of every layer, and never between dispatch and combine."""

_WAITED = "waited in pipeline exchanges"
"""Stands among the owners of time for waiting in pipeline exchanges."""


class StragglerCause(StrEnum):
    """Why a rank arrives late, as in ``Straggler.cause`` and the fact ``straggler_cause``."""

    SLOW_COMPUTE = "slow_compute"
    EXPERT_IMBALANCE = "expert_imbalance"
    LAUNCH_STARVED = "launch_starved"
    HOST_BLOCKED = "host_blocked"
    LATE_STAGE = "late_stage"
    UNKNOWN = "unknown"

    @property
    def words(self) -> str:
        """For use in a sentence: ``slow compute``."""
        return self.replace("_", " ")


SICK_CAUSES = (
    StragglerCause.SLOW_COMPUTE,
    StragglerCause.LAUNCH_STARVED,
    StragglerCause.HOST_BLOCKED,
    StragglerCause.UNKNOWN,
)
"""Causes that lie in the rank itself. A late stage waited for another rank; imbalance gave the rank more work."""


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank that is late by more than its peers are."""

    rank_index: int
    late_ns: int
    """Per step."""
    peers_ns: int
    """How late its peers are per step (median)."""
    steps: int
    """Number of kept steps."""
    spread: float | None
    """How much its repeated kernels vary: measure_kernel_spread."""
    peers_spread: float | None
    """The same of its peers (median)."""
    left_out: frozenset[int] = frozenset()
    """Indices of slow ranks that it was compared without."""
    is_slow: bool = False
    """Whether it is slow at the same kernels itself."""

    @property
    def gpu_suspicion(self) -> GpuSuspicion:
        return suspect_gpu(self.spread, self.peers_spread)


def find_late_ranks(
    matched_ranks: MatchedRanks,
    steps: Steps,
    kernel_spread: Mapping[int, float],
    slow_ranks: Mapping[int, float],
) -> tuple[LateRank, ...]:
    """Ranks that are late at the calls of kept steps, the latest first.

    Calls between pipeline stages make no rank late: stages do different work by design, and under 1F1B the first stage
    finishes last. ``kernel_spread``: measure_kernel_spread. ``slow_ranks``: find_slow_ranks.
    """
    slow = frozenset(slow_ranks if len(slow_ranks) > 1 else ())
    slowest = sorted(slow, key=lambda rank_index: (-slow_ranks[rank_index], rank_index))
    slowest = slowest[:MOST_SLOW_RANKS_COMPARED]
    late_ranks = []
    # Ranks that are slow together hide each other: each is compared with those that are not slow.
    for left_out in [slow, *(slow - {rank_index} for rank_index in sorted(slowest))]:
        for late in _list_late_ranks(_compare_without(left_out, matched_ranks), steps, kernel_spread):
            is_slow = late.rank_index in slow
            if not left_out or is_slow == (left_out != slow):
                late_ranks.append(replace(late, left_out=left_out, is_slow=is_slow))
    rank_of = matched_ranks.rank_of
    return tuple(sorted(late_ranks, key=lambda late: (-late.late_ns, rank_of[late.rank_index])))


def explain_stragglers(
    late_ranks: Sequence[LateRank],
    matched_ranks: MatchedRanks,
    timeline: Timeline,
    slices: Slices,
    traces: Sequence[Trace],
) -> tuple[Straggler, ...]:
    """The stragglers: ``late_ranks`` with the cause of each, by comparison with the other ranks of ``slices``.

    Pipeline exchanges show which rank a late rank had waited for itself. ``timeline.steps``: of all ranks.
    """
    rank_of = matched_ranks.rank_of
    exchanges = _find_pipeline_waits(matched_ranks.arrivals.filter("kept"), rank_of)
    compared = slices["rank_index"].unique().implode()
    stragglers = []
    for left_out, together in groupby(sorted(late_ranks, key=_order_left_out), key=_order_left_out):
        others = _compare_without(frozenset(left_out), matched_ranks)
        also_slow = [rank_of[rank_index] for rank_index in left_out]
        segments = _find_segments(others, timeline.steps).filter(pl.col("rank_index").is_in(compared))
        for late in together:
            last_at = others.filter(pl.col("last") == late.rank_index)
            before = segments.join(last_at.select("instance").unique(), on="instance", how="semi")
            cause, explanation = _find_cause(late, before, exchanges, timeline, slices, traces)
            calls = last_at.filter(pl.col("rank_index") == late.rank_index).height
            stragglers.append(
                Straggler(
                    rank=rank_of[late.rank_index],
                    late_ns=late.late_ns,
                    cause=cause,
                    evidence=_describe_lateness(late, rank_of, calls, also_slow, explanation),
                    beyond_peers_ns=late.late_ns - late.peers_ns,
                    likely_reason=late.gpu_suspicion if cause is StragglerCause.SLOW_COMPUTE else "",
                    slow_with=tuple(also_slow) if late.is_slow else (),
                )
            )
    return tuple(sorted(stragglers, key=lambda straggler: (-straggler.late_ns, straggler.rank)))


def _order_left_out(late: LateRank) -> tuple[int, ...]:
    return tuple(sorted(late.left_out))


def _compare_without(ranks: frozenset[int], matched_ranks: MatchedRanks) -> Arrivals:
    """The arrivals at calls of kept steps within a stage, of all ranks but ``ranks``."""
    arrivals = _within_a_stage(matched_ranks.arrivals.filter("kept"), matched_ranks.pipeline)
    return leave_out(arrivals, ranks, matched_ranks.clock.error_ns) if ranks else arrivals


def _describe_lateness(
    late: LateRank, rank_of: Mapping[int, int], calls: int, also_slow: Sequence[int], explanation: str
) -> str:
    """When the rank arrived last, and the ``explanation``. ``also_slow``: ranks that the comparison leaves out."""
    ranks = ", ".join(map(str, also_slow))
    left_out = f" (compared without the slow {plural(len(also_slow), 'rank')} {ranks})" if also_slow else ""
    return (
        f"rank {rank_of[late.rank_index]}{left_out} arrived last at {round(calls / late.steps)} matched calls per "
        f"step, {in_ms(late.late_ns)} in all after the second-to-last rank (its peers: "
        f"{in_ms(late.peers_ns)}); before these calls, {explanation}"
    )


def _within_a_stage(arrivals: Arrivals, pipeline: Pipeline | None) -> Arrivals:
    """The calls whose members are all in the same pipeline stage."""
    collectives = arrivals.filter(~pl.col("class").is_in(list(PAIRWISE)))
    if pipeline is None:
        return collectives
    stage_of = {rank_index: stage for rank_index, (stage, _) in pipeline.places.items()}
    stage = pl.col("rank_index").replace_strict(stage_of, return_dtype=pl.Int64)
    return collectives.filter(stage.n_unique().over("instance") == 1)


def _list_late_ranks(arrivals: Arrivals, steps: Steps, kernel_spread: Mapping[int, float]) -> list[LateRank]:
    """Ranks that are late by more than the median of their peers.

    By chance every rank arrives last now and then; only lateness beyond that has its cause in the rank.
    """
    rows = _measure_lateness(arrivals, steps).rows()
    late_ranks = []
    lateness, spreads = PeerMedians(late_ns for _, late_ns, _, _ in rows), PeerMedians(kernel_spread.values())
    for rank_index, late_ns, step_ns, count in rows:
        peers_ns = lateness.without(late_ns)
        if peers_ns is not None and late_ns - peers_ns >= MINIMUM_LATE_FRACTION * step_ns:
            spread = kernel_spread.get(rank_index)
            peers_spread = spreads.without(spread)
            late_ranks.append(LateRank(rank_index, round(late_ns), round(peers_ns), count, spread, peers_spread))
    return late_ranks


def _measure_lateness(arrivals: Arrivals, steps: Steps) -> pl.DataFrame:
    """Per rank: rank_index, late_ns (lower median over its kept steps), step_ns (median), steps (number of kept ones).

    One pause in two steps makes no rank late. A rank is late from the arrival of the second-to-last member to its own.
    Calls of several streams can wait for the same delay, so the lateness of a step is the union of these stretches.
    """
    delays = arrivals.filter(pl.col("kept") & (pl.col("last") == pl.col("rank_index"))).select(
        *STEP, start_ns="second_ns", end_ns="latest_ns"
    )
    per_step = merge_overlapping(delays, STEP).group_by(STEP).agg(late_ns=DURATION.sum())
    return (
        steps.filter("kept")
        .with_columns(step_ns=DURATION)
        .join(per_step, on=STEP, how="left")
        .group_by("rank_index", maintain_order=True)
        .agg(pl.col("late_ns").fill_null(0).quantile(0.5, "lower"), pl.col("step_ns").median(), steps=pl.len())
        .sort("rank_index")
    )


def _find_cause(
    late: LateRank,
    segments: pl.DataFrame,
    exchanges: pl.DataFrame,
    timeline: Timeline,
    slices: Slices,
    traces: Sequence[Trace],
) -> tuple[StragglerCause, str]:
    """Why the rank is late, and a clause that states it with numbers per step.

    Compares the late rank with the others in ``segments``: the stretches before the calls at which it arrived last.
    ``exchanges``: see _find_pipeline_waits.
    """
    times = pl.concat([_own_segments(segments, slices), _waits_in_segments(segments, exchanges)])
    # Segments of several streams cover the same time: what they hold is counted once.
    late_segments = segments.filter(pl.col("rank_index") == late.rank_index)
    united_ns = merge_overlapping(late_segments, ["rank_index"]).select(DURATION.sum()).item()
    once = united_ns / max(late_segments.select(DURATION.sum()).item(), 1)
    excess = {owner: round(ns * once) for owner, ns in _excess_by_owner(times, late).items()}
    # Where exchanges are resolved only waiting in them counts: a slow link is not a late stage.
    exchanging_ns = excess.get(EXCHANGE, 0)
    late_stage_ns = exchanging_ns if exchanges.is_empty() else min(exchanging_ns, excess.get(_WAITED, 0))
    compute_ns = sum(ns for owner, ns in excess.items() if owner in COMPUTE_CATEGORIES)
    # While another process has the GPU, launched work waits for no visible reason.
    is_shared = late.gpu_suspicion is GpuSuspicion.SHARED_GPU
    stalled_ns = max(0, excess.get("idle_other", 0)) if is_shared else 0
    candidates = {
        StragglerCause.SLOW_COMPUTE: compute_ns + stalled_ns,
        StragglerCause.LAUNCH_STARVED: excess.get("launch_starved", 0) + excess.get("host_pause", 0),
        StragglerCause.HOST_BLOCKED: excess.get("host_blocked", 0),
        StragglerCause.LATE_STAGE: late_stage_ns,
    }
    cause = max(candidates, key=lambda candidate: candidates[candidate])
    more_ms = f"{in_ms(candidates[cause])} more"
    if candidates[cause] <= MINIMUM_CAUSE_FRACTION * late.late_ns:
        return StragglerCause.UNKNOWN, f"nothing recorded explains it (at most {more_ms} of {cause.words})"
    match cause:
        case StragglerCause.SLOW_COMPUTE:
            kernels = _kernels_in_segments(segments, timeline.operations, traces)
            cause, clause = _explain_compute(kernels, late, f"{in_ms(compute_ns)} more")
            return cause, clause + _describe_suspicion(cause, late, stalled_ns)
        case StragglerCause.LAUNCH_STARVED:
            return cause, f"its device was idle with nothing launched for {more_ms} than its peers' devices"
        case StragglerCause.HOST_BLOCKED:
            return cause, f"its device was idle in a synchronizing call for {more_ms} than its peers' devices"
        case _:
            stage = _describe_awaited_stage(segments, exchanges, late.rank_index)
            return cause, f"it spent {more_ms} than its peers in pipeline exchanges: {stage}"


def _find_pipeline_waits(arrivals: Arrivals, rank_of: Mapping[int, int]) -> pl.DataFrame:
    """Resolved waiting in pipeline exchanges: rank_index, start_ns, end_ns (own clock), awaited (last rank or null)."""
    return arrivals.filter((pl.col("class") == EXCHANGE) & pl.col("resolved")).select(
        "rank_index",
        "start_ns",
        end_ns=pl.col("start_ns") + pl.col("wait_ns"),
        awaited=pl.col("last").replace_strict(dict(rank_of), default=None, return_dtype=pl.Int64),
    )


def _find_segments(arrivals: Arrivals, steps: Steps) -> pl.DataFrame:
    """The stretch before each matched call: instance, rank_index, stream, step, start_ns, end_ns, between_ep.

    It begins where the previous matched call of the same stream ended, which all ranks leave together: so what differs
    within the segment made a rank late. The first segment of a step begins with the step. ``between_ep``: both calls
    belong to expert parallelism.
    """
    sequence = ["rank_index", "stream", "step"]
    opened = steps.select(*STEP, opened_ns="start_ns")
    previous_class = pl.col("class").shift(1).over(sequence)
    is_ep = pl.col("class").is_in(list(EP_CATEGORIES)) & previous_class.is_in(list(EP_CATEGORIES))
    return (
        arrivals.join(opened, on=STEP)
        .sort(*sequence, "start_ns", "end_ns")
        .with_columns(
            begin_ns=pl.col("end_ns").shift(1).over(sequence).fill_null(pl.col("opened_ns")),
            between_ep=is_ep.fill_null(value=False),
        )
        .select("instance", *sequence, "between_ep", start_ns="begin_ns", end_ns="start_ns")
        .filter(DURATION > 0)
    )


def _own_segments(segments: pl.DataFrame, slices: Slices) -> pl.DataFrame:
    """The time of each segment by owner (bucket): instance, rank_index, owner, ns."""
    owners = slices.select("rank_index", "start_ns", "end_ns", owner=OWNER)
    stretches = segments.select("instance", "rank_index", "start_ns", "end_ns")
    return (
        intersect(stretches, owners, ["rank_index"], carry=["owner"])
        .group_by("instance", "rank_index", "owner")
        .agg(ns=DURATION.sum())
    )


def _waits_in_segments(segments: pl.DataFrame, exchanges: pl.DataFrame) -> pl.DataFrame:
    """Waiting in pipeline exchanges per segment, as an owner of time: instance, rank_index, owner, ns."""
    waits = merge_overlapping(exchanges, ["rank_index"])
    return (
        intersect(segments.select("instance", "rank_index", "start_ns", "end_ns"), waits, ["rank_index"])
        .group_by("instance", "rank_index")
        .agg(ns=DURATION.sum())
        .select("instance", "rank_index", pl.lit(_WAITED).alias("owner"), "ns")
    )


def _excess_by_owner(times: pl.DataFrame, late: LateRank) -> dict[str, int]:
    """By owner: the late rank's time minus the median of its peers' times, summed over segments, per step."""
    members = times.select("instance", "rank_index").unique()
    grid = members.join(times.select("instance", "owner").unique(), on="instance")
    full = grid.join(times, on=["instance", "rank_index", "owner"], how="left").with_columns(pl.col("ns").fill_null(0))
    is_late = pl.col("rank_index") == late.rank_index
    excess = (
        full.group_by("instance", "owner")
        .agg(ns=pl.col("ns").filter(is_late).sum() - pl.col("ns").filter(~is_late).median())
        .group_by("owner")
        .agg(pl.col("ns").sum() / late.steps)
    )
    return {str(owner): round(ns) for owner, ns in excess.rows() if ns is not None}


def _describe_awaited_stage(segments: pl.DataFrame, exchanges: pl.DataFrame, rank_index: int) -> str:
    """The rank that this one waited for most before it was late itself."""
    before = merge_overlapping(segments.filter(pl.col("rank_index") == rank_index), ["rank_index"])
    ranks = (
        intersect(exchanges.drop_nulls("awaited"), before, ["rank_index"])
        .group_by("awaited")
        .agg(ns=DURATION.sum())
        .sort(["ns", "awaited"], descending=[True, False])
    )
    if ranks.is_empty():
        return "an earlier stage is late"
    return f"it waited there for rank {ranks['awaited'][0]}, of another stage"


def _explain_compute(kernels: pl.DataFrame, late: LateRank, more_ms: str) -> tuple[StragglerCause, str]:
    """``expert_imbalance`` where only experts computed longer, on other work; ``slow_compute`` where the same kernels
    took longer.
    """
    is_alike, is_expert = pl.col("is_alike"), pl.col("of_experts")
    sums = (
        _compare_kernels(kernels, late.rank_index)
        .select(
            alike_ns=pl.col("excess_ns").filter(is_alike).sum(),
            alike_peers_ns=pl.col("peers_ns").filter(is_alike).sum(),
            experts_ns=pl.col("excess_ns").filter(is_expert).sum(),
            experts_differ=(~is_alike & is_expert).any(),
            all_ns=pl.col("excess_ns").sum(),
        )
        .row(0, named=True)
    )
    elsewhere = 1 - sums["experts_ns"] / sums["all_ns"] if sums["all_ns"] > 0 else 1.0
    is_imbalance = elsewhere < MINIMUM_SLOW_OUTSIDE_FRACTION and sums["experts_differ"]
    is_shared = late.gpu_suspicion is GpuSuspicion.SHARED_GPU
    if is_imbalance and not is_shared:
        return StragglerCause.EXPERT_IMBALANCE, (
            "it ran other numbers or sizes of kernels between dispatch and combine than its peers, "
            f"{in_ms(sums['experts_ns'] / late.steps)} more; {in_percent(max(elsewhere, 0), 0)} of its extra "
            "compute was elsewhere"
        )
    if is_shared or sums["alike_ns"] > sums["all_ns"] - sums["alike_ns"]:
        ratio = 1 + sums["alike_ns"] / max(sums["alike_peers_ns"], 1)
        return StragglerCause.SLOW_COMPUTE, (
            f"the same kernels (name and grid) took {write_times(ratio)} as long as on its peers, {more_ms}"
        )
    return StragglerCause.UNKNOWN, (
        f"it computed {more_ms}, in other kernels than its peers and not only between dispatch and combine"
    )


def _describe_suspicion(cause: StragglerCause, late: LateRank, stalled_ns: int) -> str:
    """The likely state of a slow GPU, from how its repeated kernels vary; empty where that does not show it.

    ``stalled_ns``: how much longer than its peers' devices it stood idle although work was launched.
    """
    if cause is not StragglerCause.SLOW_COMPUTE:
        return ""
    own, peers = write_times(late.spread or 0), write_times(late.peers_spread or 0)
    compared = f"{own} their fastest call on average, on its peers {peers}"
    if late.gpu_suspicion is GpuSuspicion.SHARED_GPU:
        likely = f". Another process likely uses this GPU: repeated kernels take {compared}"
        stalled = f", and launched work waited {in_ms(stalled_ns)} longer with the device idle"
        return likely + (stalled if stalled_ns else "")
    if late.gpu_suspicion is GpuSuspicion.LOWER_CLOCKS:
        return (
            f". Every call is slower alike (repeated kernels take {compared}), as on a GPU with lower clocks: "
            "power cap, temperature, clock limits"
        )
    return ""


def _kernels_in_segments(segments: pl.DataFrame, operations: Operations, traces: Sequence[Trace]) -> pl.DataFrame:
    """Compute kernels per segment, name and grid: instance, rank_index, of_experts, kernel, grid, count, ns.

    ``kernel``: the demangled name, comparable across captures. ``grid``: grows with the number of tokens, except for
    persistent kernels. ``of_experts``: the segment lies between dispatch and combine, that is, between two
    expert-parallel calls and without attention.
    """
    columns = ("rank_index", "category", "capture_id", "name_id", "grid_x", "grid_y", "grid_z", "start_ns", "end_ns")
    is_computing = (pl.col("kind") == "kernel") & pl.col("category").is_in(list(COMPUTE_CATEGORIES))
    kernels = operations.select("kind", *columns).filter(is_computing).drop("kind")
    # Segments of a stream do not overlap, but those of different streams may: a kernel can lie in a segment of each.
    parts = [
        intersect(kernels, stretches.drop("stream", "step"), ["rank_index"], carry=["instance", "between_ep"])
        for _, stretches in segments.group_by("stream", maintain_order=True)
    ]
    if not parts:
        parts = [kernels.clear().with_columns(instance=pl.lit(0, dtype=pl.Int64), between_ep=pl.lit(value=False))]
    grid = pl.concat_str("grid_x", "grid_y", "grid_z", separator="x", ignore_nulls=True)
    attends = pl.col("category").is_in(list(ATTENTION)).any().over("instance")
    return (
        pl.concat(parts)
        .with_columns(of_experts=pl.col("between_ep") & ~attends)
        .join(name_kernels(traces), on=["capture_id", "name_id"], how="left")
        .group_by("instance", "rank_index", "of_experts", "kernel", grid=grid)
        .agg(count=pl.len().cast(pl.Int64), ns=DURATION.sum())
    )


def _compare_kernels(kernels: pl.DataFrame, rank_index: int) -> pl.DataFrame:
    """Per segment, name and grid: of_experts, is_alike (all ranks ran equally many), excess_ns, peers_ns."""
    is_late = pl.col("rank_index") == rank_index
    members = kernels.group_by("instance").agg(members=pl.col("rank_index").n_unique())
    ran_by_all = pl.col("rank_index").n_unique() == pl.col("members").first()
    return (
        kernels.join(members, on="instance")
        .group_by("instance", "kernel", "grid", "of_experts")
        .agg(
            is_alike=ran_by_all & (pl.col("count").n_unique() == 1),
            late_ns=pl.col("ns").filter(is_late).sum(),
            # A kernel that only some peers ran counts as zero for the others: the mean is over all of them.
            peers=pl.col("ns").filter(~is_late),
            others=pl.col("members").first() - 1,
        )
        .with_columns(
            peers_ns=pl.when("is_alike")
            .then(pl.col("peers").list.median())
            .otherwise(pl.col("peers").list.sum() / pl.col("others"))
        )
        .with_columns(excess_ns=pl.col("late_ns") - pl.col("peers_ns").fill_null(0.0))
        .drop("peers", "others")
    )
