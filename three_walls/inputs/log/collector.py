"""Gathers what the lines say into one :class:`TrainingLog`, whatever their number: every list has a limit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from three_walls.inputs.log.blocks import Block
from three_walls.inputs.log.config_objects import read_fields
from three_walls.inputs.log.lines import Statement, Value
from three_walls.inputs.log.timers import read_rank_timers, read_timers, timer_of_ranks
from three_walls.model.training_log import (
    LogEvent,
    LogIteration,
    LogLayout,
    MemoryReport,
    OutOfMemory,
    ProgressJob,
    StepTimeLine,
    TheoreticalMemory,
    TimerPrint,
    TrainingLog,
)

MOST_ITERATIONS = 100_000
MOST_OF_A_KIND = 1_000
MOST_RANKS = 100_000
MOST_TIMER_VALUES = 100_000
"""Values of timers that are kept: 800 prints of 12 timers on 8 ranks, 8 on 1,024. Of more, a share is read."""
_GOLDEN = 0.6180339887498949
DETECTOR = "straggler-detector"
"""The timer that the lines of --log-straggler make."""
_EVENTS = (
    "training_start",
    "training_end",
    "evaluation",
    "checkpoint",
    "checkpoint_saved",
    "dispatcher",
    "overlap",
    "override_skipped",
    "cuda_graphs",
    "failure",
    "memory_snapshot",
)
_EXPERT_SIZE = ("expert_model_parallel_size", "model.expert_model_parallel_size")
_SHORT = {
    "world": "world_size",
    "dp": "data_parallel_size",
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "vocabulary": "padded_vocab_size",
}


@dataclass(slots=True)
class Collector:
    """What was read so far: of settings the first block, of memory the peaks, of timers a share of the prints."""

    iterations: dict[LogIteration, None] = field(default_factory=dict)
    step_times: list[StepTimeLine] = field(default_factory=list)
    memory: dict[int, MemoryReport] = field(default_factory=dict)
    theoretical: TheoreticalMemory | None = None
    timers: dict[TimerPrint, int] = field(default_factory=dict)
    """Print -> its number among all prints."""
    timer_values: int = 0
    prints: int = 0
    share: float = 1.0
    """Of the prints that are read."""
    jobs: list[ProgressJob] = field(default_factory=list)
    layout: dict[str, int] = field(default_factory=dict)
    contradictions: set[str] = field(default_factory=set)
    parameters: list[int] = field(default_factory=list)
    parameters_per_rank: int | None = None
    events: dict[tuple[str, str], LogEvent] = field(default_factory=dict)
    ooms: dict[OutOfMemory, None] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    objects: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    blocks: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    torn: int = 0
    left_out: int = 0

    def add(self, said: Statement, file_name: str) -> None:
        """Takes one line's values."""
        values = said.values
        if said.kind == "step_time":
            self._add_step_time(values, file_name)
        elif said.kind == "memory":
            self._add_memory(values)
        elif said.kind == "theoretical_memory":
            self.theoretical = TheoreticalMemory(
                _int(values["weights"]), _maybe(values, "activation"), _maybe(values, "total")
            )
        elif said.kind == "parameters":
            self.parameters = self.parameters or [_int(values["parameters"])]
        elif said.kind == "parameters_per_rank":
            self.parameters_per_rank = max(self.parameters_per_rank or 0, _int(values["parameters"]))
        elif said.kind == "layout":
            for name, value in values.items():
                if self.layout.setdefault(_SHORT[name], _int(value)) != value:
                    self.contradictions.add(_SHORT[name])
        elif said.kind == "version":
            for name, value in values.items():
                self.versions.setdefault(name, str(value))
        elif said.kind == "config_object":
            for name, text in values.items():
                self.objects[name] = self.objects.get(name) or read_fields(str(text))
        elif said.kind == "straggler":
            self._add_event(said.kind, _without_hosts(values), None)
        elif said.kind in _EVENTS:
            self._add_event(said.kind, said.text, _maybe(values, "iteration"))

    def add_block(self, block: Block) -> None:
        """Takes a block that is over."""
        if block.row.kind in TIMERS:
            self._add_timers(TimerPrint(block.after, TIMERS[block.row.kind](block.entries)))
        elif block.entries:
            self.blocks.setdefault(block.row.kind, block.entries)

    def result(self, files: tuple[str, ...]) -> TrainingLog:
        """Everything, in total orders."""
        dump = self.blocks.get("config_dump")
        arguments = tuple(self.blocks.get("argument_block", ()))
        settings = tuple(self.blocks.get("non_default_settings", ()))
        return TrainingLog(
            files=files,
            iterations=tuple(self.iterations),
            step_times=tuple(self.step_times),
            memory=tuple(self.memory[rank] for rank in sorted(self.memory)),
            theoretical_memory=self.theoretical,
            timers=tuple(self.timers),
            jobs=tuple(dict.fromkeys(self.jobs)),
            layout=LogLayout(**self.layout, expert_model_parallel_size=_expert_size((*arguments, *settings))),
            parameters_count=self.parameters[0] if self.parameters else None,
            parameters_per_rank_count=self.parameters_per_rank,
            events=tuple(sorted(self.events.values(), key=lambda one: (one.kind, one.iteration or 0, one.text))),
            ooms=tuple(self.ooms),
            argument_block=arguments,
            config_dump="".join(f"{line}\n" for _, line in dump) if dump else None,
            non_default_settings=settings,
            config_objects=tuple(
                (f"{name}.{field_name}", text)
                for name, fields in sorted(self.objects.items())
                for field_name, text in fields
            ),
            versions=tuple(sorted(self.versions.items())),
            contradictions=tuple(sorted(self.contradictions)),
            torn_lines_count=self.torn,
            left_out_count=self.left_out,
            unread=tuple(self.unread),
        )

    def add_iteration(self, line: LogIteration) -> None:
        """Takes an iteration line; one that was said before counts once."""
        if len(self.iterations) < MOST_ITERATIONS:
            self.iterations.setdefault(line)
        elif line not in self.iterations:
            self.left_out += 1

    def _add_step_time(self, values: Mapping[str, Value], file_name: str) -> None:
        if len(self.step_times) < MOST_ITERATIONS:
            self.step_times.append(StepTimeLine(_int(values["elapsed"]), float(values["tflops"]), file_name))
        else:
            self.left_out += 1

    def _add_memory(self, values: Mapping[str, Value]) -> None:
        rank = _int(values["rank"])
        old = self.memory.get(rank) or MemoryReport(rank)
        if rank not in self.memory and len(self.memory) >= MOST_RANKS:
            return
        allocated, reserved = _maybe(values, "allocated"), _maybe(values, "reserved")
        self.memory[rank] = MemoryReport(
            rank=rank,
            allocated_bytes=old.allocated_bytes if allocated is None else allocated,
            max_allocated_bytes=_largest(old.max_allocated_bytes, _maybe(values, "max_allocated")),
            reserved_bytes=old.reserved_bytes if reserved is None else reserved,
            max_reserved_bytes=_largest(old.max_reserved_bytes, _maybe(values, "max_reserved")),
            allocator_retries_count=_largest(old.allocator_retries_count, _maybe(values, "retries")),
            after_iterations_count=_largest(old.after_iterations_count, _maybe(values, "iterations")),
            device_bytes=_largest(old.device_bytes, _maybe(values, "device")),
        )

    def add_oom(self, values: Mapping[str, Value], raised_in: str) -> None:
        """Takes a report of memory exhausted, with the frame that it was raised in, where one was read."""
        report = OutOfMemory(
            requested_bytes=_int(values["requested"]),
            gpu=_maybe(values, "gpu"),
            capacity_bytes=_maybe(values, "capacity"),
            free_bytes=_maybe(values, "free"),
            allocated_bytes=_maybe(values, "allocated"),
            private_pools_bytes=_maybe(values, "private_pools"),
            reserved_unallocated_bytes=_maybe(values, "reserved_unallocated"),
            raised_in=raised_in,
        )
        if len(self.ooms) < MOST_OF_A_KIND:
            self.ooms.setdefault(report)

    def add_extremes(self, values: Mapping[str, Value], after: LogIteration | None) -> None:
        """Takes a line of --log-straggler: the fastest and the slowest rank, as a timer of these two."""
        ranks_ns = {
            _int(values["fastest"]): _int(values["shortest"]),
            _int(values["slowest"]): _int(values["longest"]),
        }
        if self.wants_print():
            self._add_timers(TimerPrint(after, (timer_of_ranks(DETECTOR, ranks_ns),)))

    def _add_event(self, kind: str, text: str, iteration: int | None) -> None:
        key = (kind, text)
        if key in self.events:
            self.events[key] = replace(self.events[key], count=self.events[key].count + 1)
        elif len(self.events) < MOST_OF_A_KIND * len(_EVENTS):
            self.events[key] = LogEvent(kind, text, iteration)

    def wants_print(self) -> bool:
        """Whether the print of timers that begins now is to be read: all at first, later a random share of them."""
        self.prints += 1
        return self._is_kept(self.prints)

    def _add_timers(self, printed: TimerPrint) -> None:
        if not printed.timers or printed in self.timers:
            return
        self.timers[printed] = self.prints
        self.timer_values += _count_values(printed)
        while self.timer_values > MOST_TIMER_VALUES and len(self.timers) > 1:
            self.share /= 2
            for one in [one for one, number in self.timers.items() if not self._is_kept(number)]:
                del self.timers[one]
                self.timer_values -= _count_values(one)

    def _is_kept(self, number: int) -> bool:
        """Multiples of the golden ratio are spread evenly, and follow no rhythm in which timers are printed."""
        return number * _GOLDEN % 1.0 < self.share


