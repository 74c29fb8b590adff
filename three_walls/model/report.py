"""The report: everything any renderer may show. ``render/json_report.py`` gives it its stable JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from three_walls.model.buckets import SubWall, Wall
from three_walls.model.config import ConfigConflict, ConfigData, RunConfig
from three_walls.model.fact import FactSheet
from three_walls.model.finding import Finding, FirstTrial, Overrides, PlanStep
from three_walls.model.memory_snapshot import MemorySnapshot
from three_walls.model.training_log import TimerKind

SCHEMA_VERSION = "1.3"
"""Version of the JSON contract: the minor grows when fields are added, the major when one changes."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """One trace that was read. ``path_name`` is the file's name alone: no directory leaves the machine."""

    path_name: str
    sha256: str
    nsys_version: str | None
    schema: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The wall that holds the run back, or an abstention that says why."""

    wall: Wall | None
    sub_wall: SubWall | None
    abstained: bool
    reason: str
    step_ns: int | None
    runner_up_wall: Wall | None
    runner_up_sub_wall: SubWall | None
    margin_fraction: float | None
    """(recoverable time of the wall - of the runner-up) / step."""
    recoverable_ns: Mapping[str, int | None]
    """Per wall and sub-wall (``memory``, ``communication``, ``compute_host.compute``, ``compute_host.host``)."""


@dataclass(frozen=True, slots=True)
class DroppedStep:
    rank: int
    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class StepSummary:
    """Which steps were found, by what, and how long the kept ones were."""

    source: str
    kept: int
    dropped: tuple[DroppedStep, ...]
    median_ns: int | None
    min_ns: int | None
    max_ns: int | None
    note: str = ""
    """Said of the kept steps (for example that one touches the capture's edge and why it stays)."""


@dataclass(frozen=True, slots=True)
class RankStep:
    """One step of one rank; ``budget`` sums to ``end_ns - start_ns``."""

    index: int
    start_ns: int
    end_ns: int
    kept: bool
    reason: str
    budget_ns: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CommunicationTime:
    """Union time of one communication class in a step; exposed + hidden = busy."""

    busy_ns: int
    exposed_ns: int
    hidden_ns: int


@dataclass(frozen=True, slots=True)
class GapCause:
    """Why no compute kernel ran: part of the median step's compute-absent time. The causes of a rank sum to it."""

    cause: str
    ns: int
    detail: str = ""
    """What the host thread did, or which operation was waited for."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Communication of one class on one rank in its median step, split into waiting for peers and transfer."""

    communication_class: str
    rank: int
    wait_ns: int | None
    transfer_ns: int | None
    awaited_rank: int | None
    """The rank that arrived last most of that time; None where it cannot be told."""
    resolved: bool
    """Whether the split comes from matched calls of all ranks of the group on one clock."""
    note: str
    """How it was split (``latest arrival``, ``shortest participant``, ``fastest calls``), or why it was not."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that made the others wait."""

    rank: int
    late_ns: int
    """Time per step by which its arrivals delayed the group, beyond the second-to-last rank."""
    cause: str
    """``slow_compute``, ``expert_imbalance``, ``launch_starved``, ``host_blocked``, ``late_stage`` or ``unknown``."""
    evidence: str


@dataclass(frozen=True, slots=True)
class Alignment:
    """How the ranks' clocks were put together, and how well it worked (on matched collective ends)."""

    method: str
    residual_ns_p50: int | None
    residual_ns_p95: int | None


@dataclass(frozen=True, slots=True)
class MoePart:
    """One part of one MoE layer (or of all of them, ``layer`` None) in the representative step."""

    layer: int | None
    direction: str
    """``forward``, ``backward`` or ``recompute``."""
    part: str
    """``router``, ``permute``, ``dispatch``, ``expert_gemm``, ``combine``, ``unpermute``, ``shared_expert``."""
    ns: int
    exposed_ns: int
    calls: int
    bytes_moved: int | None = None
    """Bytes this rank sends to other ranks, from the config; None where not told."""
    bytes_per_s: float | None = None
    limit_bytes_per_s: float | None = None
    """The link's limit in one direction."""


@dataclass(frozen=True, slots=True)
class RecomputedLayer:
    """What replaying one layer (or all of them, ``layer`` None) in backward takes per step."""

    layer: int | None
    """From 0 among the layers of the rank's pipeline stage: the model's own number with a single stage."""
    kind: str
    """``full`` (the whole layer) or ``selective`` (its core attention alone)."""
    ns: int
    calls: int
    """Replays in the step."""


@dataclass(frozen=True, slots=True)
class OutsideGraphs:
    """Kernels of one category that were launched one by one, outside any CUDA graph."""

    category: str
    calls: int
    host_ns: int | None
    """Time of their launch calls; None where launches were not recorded."""


@dataclass(frozen=True, slots=True)
class GraphCoverage:
    """CUDA graphs in the representative step: how much of its kernels they launch, and what they leave out."""

    kernels_inside: int
    kernels_outside: int
    whole_graphs: int
    """Graph launches recorded whole, without their kernels: those are in neither count."""
    fraction: float | None
    """Kernels inside / all kernels; None for the reason ``reason``."""
    reason: str
    outside: tuple[OutsideGraphs, ...]


@dataclass(frozen=True, slots=True)
class OverlapSlowdown:
    """The same GEMM (name and grid) alone and beside communication."""

    kernel: str
    grid: str
    calls_alone: int
    concurrent_calls: int
    alone_ns: int
    concurrent_ns: int
    """Median durations."""
    slowdown_ns: int
    """(beside - alone) x calls beside, per step."""


@dataclass(frozen=True, slots=True)
class PipelinePhase:
    """One phase of a rank's median step under pipeline parallelism; the phases of a rank sum to its step."""

    rank: int
    stage: int | None
    """Pipeline stage, from 0; None where the layout is not known."""
    phase: str
    """``warm-up``, ``steady``, ``cool-down``, ``update``; ``step``: the whole, its phases cannot be told apart."""
    ns: int
    p2p_exposed_ns: int
    """Pipeline exchanges while no compute kernel runs."""
    bubble_ns: int | None
    """Waiting for the neighbour in them, no tokens being exchanged; None where it cannot be told.

    In ``update``: what passes with nothing computing until the last stage's passes are over.
    """
    ep_exposed_ns: int
    idle_ns: int
    note: str = ""
    """Why something is not told."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Floating point operations of one role in the representative step, against the GPU's peak."""

    role: str
    """``GEMMs``, of those ``expert GEMMs`` and ``other GEMMs``; ``fused attention``."""
    flops: int
    """That the representative rank runs in the step, from the config; replays included."""
    ns: int
    achieved_flops_per_s: float | None
    peak_flops_per_s: int | None
    """Dense, at the run's precision."""
    fraction: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class GemmShape:
    """GEMMs of one shape in the representative step: m x k times k x n, ``batch`` of them at once.

    Each dimension is (lowest, highest): products of one weight whose numbers of tokens differ are one row.
    """

    role: str | None
    """Which weight of the model it is, by its size; None where no weight has it or the config does not say."""
    direction: str
    """forward, input gradient, weight gradient, backward (one of them, or both together), replay."""
    batch: int
    m: tuple[int, int]
    n: tuple[int, int]
    k: tuple[int, int]
    calls: int
    """Products, not kernels: one product may take several."""
    flops: int
    ns: int
    """Sum of the durations of their kernels."""
    achieved_flops_per_s: float
    precision: str | None
    peak_flops_per_s: int | None
    """Dense, at that precision."""
    fraction: float | None
    kernel: str
    """Short name of the kernel with the largest part of the time."""


@dataclass(frozen=True, slots=True)
class CopyBandwidth:
    """Copies of one kind between host and device in the representative step."""

    copy_class: str
    calls: int
    bytes_moved: int
    ns: int
    """Sum of their durations."""
    large_calls: int
    """Of 1 MiB and more."""
    bytes_per_s: float | None
    """Of the large ones; None without any."""
    limit_bytes_per_s: int | None
    """The link to host memory in one direction."""


@dataclass(frozen=True, slots=True)
class RankReport:
    """One GPU of the run. ``budget_ns`` and ``communication`` are those of its median kept step."""

    rank: int
    host: str | None
    gpu: str | None
    device: int
    input_name: str
    steps: tuple[RankStep, ...]
    median_index: int | None
    budget_ns: Mapping[str, int]
    communication: Mapping[str, CommunicationTime]
    gap_causes: tuple[GapCause, ...] = ()


@dataclass(frozen=True, slots=True)
class BudgetRow:
    bucket: str
    group: str
    ns: int
    fraction: float
    definition: str


@dataclass(frozen=True, slots=True)
class ReportWarning:
    """Something that limits what the report can claim; ``code`` is stable, the message is for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class UnclassifiedKernel:
    """A kernel name that no pattern knows, with its share of the representative rank's kernel time."""

    name: str
    kernel_ns: int
    count: int


@dataclass(frozen=True, slots=True)
class TimerSummary:
    """One timer of the log, per iteration: what is typical of its prints after steady iterations."""

    name: str
    kind: TimerKind
    prints: int
    """Prints behind the values; those of timers outside of steps count whenever they came."""
    shortest_ns: int | None
    longest_ns: int
    """Medians of the fastest and of the slowest rank where ranks were printed, else of the bounds printed; the
    shortest is None where only the longest was printed."""
    fastest_rank: int | None = None
    slowest_rank: int | None = None


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that the log's timers show to take longer than the others for work of its own."""

    rank: int
    timer: str
    ns: int
    """Its median."""
    fastest_rank: int
    fastest_ns: int
    """Of the ranks compared: those of its pipeline stage, or all."""
    typical_ns: int
    """Median of the ranks compared."""
    prints: int
    """Prints in which it stood out; of ``of_prints``."""
    of_prints: int
    stage: int | None
    """Pipeline stage that was compared; None: all ranks, without a pipeline or where its stages are not known."""


@dataclass(frozen=True, slots=True)
class ProgressSummary:
    """What the progress file says of the jobs with the run's number of GPUs."""

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
    """What the training log given beside the trace says, in short; its numbers with reasons are facts."""

    files: tuple[str, ...]
    """File names alone: no directory leaves the machine."""
    iterations: int
    """Whole iteration lines, each once."""
    roles: Mapping[str, int]
    """How many lines show what: ``steady``, ``warm-up``, ``profiled``, ``outlier``, ..."""
    torn_lines: int
    unprofiled_step_ns: int | None
    peak_memory_bytes: int | None
    reserved_memory_bytes: int | None
    allocator_retries: int | None
    theoretical_memory_bytes: int | None
    """The framework's own estimate for its most loaded rank."""
    parameters: int | None
    ooms: int
    events: Mapping[str, int]
    """Kind of event -> lines."""
    tflops_per_gpu: float | None = None
    """Model TFLOP/s per GPU of the steady iterations, as printed."""
    device_memory_bytes: int | None = None
    """Most device memory in use by everything, of the ranks that printed it."""
    timers: tuple[TimerSummary, ...] = ()
    """By name."""
    slow_ranks: tuple[SlowRank, ...] = ()
    """By timers; the slowest first."""
    progress: ProgressSummary | None = None
    """None where no progress file was read."""
    unread_files: tuple[str, ...] = ()
    """Files that could not be read, each with the reason."""


BENCHMARK_SETTING = "benchmark setting"
BATCH_SIZE = "batch size"


@dataclass(frozen=True, slots=True)
class RecipeDifference:
    """A setting that a tuned recipe has otherwise than the run; None is unset."""

    key: str
    kind: str
    """``config`` or ``env``."""
    run: ConfigData
    recipe: ConfigData
    in_plan: bool
    """The plan edits it, to whatever value."""
    mark: str = ""
    """Why it is no knob for speed: :data:`BENCHMARK_SETTING`, :data:`BATCH_SIZE`; empty for a knob."""


@dataclass(frozen=True, slots=True)
class KnownGoodRecipe:
    """The tuned recipe nearest to the run: context for the plan, never a measured gain."""

    name: str
    model: str
    gpu: str
    gpus: int
    precision: str
    distance_note: str
    """What is like the run and what is not."""
    source: str
    differences: tuple[RecipeDifference, ...]
    same_count: int
    unknown_count: int = 0
    """Settings of the recipe of which the run's value is not known."""


@dataclass(frozen=True, slots=True)
class Report:
    """One analysis, complete. Renderers decide nothing: what is not here is not shown."""

    tool_version: str
    inputs: tuple[InputFile, ...]
    verdict: Verdict
    step: StepSummary
    ranks: tuple[RankReport, ...]
    budget: tuple[BudgetRow, ...]
    budget_of: str
    """Which step ``budget`` is, in words: rank, step index, why that one."""
    config: RunConfig
    facts: FactSheet
    findings: tuple[Finding, ...]
    plan: tuple[PlanStep, ...]
    overrides: Overrides
    warnings: tuple[ReportWarning, ...]
    unclassified: tuple[UnclassifiedKernel, ...]
    capabilities: Mapping[str, str]
    """Capability -> ``yes`` or why not (missing table or column, capture mode)."""
    stragglers: tuple[Straggler, ...] = ()
    waits: tuple[Wait, ...] = ()
    alignment: Alignment | None = None
    """None with a single rank: nothing to align."""
    moe_layers: tuple[MoePart, ...] = ()
    overlap_slowdown: tuple[OverlapSlowdown, ...] = ()
    pipeline_phases: tuple[PipelinePhase, ...] = ()
    log: LogSummary | None = None
    """None where no training log was given."""
    memory_snapshot: MemorySnapshot | None = None
    """None: no snapshot was given."""
    recompute_layers: tuple[RecomputedLayer, ...] = ()
    graph_coverage: GraphCoverage | None = None
    """None where no CUDA graph was launched."""
    config_conflicts: tuple[ConfigConflict, ...] = ()
    """Settings that two sources give different values; the first value of each counts."""
    efficiency: tuple[Efficiency, ...] = ()
    gemm_shapes: tuple[GemmShape, ...] = ()
    copies: tuple[CopyBandwidth, ...] = ()
    first_trial: FirstTrial | None = None
    """None for an empty plan."""
    known_good_recipe: KnownGoodRecipe | None = None
    no_recipe_reason: str = ""
    """Why there is none; empty where there is one."""
    schema_version: str = SCHEMA_VERSION
