"""Rows of the report that come with facts: what was measured, in detail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from three_walls.log.training_log import TimerKind

MINIMUM_LINK_FRACTION = 0.25
"""Of a link's bandwidth: communication that stays below it does not use the link. On H200s the fastest token exchange
of a run reaches 0.66 to 0.78 of NVLink's bandwidth in one direction (NCCL), or 0.49 (DeepEP); with peer-to-peer
disabled 0.06 to 0.07. PCIe, which carries what goes through host memory, has 0.14 of it on Hopper and 0.25 on a Grace
superchip."""


@dataclass(frozen=True, slots=True)
class MoePart:
    """One part of one MoE layer in the representative step."""

    layer: int | None
    """From 0 among the layers of the rank's pipeline stage (the model's number with one stage); null: all layers."""
    direction: str
    """``forward``, ``backward`` or ``recompute``."""
    part: str
    """``router``, ``preprocess`` (of the dispatch), ``permute``, ``dispatch``, ``expert_gemm``, ``expert`` (what
    experts run besides GEMMs), ``combine``, ``unpermute``, ``shared_expert``: those of the forward pass throughout."""
    ns: int
    exposed_ns: int
    """While no compute kernel runs."""
    calls: int
    """Device operations."""
    bytes_moved: int | None = None
    """Bytes this rank sends to other ranks, from the config; null where not known."""
    bytes_per_s: float | None = None
    """Bandwidth reached."""
    limit_bytes_per_s: float | None = None
    """The link's limit in one direction."""
    stack: str | None = None
    """``mtp``: a layer of multi-token prediction, numbered after the model's own; null: one of these, or all layers."""


@dataclass(frozen=True, slots=True)
class RecomputedLayer:
    """Time of replaying one layer in backward, per step."""

    layer: int | None
    """From 0 among the layers of the rank's pipeline stage (the model's number with one stage); null: all together."""
    kind: str
    """``full`` (the whole layer) or ``selective`` (a part of it)."""
    ns: int
    calls: int
    """Replays in the step."""


@dataclass(frozen=True, slots=True)
class OutsideGraphs:
    """Kernels of one category that were launched one by one, outside CUDA graphs."""

    category: str
    calls: int
    host_ns: int | None
    """Time of their launch calls; null where launches were not recorded."""


@dataclass(frozen=True, slots=True)
class GraphCoverage:
    """How many of the representative step's kernels CUDA graphs launch, and which they leave out."""

    kernels_inside: int
    kernels_outside: int
    whole_graphs: int
    """Graph launches recorded whole: their kernels are in neither count."""
    fraction: float | None
    """Kernels inside / all kernels; null for the reason in ``reason``."""
    reason: str
    outside: tuple[OutsideGraphs, ...]
    """The longest launch time first."""


@dataclass(frozen=True, slots=True)
class SynchronizationSite:
    """A place in the code at which a host thread waits for the device."""

    function: str
    """CUDA function that waits: ``cudaStreamSynchronize``; where a copy to pageable memory and a wait for it follow
    each other, the wait."""
    operator: str
    """Operator of PyTorch around it: ``aten::item``; of several inside one another the outermost. Empty: none."""
    range: str
    """NVTX range or autograd function around that, numbers of layers left out; empty: none."""
    module: str | None
    """Module of the model whose operation the thread launches next (``attention``, ``experts``, ...); null where a
    range names the place, or where it is not known."""
    direction: str | None
    """``forward``, ``backward`` or ``recompute`` of that operation; null where the module is."""
    thread: int
    """Its id on the host."""
    calls: int
    """Per step; the copy of a value and the wait for it count once."""
    blocked_ns: int
    """Time of the thread in these calls, per step."""
    drained_ns: int
    """While nothing runs on the device: from the return of each call until the thread's next kernel starts, or until
    the thread waits again."""
    gain_ns: int | None
    """The step less its replay in which these calls return at once; null where the step was not replayed."""

    @property
    def name(self) -> str:
        """The site in the words of the code: ``aten::item in MoELayer``."""
        return " in ".join(word for word in (self.operator or self.function, self.range) if word)


@dataclass(frozen=True, slots=True)
class Synchronizations:
    """Where host threads wait for the device in the representative step of the representative rank."""

    sites: tuple[SynchronizationSite, ...]
    """The largest gain first. Those with least time are left out."""
    other_sites: int
    """How many are left out."""
    calls: int
    """Of all sites, as the next times."""
    blocked_ns: int
    drained_ns: int
    step_ns: int | None
    """The unprofiled step that a gain shortens; null where it was not replayed."""
    gain_ns: int | None
    """Less than the sum over sites where one wait hides another, more where only all of them together free the host."""


@dataclass(frozen=True, slots=True)
class OverlapSlowdown:
    """The same GEMM (name and grid) alone and concurrent with communication."""

    kernel: str
    grid: str
    calls_alone: int
    concurrent_calls: int
    alone_ns: int
    """Median duration alone."""
    concurrent_ns: int
    """Median duration while communication runs."""
    slowdown_ns: int
    """(concurrent - alone) x concurrent calls, per step."""


