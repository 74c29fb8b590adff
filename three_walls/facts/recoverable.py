"""Upper bounds, per wall, of what edits can give back: sums of times, also of such as may not be given by themselves.

The profiler slows hosts, not devices, so what it added to the step lies in time without device work: waits for the
host, idle time without a visible reason, and waits for peers, whose hosts it slows too. Each is taken to hold a part in
proportion to its length, because the log gives no more than the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from three_walls.facts.communication_facts import SplitCommunication
from three_walls.facts.recompute_facts import Recompute
from three_walls.facts.step_facts import HOST_IDLE, HOST_LAUNCHES
from three_walls.lib.declare import artifact, duration
from three_walls.lib.measurement import Measurement
from three_walls.step.step_view import StepView
from three_walls.step.stragglers import StragglerCause
from three_walls.tables.buckets import HOST_COPIES


@dataclass(frozen=True, slots=True)
class ProfilersPart:
    """What the profiler added to the step, and the time that may hold it."""

    excess_ns: int | None
    """None where no log gives it."""
    waiting_ns: int

    def leave(self, time_ns: int) -> int:
        """``time_ns`` of waiting without its share of what the profiler added."""
        if not self.excess_ns:
            return time_ns
        return time_ns * max(0, self.waiting_ns - self.excess_ns) // self.waiting_ns if self.waiting_ns else 0


@artifact
def excess_ns(profiler_excess_ns: Measurement[int]) -> int | None:
    """What the log takes from recoverable time; given as None for the facts as traced."""
    return profiler_excess_ns.whole


@artifact
def profilers_part(step: StepView, wait_exposed_ns: int, excess_ns: int | None) -> ProfilersPart:
    """What the profiler added to the time without device work."""
    return ProfilersPart(excess_ns, step.owned_ns(*HOST_IDLE, "idle_other") + wait_exposed_ns)


@duration("time that more memory would save")
def memory_recoverable_ns(step: StepView, recompute: Recompute) -> int:
    """Upper bound of the time per step that more memory would save: recompute, where its time is known, and exposed
    host copies."""
    # A warning names recompute that cannot be priced; exposed copies alone can be the wall.
    return (recompute.cost_ns.value or 0) + step.owned_ns(*HOST_COPIES)


@duration("recoverable communication time")
def communication_recoverable_ns(ep_communication: SplitCommunication, collectives: SplitCommunication) -> int:
    """Upper bound of the time per step that communication edits would save: exposed transfer of all communication."""
    return ep_communication.transfer_ns + collectives.transfer_ns


@duration("recoverable compute time")
def compute_recoverable_ns(step: StepView) -> int:
    """Upper bound of the time per step that compute edits would save: the pointwise work of unfused attention."""
    return step.owned_ns("attention_unfused")


@duration("recoverable host time", needs=HOST_LAUNCHES)
def host_recoverable_ns(step: StepView, profilers_part: ProfilersPart) -> int:
    """Upper bound of the time per step that host edits would save: launch-starved and host-blocked time, less its share
    of the time that the profiler added where a log was given (at least 0).

    Not the same as: A measured part: which part of the step the profiler lengthened is assumed, not seen.
    """
    return profilers_part.leave(step.owned_ns(*HOST_IDLE))


@duration(
    "recoverable launch-starved time per step",
    share="recoverable launch-starved time",
    needs=HOST_LAUNCHES,
)
def launch_starved_recoverable_ns(step: StepView, starved_by_loader_ns: int, profilers_part: ProfilersPart) -> int:
    """Time per step that is launch-starved while no thread waits for the data loader, less its share of the time that
    the profiler added where a log was given (at least 0). The profiler lengthens time without device work, each kind in
    proportion."""
    return profilers_part.leave(step.owned_ns("launch_starved") - starved_by_loader_ns)


@duration(
    "the latest rank's recoverable delay per step",
    share="the recoverable delay of the latest rank",
)
def straggler_late_recoverable_ns(
    profilers_part: ProfilersPart, straggler_late_ns: int, straggler_cause: Measurement[str]
) -> int:
    """Time per step by which the latest rank is late, less the time that the profiler added where the rank is
    launch-starved and a log was given (at least 0): the profiler slows launches, and not on every rank alike."""
    if straggler_cause.value != StragglerCause.LAUNCH_STARVED or profilers_part.excess_ns is None:
        return straggler_late_ns
    return max(0, straggler_late_ns - profilers_part.excess_ns)
