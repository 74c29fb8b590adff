"""A case: a command and its files, each a seed with a list of changes. It is plain data, and can be kept as JSON.

A change is a list that begins with what it does:

- ``["sql", statements]``: on an export; a statement that fails (its table is already gone) changes nothing
- ``["put", path, value]``, ``["drop", path]``, ``["repeat", path, times]``, ``["share", from, to]``: on data; a path is
  a list of numbers, each the child to go to, counted modulo the number of children. A value may be
  ``{"times": [text, n]}``, ``{"nested": n}``, ``{"digits": n}`` or ``{"hex": bytes}``
- ``["form", "yaml" | "json" | "pickle", protocol]``: writes the data
- ``["line", at, text]``, ``["cut-lines", at, n]``, ``["repeat-lines", at, n, times]``, ``["word", at, text]``: on text
- ``["flip", at, bit]``, ``["flip-letter", word, bit]`` (in the word of that number), ``["write", at, hex]``,
  ``["stutter", at, n, times]`` (repeats a piece), ``["insert", at, hex, times]``, ``["remove", at, n]``,
  ``["cut", at]``, ``["swap", at, other, n]``: on bytes; places count modulo the length
- ``["pack", "xz" | "zst" | "gz"]``, ``["frames", n]`` (n times the same), ``["zeros", n]`` (a .zst of n MiB of zeros
  instead); what follows is done to the packed bytes
- ``["node", "fifo" | "directory" | "missing" | "zero" | "loop" | "locked"]``: something else than a file
"""

from __future__ import annotations

import copy
import gzip
import json
import lzma
import os
import pickle
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
import zstandard

from tests.fuzz.seeds import VALUES, literal_seed, seed_content, seed_value

Change = list[Any]

_WORD = re.compile(rb"[\w.+-]+")
_LONG_WORD = re.compile(rb"[A-Za-z_]{6,}")
_MOST_BYTES = 64 << 20
"""Of a file that changes make: repeating repeats could fill the disk."""
_MOST_TEXT_BYTES = 1 << 20
"""Of a file that repeated pieces make: a limit on time says little about larger ones."""
_MOST_ENTRIES = 500_000
"""Of data that is repeated. Repeats of repeats are written to the last entry, in JSON gigabytes of them."""
LINE_CHANGES = ("line", "cut-lines", "repeat-lines", "word")
DATA_CHANGES = ("put", "drop", "repeat", "share")


