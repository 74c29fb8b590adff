"""Rows of the report about steps: their budget, their gaps, their waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

MINIMUM_SHARED_GPU_SPREAD_RATIO = 1.4
"""Mean over fastest call of repeated kernels: a rank above it does not represent the run, also where no call shows it
late. Halfway, as a ratio, between 1.03 on healthy ranks and 1.9 on a shared GPU; the warning shared-gpu begins there
too."""


class StepSource(StrEnum):
    """Where step boundaries come from, most trustworthy first."""

    TRAINING_STEP = "nvtx training_step"
    TRAINING_STEP_IN_ORDER = "nvtx training_step, numbered in order"
    USER_RANGE = "user's step range"
    USER_RANGE_IN_ORDER = "user's step range, numbered in order"
    OPTIMIZER = "optimizer phases"
    ONE_WINDOW = "one window"
    """No step was found: the whole capture counts as one."""


@dataclass(frozen=True, slots=True)
class DroppedStep:
    """A step that is not analyzed."""

    rank: int
    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class StepSummary:
    """Which steps were found, by what, and how long the kept ones are."""

    source: str
    """What marks their boundaries (``optimizer kernels``, ``NVTX ranges``, ...)."""
    kept: int
    """Number of kept steps, over all ranks."""
    dropped: tuple[DroppedStep, ...]
    median_ns: int | None
    min_ns: int | None
    max_ns: int | None
    note: str = ""
    """A remark on the kept steps, for example that one touches the capture's edge and why it stays."""
    left_out: int = 0
    """Complete steps that are dropped because the capture is long: enough others are kept."""


@dataclass(frozen=True, slots=True)
class RankStep:
    """One step of one rank, on the trace's clock."""

    index: int
    start_ns: int
    end_ns: int
    """Half-open: the step ends before this instant."""
    kept: bool
    reason: str
    """Why it was dropped."""
    budget: Mapping[str, int]
    """Bucket to nanoseconds; sums to ``end_ns - start_ns`` of a kept step."""


@dataclass(frozen=True, slots=True)
class CommunicationTime:
    """Union of the time of one communication class in a step; exposed + hidden = busy."""

    busy_ns: int
    exposed_ns: int
    """While no compute kernel runs."""
    hidden_ns: int
    """While some compute kernel runs."""


@dataclass(frozen=True, slots=True)
class GapCause:
    """Time of the median step without a compute kernel, by cause. The causes of a rank sum to all such time."""

    cause: str
    ns: int
    detail: str = ""
    """What the host thread did, or which operation the next kernel waited for."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Communication of one class on one rank in its median step, split into waiting for peers and transfer."""

    communication_class: str
    rank: int
    wait_ns: int | None
    transfer_ns: int | None
    awaited_rank: int | None
    """The rank that arrived last for most of that time; null where that is not known."""
    resolved: bool
    """Whether the split comes from matched calls of all ranks of the group, on one clock."""
    note: str
    """How it was split (``latest arrival``, ``shortest participant``, ``fastest calls``), or why not."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that made the others wait."""

    rank: int
    late_ns: int
    """Time per step by which it arrived after the second-to-last rank."""
    cause: str
    """``slow_compute``, ``expert_imbalance``, ``launch_starved``, ``host_blocked``, ``late_stage`` or ``unknown``."""
    evidence: str
    beyond_peers_ns: int = 0
    """Of ``late_ns``, what exceeds the median lateness of its peers."""
    likely_reason: str = ""
    """What the traces suggest of a GPU that computes slowly: ``shared_gpu`` (another process uses it too),
    ``lower_clocks``, or empty."""
    slow_with: tuple[int, ...] = ()
    """Ranks that compute slowly too. The lateness is that after the last rank that does not."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """How the ranks' clocks were aligned, and what is left between matched ends of collectives."""

    method: str
    residual_ns_p50: int | None
    """Median."""
    residual_ns_p95: int | None
    """95th percentile."""


@dataclass(frozen=True, slots=True)
class RankReport:
    """One GPU of the run."""

    rank: int
    host: str | None
    gpu: str | None
    device: int
    input_name: str
    """Name of the trace it was read from."""
    steps: tuple[RankStep, ...]
    median_index: int | None
    """The median kept step, which the fields below describe; null without a kept step."""
    budget: Mapping[str, int]
    """Bucket to nanoseconds."""
    communication: Mapping[str, CommunicationTime]
    """Communication class to its time."""
    gap_causes: tuple[GapCause, ...] = ()
    """Why no compute kernel ran."""


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """Time of the representative step that one bucket owns. ``ns`` sums to the step, ``fraction`` to 1."""

    bucket: str
    group: str
    """``compute``, ``communication``, ``copy``, ``graph`` or ``idle``."""
    ns: int
    fraction: float
    definition: str


@dataclass(frozen=True, slots=True)
class UnclassifiedKernel:
    """A kernel name that no pattern knows, with its share of the representative rank's kernel time."""

    name: str
    kernel_ns: int
    """Sum of its durations."""
    count: int
    """Launches."""