@dataclass(frozen=True, slots=True)
class PipelinePhase:
    """One phase of a rank's median step under pipeline parallelism; the phases of a rank sum to its step."""

    rank: int
    stage: int | None
    """Pipeline stage, from 0; null where the layout is not known."""
    phase: str
    """``warm-up`` (until the first backward pass begins), ``steady`` (until the last forward pass ends), ``cool-down``
    (until the last backward pass ends), ``update`` (gradients, optimizer); ``step``: the phases are not known."""
    ns: int
    p2p_exposed_ns: int
    """Pipeline exchanges while no compute kernel runs."""
    bubble_ns: int | None
    """The part of ``p2p_exposed_ns`` that waits for the neighbouring stage while no tokens are exchanged, if known.

    In ``update``: the time without compute until the passes of the last stage are over.
    """
    ep_exposed_ns: int
    """Expert-parallel communication while no compute kernel runs."""
    idle_ns: int
    """Nothing on the device."""
    note: str = ""
    """Why something is not known."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Floating point operations of one role in the representative step, against the GPU's peak."""

    role: str
    """``GEMMs``, of those ``expert GEMMs`` and ``other GEMMs``; ``fused attention``."""
    flops: int
    """Operations that the representative rank runs in the step, from the config; replays included."""
    ns: int
    """Time in which they run."""
    achieved_flops_per_s: float | None
    peak_flops_per_s: int | None
    """Dense, at the run's precision."""
    fraction: float | None
    """Achieved / peak."""
    note: str = ""
    """What is counted or assumed."""


@dataclass(frozen=True, slots=True)
class HardwareUse:
    """How much of the GPU a part of the representative step uses, as sampled by its hardware counters.

    Each is an average over the time that the part owns, as a fraction of the peak: of whatever ran then, concurrent
    operations included. Null where the counter was not recorded.
    """

    kind: str
    """``step``, ``bucket`` (of the budget) or ``module`` (of a layer)."""
    name: str
    """Of the bucket or module; ``unknown`` for operations without a module, ``idle`` where none runs; else empty."""
    ns: int
    """The time that it owns and that samples cover. Buckets sum to the step, and so do modules."""
    alone_fraction: float
    """The part of ``ns`` in samples that it owns throughout. The others also describe what ran before or after it."""
    tensor_active: float | None
    """Tensor pipes."""
    sm_active: float | None
    """Multiprocessors with work, be it waiting."""
    memory_read: float | None
    """Device memory."""
    memory_write: float | None
    nvlink_receive: float | None
    """Protocol included, as in the next one."""
    nvlink_send: float | None
    pcie_receive: float | None
    pcie_send: float | None


@dataclass(frozen=True, slots=True)
class GemmShape:
    """GEMMs of one shape in the representative step: m x k times k x n, ``batch`` of them at once.

    Each dimension is [lowest, highest]: GEMMs of one weight with different numbers of tokens are one row.
    """

    role: str | None
    """The weight of the model that has this size; null where none has it or the config does not state the sizes."""
    direction: str
    """``forward``, ``input gradient``, ``weight gradient``, ``backward`` (one of these or both), ``replay``."""
    batch: int
    m: tuple[int, int]
    n: tuple[int, int]
    k: tuple[int, int]
    calls: int
    """GEMMs, not kernels: one GEMM may take several."""
    flops: int
    ns: int
    """Sum of the durations of their kernels."""
    achieved_flops_per_s: float
    precision: str | None
    """Number format, by the kernel's name, else by the config."""
    peak_flops_per_s: int | None
    """Dense, at that precision."""
    fraction: float | None
    """Achieved / peak."""
    kernel: str
    """Short name of the kernel with the largest part of the time."""


@dataclass(frozen=True, slots=True)
class CopyBandwidth:
    """Copies of one kind between host and device in the representative step."""

    copy_class: str
    """Direction and kind of host memory, as in the budget (``copy_h2d_pinned``, ...)."""
    calls: int
    bytes_moved: int
    ns: int
    """Sum of their durations."""
    large_calls: int
    """Copies of 1 MiB and more."""
    bytes_per_s: float | None
    """Bandwidth of the large copies; null without any."""
    limit_bytes_per_s: int | None
    """Limit of the link to host memory in one direction, before protocol overhead."""


@dataclass(frozen=True, slots=True)
class CriticalPathRow:
    """Time on the critical path that one category, or one module of the model, takes."""

    name: str
    """Bucket of device operations; ``host``: CUDA calls and the time between them; ``gap``: launch latency, and pauses
    between operations. Or a module (``attention``, ``experts``, ...); ``unknown`` where operations have no label."""
    ns: int
    fraction: float
    """Of the replayed step; the fractions of all rows sum to 1."""
    operations: int
    """Operations of all captured ranks in the step; of the host 0."""
    operations_on_path: int
    median_slack_ns: int | None
    """How much later the others may end before the step grows; null without any."""


