"""The contents of a training log as plain values: what ran, how long iterations took, how much memory they used.

``read_log.py`` makes them from the log's files. Times are whole nanoseconds, memory is bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from three_walls.lib.measurement import NS_PER_S

_TIME_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", re.ASCII)


@dataclass(frozen=True, slots=True)
class LogIteration:
    """An intact iteration line. Its values are averages over the iterations since the line before it."""

    iteration: int
    """The last iteration that the line covers, counted from 1."""
    elapsed_ns: int
    tflops_per_gpu: float | None = None
    """As printed: the model's floating-point operations over time, in 10^12/s per GPU."""
    global_batch_size: int | None = None
    loss: float | None = None
    """Of the language model, without the losses of its router."""
    loss_scale: float | None = None
    skipped_count: int = 0
    nan_count: int = 0
    printed_at: str = ""
    """The line's own time stamp, as printed. It distinguishes a repeated line from a line of a second run."""
    run: int = field(default=0, compare=False)
    """How often training had restarted before this line, in the first file that contains it."""
    file_name: str = field(default="", compare=False)
    """The first file that contains the line; a line repeated in several files counts once."""

    @property
    def printed_ns(self) -> int | None:
        """The time stamp in ns since the epoch, as if it were UTC; None where the line has no whole one."""
        stamp = _TIME_STAMP.match(self.printed_at)
        try:
            return None if stamp is None else round(datetime.fromisoformat(f"{stamp[0]}Z").timestamp()) * NS_PER_S
        except ValueError:  # a date that no calendar has
            return None


@dataclass(frozen=True, slots=True)
class StepTimeLine:
    """Megatron-Bridge's ``Step Time`` line, which has no iteration number."""

    elapsed_ns: int
    tflops_per_gpu: float
    file_name: str = ""


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """All memory lines of a rank together: the last current values and the largest peaks."""

    rank: int
    allocated_bytes: int | None = None
    max_allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    max_reserved_bytes: int | None = None
    allocator_retries_count: int | None = None
    """Allocations that failed at first, so that the allocator released its cache to retry (Megatron-Bridge only)."""
    after_iterations_count: int | None = None
    """The last iteration after which such a line was printed."""
    device_bytes: int | None = None
    """The most device memory in use, by PyTorch and everything else (Megatron-LM, ``--log-device-memory-used``)."""


@dataclass(frozen=True, slots=True)
class TheoreticalMemory:
    """The framework's own memory estimate for the rank that needs most."""

    weight_and_optimizer_bytes: int
    activation_bytes: int | None = None
    total_bytes: int | None = None


class TimerKind(StrEnum):
    """What a timer measures; ``tables/log-timers.yaml`` explains how each kind is read."""

    WORK = "work"
    EXCHANGE = "exchange"
    STEP = "step"
    OUTSIDE = "outside"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class LogTimer:
    """A timer in a single print, as time per iteration."""

    name: str
    min_ns: int | None
    """The fastest rank; None where only the slowest was printed."""
    max_ns: int
    """The slowest rank."""
    ranks_ns: tuple[tuple[int, int], ...] = ()
    """Ranks and their times, by rank, as far as printed: all that ran the timer, the two extremes, or none."""


@dataclass(frozen=True, slots=True)
class TimerPrint:
    """Timers that were printed together."""

    after: LogIteration | None
    """The iteration line that the same process printed before; None if there is none."""
    timers: tuple[LogTimer, ...]


@dataclass(frozen=True, slots=True)
class ProgressJob:
    """A job of a progress file (``progress.txt``). Its values are None where it saved no checkpoint.

    The throughputs are not those of iterations: they include start-up, evaluation and checkpoints, and the cumulative
    throughput also the time between jobs.
    """

    gpus: int
    started_at: str = ""
    """As printed; empty where the file begins in the middle of the job."""
    saves_count: int = 0
    """Number of checkpoints that it saved."""
    last_iteration: int | None = None
    """The iteration of its last checkpoint."""
    job_tflops_per_gpu: float | None = None
    """The model's operations since the job started over the time since then, in 10^12/s per GPU."""
    cumulative_tflops_per_gpu: float | None = None
    """The same since the first job with this number of GPUs started."""
    tokens_count: int | None = None
    """Tokens that all jobs so far have trained on, to the digits printed."""


