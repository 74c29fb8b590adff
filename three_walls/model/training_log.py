"""The contents of a training log as plain values: what ran, how long each iteration took, how much memory it held.

``three_walls/inputs/log`` reads it; nothing here knows a file format. Times are whole nanoseconds, memory is bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


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
    printed_at: str = ""
    """The line's own time stamp, as printed; distinguishes a repeated line from a line of a second run."""
    run: int = field(default=0, compare=False)
    """How often training had started again in the first file that holds the line."""
    file_name: str = field(default="", compare=False)
    """The first file that holds the line: repeated in several files, it counts once."""


@dataclass(frozen=True, slots=True)
class StepTimeLine:
    """Megatron-Bridge's ``Step Time`` line; it has no iteration number."""

    elapsed_ns: int
    tflops_per_gpu: float
    file_name: str = ""


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """One rank's memory lines together: the last current values and the largest peaks."""

    rank: int
    allocated_bytes: int | None = None
    max_allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    max_reserved_bytes: int | None = None
    allocator_retries_count: int | None = None
    """Allocations that failed at first, so that the allocator released its cache (Megatron-Bridge only)."""
    after_iterations_count: int | None = None
    """The last iteration that a line was printed after."""
    device_bytes: int | None = None
    """The most device memory in use, by PyTorch and everything else (Megatron-LM, ``--log-device-memory-used``)."""


@dataclass(frozen=True, slots=True)
class TheoreticalMemory:
    """The framework's own estimate of the most loaded rank."""

    weight_and_optimizer_bytes: int
    activation_bytes: int | None = None
    total_bytes: int | None = None


class TimerKind(StrEnum):
    """What a timer measures: ``tables/log-timers.yaml``, whose header explains how each is read."""

    WORK = "work"
    EXCHANGE = "exchange"
    STEP = "step"
    OUTSIDE = "outside"
    OTHER = "other"


TIMER_KINDS = tuple(kind.value for kind in TimerKind if kind is not TimerKind.OTHER)


@dataclass(frozen=True, slots=True)
class LogTimer:
    """One timer as printed once, per iteration; ``min_ns`` is None where only the longest rank was printed."""

    name: str
    min_ns: int | None
    max_ns: int
    ranks_ns: tuple[tuple[int, int], ...] = ()
    """Rank and its time, by rank. Those printed: all ranks that ran the timer, the two extremes, or none."""


@dataclass(frozen=True, slots=True)
class TimerPrint:
    """The timers of one print. ``after``: the same process's iteration line before it; None if there is none."""

    after: LogIteration | None
    timers: tuple[LogTimer, ...]


@dataclass(frozen=True, slots=True)
class ProgressJob:
    """One job of a progress file (``progress.txt``); None where it saved no checkpoint.

    Its throughputs are not those of iterations: they include start-up, evaluation and checkpoints, the cumulative one
    the time between jobs too.
    """

    gpus: int
    started_at: str = ""
    """As printed; empty where the file begins within the job."""
    saves_count: int = 0
    last_iteration: int | None = None
    """Of its last checkpoint."""
    job_tflops_per_gpu: float | None = None
    """The model's operations since the job started over the time since then, in 10^12/s per GPU."""
    cumulative_tflops_per_gpu: float | None = None
    """The same since the first job with this number of GPUs started."""
    tokens_count: int | None = None
    """Trained on so far, by all jobs; to the digits printed."""


@dataclass(frozen=True, slots=True)
class LogLayout:
    """Sizes of the run as it printed them; None where no line does."""

    world_size: int | None = None
    data_parallel_size: int | None = None
    tensor_model_parallel_size: int | None = None
    pipeline_model_parallel_size: int | None = None
    context_parallel_size: int | None = None
    expert_model_parallel_size: int | None = None
    padded_vocab_size: int | None = None
    """Rows of the embedding; printed where the tokenizer's vocabulary was padded."""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Something that happened once or often: ``kind`` is an entry of ``tables/log-lines.yaml``."""

    kind: str
    text: str
    iteration: int | None = None
    """The iteration that the line names, if it names one."""
    count: int = 1
    """How many lines hold the same text."""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """One report of PyTorch's allocator that gave up; None where the line does not state it."""

    requested_bytes: int
    gpu: int | None = None
    capacity_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    private_pools_bytes: int | None = None
    """The part of the allocated memory that lies in CUDA graphs' pools."""
    reserved_unallocated_bytes: int | None = None
    """Held by the allocator and not in use: if as large as the request, it is fragmentation."""
    raised_in: str = ""
    """Innermost frame of Megatron in its traceback (``megatron/core/optimizer/optimizer.py: step``)."""


@dataclass(frozen=True, slots=True)
class TrainingLog:
    """Every file given, together. ``argument_block`` and ``config_dump`` are raw: nothing here reads settings."""

    files: tuple[str, ...] = ()
    """File names alone, without directories."""
    iterations: tuple[LogIteration, ...] = ()
    """By iteration, then as printed; a line that several files repeat occurs once."""
    step_times: tuple[StepTimeLine, ...] = ()
    memory: tuple[MemoryReport, ...] = ()
    """One per rank that printed its memory."""
    theoretical_memory: TheoreticalMemory | None = None
    timers: tuple[TimerPrint, ...] = ()
    """The prints, oldest first; of very many, a share from all over the run."""
    jobs: tuple[ProgressJob, ...] = ()
    """Of the progress files, in their order."""
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
    config_objects: tuple[tuple[str, str], ...] = ()
    """Megatron Core's configuration of gradients and optimizer as it set them up: ``ddp.name``, ``optimizer.name`` and
    raw value text."""
    versions: tuple[tuple[str, str], ...] = ()
    """Library and release, where a line states them (``megatron_core``, ``megatron_bridge``, ``torch``, ...)."""
    contradictions: tuple[str, ...] = ()
    """Sizes of the layout on which lines differ: the files are of more than one run."""
    torn_lines_count: int = 0
    """Iteration lines that other output cut: none of their values is used."""
    left_out_count: int = 0
    """Iteration and step-time lines beyond the first that are kept, so that memory stays flat."""
    unread: tuple[str, ...] = ()
    """Files of a directory that could not be read, each with the reason."""

    @property
    def world_size(self) -> int | None:
        """Ranks of the run as the log states them, in a line or among its arguments."""
        argument = dict(self.argument_block).get("world_size", "")
        return self.layout.world_size or (int(argument) if argument.isdecimal() and len(argument) < 10 else None)
