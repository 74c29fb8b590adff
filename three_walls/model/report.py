"""The report: everything that a renderer may show, and the contract of report.json.

The fields of these types, in their order, are the fields of report.json, and their docstrings are its documentation
(``tools/generate_report_docs.py``). Every name here is therefore public: renaming one needs a new major version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from three_walls.lib.text import join_words, plural
from three_walls.model.buckets import SubWall, Wall
from three_walls.model.comparison import History
from three_walls.model.config import ConfigData, RunConfig
from three_walls.model.fact import FactSheet
from three_walls.model.finding import Finding, FirstTrial, Overrides, PlanStep
from three_walls.model.memory_snapshot import MemorySnapshot
from three_walls.model.training_log import TimerKind

SCHEMA_VERSION = "3.0"
"""Version of report.json: the minor grows when fields are added, the major when one goes, or is another one."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """One trace that was read."""

    path_name: str
    """The file's name alone: no directory leaves the machine."""
    sha256: str
    nsys_version: str | None
    """Nsight Systems release that recorded it."""
    schema: str | None
    """Version of the export's schema."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """A rank that holds all others back for a reason of its own: a slow GPU or a slow host, not more work."""

    rank: int
    cause: str
    """``slow_compute``, ``launch_starved``, ``host_blocked`` or ``unknown``."""
    cost_ns: int
    """Time per step that the representative rank loses to it."""
    step_without_it_ns: int
    """The representative step less ``cost_ns``: a lower bound, because other delays may hide behind this one."""
    likely_reason: str = ""
    """``shared_gpu``, ``lower_clocks`` or empty, as in ``Straggler``."""
    evidence: str = ""
    """What it did differently from its peers."""
    slow_with: tuple[int, ...] = ()
    """Ranks that are slow too: the delay disappears only once all of them are fixed."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The rank and those that are slow with it."""
        return tuple(sorted((self.rank, *self.slow_with)))

    @property
    def named(self) -> str:
        """``rank 2``, or ``ranks 1 and 2``."""
        numbers = [str(rank) for rank in self.ranks]
        return f"{plural(len(numbers), 'rank')} {join_words(numbers)}"


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """The step without something that holds it up, by replaying it without the profiler."""

    without: tuple[str, ...]
    """One or two of ``memory`` (recompute and host copies), ``communication``, ``compute_host.compute`` (kernels at
    the peak that can be reached), ``compute_host.host``; or ``straggler``."""
    step_ns: int
    saved_ns: int
    """By how much the step is shorter than the replayed one."""
    note: str = ""
    """What is not known, and stays in the step."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The wall that holds the run back, or an abstention with its reason."""

    wall: Wall | None
    """``memory``, ``communication`` or ``compute_host``; null when abstained."""
    sub_wall: SubWall | None
    """``compute`` or ``host`` for the third wall, else null."""
    abstained: bool
    """Whether no wall is named."""
    reason: str
    """Why, in a sentence with the numbers."""
    step_ns: int | None
    """The representative step, which the verdict is about."""
    runner_up_wall: Wall | None
    runner_up_sub_wall: SubWall | None
    margin_fraction: float | None
    """(recoverable time of the wall - recoverable time of the runner-up) / step."""
    recoverable_ns: Mapping[str, int | None]
    """Upper bound of what removing a wall saves, by wall (``communication``) and half (``compute_host.host``)."""
    culprit: Culprit | None = None
    """The rank to fix before anything is tuned: the wall is then judged for the step without its delay. Null where no
    rank holds the run back: one that is late for little of the step is a finding."""
    replayed_step_ns: int | None = None
    """The step in a replay without the profiler (the log's, where one was given); null where replays are withheld."""
    counterfactuals: tuple[Counterfactual, ...] = ()
    """The walls decide by these where the step was replayed: the wall is the one whose removal saves most."""
    no_replay_reason: str = ""
    """Why nothing was replayed, so that walls and gains are shares of measured times; else empty."""


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
class MoePart:
    """One part of one MoE layer in the representative step."""

    layer: int | None
    """Number of the layer; null: the sum of all layers."""
    direction: str
    """``forward``, ``backward`` or ``recompute``."""
    part: str
    """``router``, ``permute``, ``dispatch``, ``expert_gemm``, ``combine``, ``unpermute``, ``shared_expert``."""
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