@dataclass(frozen=True, slots=True)
class LogLayout:
    """Sizes of the run as it printed them; None where no line states them."""

    world_size: int | None = None
    data_parallel_size: int | None = None
    tensor_model_parallel_size: int | None = None
    pipeline_model_parallel_size: int | None = None
    context_parallel_size: int | None = None
    expert_model_parallel_size: int | None = None
    padded_vocab_size: int | None = None
    """Rows of the embedding. Printed only where the tokenizer's vocabulary was padded."""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Something notable that the log reports, once or repeatedly."""

    kind: str
    """An entry of ``tables/log-lines.yaml``."""
    text: str
    iteration: int | None = None
    """The iteration that the line names, if it names any."""
    count: int = 1
    """How many lines have the same text."""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """An out-of-memory error of PyTorch's allocator. A value is None where the error does not state it."""

    requested_bytes: int
    gpu: int | None = None
    capacity_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    private_pools_bytes: int | None = None
    """The part of the allocated memory that lies in the pools of CUDA graphs."""
    reserved_unallocated_bytes: int | None = None
    """Reserved by the allocator but not in use. If this is as large as the request, the memory is fragmented."""
    allowed_bytes: int | None = None
    """What the allocator may have at most; stated where a job limits it (``set_per_process_memory_fraction``)."""
    raised_in: str = ""
    """The innermost frame of Megatron in the traceback (``megatron/core/optimizer/optimizer.py: step``)."""


@dataclass(frozen=True, slots=True)
class TrainingLog:
    """All files of a log together. Settings are raw text: ``megatron/settings`` reads them."""

    files: tuple[str, ...] = ()
    """File names without directories."""
    iterations: tuple[LogIteration, ...] = ()
    """By iteration, then in the order printed; a line that several files repeat occurs once."""
    step_times: tuple[StepTimeLine, ...] = ()
    memory: tuple[MemoryReport, ...] = ()
    """One per rank that printed its memory."""
    theoretical_memory: TheoreticalMemory | None = None
    timers: tuple[TimerPrint, ...] = ()
    """Oldest first. Of very many prints a sample from the whole run."""
    jobs: tuple[ProgressJob, ...] = ()
    """The jobs of all progress files, in the order of the files."""
    layout: LogLayout = field(default_factory=LogLayout)
    parameters_count: int | None = None
    """Parameters of the whole model, to the digits printed."""
    parameters_per_rank_count: int | None = None
    """Parameters of the largest model-parallel rank that printed them."""
    events: tuple[LogEvent, ...] = ()
    ooms: tuple[OutOfMemory, ...] = ()
    argument_block: tuple[tuple[str, str], ...] = ()
    """Megatron-LM's ``arguments`` block: names and their values as text."""
    config_dump: str | None = None
    """Megatron-Bridge's whole configuration, as YAML text."""
    non_default_settings: tuple[tuple[str, str], ...] = ()
    """Megatron-Bridge's ``Configuration Summary``: ``section.name`` and the value as text."""
    config_objects: tuple[tuple[str, str], ...] = ()
    """Megatron Core's configuration of gradients and optimizer as it was set up: ``ddp.name`` or ``optimizer.name`` and
    the value as text."""
    versions: tuple[tuple[str, str], ...] = ()
    """Libraries and their releases, where lines state them (``megatron_core``, ``megatron_bridge``, ``torch``, ...)."""
    contradictions: tuple[str, ...] = ()
    """Sizes on which lines disagree: the files belong to more than one run."""
    torn_lines_count: int = 0
    """Iteration lines that other output interrupted; none of their values is used."""
    left_out_count: int = 0
    """Iteration and step-time lines left out because there are very many, so that memory stays bounded."""
    left_out_blocks: tuple[tuple[str, int], ...] = ()
    """Kind and number of blocks left out for the same reason; of a kind that is read once, only where none was read."""
    unplaced_lines_count: int = 0
    """Iteration lines and tracebacks that were read without their process, because there are very many processes."""
    unread: tuple[str, ...] = ()
    """Files of a directory that could not be read, each with its reason."""

    @property
    def printed_at(self) -> tuple[str, ...]:
        """Time stamps of the iteration lines that have a whole one, the earliest first; a log prints local time."""
        stamps = (_TIME_STAMP.match(line.printed_at) for line in self.iterations)
        return tuple(sorted(stamp[0] for stamp in stamps if stamp))

    @property
    def is_empty(self) -> bool:
        """Whether no line of Megatron-LM or Megatron-Bridge was found in it."""
        timings = self.iterations, self.step_times, self.timers
        other_lines = self.memory, self.argument_block, self.events, self.ooms, self.jobs, self.left_out_blocks
        return not any((*timings, *other_lines))

    @property
    def world_size(self) -> int | None:
        """Number of ranks, as the log states it in a line or among its arguments."""
        argument = dict(self.argument_block).get("world_size", "")
        return self.layout.world_size or (int(argument) if argument.isdecimal() and len(argument) < 10 else None)
