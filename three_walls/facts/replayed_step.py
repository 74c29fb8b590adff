"""Facts of the replay: how well it reproduces the captured steps, and the step that it predicts without the profiler.

``three_walls/replay`` measures them: it needs the finished attribution, and labels from other facts.
"""

from __future__ import annotations

from three_walls.facts.fact_rows import CriticalPath
from three_walls.lib.fact import FactGroup, Measurements
from three_walls.lib.measurement import known
from three_walls.tables.buckets import BUCKET_BY_NAME, Group

facts = FactGroup()

REPLAY_ERROR = facts.fact(
    "replay_error_fraction",
    "fraction",
    "the replay error",
    "Fraction of the captured step by which its unchanged replay is off: the largest one over the captured ranks and "
    "the kept steps (of many: twelve, from the shortest to the longest). It says how well dependencies are known, not "
    "how well a change of the step is predicted.",
    whole="the captured step",
)
PREDICTED_STEP = facts.duration(
    "predicted_unprofiled_step_ns",
    "the predicted unprofiled step",
    "Length of the representative step without what the profiler is taken to have added to the host, by replay. Where "
    "a log was given it decides, and this is only compared with it.",
    "The log's own unprofiled step is measured; this one is a prediction.",
)
PREDICTED_STEP_LOW = facts.duration(
    "predicted_unprofiled_step_low_ns",
    "the lowest predicted unprofiled step",
    "The predicted unprofiled step where the profiler added most, or where the host of another run is faster.",
)
PREDICTED_STEP_HIGH = facts.duration(
    "predicted_unprofiled_step_high_ns",
    "the highest predicted unprofiled step",
    "The predicted unprofiled step where the profiler added least, or where the host of another run is slower.",
)
PREDICTION_ERROR = facts.fact(
    "predicted_step_error_fraction",
    "fraction",
    "the error of the predicted unprofiled step",
    "Fraction of the log's unprofiled step by which the predicted one is longer; negative where it is shorter.",
    whole="the log's unprofiled step",
)
CRITICAL_PATH_HOST = facts.fact(
    "critical_path_host_fraction",
    "fraction",
    "the host on the critical path",
    "Fraction of the replayed step in which its length hangs on a host thread: CUDA calls, and the time between them. "
    "The replayed step is without what the profiler is taken to have added.",
    "Launch-starved time: the device may be busy with something else while the host decides when the step ends.",
    whole="the replayed step",
)
CRITICAL_PATH_COMMUNICATION = facts.fact(
    "critical_path_communication_fraction",
    "fraction",
    "communication on the critical path",
    "Fraction of the replayed step in which its length hangs on a transfer. Of collectives whose ranks were captured, "
    "waiting for peers does not count: the path goes on with what the last rank does.",
    "Exposed communication: a transfer next to which nothing computes may still hold nothing up.",
    whole="the replayed step",
)
CRITICAL_PATH_COMPUTE = facts.fact(
    "critical_path_compute_fraction",
    "fraction",
    "compute on the critical path",
    "Fraction of the replayed step in which its length hangs on a compute kernel.",
    whole="the replayed step",
)


def measure_critical_path(path: CriticalPath) -> Measurements:
    """The facts of ``path``."""
    of_limit: dict[str, int] = {}
    for row in path.by_category:
        bucket = BUCKET_BY_NAME.get(row.name)
        limit = bucket.group.value if bucket else row.name
        of_limit[limit] = of_limit.get(limit, 0) + row.ns
    parts = {
        CRITICAL_PATH_HOST: "host",
        CRITICAL_PATH_COMMUNICATION: Group.COMMUNICATION.value,
        CRITICAL_PATH_COMPUTE: Group.COMPUTE.value,
    }
    return {fact: known(of_limit.get(limit, 0) / max(1, path.step_ns)) for fact, limit in parts.items()}