@dataclass(frozen=True, slots=True)
class RecomputedLayer:
    """Time of replaying one layer in backward, per step."""

    layer: int | None
    """From 0 among the layers of the rank's pipeline stage (the model's number with one stage); null: all together."""
    kind: str
    """``full`` (the whole layer) or ``selective`` (its core attention only)."""
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
class SurveyedRank:
    """One rank of a surveyed run, in its median kept step. The first four times sum to the step."""

    rank: int
    host: str | None
    stage: int | None
    """Pipeline stage, from 0; null without a pipeline, or where the layout is not known."""
    compute_ns: int
    """Owned by compute kernels."""
    communication_ns: int
    """Owned by communication: exposed."""
    idle_ns: int
    """Nothing on the device."""
    other_ns: int
    """Owned by copies, and by graphs recorded as a whole."""
    step_ns: int
    wait_ns: int
    """Of ``communication_ns``: waiting for peers."""
    remark: str = ""
    """Why it was read in full, or how it differs from the others; empty for the others."""


@dataclass(frozen=True, slots=True)
class RankSpread:
    """How one time differs between the ranks of a surveyed run, or of one host or pipeline stage of it."""

    quantity: str
    """``step``, ``compute``, ``communication``, ``idle``, ``wait``, or the waiting of one communication class."""
    ranks_count: int
    least_ns: int
    least_rank: int
    median_ns: int
    p95_ns: int
    """95th percentile."""
    most_ns: int
    most_rank: int


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The ranks of one host or of one pipeline stage; times are medians over its ranks."""

    kind: str
    """``host`` or ``stage``."""
    name: str
    ranks_count: int
    step_ns: int
    compute_ns: int
    communication_ns: int
    wait_ns: int
    idle_ns: int


@dataclass(frozen=True, slots=True)
class LostTrace:
    """A trace that could not be read."""

    input_name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Survey:
    """All ranks of a run of which only some were read in full.

    Clocks, matched calls, waits and late ranks are worked out from every rank. What needs more of a rank than its
    summary (causes of gaps, the replay, ``Report.ranks``, ``Report.waits``) is of the ranks in ``in_full``.
    """

    ranks_count: int
    """Ranks that were surveyed."""
    in_full: tuple[int, ...]
    """Numbers of those that were read in full too."""
    lost: tuple[LostTrace, ...]
    late_ranks_count: int
    """Ranks that are late; causes are known of those read in full."""
    spreads: tuple[RankSpread, ...]
    groups: tuple[RankGroup, ...]
    """The hosts, then the pipeline stages; those with most compute first."""
    ranks: tuple[SurveyedRank, ...]
    """All of them, by rank."""


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
class KernelPlace:
    """Launches of one kernel from one place of the model."""

    module: str | None
    """``attention``, ``experts``, ...; null where the replay could not label them."""
    direction: str | None
    """``forward``, ``backward`` or ``recompute``; null where it is not known."""
    operator: str
    """Innermost NVTX range around the launch except steps, layer numbers left out; empty where none was recorded."""
    calls: int
    ns: int


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A kernel (or copies, fills, graphs of one kind) in the representative step of the representative rank.

    All rows of a bucket sum to its kernel time: the sum of the whole durations of what starts in the step. Operations
    that overlap count in full, so that is more than the time that the bucket owns in the budget.
    """

    bucket: str
    name: str
    """The kernel without namespaces and arguments, or the title of the bucket for what is no kernel."""
    full_name: str
    """The demangled name; empty for what is no kernel, and for the rest of a bucket."""
    calls: int
    ns: int
    """Sum of the durations."""
    mean_ns: int
    fastest_ns: int
    median_ns: int
    p95_ns: int
    """95th percentile: of 20 calls the slowest but one."""
    slowest_ns: int
    grid: tuple[int, int, int] | None
    """Blocks of the most frequent variant; null where not recorded."""
    block: tuple[int, int, int] | None
    """Threads of a block of that variant."""
    variants: int
    """Different grids and blocks."""
    places: tuple[KernelPlace, ...]
    """Where it is launched from, the longest first; at most four."""
    other_places: int
    """Places that are left out."""
    layers: int | None
    """Number of different layers of this rank that launch it; null where it is not known."""
    launch_ns: int | None
    """Host time of its launch calls; null where none was recorded, as for nodes of CUDA graphs."""
    fraction_of_peak: float | None
    """Of GEMMs whose shapes were recorded: achieved / peak of the GPU at the kernel's precision."""
    kernels: int = 1
    """Different kernels in the row: more than one where the rest of a bucket is summed."""

    @property
    def is_rest(self) -> bool:
        """Whether it sums the kernels of the bucket that are not listed."""
        return self.kernels > 1


@dataclass(frozen=True, slots=True)
class HostWorkRow:
    """Where a thread that launches work spent the representative step outside of CUDA calls.

    The rows of a thread sum to the step less the time of its CUDA calls.
    """

    thread: int
    """Its id on the host."""
    module: str | None
    """Module of the model whose next operation the thread launches (``attention``, ``experts``, ...); null: unknown."""
    direction: str | None
    """``forward``, ``backward`` or ``recompute`` of that operation; null where it is not known."""
    range: str
    """NVTX ranges around it except operators, the outer first, numbers of layers left out; empty: none."""
    operator: str
    """Innermost operator of PyTorch or autograd function; empty: none."""
    ns: int
    idle_ns: int
    """Of it, while nothing ran on the device."""
    starved_ns: int
    """Of it, while no compute kernel ran because this thread had not launched the next one."""
    calls: int
    """Ranges that it was spent in; 0 for time outside of all ranges."""
    places: int = 1
    """More than one where the places of a thread that are not listed are summed."""


