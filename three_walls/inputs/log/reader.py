"""Reads training logs: the only place that knows how files, lines and blocks come together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from three_walls.inputs import limits
from three_walls.inputs.log.blocks import Block, open_block
from three_walls.inputs.log.collector import TIMERS, Collector, as_iteration
from three_walls.inputs.log.files import find_logs, read_chunks
from three_walls.inputs.log.lines import FoundLine, SourceLine, Statement, Value, read_line, scan_lines, strip_prefixes
from three_walls.model.errors import InputError
from three_walls.model.training_log import LogIteration, ProgressJob, TrainingLog
from three_walls.tables.log_lines import LogGrammar, log_grammar

_JOB_START = "Starting job"
_OF_CHECKPOINT = frozenset({"iteration", "job", "cumulative", "tokens"})
"""Values that a checkpoint's line of a progress file has."""


def read_logs(paths: Sequence[Path]) -> TrainingLog:
    """The logs of one run, by Megatron-LM or Megatron-Bridge. ``paths``: files, or directories of them.

    Lines may carry prefixes of launchers, and several processes may write in between. Memory does not grow with the
    files' size. A file of anything else contributes nothing; one that a directory holds and that cannot be read is left
    out and named. Raises InputError for a named file, or where a directory holds no file that can be read.
    """
    collector = Collector()
    files = find_logs(paths)
    failures: list[InputError] = []
    for file in files:
        try:
            read_text(read_chunks(file.path), collector, file.path.name)
        except InputError as error:
            if file.is_named:
                raise
            failures.append(error)
            collector.unread.append(str(error).replace(str(file.path), file.path.name))
    if failures and len(failures) == len(files):
        raise failures[0]
    return collector.result(tuple(file.path.name for file in files))


def read_text(chunks: Iterable[bytes], collector: Collector, file_name: str) -> None:
    """One file's text into ``collector``."""
    grammar = log_grammar()
    file = _File(grammar, collector, file_name)
    for found in scan_lines(chunks, grammar.anchors, lambda: bool(file.blocks)):
        file.read(found)
    file.close()


@dataclass(slots=True)
class _File:
    """What is kept from line to line of one file."""

    grammar: LogGrammar
    collector: Collector
    file_name: str
    blocks: dict[str, Block] = field(default_factory=dict)
    """Open blocks, by the process that writes them."""
    latest: dict[str, LogIteration] = field(default_factory=dict)
    """The last iteration line of each process."""
    frames: dict[str, str] = field(default_factory=dict)
    """The innermost frame of Megatron in the last traceback of each process."""
    jobs: deque[ProgressJob] = field(default_factory=lambda: deque(maxlen=limits.MOST_JOBS))
    """Jobs of a progress file, in its order."""
    run: int = 0
    """How often training has started again."""
    is_running: bool = False

    def read(self, found: FoundLine) -> None:
        line = strip_prefixes(found.text.decode("utf-8", "replace"), self.grammar, found.is_ended)
        if found.is_anchored and self._open(line, found.text):
            return
        for origin, block in list(self.blocks.items()):
            block.read(line)
            if block.is_closed:
                self._close(origin)
        if found.is_anchored:
            self._read_statements(line, found.text)

    def _open(self, line: SourceLine, raw: bytes) -> bool:
        """Opens the block that ``line`` begins; False where it begins none, or stands within one that comes once."""
        opened = open_block(line, raw, self.grammar, self.collector.blocks.keys())
        within = self.blocks.get(line.origin)
        if opened is None or (within and opened.row.repeats and not within.row.repeats):
            return False
        self._close(line.origin)
        if opened.row.kind not in TIMERS or self.collector.wants_print():
            opened.after = self.latest.get(line.origin)
            self.blocks[line.origin] = opened
        return True

    def close(self) -> None:
        for origin in list(self.blocks):
            self._close(origin)
        self.collector.jobs.extend(self.jobs)

    def _close(self, origin: str) -> None:
        block = self.blocks.pop(origin, None)
        if block is None:
            return
        if block.row.kind == "traceback":
            if origin in self.frames or len(self.frames) < limits.MOST_PROCESSES:
                self.frames[origin] = ": ".join(block.entries[-1]) if block.entries else ""
        else:
            self.collector.add_block(block)

    def _read_statements(self, line: SourceLine, raw: bytes) -> None:
        statements, torn = read_line(line, raw, self.grammar)
        for statement in statements:
            self._add(statement, line.origin)
        self.collector.torn += torn.count("iteration")

    def _add(self, statement: Statement, origin: str) -> None:
        if statement.kind == "iteration":
            self._add_iteration(statement, origin)
        elif statement.kind == "progress":
            self._add_progress(statement.values)
        elif statement.kind == "out_of_memory":
            self.collector.add_oom(statement.values, self.frames.pop(origin, ""))
        elif statement.kind == "straggler_detector":
            self.collector.add_extremes(statement.values, self.latest.get(origin))
        else:
            if statement.kind == "training_start" and self.is_running:
                self.run, self.is_running = self.run + 1, False
            self.collector.add(statement, self.file_name)

    def _add_iteration(self, statement: Statement, origin: str) -> None:
        line = as_iteration(statement.values, self.run, self.file_name)
        self.is_running = True
        self.collector.add_iteration(line)
        if origin in self.latest or len(self.latest) < limits.MOST_PROCESSES:
            self.latest[origin] = line

    def _add_progress(self, values: Mapping[str, Value]) -> None:
        """Adds one line of a progress file: a job's start, or a checkpoint of the job that started last.

        A checkpoint before any start, or with another number of GPUs, is of a job whose start was torn.
        """
        gpus, is_start = int(values["gpus"]), values["what"] == _JOB_START
        if is_start or not self.jobs or self.jobs[-1].gpus != gpus:
            self.jobs.append(ProgressJob(gpus, started_at=str(values["printed_at"]) if is_start else ""))
        if values.keys() >= _OF_CHECKPOINT:
            job = self.jobs[-1]
            self.jobs[-1] = replace(
                job,
                saves_count=job.saves_count + 1,
                last_iteration=int(values["iteration"]),
                job_tflops_per_gpu=float(values["job"]),
                cumulative_tflops_per_gpu=float(values["cumulative"]),
                tokens_count=int(values["tokens"]),
            )
