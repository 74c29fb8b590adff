"""Reads a snapshot file of PyTorch's allocator: the blocks in use and the events of one device, checked.

The structure is that of torch.cuda.memory._snapshot(): ``segments`` with ``blocks``, and a list of trace entries per
device (torch/cuda/memory.py documents both). PyTorch before 2.0 kept stacks elsewhere; they are not read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from three_walls.lib import limits
from three_walls.lib.errors import InputError
from three_walls.lib.files import is_directory, open_regular
from three_walls.memory_snapshot.plain_pickle import NotPlainError, read_plain_pickle
from three_walls.memory_snapshot.snapshot import FailedAllocation

_IN_USE = "active_allocated"
_FREE = "inactive"
_LAST_ADDRESS = 1 << limits.MOST_INTEGER_BITS
_MANY_ENTRIES = 10_000
"""Up to this many entries are read from any file, however short it is."""

Frames = tuple[str, ...]
"""A stack, innermost frame first: ``<directory>/<file>:<function>`` each."""


class Event(NamedTuple):  # made a million times, and twice as fast as a frozen dataclass
    """An event of the allocator."""

    action: str
    address: int
    size_bytes: int
    frames: Frames
    """Empty where the event was recorded without a stack."""


class Live(NamedTuple):
    """A block in use."""

    size_bytes: int
    """As requested."""
    frames: Frames | None
    """The stack that allocated it; None if that was before the recording."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One device of a snapshot."""

    sha256: str
    """Of the file."""
    device: int
    reserved_bytes: int
    in_use: dict[int, Live]
    """Blocks in use, by address."""
    largest_free_bytes: int
    events: tuple[Event, ...]
    failures: tuple[FailedAllocation, ...]


def load_snapshot(path: Path) -> Snapshot:
    """The device with the most reserved memory of the snapshot in ``path`` (a pickle, or the same data as .json).

    Raises InputError if the file cannot be read, is not plain data or is no snapshot.
    """
    try:
        if is_directory(path):
            raise InputError(f"{path}: expected a memory snapshot of PyTorch, found a directory")
        if path.stat().st_size > limits.MOST_SNAPSHOT_BYTES:
            most = f"{limits.MOST_SNAPSHOT_BYTES >> 30} GiB"
            raise InputError(f"{path}: expected a snapshot of at most {most}, found a larger file")
        with open_regular(path) as file:
            data = file.read()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        value = _parse_json(data) if path.suffix == ".json" else read_plain_pickle(data)
        return _Walk(len(data)).read(value, hashlib.sha256(data).hexdigest())
    except NotPlainError as error:
        raise InputError(f"{path}: expected a memory snapshot of PyTorch (plain data only), found: {error}") from error