TIMERS = {"timers": read_timers, "rank_timers": read_rank_timers}


def as_iteration(values: Mapping[str, Value], run: int, file_name: str) -> LogIteration:
    """The iteration line of these values."""
    return LogIteration(
        iteration=_int(values["iteration"]),
        elapsed_ns=_int(values["elapsed"]),
        tflops_per_gpu=_float(values, "tflops"),
        global_batch_size=_maybe(values, "global_batch_size"),
        loss_scale=_float(values, "loss_scale"),
        skipped_count=_int(values["skipped"]),
        nan_count=_int(values["nan"]),
        said_at=str(values.get("said_at", "")),
        run=run,
        file_name=file_name,
    )


def _count_values(printed: TimerPrint) -> int:
    return sum(len(timer.ranks_ns) + 2 for timer in printed.timers)


def _without_hosts(values: Mapping[str, Value]) -> str:
    """What nvidia-resiliency-ext says of ranks, without the names of their hosts."""
    said = str(values["ranks"])
    plain = said if re.fullmatch(r"[\[{(][\d, ]*[)}\]]", said) else ""
    ranks = re.findall(r"\brank=(\d{1,7})\b", said) or re.findall(r"\b\d{1,7}\b", plain)
    named = ", ".join(map(str, sorted({int(rank) for rank in ranks})))
    return f"some GPUs {values['what']}: ranks {named or 'not told'}"


def _expert_size(settings: tuple[tuple[str, str], ...]) -> int | None:
    return next((int(value) for name, value in settings if name in _EXPERT_SIZE and value.isdecimal()), None)


def _largest(old: int | None, new: int | None) -> int | None:
    return max((one for one in (old, new) if one is not None), default=None)


def _int(value: Value) -> int:
    assert isinstance(value, int)
    return value


def _maybe(values: Mapping[str, Value], name: str) -> int | None:
    return _int(values[name]) if name in values else None


def _float(values: Mapping[str, Value], name: str) -> float | None:
    return float(values[name]) if name in values else None
