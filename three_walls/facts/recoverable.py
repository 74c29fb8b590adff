"""Upper bounds, per wall, of what edits can give back: sums of facts; missing when a part that could be large is.

The profiler slows hosts, not devices, so what it added to the step lies in time without device work: waits for the
host, idle time without a visible reason, and waits for peers, whose hosts it slows too. Each is taken to hold a part in
proportion to its length, because the log gives no more than the sum.
"""

from __future__ import annotations

from three_walls.facts.communication_facts import COLLECTIVE_TRANSFER_EXPOSED, EP_TRANSFER_EXPOSED, WAIT_EXPOSED
from three_walls.facts.log_facts import PROFILER_EXCESS
from three_walls.facts.rank_facts import STRAGGLER_CAUSE, STRAGGLER_LATE
from three_walls.facts.step_facts import (
    ATTENTION_UNFUSED,
    HOST_IDLE,
    HOST_LAUNCHES,
    IDLE_OTHER,
    LAUNCH_STARVED,
    OFFLOAD_COPY_EXPOSED,
)
from three_walls.lib.fact import FactGroup, FactValue, Measurements, Pool
from three_walls.lib.measurement import Measurement, known
from three_walls.step.stragglers import StragglerCause

facts = FactGroup()

MEMORY_RECOVERABLE = facts.duration(
    "memory_recoverable_ns",
    "time that more memory would save",
    "Upper bound of the time per step that more memory would save: recompute, where its time is known, and exposed "
    "host copies.",
)
COMMUNICATION_RECOVERABLE = facts.duration(
    "communication_recoverable_ns",
    "recoverable communication time",
    "Upper bound of the time per step that communication edits would save: exposed transfer of all communication.",
)
COMPUTE_RECOVERABLE = facts.duration(
    "compute_recoverable_ns",
    "recoverable compute time",
    "Upper bound of the time per step that compute edits would save: the pointwise work of unfused attention.",
)
HOST_RECOVERABLE = facts.duration(
    "host_recoverable_ns",
    "recoverable host time",
    "Upper bound of the time per step that host edits would save: launch-starved and host-blocked time, less its share "
    "of the time that the profiler added where a log was given (at least 0).",
    "A measured part: which part of the step the profiler lengthened is assumed, not seen.",
    needs=HOST_LAUNCHES,
)
LAUNCH_STARVED_RECOVERABLE = facts.duration(
    "launch_starved_recoverable_ns",
    "recoverable launch-starved time per step",
    "Time per step that is launch-starved, less its share of the time that the profiler added where a log was given "
    "(at least 0). The profiler lengthens time without device work, each kind in proportion.",
    share="recoverable launch-starved time",
    needs=HOST_LAUNCHES,
    pool=Pool(part_of=("launch_starved_ns", "host_idle_ns", "host_recoverable_ns", "idle_ns"), is_device_busy=False),
)
STRAGGLER_LATE_RECOVERABLE = facts.duration(
    "straggler_late_recoverable_ns",
    "the latest rank's recoverable delay per step",
    "Time per step by which the latest rank is late, less the time that the profiler added where the rank is "
    "launch-starved and a log was given (at least 0): the profiler slows launches, and not on every rank alike.",
    share="the recoverable delay of the latest rank",
    pool=Pool(part_of=("straggler_late_ns",), is_device_busy=False),
)


def measure_recoverable(measured: Measurements, recompute: Measurement[FactValue]) -> Measurements:
    """Every fact of this group, of those ``measured`` so far. ``recompute``: the time that replays take."""
    # A warning names recompute that cannot be priced; exposed copies alone can be the wall.
    memory = [recompute] if not recompute.is_missing else []
    late, excess = measured[STRAGGLER_LATE], measured[PROFILER_EXCESS]
    is_starved = measured[STRAGGLER_CAUSE].value == StragglerCause.LAUNCH_STARVED
    return {
        MEMORY_RECOVERABLE: _total(*memory, measured[OFFLOAD_COPY_EXPOSED]),
        COMMUNICATION_RECOVERABLE: _total(measured[EP_TRANSFER_EXPOSED], measured[COLLECTIVE_TRANSFER_EXPOSED]),
        COMPUTE_RECOVERABLE: measured[ATTENTION_UNFUSED],
        HOST_RECOVERABLE: _without_profiler(measured[HOST_IDLE], measured),
        LAUNCH_STARVED_RECOVERABLE: _without_profiler(measured[LAUNCH_STARVED], measured),
        STRAGGLER_LATE_RECOVERABLE: _beyond_profiler(late, excess) if is_starved else late,
    }


def _total(*parts: Measurement[FactValue]) -> Measurement[FactValue]:
    absent = next((part for part in parts if part.is_missing), None)
    return absent or known(sum(part.whole or 0 for part in parts))


def _without_profiler(time: Measurement[FactValue], measured: Measurements) -> Measurement[FactValue]:
    """``time`` without its share of what the profiler added to the step; all of it where no log gives that."""
    excess_ns = measured[PROFILER_EXCESS].whole
    if time.whole is None or not excess_ns:
        return time
    waiting_ns = sum(measured[part].whole or 0 for part in (HOST_IDLE, IDLE_OTHER, WAIT_EXPOSED))
    return known(time.whole * max(0, waiting_ns - excess_ns) // waiting_ns if waiting_ns else 0)


def _beyond_profiler(time: Measurement[FactValue], excess: Measurement[FactValue]) -> Measurement[FactValue]:
    """``time`` of a late rank without all of what the profiler added to the step; all of it where no log gives that."""
    if time.whole is None or excess.whole is None:
        return time
    return known(max(0, time.whole - excess.whole))
