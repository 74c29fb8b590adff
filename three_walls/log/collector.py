"""Gathers what the lines say into one :class:`TrainingLog`, whatever their number: every list has a limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from three_walls.log.blocks import Block
from three_walls.log.lines import Statement, Value, read_value
from three_walls.vocabulary.training_log import (
    LogEvent,
    LogIteration,
    LogLayout,
    LogTimer,
    MemoryReport,
    OutOfMemory,
    StepTimeLine,
    TheoreticalMemory,
    TrainingLog,
)

MOST_ITERATIONS = 100_000
MOST_OF_A_KIND = 1_000
MOST_RANKS = 100_000
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
)
_EXPERT_SIZE = ("expert_model_parallel_size", "model.expert_model_parallel_size")
_SHORT = {
    "world": "world_size",
    "dp": "data_parallel_size",
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
}


@dataclass(slots=True)
class Collector:
    """What was read so far. Of settings the first block counts; of memory the peaks; of timers the last values."""

    iterations: dict[LogIteration, str] = field(default_factory=dict)
    """Line -> the file that said it first."""
    step_times: list[StepTimeLine] = field(default_factory=list)
    memory: dict[int, MemoryReport] = field(default_factory=dict)
    theoretical: TheoreticalMemory | None = None
    timers: dict[str, LogTimer] = field(default_factory=dict)
    layout: dict[str, int] = field(default_factory=dict)
    contradictions: set[str] = field(default_factory=set)
    parameters: list[int] = field(default_factory=list)
    parameters_per_rank: int | None = None
    events: dict[tuple[str, str], LogEvent] = field(default_factory=dict)
    ooms: dict[OutOfMemory, None] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    blocks: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    torn: int = 0
    left_out: int = 0

    def add(self, said: Statement, file_name: str) -> None:
        """Takes one line's values."""
        values = said.values
        if said.kind == "iteration":
            self._add_iteration(values, file_name)
        elif said.kind == "step_time":
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
        elif said.kind == "out_of_memory":
            self._add_oom(values)
        elif said.kind == "version":
            for name, value in values.items():
                self.versions.setdefault(name, str(value))
        elif said.kind in _EVENTS:
            self._add_event(said)

    def add_block(self, block: Block) -> None:
        """Takes a block that is over."""
        if block.row.kind == "timers":
            for name, value in block.entries:
                self._add_timer(name, value)
        elif block.entries:
            self.blocks.setdefault(block.row.kind, block.entries)

    def result(self, files: tuple[str, ...]) -> TrainingLog:
        """Everything, in total orders."""
        dump = self.blocks.get("config_dump")
        arguments = tuple(self.blocks.get("argument_block", ()))
        settings = tuple(self.blocks.get("non_default_settings", ()))
        return TrainingLog(
            files=files,
            iterations=tuple(replace(line, file_name=name) for line, name in self.iterations.items()),
            step_times=tuple(self.step_times),
            memory=tuple(self.memory[rank] for rank in sorted(self.memory)),
            theoretical_memory=self.theoretical,
            timers=tuple(self.timers[name] for name in sorted(self.timers)),
            layout=LogLayout(**self.layout, expert_model_parallel_size=_expert_size((*arguments, *settings))),
            parameters_count=self.parameters[0] if self.parameters else None,
            parameters_per_rank_count=self.parameters_per_rank,
            events=tuple(sorted(self.events.values(), key=lambda one: (one.kind, one.iteration or 0, one.text))),
            ooms=tuple(self.ooms),
            argument_block=arguments,
            config_dump="".join(f"{line}\n" for _, line in dump) if dump else None,
            non_default_settings=settings,
            versions=tuple(sorted(self.versions.items())),
            contradictions=tuple(sorted(self.contradictions)),
            torn_lines_count=self.torn,
            left_out_count=self.left_out,
        )

    def _add_iteration(self, values: Mapping[str, Value], file_name: str) -> None:
        line = LogIteration(
            iteration=_int(values["iteration"]),
            elapsed_ns=_int(values["elapsed"]),
            tflops_per_gpu=_float(values, "tflops"),
            global_batch_size=_maybe(values, "global_batch_size"),
            loss_scale=_float(values, "loss_scale"),
            skipped_count=_int(values["skipped"]),
            nan_count=_int(values["nan"]),
            said_at=str(values.get("said_at", "")),
        )
        if len(self.iterations) < MOST_ITERATIONS:
            self.iterations.setdefault(line, file_name)
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
        )

    def _add_oom(self, values: Mapping[str, Value]) -> None:
        report = OutOfMemory(
            requested_bytes=_int(values["requested"]),
            gpu=_maybe(values, "gpu"),
            capacity_bytes=_maybe(values, "capacity"),
            free_bytes=_maybe(values, "free"),
            allocated_bytes=_maybe(values, "allocated"),
            private_pools_bytes=_maybe(values, "private_pools"),
            reserved_unallocated_bytes=_maybe(values, "reserved_unallocated"),
        )
        if len(self.ooms) < MOST_OF_A_KIND:
            self.ooms.setdefault(report)

    def _add_event(self, said: Statement) -> None:
        key = (said.kind, said.text)
        if key in self.events:
            self.events[key] = replace(self.events[key], count=self.events[key].count + 1)
        elif len(self.events) < MOST_OF_A_KIND * len(_EVENTS):
            self.events[key] = LogEvent(said.kind, said.text, _maybe(said.values, "iteration"))

    def _add_timer(self, name: str, value: str) -> None:
        shortest, _, longest = value.rpartition(", ")
        max_ns, min_ns = read_value(longest, "ms"), read_value(shortest, "ms") if shortest else None
        if max_ns is not None and (name in self.timers or len(self.timers) < MOST_OF_A_KIND):
            self.timers[name] = LogTimer(name, None if min_ns is None else _int(min_ns), _int(max_ns))


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
