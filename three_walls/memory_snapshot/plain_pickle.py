"""Reads pickles of plain data, and refuses everything else.

A pickle is a program: Python's reader imports the names in it and calls functions. So every opcode is examined before
that reader sees any: it gets only what builds dicts, lists, texts, numbers, booleans and None, as PyTorch's snapshots
do. The work is linear in the length of the pickle: as keys it hashes nothing but texts, whose hashes no file can
predict, numbers of 64 bits, constants and pairs of small numbers.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from typing import Any

from three_walls.lib import limits

_PLAIN_OPCODES = re.compile(
    rb"(?:[]})(ueasN\x88\x89\x94]"  # containers and what fills them, constants, MEMOIZE
    rb"|h.|j.{4}|q.|r..[\x00-\x7f]\x00"  # what was memoized, and memoizing at an index that needs no gigabytes
    rb"|(?:K.|M..)(?:(?:K.|M..)\x86)?|J.{4}|G.{8}"  # numbers; a tuple only of two small ones, so hashing it is quick
    rb"|\x8a(?:\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}|\x09.{8}\x00)"  # integers of up to 64 bits
    rb"|\x80.|\x95.{8}){0,1000}",  # PROTO, FRAME
    re.DOTALL,
)
"""Opcodes with their arguments, up to a text, the end, or an opcode that is not read. Not possessive: where the last
turn fails halfway, Python 3.11.2 goes on from there."""
_LENGTH_BYTES = {b"\x8c": 1, b"X": 4}
"""Opcode of a text -> bytes of its length: SHORT_BINUNICODE and BINUNICODE."""
_CONTAINERS = (b"}", b"]", b")", b"\x86")


class NotPlainError(Exception):
    """The pickle is damaged or holds something other than plain data; the message states what, and where."""


def read_plain_pickle(data: bytes) -> Any:
    """The value that ``data`` holds. Raises NotPlainError. Nothing in ``data`` is ever run.

    Parts that the pickle shares stay shared, so a walk over the value may reach one part very often.
    """
    if (position := find_other_opcode(data)) is not None:
        writer = "torch.cuda.memory._dump_snapshot"
        code = data[position : position + 1].decode("latin-1")
        name = next((opcode.name for opcode in pickletools.opcodes if opcode.code == code), None)
        contents = f"{name} at byte {position}, which {writer} does not write" if name else "no pickle"
        raise NotPlainError(f"{contents}; save the snapshot with {writer}, or the same data as .json")
    if sum(map(data.count, _CONTAINERS)) > limits.MOST_SNAPSHOT_CONTAINERS:
        raise NotPlainError(f"it holds more than {limits.MOST_SNAPSHOT_CONTAINERS:,} dicts, lists and tuples")
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except MemoryError as error:
        raise NotPlainError("a pickle that asks for more memory than there is") from error
    except Exception as error:  # a damaged pickle may raise anything
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise NotPlainError(f"a damaged pickle ({reason})") from error


class _Unpickler(pickle.Unpickler):
    """Python's unpickler without names. No opcode that was let through asks for one; this is a second lock."""

    def find_class(self, module: str, name: str, /) -> Any:
        raise NotPlainError(f"{module}.{name} is not allowed: only plain data is read")


def find_other_opcode(data: bytes) -> int | None:
    """Where ``data`` has an opcode other than :data:`_PLAIN_OPCODES`, texts and the end; None if it has none."""
    position = 0
    while (end := _PLAIN_OPCODES.match(data, position)) is not None:
        position = end.end()
        opcode = data[position : position + 1]
        if opcode == b".":
            return None
        if opcode in _LENGTH_BYTES:
            start = position + 1 + _LENGTH_BYTES[opcode]
            position = start + int.from_bytes(data[position + 1 : start], "little")
        elif end.end() == end.start():
            break
    return position
