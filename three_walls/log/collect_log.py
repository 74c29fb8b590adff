"""Collects what the lines and blocks of a log hold into one :class:`TrainingLog`. Every list has a limit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from three_walls.lib import limits
from three_walls.lib.measurement import NS_PER_MS
from three_walls.log.log_lines import EVENT_KINDS
from three_walls.log.read_lines import ParsedLine, Value, read_value
from three_walls.log.training_log import (
    LogEvent,
    LogIteration,
    LogLayout,
    LogTimer,
    MemoryReport,
    OutOfMemory,
    ProgressJob,
    StepTimeLine,
    TheoreticalMemory,
    TimerPrint,
    TrainingLog,
)

_GOLDEN = 0.6180339887498949
DETECTOR = "straggler-detector"
"""The timer that the lines of --log-straggler make."""
_FIELD = re.compile(r"\s*([A-Za-z_]\w*)=(.*)", re.DOTALL)
_EXPERT_SIZE = ("expert_model_parallel_size", "model.expert_model_parallel_size")
_LAYOUT_NAMES = {
    "world": "world_size",
    "dp": "data_parallel_size",
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "vocabulary": "padded_vocab_size",
}


@dataclass(slots=True)
class Collector:
    """What was read so far: the first block of settings, peaks of memory, a share of the timer prints."""

    iterations: dict[LogIteration, None] = field(default_factory=dict)
    step_times: list[StepTimeLine] = field(default_factory=list)
    memory: dict[int, MemoryReport] = field(default_factory=dict)
    theoretical: TheoreticalMemory | None = None
    timers: dict[TimerPrint, int] = field(default_factory=dict)
    """Timer print -> its number among all prints."""
    timer_values: int = 0
    prints: int = 0
    share: float = 1.0
    """The share of the timer prints that is read."""
    jobs: list[ProgressJob] = field(default_factory=list)
    layout: dict[str, int] = field(default_factory=dict)
    contradictions: set[str] = field(default_factory=set)
    parameters: int | None = None
    """As printed first."""
    parameters_per_rank: int | None = None
    events: dict[tuple[str, str], LogEvent] = field(default_factory=dict)
    ooms: dict[OutOfMemory, None] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    objects: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    blocks: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    torn: int = 0
    left_out: int = 0
    left_out_blocks: Counter[str] = field(default_factory=Counter)
    """Kind -> blocks that did not fit into memory."""
    unplaced: int = 0
    """Iteration lines and tracebacks whose process is one too many to be distinguished."""

    def add(self, parsed: ParsedLine, file_name: str) -> None:
        """Adds the values of one line."""
        kind, values = parsed.kind, parsed.values
        if kind == "step_time" and len(self.step_times) < limits.MOST_ITERATIONS:
            self.step_times.append(StepTimeLine(_int(values["elapsed"]), float(values["tflops"]), file_name))
        elif kind == "step_time":
            self.left_out += 1
        elif kind == "memory":
            self._add_memory(values)
        elif kind == "theoretical_memory":
            self.theoretical = TheoreticalMemory(
                _int(values["weights"]), _optional_int(values, "activation"), _optional_int(values, "total")
            )
        elif kind == "parameters":
            self.parameters = _int(values["parameters"]) if self.parameters is None else self.parameters
        elif kind == "parameters_per_rank":
            self.parameters_per_rank = max(self.parameters_per_rank or 0, _int(values["parameters"]))
        elif kind == "layout":
            for name, value in values.items():
                if self.layout.setdefault(_LAYOUT_NAMES[name], _int(value)) != value:
                    self.contradictions.add(_LAYOUT_NAMES[name])
        elif kind == "version":
            for name, value in values.items():
                self.versions.setdefault(name, str(value))
        elif kind == "config_object":
            for name, text in values.items():
                self.objects[name] = self.objects.get(name) or _read_fields(str(text))
        elif kind == "straggler":
            self._add_event(kind, _without_hosts(values), None)
        elif kind in EVENT_KINDS:
            self._add_event(kind, parsed.text, _optional_int(values, "iteration"))

    def add_block(self, kind: str, entries: list[tuple[str, str]], after: LogIteration | None) -> None:
        """Adds a complete block. ``after``: the last iteration line of the same process before it."""
        if kind in TIMERS:
            self._add_timers(TimerPrint(after, TIMERS[kind](entries)))
        elif entries:
            self.blocks.setdefault(kind, entries)

    def result(self, files: tuple[str, ...]) -> TrainingLog:
        """The log, every list in a total order."""
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
            parameters_count=self.parameters,
            parameters_per_rank_count=self.parameters_per_rank,
            events=tuple(
                sorted(self.events.values(), key=lambda event: (event.kind, event.iteration or 0, event.text))
            ),
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
            left_out_blocks=tuple(
                (kind, count) for kind, count in sorted(self.left_out_blocks.items()) if kind not in self.blocks
            ),
            unplaced_lines_count=self.unplaced,
            unread=tuple(self.unread),
        )

    def add_iteration(self, line: LogIteration) -> None:
        """Adds an iteration line; one that was printed before counts once."""
        if len(self.iterations) < limits.MOST_ITERATIONS:
            self.iterations.setdefault(line)
        elif line not in self.iterations:
            self.left_out += 1

    def _add_memory(self, values: Mapping[str, Value]) -> None:
        rank = _int(values["rank"])
        if rank not in self.memory and len(self.memory) >= limits.MOST_RANKS:
            return
        old = self.memory.get(rank) or MemoryReport(rank)

        def largest(before: int | None, name: str) -> int | None:
            return max((value for value in (before, _optional_int(values, name)) if value is not None), default=None)

        self.memory[rank] = MemoryReport(
            rank=rank,
            allocated_bytes=_optional_int(values, "allocated", old.allocated_bytes),
            max_allocated_bytes=largest(old.max_allocated_bytes, "max_allocated"),
            reserved_bytes=_optional_int(values, "reserved", old.reserved_bytes),
            max_reserved_bytes=largest(old.max_reserved_bytes, "max_reserved"),
            allocator_retries_count=largest(old.allocator_retries_count, "retries"),
            after_iterations_count=largest(old.after_iterations_count, "iterations"),
            device_bytes=largest(old.device_bytes, "device"),
        )

    def add_oom(self, values: Mapping[str, Value], raised_in: str) -> None:
        """Adds an out-of-memory report. ``raised_in``: the frame that raised it; empty if none was read."""
        report = OutOfMemory(
            requested_bytes=_int(values["requested"]),
            gpu=_optional_int(values, "gpu"),
            capacity_bytes=_optional_int(values, "capacity"),
            free_bytes=_optional_int(values, "free"),
            allocated_bytes=_optional_int(values, "allocated"),
            private_pools_bytes=_optional_int(values, "private_pools"),
            reserved_unallocated_bytes=_optional_int(values, "reserved_unallocated"),
            allowed_bytes=_optional_int(values, "allowed"),
            raised_in=raised_in,
        )
        if len(self.ooms) < limits.MOST_EVENTS_OF_A_KIND:
            self.ooms.setdefault(report)

    def add_extremes(self, values: Mapping[str, Value], after: LogIteration | None) -> None:
        """Adds a line of --log-straggler as a timer of two ranks, the fastest and the slowest."""
        ranks_ns = {
            _int(values["fastest"]): _int(values["shortest"]),
            _int(values["slowest"]): _int(values["longest"]),
        }
        if self.wants_print():
            self._add_timers(TimerPrint(after, (_timer_of_ranks(DETECTOR, ranks_ns),)))

    def _add_event(self, kind: str, text: str, iteration: int | None) -> None:
        key = (kind, text)
        if key in self.events:
            self.events[key] = replace(self.events[key], count=self.events[key].count + 1)
        elif len(self.events) < limits.MOST_EVENTS_OF_A_KIND * len(EVENT_KINDS):
            self.events[key] = LogEvent(kind, text, iteration)

    def wants_print(self) -> bool:
        """Whether to read the timer print that begins now: at first every one, in a long log an evenly spread share."""
        self.prints += 1
        return self._is_in_share(self.prints)

    def _add_timers(self, new: TimerPrint) -> None:
        if not new.timers or new in self.timers:
            return
        self.timers[new] = self.prints
        self.timer_values += _count_values(new)
        while self.timer_values > limits.MOST_TIMER_VALUES and len(self.timers) > 1:
            self.share /= 2
            for other in [each for each, number in self.timers.items() if not self._is_in_share(number)]:
                del self.timers[other]
                self.timer_values -= _count_values(other)

    def _is_in_share(self, number: int) -> bool:
        """Multiples of the golden ratio are evenly spread: where two kinds of prints alternate, both are kept."""
        return number * _GOLDEN % 1.0 < self.share


def as_iteration(values: Mapping[str, Value], run: int, file_name: str) -> LogIteration:
    """The iteration line of these values."""
    return LogIteration(
        iteration=_int(values["iteration"]),
        elapsed_ns=_int(values["elapsed"]),
        tflops_per_gpu=_float(values, "tflops"),
        global_batch_size=_optional_int(values, "global_batch_size"),
        loss=_float(values, "loss"),
        loss_scale=_float(values, "loss_scale"),
        skipped_count=_int(values["skipped"]),
        nan_count=_int(values["nan"]),
        printed_at=str(values.get("printed_at", "")),
        run=run,
        file_name=file_name,
    )


def _count_values(timer_print: TimerPrint) -> int:
    return sum(len(timer.ranks_ns) + 2 for timer in timer_print.timers)


def _without_hosts(values: Mapping[str, Value]) -> str:
    """The ranks that nvidia-resiliency-ext reports, without the names of their hosts."""
    text = str(values["ranks"])
    numbers_alone = text if re.fullmatch(r"[\[{(][\d, ]*[)}\]]", text) else ""
    ranks = re.findall(r"\brank=(\d{1,7})\b", text) or re.findall(r"\b\d{1,7}\b", numbers_alone)
    numbers = ", ".join(map(str, sorted({int(rank) for rank in ranks})))
    return f"some GPUs {values['what']}: ranks {numbers or 'not stated'}"


def _expert_size(settings: tuple[tuple[str, str], ...]) -> int | None:
    values = (read_value(value, "count") for name, value in settings if name in _EXPERT_SIZE and value.isdecimal())
    return next((_int(value) for value in values if value is not None), None)


def _int(value: Value) -> int:
    assert isinstance(value, int)
    return value


def _optional_int(values: Mapping[str, Value], name: str, default: int | None = None) -> int | None:
    return _int(values[name]) if name in values else default


def _float(values: Mapping[str, Value], name: str) -> float | None:
    return float(values[name]) if name in values else None


def _read_fields(text: str) -> tuple[tuple[str, str], ...]:
    """Fields of a printed object (``overlap_grad_reduce=True, bucket_size=None``), in order; none if it is truncated.

    ``text`` is what the object's parentheses enclose. What is not ``name=value`` is left out.
    """
    parts, start, depth, quote = [], 0, 0, ""
    for index, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "([{<":
            depth += 1
        elif character in ")]}>":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    if depth or quote:
        return ()
    matches = map(_FIELD.fullmatch, [*parts, text[start:]])
    return tuple((match[1], match[2].strip()) for match in matches if match)


_Entries = Iterable[tuple[str, str]]
"""Names and values of a block of timers; tables/log-lines.yaml admits only numbers with two decimals."""


def _read_timers(entries: _Entries) -> tuple[LogTimer, ...]:
    """Timers of (name, ``12.00`` or ``(11.50, 12.00)``) pairs, sorted by name; of a repeated name the last counts."""
    timers = {}
    for name, text in entries:
        shortest, _, longest = text.strip("()").rpartition(", ")
        timers[name] = LogTimer(name, _ns(shortest) if shortest else None, _ns(longest))
    return tuple(timers[name] for name in sorted(timers))


def _read_rank_timers(entries: _Entries) -> tuple[LogTimer, ...]:
    """Timers of (``name.rank``, milliseconds) pairs, sorted by name."""
    ranks: dict[str, dict[int, int]] = {}
    for entry, text in entries:
        name, _, rank = entry.rpartition(".")
        ranks.setdefault(name, {})[int(rank)] = _ns(text)
    return tuple(_timer_of_ranks(name, ranks[name]) for name in sorted(ranks))


def _timer_of_ranks(name: str, ranks_ns: dict[int, int]) -> LogTimer:
    """The timer of these ranks; at least one."""
    return LogTimer(name, min(ranks_ns.values()), max(ranks_ns.values()), tuple(sorted(ranks_ns.items())))


def _ns(milliseconds: str) -> int:
    return round(float(milliseconds) * NS_PER_MS)


TIMERS = {"timers": _read_timers, "rank_timers": _read_rank_timers}
"""Kind of a block that prints timers -> how its entries are read."""
