"""A snapshot file -> checked segments and events of one device.

The structure is that of torch.cuda.memory._snapshot(): ``segments`` with ``blocks``, and per device a list of trace
entries (torch/cuda/memory.py documents both). Snapshots of PyTorch before 2.0 kept stacks elsewhere and have none here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from three_walls.inputs.config.given_files import is_directory
from three_walls.inputs.memory_snapshot.history import Event, Frames, Live, read_event
from three_walls.inputs.memory_snapshot.plain_pickle import NotPlainError, read_plain_pickle
from three_walls.model.errors import InputError

MOST_BYTES = 4 << 30
_IN_USE = "active_allocated"
_FREE = "inactive"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One device of a snapshot; ``in_use`` by address, ``failures`` as (requested, free on the device) bytes."""

    sha256: str
    device: int
    reserved_bytes: int
    in_use: dict[int, Live]
    largest_free_bytes: int
    events: tuple[Event, ...]
    failures: tuple[tuple[int, int | None], ...]


def load_snapshot(path: Path) -> Snapshot:
    """The device of ``path`` (a pickle, or the same as .json) that has the most memory reserved.

    Raises InputError, in one line, where the file cannot be read, is not plain data or is no snapshot.
    """
    try:
        if is_directory(path):
            raise InputError(f"{path}: expected a memory snapshot of PyTorch, found a directory")
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path}: expected a snapshot of at most {MOST_BYTES >> 30} GiB, found a larger file")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        return _read(_parse(path, data), hashlib.sha256(data).hexdigest())
    except NotPlainError as error:
        raise InputError(f"{path}: expected a memory snapshot of PyTorch (plain data only), found: {error}") from error


def _parse(path: Path, data: bytes) -> Any:
    if path.suffix != ".json":
        return read_plain_pickle(data)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotPlainError(f"no JSON ({str(error).splitlines()[0]})") from error


def _read(value: Any, digest: str) -> Snapshot:
    top = _typed(value, dict, "the snapshot")
    segments = [_typed(one, dict, "a segment") for one in _typed(top.get("segments"), list, "segments")]
    traces = _typed(top.get("device_traces", []), list, "device_traces")
    device = _largest_device(segments, traces)
    own = [one for one in segments if one.get("device", 0) == device]
    names = _FrameNames()
    in_use: dict[int, Live] = {}
    largest_free = 0
    for segment in own:
        for address, block in _blocks(segment):
            if block.get("state") == _IN_USE:
                requested = _size(block.get("requested_size", block.get("size")), "a block")
                in_use[address] = Live(requested, names.of(block.get("frames")))
            elif block.get("state") == _FREE:
                largest_free = max(largest_free, _size(block.get("size"), "a block"))
    entries = traces[device] if device < len(traces) else []
    events, failures = _read_trace(_typed(entries, list, "a device's trace"), names)
    reserved = sum(_size(one.get("total_size"), "a segment") for one in own)
    return Snapshot(digest, device, reserved, in_use, largest_free, events, failures)


def _largest_device(segments: list[dict[Any, Any]], traces: list[Any]) -> int:
    """The one with the most reserved memory; where nothing is reserved, the one with the longest trace."""
    reserved: dict[int, int] = {}
    for one in segments:
        device = _size(one.get("device", 0), "a segment's device")
        if device < 0:
            raise NotPlainError(f"a segment is of device {device}")
        reserved[device] = reserved.get(device, 0) + _size(one.get("total_size"), "a segment")
    if reserved:
        return max(sorted(reserved), key=lambda device: reserved[device])
    lengths = [len(one) if isinstance(one, list) else 0 for one in traces]
    return lengths.index(max(lengths)) if lengths else 0


def _blocks(segment: dict[Any, Any]) -> Iterator[tuple[int, dict[Any, Any]]]:
    """Blocks with their addresses; old snapshots give only the segment's."""
    at = _size(segment.get("address"), "a segment's address")
    for one in _typed(segment.get("blocks"), list, "a segment's blocks"):
        block = _typed(one, dict, "a block")
        address = _size(block.get("address", at), "a block's address")
        yield address, block
        at = address + _size(block.get("size"), "a block")


def _read_trace(entries: list[Any], names: _FrameNames) -> tuple[tuple[Event, ...], tuple[tuple[int, int | None], ...]]:
    events: list[Event] = []
    failures: list[tuple[int, int | None]] = []
    for one in entries:
        entry = _typed(one, dict, "a trace entry")
        action = _typed(entry.get("action"), str, "an action")
        size = _size(entry.get("size", 0), "a trace entry")
        _size(entry.get("addr", 0), "an address")
        if action == "oom":
            free = entry.get("device_free")
            failures.append((size, free if type(free) is int else None))
        else:
            events.append(read_event(entry, names.of(entry.get("frames"))))
    return tuple(events), tuple(failures)


class _FrameNames:
    """Frames as ``<directory>/<file>:<function>``. Stacks are shared in a snapshot, so each list is read once."""

    def __init__(self) -> None:
        self._known: dict[int, Frames] = {}
        self._held: list[Any] = []  # keeps the lists alive, so that no id is used twice

    def of(self, frames: Any) -> Frames:
        if frames is None:
            return ()
        found = self._known.get(id(frames))
        if found is None:
            found = tuple(_frame_name(one) for one in _typed(frames, list, "a stack"))
            self._known[id(frames)] = found
            self._held.append(frames)
        return found


def _frame_name(value: Any) -> str:
    frame = _typed(value, dict, "a frame")
    name, file = _typed(frame.get("name"), str, "a frame's name"), _typed(frame.get("filename"), str, "a file name")
    return f"{'/'.join(PurePosixPath(file).parts[-4:])}:{name}"


def _typed(value: Any, kind: type, what: str) -> Any:
    if type(value) is not kind:
        raise NotPlainError(f"{what} is of type {type(value).__name__}, not {kind.__name__}")
    return value


def _size(value: Any, what: str) -> int:
    if type(value) is not int:
        raise NotPlainError(f"a number of {what} is of type {type(value).__name__}")
    return value