def _parse_json(data: bytes) -> Any:
    containers = data.count(b"{") + data.count(b"[")  # in texts as well, of which a snapshot has few
    if containers > max(_MANY_ENTRIES, len(data) // limits.LEAST_BYTES_PER_ENTRY):
        raise NotPlainError(f"more lists and mappings ({containers:,}) than a snapshot of this size has")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotPlainError(f"no JSON ({str(error).splitlines()[0]})") from error


class _Walk:
    """One pass over a snapshot. It counts entries, because a few bytes of a pickle can repeat one millions of times."""

    def __init__(self, file_bytes: int) -> None:
        self._most_entries = max(_MANY_ENTRIES, file_bytes // limits.LEAST_BYTES_PER_ENTRY)
        self._entries_count = 0
        # A snapshot shares stacks, frames and texts, so each is read once; stacks and frames are found again by their
        # ids. All of them live until the walk ends, so no id is used twice.
        self._stacks: dict[int, Frames] = {}
        self._frames: dict[int, str] = {}
        self._files: dict[str, str] = {}

    def read(self, value: Any, digest: str) -> Snapshot:
        """The snapshot that ``value`` holds. Raises NotPlainError where its structure is not that of a snapshot."""
        snapshot = _checked(value, dict, "the snapshot")
        segments = list(self._entries(snapshot.get("segments"), "segments", "a segment"))
        traces = _checked(snapshot.get("device_traces", []), list, "device_traces")
        device = _largest_device(segments, traces)
        in_use: dict[int, Live] = {}
        reserved = largest_free = 0
        for segment in segments:
            if segment.get("device", 0) != device:
                continue
            reserved += _size(segment.get("total_size"), "a segment")
            for address, block in self._blocks(segment):
                if block.get("state") == _IN_USE:
                    requested = _size(block.get("requested_size", block.get("size")), "a block")
                    in_use[address] = Live(requested, self._stack(block.get("frames")))
                elif block.get("state") == _FREE:
                    largest_free = max(largest_free, _size(block.get("size"), "a block"))
        events, failures = self._trace(traces[device] if device < len(traces) else [])
        return Snapshot(digest, device, reserved, in_use, largest_free, events, failures)

    def _entries(self, values: Any, name: str, entry_name: str) -> Iterator[dict[Any, Any]]:
        """The dicts of the list ``values``, each counted. The names are for messages."""
        for value in _checked(values, list, name):
            self._entries_count += 1
            if self._entries_count > self._most_entries:
                raise NotPlainError(f"it repeats its entries by reference (more than {self._most_entries:,} in all)")
            yield _checked(value, dict, entry_name)

    def _blocks(self, segment: dict[Any, Any]) -> Iterator[tuple[int, dict[Any, Any]]]:
        """Blocks with their addresses. In old snapshots only the segment has an address."""
        next_address = _address(segment.get("address"), "a segment's address")
        for block in self._entries(segment.get("blocks"), "a segment's blocks", "a block"):
            address = _address(block.get("address", next_address), "a block's address")
            yield address, block
            next_address = address + _size(block.get("size"), "a block")

    def _trace(self, entries: Any) -> tuple[tuple[Event, ...], tuple[FailedAllocation, ...]]:
        """The allocator's events, and the allocations that failed."""
        events: list[Event] = []
        failures: list[FailedAllocation] = []
        for entry in self._entries(entries, "a device's trace", "a trace entry"):
            action = _checked(entry.get("action"), str, "an action")
            size = _size(entry.get("size", 0), "a trace entry")
            address = _address(entry.get("addr", 0), "an address")
            if action == "oom":
                free = entry.get("device_free")
                free_bytes = _size(free, "the device's free memory") if type(free) is int else None
                failures.append(FailedAllocation(size, free_bytes))
            else:
                events.append(Event(action, address, size, self._stack(entry.get("frames"))))
        return tuple(events), tuple(failures)

    def _stack(self, frames: Any) -> Frames:
        """The frames of a stack; none where the entry has no stack."""
        if frames is None:
            return ()
        if id(frames) not in self._stacks:
            self._stacks[id(frames)] = tuple(map(self._frame, _checked(frames, list, "a stack")))
        return self._stacks[id(frames)]

    def _frame(self, value: Any) -> str:
        if id(value) not in self._frames:
            frame = _checked(value, dict, "a frame")
            name = _checked(frame.get("name"), str, "a frame's name")
            file = _checked(frame.get("filename"), str, "a file name")
            if file not in self._files:
                end = "/".join(PurePosixPath(file[-limits.LONGEST_PATH :]).parts[-4:])
                self._files[file] = end[-limits.LONGEST_FRAME_TEXT :]
            self._frames[id(value)] = f"{self._files[file]}:{name[: limits.LONGEST_FRAME_TEXT]}"
        return self._frames[id(value)]


def _largest_device(segments: list[dict[Any, Any]], traces: list[Any]) -> int:
    """The device with the most reserved memory; if nothing is reserved, the one with the longest trace."""
    reserved: dict[int, int] = {}
    for segment in segments:
        device = _size(segment.get("device", 0), "a segment's device")
        if device < 0:
            raise NotPlainError(f"a segment is of device {device}")
        reserved[device] = reserved.get(device, 0) + _size(segment.get("total_size"), "a segment")
    if reserved:
        return max(sorted(reserved), key=lambda device: reserved[device])
    lengths = [len(trace) if isinstance(trace, list) else 0 for trace in traces]
    return lengths.index(max(lengths)) if lengths else 0


def _checked(value: Any, kind: type, name: str) -> Any:
    if type(value) is not kind:
        raise NotPlainError(f"{name} is of type {type(value).__name__}, not {kind.__name__}")
    return value


def _size(value: Any, name: str) -> int:
    return _number(value, name, limits.MOST_MEMORY_BYTES)


def _address(value: Any, name: str) -> int:
    return _number(value, name, _LAST_ADDRESS)


def _number(value: Any, name: str, most: int) -> int:
    if type(value) is int and -1 <= value <= most:  # -1: not known
        return value
    problem = "out of range" if type(value) is int else f"of type {type(value).__name__}"
    raise NotPlainError(f"a number of {name} is {problem}")
