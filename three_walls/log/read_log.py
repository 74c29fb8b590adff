"""Reads training logs, plain or compressed: from the files that a user names to one :class:`TrainingLog`."""

from __future__ import annotations

import codecs
import gzip
import lzma
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import zstandard

from three_walls.lib import limits
from three_walls.lib.errors import InputError
from three_walls.lib.files import is_directory, open_regular
from three_walls.log.collect_log import TIMERS, Collector, as_iteration
from three_walls.log.log_lines import LogGrammar, log_grammar
from three_walls.log.read_lines import (
    Block,
    ParsedLine,
    RawLine,
    SourceLine,
    Value,
    open_block,
    read_line,
    scan_lines,
    strip_prefixes,
)
from three_walls.log.training_log import LogIteration, ProgressJob, TrainingLog

_PROFILER_SUFFIX = ".nsys.log"
"""As ``attach`` names it."""
LOG_SUFFIXES = (".log", ".out", ".err", ".txt")
_COMPRESSED_SUFFIXES = (".xz", ".zst", ".gz")
_CHUNK_BYTES = 1 << 20
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_JOB_START = "Starting job"
_CHECKPOINT_VALUES = frozenset({"iteration", "job", "cumulative", "tokens"})
"""Values that a checkpoint's line of a progress file has."""


def read_logs(paths: Sequence[Path]) -> TrainingLog:
    """Reads the logs of one run of Megatron-LM or Megatron-Bridge. ``paths``: files, or directories of them.

    Lines may have prefixes of launchers, and several processes may write to one file. Memory does not grow with the
    size of a file. A file that is no training log contributes nothing. A file that cannot be read raises InputError if
    ``paths`` names it; if a directory holds it, :attr:`TrainingLog.unread` lists it. Raises InputError if no file at
    all can be read.
    """
    collector = Collector()
    files = find_logs(paths)
    failures: list[InputError] = []
    for file, is_named in files.items():
        try:
            read_text(read_chunks(file), collector, file.name)
        except InputError as error:
            if is_named:
                raise
            failures.append(error)
            collector.unread.append(str(error).replace(str(file), file.name))
    if failures and len(failures) == len(files):
        raise failures[0]
    return collector.result(tuple(file.name for file in files))


def read_text(chunks: Iterable[bytes], collector: Collector, file_name: str) -> None:
    """Reads the text of one file into ``collector``."""
    grammar = log_grammar()
    reader = _FileReader(grammar, collector, file_name)
    for raw in scan_lines(chunks, grammar.anchors, lambda: bool(reader.blocks or reader.prints)):
        reader.read(raw)
    reader.close()


