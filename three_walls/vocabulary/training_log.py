"""What a training log says, as plain values: what ran, how long each iteration took, how much memory it held.

``three_walls/log`` reads it; nothing here knows a file format. Times are whole nanoseconds, memory is bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LogIteration:
    """One whole iteration line. Its values are averages over the iterations since the line before it."""

    iteration: int
    """The last iteration that the line covers, counted from 1."""
    elapsed_ns: int
    tflops_per_gpu: float | None = None
    """As printed: the model's floating point operations over time, in 10^12/s per GPU."""
    global_batch_size: int | None = None
    loss_scale: float | None = None
    skipped_count: int = 0
    nan_count: int = 0
    said_at: str = ""
    """The line's own time stamp, as printed; tells a repeated line from one of a second run."""
    file_name: str = ""


@dataclass(frozen=True, slots=True)
class StepTimeLine:
    """Megatron-Bridge's ``Step Time`` line; it has no iteration number."""

    elapsed_ns: int
    tflops_per_gpu: float
    file_name: str = ""


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """What one rank's memory lines say together: the last current values and the largest peaks."""

    rank: int
    allocated_bytes: int | None = None
    max_allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    max_reserved_bytes: int | None = None
    allocator_retries_count: int | None = None
    """Allocations that failed at first, so that the allocator gave its cache back (Megatron-Bridge only)."""


@dataclass(frozen=True, slots=True)
class TheoreticalMemory:
    """The framework's own estimate of the most loaded rank."""

    weight_and_optimizer_bytes: int
    activation_bytes: int | None = None
    total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class LogTimer:
    """The last value of one timer; ``min_ns`` is None where only the longest rank was printed."""

    name: str
    min_ns: int | None
    max_ns: int


@dataclass(frozen=True, slots=True)
class LogLayout:
    """Sizes of the run as it printed them; None where no line says."""

    world_size: int | None = None
    data_parallel_size: int | None = None
    tensor_model_parallel_size: int | None = None
    pipeline_model_parallel_size: int | None = None
    context_parallel_size: int | None = None
    expert_model_parallel_size: int | None = None


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Something that happened once or often: ``kind`` is an entry of ``rules/log-lines.yaml``."""

    kind: str
    text: str
    iteration: int | None = None
    """The iteration that the line names, if it names one."""
    count: int = 1
    """How many lines said the same."""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """One report of PyTorch's allocator that gave up; None where the line does not say."""

    requested_bytes: int
    gpu: int | None = None
    capacity_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    private_pools_bytes: int | None = None
    """Part of the allocated memory that lies in CUDA graphs' pools."""
    reserved_unallocated_bytes: int | None = None
    """Held by the allocator and used by nobody: as large as the request, it is fragmentation."""


@dataclass(frozen=True, slots=True)
class TrainingLog:
    """Every file given, together. ``argument_block`` and ``config_dump`` are raw: nothing here reads settings."""

    files: tuple[str, ...] = ()
    """File names alone, without directories."""
    iterations: tuple[LogIteration, ...] = ()
    """By iteration, then as printed; a line that several files repeat stands once."""
    step_times: tuple[StepTimeLine, ...] = ()
    memory: tuple[MemoryReport, ...] = ()
    """One per rank that printed its memory."""
    theoretical_memory: TheoreticalMemory | None = None
    timers: tuple[LogTimer, ...] = ()
    layout: LogLayout = field(default_factory=LogLayout)
    parameters_count: int | None = None
    """Parameters of the whole model, to the digits printed."""
    parameters_per_rank_count: int | None = None
    """Parameters of the largest model-parallel rank that printed them."""
    events: tuple[LogEvent, ...] = ()
    ooms: tuple[OutOfMemory, ...] = ()
    argument_block: tuple[tuple[str, str], ...] = ()
    """Megatron-LM's ``arguments`` block: raw name, raw value text."""
    config_dump: str | None = None
    """Megatron-Bridge's whole configuration, as YAML text."""
    non_default_settings: tuple[tuple[str, str], ...] = ()
    """Megatron-Bridge's ``Configuration Summary``: ``section.name`` and raw value text."""
    versions: tuple[tuple[str, str], ...] = ()
    """Library and release, where a line says it (``megatron_core``, ``megatron_bridge``, ``torch``, ...)."""
    contradictions: tuple[str, ...] = ()
    """Sizes of the layout that lines give differently: the files are of more than one run."""
    torn_lines_count: int = 0
    """Iteration lines that other output had cut: none of their values is used."""
    left_out_count: int = 0
    """Iteration and step-time lines beyond the first that are kept, so that memory stays flat."""
