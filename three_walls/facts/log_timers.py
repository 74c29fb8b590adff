"""The timers of the log: how long each takes, and which ranks take longer than others for the same work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median, median_low

from three_walls.facts.fact_rows import SlowRank, TimerSummary
from three_walls.log import log_thresholds
from three_walls.log.log_lines import log_timers
from three_walls.log.steady_steps import Role
from three_walls.log.training_log import LogIteration, LogTimer, TimerKind, TimerPrint
from three_walls.megatron.parallel_layout import read_layout
from three_walls.megatron.settings.run_config import RunConfig

_UNPLACED = -1

Roles = Mapping[LogIteration, Role]
RankTimes = Sequence[Mapping[int, int]]
"""Per print: rank -> nanoseconds."""


def summarize_timers(prints: Iterable[TimerPrint], roles: Roles) -> tuple[TimerSummary, ...]:
    """One row per timer, by name; none for a timer of steps that was printed after no steady iteration."""
    return tuple(_summarize(name, timers) for name, timers in _timers_of_steady_steps(prints, roles).items())


def find_slow_ranks(prints: Iterable[TimerPrint], roles: Roles, config: RunConfig) -> tuple[SlowRank, ...]:
    """Ranks that take longer than the typical one for work of their own, print after print; the slowest first.

    Only ranks of one pipeline stage (from ``config``) have the same work, and are compared. No rank is named where
    there are several stages and ranks cannot be placed in them.
    """
    stage_of = _stages(config)
    slow_ranks: list[SlowRank] = []
    for name, timers in _timers_of_steady_steps(prints, roles).items():
        times = [dict(timer.ranks_ns) for timer in timers if timer.ranks_ns]
        if log_timers().kind_of(name) is TimerKind.WORK and len(times) >= log_thresholds.MINIMUM_STEADY_COUNT:
            for stage in dict.fromkeys(stage_of(rank) for ranks_ns in times for rank in ranks_ns):
                of_stage = [{rank: ns for rank, ns in each.items() if stage_of(rank) == stage} for each in times]
                if stage != _UNPLACED:
                    slow_ranks += _slow_ranks_of(name, stage, [ranks_ns for ranks_ns in of_stage if ranks_ns])
    return tuple(sorted(slow_ranks, key=lambda slow: (-slow.ns / slow.typical_ns, slow.rank, slow.timer)))


def _stages(config: RunConfig) -> Callable[[int], int | None]:
    """Rank -> its pipeline stage; None without a pipeline, ``_UNPLACED`` where ranks cannot be placed in it.

    Megatron numbers stages slowest (``megatron/core/parallel_state.py``), unless ``use_tp_pp_dp_mapping``.
    """
    layout = read_layout(config)
    if not layout.pipeline or layout.pipeline == 1:
        return lambda _: None
    if config.get("use_tp_pp_dp_mapping") or not layout.world or layout.world % layout.pipeline:
        return lambda _: _UNPLACED
    width = layout.world // layout.pipeline
    return lambda rank: rank // width


def _timers_of_steady_steps(prints: Iterable[TimerPrint], roles: Roles) -> dict[str, list[LogTimer]]:
    """Timers by name, of the prints that count: those after a steady iteration.

    Timers outside of steps count wherever they stand. Where no iteration line stands before any print of a timer (in
    a file of its own), all of them count.
    """
    of_steps: dict[str, list[tuple[Role | None, LogTimer]]] = {}
    for timer_print in prints:
        role = roles.get(timer_print.after) if timer_print.after else None
        for timer in timer_print.timers:
            of_steps.setdefault(timer.name, []).append((role, timer))
    steady = {}
    for name, timers in sorted(of_steps.items()):
        is_outside = log_timers().kind_of(name) is TimerKind.OUTSIDE
        is_unplaced = all(role is None for role, _ in timers)
        steady[name] = [timer for role, timer in timers if is_outside or is_unplaced or role is Role.STEADY]
    return {name: timers for name, timers in steady.items() if timers}


def _summarize(name: str, timers: Sequence[LogTimer]) -> TimerSummary:
    of_ranks = [dict(timer.ranks_ns) for timer in timers if timer.ranks_ns]
    typical = _medians(of_ranks)
    kind = log_timers().kind_of(name)
    if typical:
        fastest, slowest = _extremes(typical)
        return TimerSummary(name, kind, len(of_ranks), typical[fastest], typical[slowest], fastest, slowest)
    shortest = [timer.min_ns for timer in timers if timer.min_ns is not None]
    longest_ns = round(median(timer.max_ns for timer in timers))
    return TimerSummary(name, kind, len(timers), round(median(shortest)) if shortest else None, longest_ns)


def _slow_ranks_of(name: str, stage: int | None, times: RankTimes) -> list[SlowRank]:
    typical = _medians(times)
    if len(typical) < 2:
        return []
    fastest, _ = _extremes(typical)
    middle_ns = median_low(typical.values())
    outstanding = _count_outstanding(times, log_thresholds.SLOW_RANK_RATIO)
    return [
        SlowRank(
            rank=rank,
            timer=name,
            ns=ns,
            fastest_rank=fastest,
            fastest_ns=typical[fastest],
            typical_ns=middle_ns,
            prints=outstanding[rank],
            of_prints=len(times),
            stage=stage,
        )
        for rank, ns in sorted(typical.items())
        if middle_ns and ns >= log_thresholds.SLOW_RANK_RATIO * middle_ns
        if outstanding[rank] > log_thresholds.SLOW_RANK_PRINTS_FRACTION * len(times)
    ]


def _medians(times: RankTimes) -> dict[int, int]:
    """Median time of each rank that at least half of the prints hold: the others are left out of most prints."""
    counts = Counter(rank for ranks_ns in times for rank in ranks_ns)
    ranks = sorted(rank for rank, count in counts.items() if 2 * count >= len(times))
    return {rank: round(median(ranks_ns[rank] for ranks_ns in times if rank in ranks_ns)) for rank in ranks}


def _extremes(typical: Mapping[int, int]) -> tuple[int, int]:
    """The fastest and the slowest rank; of equals, the lowest number."""
    return min(typical, key=lambda rank: (typical[rank], rank)), min(typical, key=lambda rank: (-typical[rank], rank))


def _count_outstanding(times: RankTimes, ratio: float) -> Counter[int]:
    """In how many prints each rank took ``ratio`` times the typical rank of that print."""
    counted: Counter[int] = Counter()
    for ranks_ns in times:
        middle_ns = median_low(ranks_ns.values())
        counted.update(rank for rank, ns in ranks_ns.items() if middle_ns and ns >= ratio * middle_ns)
    return counted
