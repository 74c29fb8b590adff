"""Weighs the walls of a run: names the one that holds it back, or says why that cannot be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from three_walls.model.buckets import SubWall, Wall
from three_walls.model.fact import FactSheet
from three_walls.model.report import Verdict
from three_walls.model.units import ns_to_ms
from three_walls.tables.thresholds import VerdictThresholds, default_thresholds

_FACTS = {
    "memory": "memory_recoverable_ns",
    "communication": "communication_recoverable_ns",
    "compute_host.compute": "compute_recoverable_ns",
    "compute_host.host": "host_recoverable_ns",
}
_NOUNS = {"compute": "computing", "host": "the host"}
"""Parts of the third wall as something that holds a run back; other walls go by their own name."""


@dataclass(frozen=True, slots=True)
class _Weight:
    """A wall with the time that edits against it may give back.

    ``parts`` of the wall that have some, by name: the third wall is one or two, the others one.
    """

    wall: Wall
    sub_wall: SubWall | None
    ns: int
    parts: tuple[tuple[str, int], ...]

    @property
    def edits(self) -> str:
        """``compute and host edits``."""
        return f"{' and '.join(name for name, _ in self.parts)} edits"

    @property
    def noun(self) -> str:
        """``computing and the host together``."""
        nouns = [_NOUNS.get(name, name) for name, _ in self.parts]
        return " and ".join(nouns) + (" together" if len(nouns) > 1 else "")


def decide_verdict(facts: FactSheet, thresholds: VerdictThresholds | None = None) -> Verdict:
    """The wall with the most recoverable time; abstains when facts lack, mislead or do not separate the walls."""
    limits = thresholds or default_thresholds()
    step_ns = _whole(facts, "step_ns")
    recoverable = {wall: _whole(facts, name) for wall, name in _FACTS.items()}
    if reason := _reason_to_abstain(facts, limits, step_ns, recoverable):
        return _abstain(reason, step_ns, recoverable)
    assert step_ns is not None  # _reason_to_abstain names a missing step
    weights = _rank(recoverable)
    if weights[0].ns < limits.minimum_recoverable_fraction * step_ns:
        return _weigh_lean_step(facts, limits, step_ns, recoverable, weights[0])
    return _compare_walls(facts, limits, step_ns, recoverable, weights)


def _reason_to_abstain(
    facts: FactSheet, limits: VerdictThresholds, step_ns: int | None, recoverable: Mapping[str, int | None]
) -> str:
    if not step_ns:
        return "The length of a step is not known: no step was found in the traces."
    graph, unclassified = facts.number("cuda_graph_fraction"), facts.number("unclassified_fraction")
    if graph is not None and graph >= limits.maximum_cuda_graph_fraction:
        return (
            f"{_percent(graph)} of the step lies inside CUDA graphs whose kernels were not recorded. "
            "Capture again with --cuda-graph-trace=node."
        )
    if unclassified is not None and unclassified >= limits.maximum_unclassified_fraction:
        return (
            f"{_percent(unclassified)} of the step is in kernels that match no known pattern, so no wall can claim it."
        )
    wait, unexplained = facts.number("wait_exposed_fraction"), facts.number("idle_other_fraction")
    if wait is not None and wait >= limits.maximum_wait_fraction:
        return (
            f"{_percent(wait)} of the step waits for other ranks, and these traces do not show why they are late. "
            "Capture every rank of the group."
        )
    if unexplained is not None and unexplained >= limits.maximum_unexplained_idle_fraction:
        return (
            f"The device is idle for {_percent(unexplained)} of the step although its next operation was launched, "
            "or its launch was not recorded: start-up, lazy loading or dependencies. Capture steady training steps."
        )
    if lacking := [_FACTS[wall] for wall, ns in recoverable.items() if ns is None]:
        return f"The walls cannot be compared: {', '.join(lacking)} not known."
    return ""


def _compare_walls(
    facts: FactSheet,
    limits: VerdictThresholds,
    step_ns: int,
    recoverable: Mapping[str, int | None],
    weights: tuple[_Weight, ...],
) -> Verdict:
    first, second = weights[0], weights[1]
    margin = (first.ns - second.ns) / step_ns
    if margin < limits.minimum_margin_fraction:
        reason = (
            f"{_capital(first.noun)} ({_amount(first.ns, step_ns)}) and {second.noun} ({_amount(second.ns, step_ns)}) "
            f"are too close to tell which holds the run back.{_about_waiting(facts, limits)}"
        )
        return _abstain(reason, step_ns, recoverable)
    reason = (
        f"{_capital(first.edits)} may give back up to {_amount(first.ns, step_ns)} of a {_ms(step_ns)} step"
        f"{_shares(first)}; {_runner_up(second, step_ns)}.{_about_waiting(facts, limits)}"
        f"{_about_profiler(facts)}"
    )
    return Verdict(
        wall=first.wall,
        sub_wall=first.sub_wall,
        abstained=False,
        reason=reason,
        step_ns=step_ns,
        runner_up_wall=None if _is_nothing(second) else second.wall,
        runner_up_sub_wall=None if _is_nothing(second) else second.sub_wall,
        margin_fraction=margin,
        recoverable_ns=recoverable,
    )


def _weigh_lean_step(
    facts: FactSheet,
    limits: VerdictThresholds,
    step_ns: int,
    recoverable: Mapping[str, int | None],
    largest: _Weight,
) -> Verdict:
    """A step in which no wall has much to give back: computing, if that is what fills it."""
    busy, wait = facts.number("compute_busy_fraction"), facts.number("wait_exposed_fraction")
    little = f"no wall has more than {_amount(largest.ns, step_ns)} to give back"
    if busy is not None and busy >= limits.minimum_compute_busy_fraction:
        reason = f"Computing is what the step is made of: {_percent(busy)} of {_ms(step_ns)}, and {little}."
        return Verdict(Wall.COMPUTE_HOST, SubWall.COMPUTE, False, reason, step_ns, None, None, None, recoverable)
    if wait is not None and wait >= limits.notable_wait_fraction:
        reason = (
            f"{_percent(wait)} of the step waits for peers, which these traces do not explain, and {little}. "
            "Capture every rank."
        )
    elif busy is None:
        reason = f"{_capital(little)}, and how much of the step computes (compute_busy_fraction) is not known."
    else:
        reason = f"{_capital(little)}, and only {_percent(busy)} of the step computes: what fills it is not explained."
    return _abstain(reason, step_ns, recoverable)


def _rank(recoverable: Mapping[str, int | None]) -> tuple[_Weight, ...]:
    """Walls by recoverable time, largest first; equal ones in order of :class:`Wall`."""
    compute, host = recoverable["compute_host.compute"] or 0, recoverable["compute_host.host"] or 0
    half = SubWall.COMPUTE if compute >= host else SubWall.HOST
    memory, communication = recoverable["memory"] or 0, recoverable["communication"] or 0
    halves = (("compute", compute), ("host", host))
    weights = (
        _Weight(Wall.MEMORY, None, memory, (("memory", memory),)),
        _Weight(Wall.COMMUNICATION, None, communication, (("communication", communication),)),
        _Weight(Wall.COMPUTE_HOST, half, compute + host, tuple(one for one in halves if one[1]) or halves),
    )
    return tuple(sorted(weights, key=lambda weight: -weight.ns))


def _abstain(reason: str, step_ns: int | None, recoverable: Mapping[str, int | None]) -> Verdict:
    return Verdict(None, None, True, reason, step_ns, None, None, None, recoverable)


def _shares(weight: _Weight) -> str:
    """What each of several parts has, the larger first: `` (host 207.5 ms, compute 111.4 ms)``."""
    if len(weight.parts) == 1:
        return ""
    ordered = sorted(weight.parts, key=lambda part: -part[1])
    return f" ({', '.join(f'{name} {_ms(ns)}' for name, ns in ordered)})"


def _is_nothing(weight: _Weight) -> bool:
    """Whether what the wall has would be shown as 0.0 ms."""
    return _ms(weight.ns) == _ms(0)


def _runner_up(weight: _Weight, step_ns: int) -> str:
    if _is_nothing(weight):
        return "no other wall has anything to give back"
    verb = "is" if len(weight.parts) == 1 else "are"
    return f"next {verb} {weight.noun} with {_amount(weight.ns, step_ns)}"


def _about_waiting(facts: FactSheet, limits: VerdictThresholds) -> str:
    wait = facts.number("wait_exposed_fraction")
    if wait is None or wait < limits.notable_wait_fraction:
        return ""
    return f" Besides, {_percent(wait)} of the step waits for peers, which no edit here addresses."


def _about_profiler(facts: FactSheet) -> str:
    """Says that host time was reduced by what the profiler added, where the log shows it."""
    excess_ns, idle_ns = facts.number("profiler_excess_ns"), facts.number("host_idle_ns")
    if not excess_ns or not idle_ns:
        return ""
    return (
        f" Of {_ms(round(idle_ns))} host time {_ms(round(min(excess_ns, idle_ns)))} do not count: by the log, "
        f"unprofiled steps are {_ms(round(excess_ns))} shorter, and the profiler slows launches first."
    )


def _whole(facts: FactSheet, name: str) -> int | None:
    number = facts.number(name)
    return None if number is None else round(number)


def _amount(ns: int, step_ns: int) -> str:
    return f"{_ms(ns)}, {_percent(ns / step_ns)}"


def _ms(ns: int) -> str:
    return f"{ns_to_ms(ns):.1f} ms"


def _percent(fraction: float) -> str:
    return f"{fraction:.1%}"


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
