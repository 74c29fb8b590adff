"""Facts of the replay: how well it reproduces the captured steps, and the step that it predicts without the profiler.

``three_walls/replay`` makes what they are read from: it needs the finished attribution, and labels from other facts.
"""

from __future__ import annotations

from three_walls.facts.fact_rows import CriticalPath, Prediction
from three_walls.lib.declare import duration, fact
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.tables.buckets import BUCKET_BY_NAME, Group


@fact("fraction", "the replay error", whole="the captured step")
def replay_error_fraction(replay_error: float) -> float:
    """Fraction of the captured step by which its unchanged replay is off: the largest one over the captured ranks and
    the kept steps (of many: twelve, from the shortest to the longest). It says how well dependencies are known, not how
    well a change of the step is predicted."""
    return replay_error


@duration("the predicted unprofiled step")
def predicted_unprofiled_step_ns(predicted_step: Prediction) -> int:
    """Length of the representative step without what the profiler is taken to have added to the host, by replay. Where
    a log was given it decides, and this is only compared with it.

    Not the same as: The log's own unprofiled step is measured; this one is a prediction.
    """
    return predicted_step.likely_ns


@duration("the lowest predicted unprofiled step")
def predicted_unprofiled_step_low_ns(predicted_step: Prediction) -> int:
    """The predicted unprofiled step where hosts are as much faster as logs of other runs ask for."""
    return predicted_step.low_ns


@duration("the highest predicted unprofiled step")
def predicted_unprofiled_step_high_ns(predicted_step: Prediction) -> int:
    """The predicted unprofiled step where hosts are as much slower as logs of other runs ask for."""
    return predicted_step.high_ns


@fact("fraction", "the error of the predicted unprofiled step", whole="the log's unprofiled step")
def predicted_step_error_fraction(
    predicted_step: Prediction, unprofiled_step_ns: Measurement[int]
) -> Measurement[float]:
    """Fraction of the log's unprofiled step by which the predicted one is longer; negative where it is shorter."""
    unprofiled_ns = unprofiled_step_ns.value
    if not unprofiled_ns:
        return missing("no log gives the unprofiled step (give --log)")
    return known((predicted_step.likely_ns - unprofiled_ns) / unprofiled_ns)


@fact("fraction", "the host on the critical path", whole="the replayed step")
def critical_path_host_fraction(critical_path: CriticalPath) -> float:
    """Fraction of the replayed step in which its length hangs on a host thread: CUDA calls, and the time between them.
    The replayed step is without what the profiler is taken to have added.

    Not the same as: Launch-starved time: the device may be busy with something else while the host decides when the
    step ends.
    """
    return limited_fraction(critical_path, "host")


@fact("fraction", "communication on the critical path", whole="the replayed step")
def critical_path_communication_fraction(critical_path: CriticalPath) -> float:
    """Fraction of the replayed step in which its length hangs on a transfer. Of collectives whose ranks were captured,
    waiting for peers does not count: the path goes on with what the last rank does.

    Not the same as: Exposed communication: a transfer next to which nothing computes may still hold nothing up.
    """
    return limited_fraction(critical_path, Group.COMMUNICATION.value)


@fact("fraction", "compute on the critical path", whole="the replayed step")
def critical_path_compute_fraction(critical_path: CriticalPath) -> float:
    """Fraction of the replayed step in which its length hangs on a compute kernel."""
    return limited_fraction(critical_path, Group.COMPUTE.value)


def limited_fraction(path: CriticalPath, limit: str) -> float:
    """Fraction of the step in which its length hangs on ``limit``: the host, or a group of buckets."""
    on_path = (
        (BUCKET_BY_NAME[row.name].group.value if row.name in BUCKET_BY_NAME else row.name, row.ns)
        for row in path.by_category
    )
    return sum(ns for name, ns in on_path if name == limit) / max(1, path.step_ns)
