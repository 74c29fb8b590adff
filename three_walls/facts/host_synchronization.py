"""What it costs that host threads wait for the device: while they wait, right after it, and for the rest of the step.

``three_walls/replay`` makes what these facts are read from, because only a replay shows the last of it.
"""

from __future__ import annotations

from three_walls.facts.fact_rows import Synchronizations
from three_walls.lib.declare import duration, fact
from three_walls.lib.measurement import Measurement, known, missing

_NO_REPLAY = "the step could not be replayed without them"


@fact("count", "the number of host synchronizations in the step")
def synchronization_count(synchronizations: Synchronizations) -> int:
    """Calls per step in which a thread that launches work waits for the device: synchronizing calls, copies to pageable
    memory, allocations that had to wait. A copy and the wait for it count once."""
    return synchronizations.calls


@duration("host time per step waiting for the device")
def synchronization_blocked_ns(synchronizations: Synchronizations) -> int:
    """Time per step of threads in these calls.

    Not the same as: Host-blocked time: the device may still work off what was launched before.
    """
    return synchronizations.blocked_ns


@duration("GPU idle time per step after host synchronizations", share="idle time after host synchronizations")
def synchronization_drained_ns(synchronizations: Synchronizations) -> int:
    """Time per step in which the GPU is idle from the return of such a call until the next kernel of its thread starts,
    or until the thread waits again.

    Not the same as: Host-blocked time, which is inside these calls. This is launch starvation.
    """
    return synchronizations.drained_ns


@duration("the step time that host synchronizations cost")
def synchronization_gain_ns(synchronizations: Synchronizations) -> Measurement[int]:
    """The unprofiled step less its replay in which all these calls return at once. Some of them have to stay, such as
    the one for the gradient norm."""
    gain_ns = synchronizations.gain_ns
    return missing(_NO_REPLAY) if gain_ns is None else known(max(0, gain_ns))


@fact("fraction", "host synchronization", whole="the step")
def synchronization_gain_fraction(
    synchronizations: Synchronizations, synchronization_gain_ns: int
) -> Measurement[float]:
    """Fraction of the unprofiled step that goes, by replay, where all host synchronizations return at once."""
    if not synchronizations.step_ns:
        return missing(_NO_REPLAY)
    return known(synchronization_gain_ns / synchronizations.step_ns)


@fact("text", "the costliest host synchronization")
def costliest_synchronization(synchronizations: Synchronizations) -> Measurement[str]:
    """The site whose host synchronizations cost most step time by replay: its operator or CUDA function, and the NVTX
    range around it."""
    site = next(iter(synchronizations.sites), None)
    return missing("no call of the step waits for the device") if site is None else known(site.name)
