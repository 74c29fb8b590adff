"""Reads training logs: the only place that knows how files, lines and blocks come together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from three_walls.inputs.log.blocks import Block, open_block
from three_walls.inputs.log.collector import TIMERS, Collector, as_iteration
from three_walls.inputs.log.files import LogFile, find_logs, read_chunks
from three_walls.inputs.log.lines import SourceLine, Statement, read_line, strip_prefixes
from three_walls.inputs.log.progress import JobList
from three_walls.inputs.log.scan import FoundLine, scan_lines
from three_walls.model.errors import InputError
from three_walls.model.training_log import LogIteration, TrainingLog
from three_walls.tables.log_lines import LogGrammar, log_grammar

MOST_ORIGINS = 100_000
"""Processes that are told apart in one file."""


def read_logs(paths: Sequence[Path]) -> TrainingLog:
    """What the logs of one run say: files, or directories of them; Megatron-LM's or Megatron-Bridge's.

    Lines may carry prefixes of launchers, several processes may write in between. Memory does not grow with the
    files' size. A file of anything else says nothing; one that a directory holds and that cannot be read is left out
    and named. Raises InputError for a named file, or where a directory holds no file that can be read.
    """
    collector = Collector()
    files = find_logs(paths)
    failures: list[InputError] = []
    for file in files:
        try:
            read_text(read_chunks(file.path), collector, file.path.name)
        except InputError as error:
            failures.append(error)
            _leave_out(file, error, collector)
    if failures and len(failures) == len(files):
        raise failures[0]
    return collector.result(tuple(file.path.name for file in files))


def _leave_out(file: LogFile, error: InputError, collector: Collector) -> None:
    if file.is_named:
        raise error
    collector.unread.append(str(error).replace(str(file.path), file.path.name))


def read_text(chunks: Iterable[bytes], collector: Collector, file_name: str) -> None:
    """One file's text into ``collector``."""
    grammar = log_grammar()
    file = _File(grammar, collector, file_name)
    for found in scan_lines(chunks, grammar.anchors, lambda: bool(file.blocks)):
        file.read(found)
    file.close()


@dataclass(slots=True)
class _File:
    """What is remembered from line to line of one file."""

    grammar: LogGrammar
    collector: Collector
    file_name: str
    blocks: dict[str, Block] = field(default_factory=dict)
    """Those open, by the process that writes them."""
    latest: dict[str, LogIteration] = field(default_factory=dict)
    """The last iteration line of each process."""
    frames: dict[str, str] = field(default_factory=dict)
    """The innermost frame of Megatron in the last traceback of each process."""
    jobs: JobList = field(default_factory=JobList)
    run: int = 0
    """How often training had started again."""
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
        self.collector.jobs.extend(self.jobs.jobs)

    def _close(self, origin: str) -> None:
        block = self.blocks.pop(origin, None)
        if block is None:
            return
        if block.row.kind == "traceback":
            if origin in self.frames or len(self.frames) < MOST_ORIGINS:
                self.frames[origin] = ": ".join(block.entries[-1]) if block.entries else ""
        else:
            self.collector.add_block(block)

    def _read_statements(self, line: SourceLine, raw: bytes) -> None:
        statements, torn = read_line(line, raw, self.grammar)
        for said in statements:
            self._take(said, line.origin)
        self.collector.torn += torn.count("iteration")

    def _take(self, said: Statement, origin: str) -> None:
        if said.kind == "iteration":
            self._take_iteration(said, origin)
        elif said.kind == "progress":
            self.jobs.add(said.values)
        elif said.kind == "out_of_memory":
            self.collector.add_oom(said.values, self.frames.pop(origin, ""))
        elif said.kind == "straggler_detector":
            self.collector.add_extremes(said.values, self.latest.get(origin))
        else:
            if said.kind == "training_start" and self.is_running:
                self.run, self.is_running = self.run + 1, False
            self.collector.add(said, self.file_name)

    def _take_iteration(self, said: Statement, origin: str) -> None:
        line = as_iteration(said.values, self.run, self.file_name)
        self.is_running = True
        self.collector.add_iteration(line)
        if origin in self.latest or len(self.latest) < MOST_ORIGINS:
            self.latest[origin] = line