@dataclass(frozen=True, slots=True)
class TimelineLane:
    """What happened on one stream or thread, in order, as columns of equal length: item i is the i-th of each.

    Where there are too many items, short neighbours are joined into one. Its time (``busy_ns``) is exact.
    """

    kind: str
    """``modules`` (what is launched from which), ``budget`` (what owns each nanosecond), ``gaps`` (why no compute ran),
    ``ranges`` (NVTX), ``calls`` (CUDA), or ``operations`` of a stream."""
    name: str
    """``stream 7``, ``thread 7571``; empty for what is of the whole rank."""
    depth: int
    """Of ranges: how many others are around them."""
    start_ns: tuple[int, ...]
    """Delta-coded: the first counts from 0 of the timeline, each other one from the start before it."""
    length_ns: tuple[int, ...]
    text: tuple[int, ...]
    """Place in ``Timeline.texts``: kernel, call, range; of gaps the detail; of joined items the longest one's."""
    category: tuple[int, ...]
    """Place in ``Timeline.texts``: bucket, or cause of the gap; empty for modules, ranges and calls."""
    count: tuple[int, ...] = ()
    """Items that were joined; empty: none were."""
    busy_ns: tuple[int, ...] = ()
    """Of items that were joined (``count`` above 1), in order: the sum of their lengths."""
    module: tuple[int, ...] = ()
    """Of operations: place in ``Timeline.texts`` of module and direction; empty where none is known."""
    launch_ns: tuple[int, ...] = ()
    """Of operations: from the begin of the launch call to the start; -1 where not recorded, and of joined items."""
    on_path: tuple[int, ...] = ()
    """Of the representative rank: places of items on the critical path of the captured step, each counted from the one
    before it."""


@dataclass(frozen=True, slots=True)
class TimelineRank:
    """The step of one rank."""

    rank: int
    begin_ns: int
    """When its step begins, from 0 of the timeline."""
    length_ns: int
    clock_ns: int
    """0 of the timeline on the clock of its capture: what Nsight Systems shows, in ns."""
    role: str
    """``representative``, ``late``, ``healthy``, ``other``."""
    lanes: tuple[TimelineLane, ...]
    """Of ranks that are not shown in detail the budget alone."""
    items: int
    """Operations, calls and ranges before short neighbours were joined."""


@dataclass(frozen=True, slots=True)
class TimelineStretch:
    """A stretch of the representative rank's step: a gap, or exposed communication."""

    rank: int
    start_ns: int
    """From 0 of the timeline."""
    ns: int
    cause: str
    """Cause of the gap that holds most of it, as in ``GapCause``; of exposed communication the bucket."""
    detail: str
    """What the host did, or which operation it waited for; of exposed communication the kernel."""
    next_name: str
    """Kernel or copy that ends it; empty where the step ends."""
    clock_ns: int
    """Its start on the clock of the capture, as Nsight Systems shows it."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The representative step of every rank that captured it."""

    step: int
    rank: int
    """The representative rank."""
    is_aligned: bool
    """Whether the clocks of the ranks can be compared; else every rank begins at 0."""
    texts: tuple[str, ...]
    """Names that lanes refer to by their place; the first is empty."""
    ranks: tuple[TimelineRank, ...]
    """The representative one first, then late ones and their healthy peer, then the others."""
    worst_gaps: tuple[TimelineStretch, ...]
    """The longest stretches in which nothing ran on the device, at most ten."""
    exposed_intervals: tuple[TimelineStretch, ...]
    """The longest stretches of exposed communication, at most ten."""
    longest: tuple[TimelineStretch, ...]
    """The three longest stretches that each bucket owns, and of each cause of gaps without compute."""


UNREADABLE = "trace-unreadable"
"""Code of the warning that a trace of several could not be read."""


SETTINGS_UNKNOWN = "settings-unknown"
"""Code of the warning that rules wait for the settings of the run."""


@dataclass(frozen=True, slots=True)
class ReportWarning:
    """Something that limits what the report can claim."""

    code: str
    """Stable; the message is for people."""
    message: str


@dataclass(frozen=True, slots=True)
class UnclassifiedKernel:
    """A kernel name that no pattern knows, with its share of the representative rank's kernel time."""

    name: str
    kernel_ns: int
    """Sum of its durations."""
    count: int
    """Launches."""


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