@dataclass(slots=True)
class _FileReader:
    """Reads one file line by line; the fields are what it keeps between lines."""

    grammar: LogGrammar
    collector: Collector
    file_name: str
    blocks: OrderedDict[str, Block] = field(default_factory=OrderedDict)
    """Open blocks that come once, by the process that writes them; the one that expires first is first. Of a dict, the
    first entry takes the longer to find the more were deleted before it."""
    prints: OrderedDict[str, Block] = field(default_factory=OrderedDict)
    """The same for blocks that repeat."""
    open_bytes: int = 0
    """What all open blocks take of memory together."""
    lines: int = 0
    """Lines that opened no block, of those that were read while a block was open."""
    latest: dict[str, LogIteration] = field(default_factory=dict)
    """The last iteration line of each process."""
    frames: dict[str, str] = field(default_factory=dict)
    """The innermost frame of Megatron in the last traceback of each process."""
    jobs: deque[ProgressJob] = field(default_factory=lambda: deque(maxlen=limits.MOST_JOBS))
    """Jobs of a progress file, in its order."""
    run: int = 0
    """How often training has restarted in this file."""
    is_running: bool = False

    def read(self, raw: RawLine) -> None:
        line = strip_prefixes(raw.text.decode("utf-8", "replace"), self.grammar, raw.is_ended)
        if raw.is_anchored and self._open(line, raw.text):
            return
        self.lines += 1
        if (block := self._take(line.origin)) is not None:
            block.read(line)
            if block.is_closed:
                self._add_block(block)
            else:
                self._keep(block)
        for waiting in (self.blocks, self.prints):
            while waiting and (first := next(iter(waiting.values()))).expires_at < self.lines:
                self._close(first.origin)
        if raw.is_anchored:
            parsed_lines, torn = read_line(line, raw.text, self.grammar)
            for parsed in parsed_lines:
                self._add(parsed, line.origin)
            self.collector.torn += torn.count("iteration")

    def _open(self, line: SourceLine, raw: bytes) -> bool:
        """Opens the block that ``line`` begins. False where it begins none, or stands within one that comes once."""
        opened = open_block(line, raw, self.grammar, self.collector.blocks.keys())
        enclosing = self.blocks.get(line.origin) or self.prints.get(line.origin)
        if opened is None or (enclosing and opened.row.repeats and not enclosing.row.repeats):
            return False
        self._close(line.origin)
        if opened.row.kind not in TIMERS or self.collector.wants_print():
            opened.after = self.latest.get(line.origin)
            self._keep(opened)
        return True

    def close(self) -> None:
        for origin in [*self.blocks, *self.prints]:
            self._close(origin)
        self.collector.jobs.extend(self.jobs)

    def _keep(self, block: Block) -> None:
        """Keeps ``block`` open, as the last of its kind to expire, so that no line looks at other processes' blocks.

        Leaves it out where it does not fit. The block that has just grown is the one to go, whatever others hold: to
        find the largest would take a look at all of them.
        """
        if self.open_bytes + block.memory_bytes > limits.MOST_OPEN_BLOCK_BYTES:
            self.collector.left_out_blocks[block.row.kind] += 1
            return
        repeats = block.row.repeats
        (self.prints if repeats else self.blocks)[block.origin] = block
        self.open_bytes += block.memory_bytes
        limit = limits.MOST_FOREIGN_LINES_OF_PRINTS if repeats else limits.MOST_FOREIGN_LINES
        block.expires_at = self.lines + limit

    def _take(self, origin: str) -> Block | None:
        """The open block of this process, which is then no longer kept; None where it has none."""
        block = self.blocks.pop(origin, None) or self.prints.pop(origin, None)
        if block is not None:
            self.open_bytes -= block.memory_bytes
        return block

    def _close(self, origin: str) -> None:
        if (block := self._take(origin)) is not None:
            self._add_block(block)

    def _add_block(self, block: Block) -> None:
        if block.row.kind == "traceback":
            if block.origin in self.frames or len(self.frames) < limits.MOST_PROCESSES:
                self.frames[block.origin] = ": ".join(block.entries[-1]) if block.entries else ""
            else:
                self.collector.unplaced += 1
        else:
            self.collector.add_block(block.row.kind, block.entries, block.after)

    def _add(self, parsed: ParsedLine, origin: str) -> None:
        if parsed.kind == "iteration":
            iteration = as_iteration(parsed.values, self.run, self.file_name)
            self.is_running = True
            self.collector.add_iteration(iteration)
            if origin in self.latest or len(self.latest) < limits.MOST_PROCESSES:
                self.latest[origin] = iteration
            else:
                self.collector.unplaced += 1
        elif parsed.kind == "progress":
            self._add_progress(parsed.values)
        elif parsed.kind == "out_of_memory":
            self.collector.add_oom(parsed.values, self.frames.pop(origin, ""))
        elif parsed.kind == "straggler_detector":
            self.collector.add_extremes(parsed.values, self.latest.get(origin))
        else:
            if parsed.kind == "training_start" and self.is_running:
                self.run, self.is_running = self.run + 1, False
            self.collector.add(parsed, self.file_name)

    def _add_progress(self, values: Mapping[str, Value]) -> None:
        """Adds a line of a progress file: the start of a job, or a checkpoint of the job that started last.

        A checkpoint before any start, or with another number of GPUs, belongs to a job whose start line was torn.
        """
        gpus, is_start = int(values["gpus"]), values["what"] == _JOB_START
        if is_start or not self.jobs or self.jobs[-1].gpus != gpus:
            self.jobs.append(ProgressJob(gpus, started_at=str(values["printed_at"]) if is_start else ""))
        if values.keys() >= _CHECKPOINT_VALUES:
            job = self.jobs[-1]
            self.jobs[-1] = replace(
                job,
                saves_count=job.saves_count + 1,
                last_iteration=int(values["iteration"]),
                job_tflops_per_gpu=float(values["job"]),
                cumulative_tflops_per_gpu=float(values["cumulative"]),
                tokens_count=int(values["tokens"]),
            )