@dataclass(frozen=True, slots=True)
class CriticalPathSegment:
    """One stretch of the critical path. The next one begins where it ends. Short neighbours are joined."""

    rank: int
    start_ns: int
    """From the start of the step."""
    end_ns: int
    what: str
    """``operation``, ``host`` or ``gap``."""
    kind: str
    """What the stretch ended with: ``launch``, ``stream``, ``event``, ``resource``, ``arrival``, ``thread``,
    ``hand_over``, ``awaited``, ``given`` (before the step), ``end`` (of the step)."""
    category: str
    """Bucket of an operation, else ``host`` or ``gap``; of joined segments the longest."""
    module: str
    name: str
    """Kernel or CUDA call, where it is known: of joined segments the longest. Empty for the time between calls."""


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """What the length of the representative step hangs on, by a replay of it. The segments sum to the step."""

    rank: int
    step_ns: int
    """Length of the replayed step."""
    by_category: tuple[CriticalPathRow, ...]
    """The longest first; then categories that are not on the path."""
    by_module: tuple[CriticalPathRow, ...]
    segments: tuple[CriticalPathSegment, ...]


@dataclass(frozen=True, slots=True)
class TimerSummary:
    """One timer of the log, per iteration, from its prints after steady iterations."""

    name: str
    """As printed (``forward-compute``, ``optimizer``, ...); ``straggler-detector``: lines of ``--log-straggler``."""
    kind: TimerKind
    """``work`` (of the rank alone), ``exchange`` (waits included), ``step`` (both), ``outside`` of steps, ``other``."""
    prints: int
    """Prints behind the values; those of timers outside of steps count whenever they were printed."""
    shortest_ns: int | None
    """Median of the fastest rank where ranks were printed, else of the lower bound; null where only the longest was."""
    longest_ns: int
    """Median of the slowest rank where ranks were printed, else of the upper bound."""
    fastest_rank: int | None = None
    slowest_rank: int | None = None


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank whose own work takes longer than that of the others, by the log's timers."""

    rank: int
    timer: str
    ns: int
    """Its median."""
    fastest_rank: int
    fastest_ns: int
    """Among the ranks compared: those of its pipeline stage, or all."""
    typical_ns: int
    """Median of the ranks compared."""
    prints: int
    """Prints in which it stood out, of ``of_prints``."""
    of_prints: int
    stage: int | None
    """Pipeline stage whose ranks were compared; null: all ranks."""


@dataclass(frozen=True, slots=True)
class ProgressSummary:
    """Jobs of the progress file with the run's number of GPUs."""

    gpus: int
    jobs: int
    restarts: int
    """Jobs after the first of these."""
    saves: int
    """Checkpoints of these jobs."""
    last_iteration: int | None
    tokens: int | None
    """Trained on until the last checkpoint, by all jobs."""
    job_tflops_per_gpu: float | None
    """Model TFLOP/s per GPU from the last job's start to its last checkpoint: start-up, evaluation and checkpoints
    count."""
    cumulative_tflops_per_gpu: float | None
    """The same from the first of these jobs: the time between jobs counts too."""
    other_gpus: tuple[int, ...] = ()
    """Numbers of GPUs of other jobs in the file, ascending."""


@dataclass(frozen=True, slots=True)
class LogSummary:
    """Summary of the training log. Its numbers are facts too, with the reasons where they are missing."""

    files: tuple[str, ...]
    """File names alone: no directory leaves the machine."""
    iterations: int
    """Complete iteration lines, each counted once."""
    roles: Mapping[str, int]
    """Number of iterations by role: ``steady``, ``warm-up``, ``profiled``, ``outlier``, ..."""
    torn_lines: int
    """Lines that other output interrupted; they are not used."""
    unprofiled_step_ns: int | None
    """Median of the steady iterations; null where the facts state why."""
    peak_memory_bytes: int | None
    """Largest peak of allocated memory, among the ranks that printed it."""
    reserved_memory_bytes: int | None
    allocator_retries: int | None
    """Failed allocations that were tried again."""
    theoretical_memory_bytes: int | None
    """The framework's own estimate for its most loaded rank."""
    parameters: int | None
    ooms: int
    """Reports of running out of memory."""
    events: Mapping[str, int]
    """Kind of event -> lines."""
    tflops_per_gpu: float | None = None
    """Model TFLOP/s per GPU of the steady iterations, as printed."""
    device_memory_bytes: int | None = None
    """Most device memory in use by all processes, among the ranks that printed it."""
    timers: tuple[TimerSummary, ...] = ()
    """By name."""
    slow_ranks: tuple[SlowRank, ...] = ()
    """Ranks that the timers show to be slow, the slowest first."""
    progress: ProgressSummary | None = None
    """Null where no progress file was read."""
    unread_files: tuple[str, ...] = ()
    """Files that could not be read, each with the reason."""
    mismatch: str = ""
    """Why the log is of another run than the trace, and therefore not used; empty if it is not."""
    began_at: str | None = None
    """Time stamp of the first iteration line, as printed (``2026-11-22 18:37:17``, local time); null without one."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A step after some transformations, by replays at the ends of their parameters. Unprofiled time."""

    low_ns: int
    """Where every edit gains most."""
    likely_ns: int
    high_ns: int
    """Where every edit gains least."""
    because_unknown: str = ""
    """Why a number is not to be trusted or not known; empty otherwise."""