BENCHMARK_SETTING = "benchmark setting"
BATCH_SIZE = "batch size"


@dataclass(frozen=True, slots=True)
class RecipeDifference:
    """A setting that differs between the run and a tuned recipe."""

    key: str
    kind: str
    """``config`` or ``env``."""
    run: ConfigData
    """Null: unset."""
    recipe: ConfigData
    in_plan: bool
    """Whether the plan edits it, to any value."""
    mark: str = ""
    """Why it is no tuning knob: ``benchmark setting``, ``batch size``; empty for a knob."""


@dataclass(frozen=True, slots=True)
class KnownGoodRecipe:
    """NVIDIA's benchmark recipe nearest to the run: context for the plan, never a measured gain."""

    name: str
    """Function of Megatron-Bridge's ``perf_recipes``."""
    model: str
    gpu: str
    gpus: int
    precision: str
    distance_note: str
    """What matches the run and what does not."""
    source: str
    differences: tuple[RecipeDifference, ...]
    same_count: int
    """Settings with the same value in both."""
    unknown_count: int = 0
    """Settings of the recipe whose value in the run is not known."""


@dataclass(frozen=True, slots=True)
class Report:
    """One complete analysis. A report shows nothing that is not in it."""

    tool_version: str
    inputs: tuple[InputFile, ...]
    verdict: Verdict
    step: StepSummary
    ranks: tuple[RankReport, ...]
    """The captured GPUs, with all their steps; of a surveyed run those that were read in full."""
    budget: tuple[BudgetRow, ...]
    """The representative step, in order of precedence; empty without a kept step."""
    budget_of: str
    """Which step ``budget`` describes: rank, step index, and why that step was chosen."""
    config: RunConfig
    facts: FactSheet
    """The named numbers that rules compare."""
    findings: tuple[Finding, ...]
    """Every rule with its outcome, including those in the plan."""
    plan: tuple[PlanStep, ...]
    """Edits to make, in order."""
    overrides: Overrides
    warnings: tuple[ReportWarning, ...]
    unclassified: tuple[UnclassifiedKernel, ...]
    """Kernels that match no pattern."""
    capabilities: Mapping[str, str]
    """Capability of the trace to ``yes``, or why not (missing table or column, capture mode)."""
    stragglers: tuple[Straggler, ...] = ()
    waits: tuple[Wait, ...] = ()
    alignment: Alignment | None = None
    """Null with a single rank."""
    moe_layers: tuple[MoePart, ...] = ()
    overlap_slowdown: tuple[OverlapSlowdown, ...] = ()
    pipeline_phases: tuple[PipelinePhase, ...] = ()
    log: LogSummary | None = None
    """Null where no training log was given."""
    memory_snapshot: MemorySnapshot | None = None
    """Null where no snapshot was given."""
    recompute_layers: tuple[RecomputedLayer, ...] = ()
    graph_coverage: GraphCoverage | None = None
    """Null where no CUDA graph was launched."""
    efficiency: tuple[Efficiency, ...] = ()
    gemm_shapes: tuple[GemmShape, ...] = ()
    copies: tuple[CopyBandwidth, ...] = ()
    first_trial: FirstTrial | None = None
    """Null for an empty plan."""
    known_good_recipe: KnownGoodRecipe | None = None
    no_recipe_reason: str = ""
    """Why there is no known-good recipe; empty where there is one."""
    critical_path: CriticalPath | None = None
    """Null where the step was not replayed."""
    kernels: tuple[KernelRow, ...] = ()
    """By bucket in the order of the buckets' kernel time, then by time; the rest of a bucket comes last."""
    host_work: tuple[HostWorkRow, ...] = ()
    """The longest starvation first; the rest of each thread comes last."""
    timeline: Timeline | None = None
    """Null without a kept step."""
    history: History | None = None
    """The runs before this one, with what was tried; null where they were not given."""
    survey: Survey | None = None
    """All ranks of a run of many, of which ``ranks`` holds only those that were read in full; null where all were."""
    schema_version: str = SCHEMA_VERSION

    @property
    def ranks_count(self) -> int:
        """The number of captured ranks, in full or surveyed."""
        return self.survey.ranks_count if self.survey else len(self.ranks)

    @property
    def representative_rank(self) -> RankReport | None:
        """The rank whose median step is the report's budget; None without a kept step."""
        budget = {row.bucket: row.ns for row in self.budget if row.ns}
        same = (rank for rank in self.ranks if {name: ns for name, ns in rank.budget.items() if ns} == budget)
        return next(same, None) if budget else None

    def fraction_of_step(self, value_ns: float | None) -> float | None:
        """``value_ns`` over the step of the verdict; None when either is not known."""
        step_ns = self.verdict.step_ns
        return None if value_ns is None or not step_ns else value_ns / step_ns