def find_logs(paths: Sequence[Path]) -> dict[Path, bool]:
    """The files in ``paths``, in that order; directories are searched to any depth, their files sorted by path.

    Each with whether ``paths`` names the file itself. Raises InputError for a path that does not exist and for a
    directory without logs.
    """
    files: dict[Path, bool] = {}
    for path in paths:
        if not is_directory(path):
            files[path] = True
            continue
        logs = sorted(file for file in path.rglob("*") if is_log(file))
        if not logs:
            names = ", ".join(f"*{suffix}" for suffix in LOG_SUFFIXES)
            raise InputError(f"{path}: expected training logs ({names}; also .xz, .zst, .gz), found none")
        for log in logs:
            files.setdefault(log, False)
    return files


def is_log(path: Path) -> bool:
    """Whether ``path`` is a file with the name of a log, plain or compressed; what the profiler prints is none."""
    name = plain_log_name(path)
    return name.endswith(LOG_SUFFIXES) and not name.endswith(_PROFILER_SUFFIX) and path.is_file()


def plain_log_name(path: Path) -> str:
    """The name of a log without the suffix of its compression."""
    return path.stem if path.suffix in _COMPRESSED_SUFFIXES else path.name


def read_chunks(path: Path) -> Iterator[bytes]:
    """The file's text in chunks of about 1 MiB. UTF-16 is converted to UTF-8; other bytes are passed on as they are.

    A compressed file that ends early, as the log of a running job does, is read to its end. Raises InputError if the
    file cannot be read or its compression is damaged.
    """
    try:
        with open_regular(path) as file:
            read, most = _reader(path.suffix, file), _most_unpacked(path)
            yield from _decode(_check_size(iter(partial(read, _CHUNK_BYTES), b""), path, most))
    except EOFError:
        return
    except (lzma.LZMAError, zstandard.ZstdError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: expected a {path.suffix} file, found a damaged one ({error})") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error


def _most_unpacked(path: Path) -> int:
    return max(path.stat().st_size * limits.MOST_UNPACKED_LOG_RATIO, limits.ALWAYS_UNPACKED_BYTES)


def _check_size(chunks: Iterator[bytes], path: Path, most: int) -> Iterator[bytes]:
    """``chunks``; raises InputError where they are more than a log of this size unpacks to."""
    count = 0
    for chunk in chunks:
        count += len(chunk)
        if count > most:
            ratio = limits.MOST_UNPACKED_LOG_RATIO
            raise InputError(f"{path}: expected a log, found one that unpacks to more than {ratio} times its size")
        yield chunk


def _reader(suffix: str, file: BinaryIO) -> Callable[[int], bytes]:
    """What reads so many bytes of ``file``, unpacked as its suffix asks."""
    match suffix:
        case ".xz":
            return lzma.LZMAFile(file).read
        case ".gz":
            return gzip.GzipFile(fileobj=file).read
        case ".zst":
            return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read
    return file.read


def _decode(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """UTF-16 with a byte order mark becomes UTF-8. NUL bytes (sparse files, UTF-16 without the mark) are dropped."""
    decoder = None
    for number, chunk in enumerate(chunks):
        if number == 0 and chunk[:2] in _UTF16_MARKS:
            decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
        text = decoder.decode(chunk).encode("utf-8", "replace") if decoder else chunk
        if number == 0:
            text = text.removeprefix(codecs.BOM_UTF8)
        yield text.replace(b"\0", b"") if b"\0" in text else text