@dataclass(frozen=True, slots=True)
class GivenFile:
    """A file of a case."""

    name: str
    """Within the case's directory; bytes that are no UTF-8 are surrogates."""
    seed: str
    changes: tuple[Change, ...] = ()

    def write(self, directory: Path) -> None:
        """Creates the file below ``directory``."""
        path = directory / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        nodes = [change[1] for change in self.changes if change[0] == "node"]
        if nodes and nodes[-1] != "locked":
            _make_node(path, nodes[-1])
            return
        path.write_bytes(self.content())
        if nodes:
            path.chmod(0)

    def content(self) -> bytes:
        """The bytes after all changes."""
        changes = [change for change in self.changes if change[0] != "node"]
        value: Any = copy.deepcopy(seed_value(self.seed)) if self.seed in VALUES else seed_content(self.seed)
        index = 0
        while index < len(changes):
            if changes[index][0] == "sql":  # consecutive statements share a connection
                statements = []
                while index < len(changes) and changes[index][0] == "sql":
                    statements += changes[index][1]
                    index += 1
                value = _run_sql(value, statements)
                continue
            value = apply_change(value, changes[index])
            index += 1
        return value if isinstance(value, bytes) else write_data(value, "json", 0)

    def as_literal(self) -> GivenFile:
        """The same file without changes, for a case that must not depend on how seeds are made."""
        if any(change[0] == "node" for change in self.changes):
            return GivenFile(
                self.name, literal_seed(b""), tuple(change for change in self.changes if change[0] == "node")
            )
        return GivenFile(self.name, literal_seed(self.content()))


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the command line."""

    id: str
    """``kind-seed-number``, from which :func:`generate.make_case` makes it again."""
    command: tuple[tuple[str, ...], ...]
    """Its words in groups; a group behind the second can be left out as a whole."""
    files: tuple[GivenFile, ...]
    planted: tuple[str, ...] = field(default=())
    """Texts that no output may contain."""
    found: str = ""
    """What was wrong with it when it was kept."""

    @property
    def words(self) -> list[str]:
        return [word for group in self.command for word in group]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=True) + "\n"


def read_case(text: str) -> Case:
    """The case that :meth:`Case.to_json` wrote."""
    data = json.loads(text)
    files = tuple(GivenFile(entry["name"], entry["seed"], tuple(entry["changes"])) for entry in data["files"])
    command = tuple(map(tuple, data["command"]))
    return Case(data["id"], command, files, tuple(data["planted"]), data["found"])


def _make_node(path: Path, kind: str) -> None:
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "zero":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path.name)


def _run_sql(content: bytes, statements: list[str]) -> bytes:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        try:
            database.deserialize(content)
            database.execute("PRAGMA journal_mode = OFF")
            for statement in statements:
                try:
                    database.execute(statement)
                except sqlite3.Error:
                    continue
            return database.serialize()
        except sqlite3.Error:
            return content


def apply_change(value: Any, change: Change) -> Any:
    """``value`` (bytes or data) after ``change``; a change of the other sort of value has no effect."""
    kind, *arguments = change
    if kind in DATA_CHANGES:
        return value if isinstance(value, bytes) else _change_data(value, kind, arguments)
    if kind == "form":
        return value if isinstance(value, bytes) else write_data(value, *arguments)
    if not isinstance(value, bytes):
        value = write_data(value, "json", 0)
    if kind in LINE_CHANGES:
        return _change_lines(value, kind, arguments)[: max(_MOST_TEXT_BYTES, len(value))]
    return _BYTE_CHANGES[kind](value, *arguments)[:_MOST_BYTES]


def write_data(value: Any, form: str, protocol: int) -> bytes:
    """``value`` in one of the forms that the program reads."""
    if form == "pickle":
        return pickle.dumps(value, protocol)
    if form == "yaml":
        return yaml.dump(value, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True).encode("utf-8", "replace")
    return json.dumps(value, default=repr, skipkeys=True).encode("utf-8", "surrogatepass")


def _decode_value(value: Any) -> Any:
    match value:
        case {"times": [text, times]}:
            return text * times
        case {"nested": levels}:
            made: Any = 1
            for _ in range(levels):
                made = [made]
            return made
        case {"digits": count}:
            return 10**count
        case {"hex": text}:
            return bytes.fromhex(text)
    return value


def _change_data(value: Any, kind: str, arguments: list[Any]) -> Any:
    if kind == "share":
        source = _follow(value, arguments[0])
        arguments = [arguments[1], source[0][source[1]] if source else None]
        kind = "put"
    place = _follow(value, arguments[0])
    if place is None:
        return _decode_value(arguments[1]) if kind == "put" and not arguments[0] else value
    holder, key = place
    if kind == "put":
        holder[key] = _decode_value(arguments[1])
    elif kind == "drop":
        del holder[key]
    else:
        _repeat(value, holder, key, arguments[1])
    return value


def _repeat(value: Any, holder: Any, key: Any, times: int) -> None:
    """Repeats an entry of ``holder``, which is a part of ``value``, as often as leaves that small enough to write."""
    entry = holder[key]
    for fewer in sorted({times, 30, 2} - set(range(times + 1, 31)), reverse=True):
        if isinstance(holder, list):
            holder[key:key] = [entry] * fewer
        else:
            names = [f"{key}{number}" for number in range(min(fewer, 1_000))]
            holder |= dict.fromkeys(names, entry)
        if _count_entries(value) < _MOST_ENTRIES:
            return
        if isinstance(holder, list):
            del holder[key : key + fewer]
        else:
            for name in names:
                del holder[name]


def _count_entries(value: Any) -> int:
    """Collections and scalars in ``value``, counted as often as they are written, up to _MOST_ENTRIES."""
    count, waiting = 1, [value]
    while waiting:
        entry = waiting.pop()
        if isinstance(entry, dict | list | tuple):
            count += len(entry)
            if count >= _MOST_ENTRIES:  # a long list of long lists would fill memory
                return _MOST_ENTRIES
            waiting += entry.values() if isinstance(entry, dict) else entry
    return count


def _follow(value: Any, path: list[int]) -> tuple[Any, Any] | None:
    """The collection and key at which ``path`` ends; None where there is no collection on its way."""
    place = None
    for step in path:
        keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
        if not keys:
            break
        key = keys[step % len(keys)]
        place, value = (value, key), value[key]
    return place


def _change_lines(value: bytes, kind: str, arguments: list[Any]) -> bytes:
    at = arguments[0]
    if kind == "word":
        words = list(_WORD.finditer(value))
        if not words:
            return value
        word = words[at % len(words)]
        return value[: word.start()] + _text(arguments[1]) + value[word.end() :]
    lines = value.split(b"\n")
    at %= len(lines)
    if kind == "line":
        lines.insert(at, _text(arguments[1]))
    elif kind == "cut-lines":
        del lines[at : at + arguments[1]]
    else:
        length, times = arguments[1:]
        lines[at:at] = lines[at : at + length] * min(times, 20_000)
    return b"\n".join(lines)


def _text(value: Any) -> bytes:
    made = _decode_value(value)
    return made if isinstance(made, bytes) else str(made).encode("utf-8", "surrogateescape")


def _swap(value: bytes, at: int, other: int, size: int) -> bytes:
    places = max(1, len(value) // size)
    first, second = sorted((at % places * size, other % places * size))
    if first == second:
        return value
    one, two = value[first : first + size], value[second : second + size]
    return value[:first] + two + value[first + size : second] + one + value[second + size :]


def _at(value: bytes, at: int) -> int:
    return at % max(1, len(value))


def _flip(value: bytes, at: int, bit: int) -> bytes:
    at = _at(value, at)
    return value[:at] + bytes(byte ^ (1 << bit) for byte in value[at : at + 1]) + value[at + 1 :]


def _flip_letter(value: bytes, word: int, bit: int) -> bytes:
    words = [found.start() for found in _LONG_WORD.finditer(value)]
    return _flip(value, words[word % len(words)] + 2, bit) if words else value


def _write(value: bytes, at: int, new: str) -> bytes:
    at, content = _at(value, at), bytes.fromhex(new)
    return value[:at] + content + value[at + len(content) :]


def _insert(value: bytes, at: int, new: str, times: int) -> bytes:
    at = _at(value, at)
    return value[:at] + bytes.fromhex(new) * times + value[at:]


def _remove(value: bytes, at: int, count: int) -> bytes:
    at = _at(value, at)
    return value[:at] + value[at + count :]


def _stutter(value: bytes, at: int, length: int, times: int) -> bytes:
    at = _at(value, at)
    return (value[:at] + value[at : at + length] * times + value[at:])[: max(_MOST_TEXT_BYTES, len(value))]


def _pack(value: bytes, suffix: str) -> bytes:
    if suffix == "xz":
        return lzma.compress(value, preset=0)
    return zstandard.ZstdCompressor(1).compress(value) if suffix == "zst" else gzip.compress(value, 1)


def _pack_zeros(mebibytes: int) -> bytes:
    """One frame of blocks that repeat a byte (RFC 8878, 3.1.1), each 128 KiB in four bytes."""
    block = ((131_072 << 3) | 0b010).to_bytes(3, "little") + b"\0"
    last = ((131_072 << 3) | 0b011).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * (8 * mebibytes - 1) + last


_BYTE_CHANGES: dict[str, Callable[..., bytes]] = {
    "flip": _flip,
    "flip-letter": _flip_letter,
    "write": _write,
    "insert": _insert,
    "remove": _remove,
    "cut": lambda value, at: value[: _at(value, at)],
    "swap": _swap,
    "zeros": lambda _, mebibytes: _pack_zeros(mebibytes),
    "frames": lambda value, times: value * times,
    "stutter": _stutter,
    "pack": _pack,
}
