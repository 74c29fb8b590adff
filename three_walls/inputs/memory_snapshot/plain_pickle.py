"""Reads pickles of plain data, and refuses everything else.

A pickle is a program: Python's reader imports the names in it and calls functions. This reader knows only the opcodes
that build dicts, lists, tuples, text, numbers, booleans and None, and no other. Nesting needs no limit, because nothing
recurses. The work is linear in the length of the pickle: as keys it hashes nothing but texts, whose hashes no file can
predict, numbers of 64 bits, constants and flat pairs of them.

Python's own unpickler, which is ten times as fast, builds the value where every opcode was examined before and is one
of those that PyTorch's snapshots consist of. The builder below reads all other pickles, and words what is wrong.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from contextlib import suppress
from typing import Any

from three_walls.inputs import limits

_SCALARS = {"BININT", "BININT1", "BININT2", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
_LONG_INTEGERS = {"LONG1", "LONG4"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_FROM_MARK = {"TUPLE": tuple, "LIST": list}
_SHORT_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MEMO_READS = {"BINGET", "LONG_BINGET"}
_MEMO_WRITES = {"MEMOIZE", "BINPUT", "LONG_BINPUT"}
_NEWEST_PROTOCOL = 5
_PLAIN_OPCODES = re.compile(
    rb"(?:[]})(ueasN\x88\x89\x94]"  # containers and what fills them, constants, MEMOIZE
    rb"|h.|j.{4}"  # what was memoized
    rb"|K.(?:K.\x86)?|M..|J.{4}|G.{8}"  # numbers; a tuple only of two numbers, so that hashing it takes no time
    rb"|\x8a(?:\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}|\x09.{8}\x00)"  # integers of up to 64 bits
    rb"|\x80.|\x95.{8})*+",  # PROTO, FRAME
    re.DOTALL,
)
"""Any number of opcodes with their arguments, up to a text, the end, or an opcode that the builder must judge."""
_LENGTH_BYTES = {b"\x8c": 1, b"X": 4}
"""Opcode of a text -> bytes of its length: SHORT_BINUNICODE and BINUNICODE."""


class NotPlainError(Exception):
    """The pickle is damaged or holds something other than plain data; the message states what, and where."""


def read_plain_pickle(data: bytes) -> Any:
    """The value that ``data`` holds. Raises NotPlainError. Nothing in ``data`` is ever run.

    Parts that the pickle shares stay shared, so a walk over the value may reach one part very often.
    """
    if is_surely_plain(data):
        with suppress(Exception):  # it is damaged: the builder states where
            return _Unpickler(io.BytesIO(data)).load()
    try:
        return _Builder(len(data)).build(data)
    except (ValueError, LookupError) as error:  # pickletools raises these for opcodes that end too early
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise NotPlainError(f"a damaged pickle ({reason})") from error
    except (OverflowError, MemoryError) as error:
        raise NotPlainError("a pickle that asks for more memory than there is") from error


class _Unpickler(pickle.Unpickler):
    """Python's unpickler without names. No opcode that was let through asks for one; this is a second lock."""

    def find_class(self, module: str, name: str, /) -> Any:
        raise NotPlainError(f"{module}.{name} is not allowed: only plain data is read")


def is_surely_plain(data: bytes) -> bool:
    """Whether ``data`` has no opcode but those of :data:`_PLAIN_OPCODES` and texts, and not too many containers."""
    if sum(data.count(opcode) for opcode in (b"}", b"]", b")", b"\x86")) > limits.MOST_SNAPSHOT_CONTAINERS:
        return False
    position = 0
    while found := _PLAIN_OPCODES.match(data, position):
        position = found.end()
        opcode = data[position : position + 1]
        if opcode == b".":
            return True
        if opcode not in _LENGTH_BYTES:
            return False
        start = position + 1 + _LENGTH_BYTES[opcode]
        position = start + int.from_bytes(data[position + 1 : start], "little")
    return False


class _Builder:
    """Builds the value of one pickle on a stack. Only an opcode that ends a mark takes values from below it."""

    def __init__(self, pickle_bytes: int) -> None:
        self._pickle_bytes = pickle_bytes
        self._stack: list[Any] = []
        self._marks: list[int] = []
        """Heights of the stack at the open marks."""
        self._memo: list[Any] = []
        self._containers = 0

    def build(self, data: bytes) -> Any:
        stack, memo = self._stack, self._memo
        argument: Any
        position: Any  # an int, as the bytes are at hand
        for opcode, argument, position in pickletools.genops(data):
            name = opcode.name
            if name in _SCALARS:
                stack.append(argument)
            elif name in _MEMO_READS:
                stack.append(memo[argument])
            elif name in _MEMO_WRITES:
                self._remember(len(memo) if argument is None else argument, position)
            elif name == "MARK":
                self._marks.append(len(stack))
            elif name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            elif name == "STOP":
                return self._pop(1)[0]
            elif not self._fill(name) and not self._read_rare(name, argument, position):
                self._open(name, position)
        raise NotPlainError("a damaged pickle (it has no end)")

    def _read_rare(self, name: str, argument: Any, position: int) -> bool:
        """Reads a long integer, or a remark on the pickle itself; False where the opcode ``name`` is another."""
        if name in _LONG_INTEGERS:
            if argument.bit_length() > limits.MOST_INTEGER_BITS:
                raise NotPlainError(f"an integer of more than {limits.MOST_INTEGER_BITS} bits at byte {position}")
            self._stack.append(argument)
        elif name == "FRAME":  # it only states how much to read at once
            if argument > self._pickle_bytes:
                raise NotPlainError(f"it ends within the frame at byte {position}")
        elif name != "PROTO":
            return False
        elif argument > _NEWEST_PROTOCOL:
            raise NotPlainError(f"protocol {argument} is not known")
        return True

    def _fill(self, name: str) -> bool:
        """Puts values into a container; False where the opcode ``name`` is another."""
        match name:
            case "SETITEMS":
                items = self._pop_to_mark()
                _set_items(self._top(dict), items)
            case "SETITEM":
                items = self._pop(2)
                _set_items(self._top(dict), items)
            case "APPENDS":
                items = self._pop_to_mark()
                self._top(list).extend(items)
            case "APPEND":
                items = self._pop(1)
                self._top(list).extend(items)
            case _:
                return False
        return True

    def _open(self, name: str, position: int) -> None:
        """Builds a container."""
        self._containers += 1
        if self._containers > limits.MOST_SNAPSHOT_CONTAINERS:
            raise NotPlainError(f"it holds more than {limits.MOST_SNAPSHOT_CONTAINERS:,} dicts, lists and tuples")
        if name in _EMPTY:
            self._stack.append(_EMPTY[name]())
        elif name in _SHORT_TUPLES:
            self._stack.append(tuple(self._pop(_SHORT_TUPLES[name])))
        elif name == "DICT":
            items = self._pop_to_mark()
            self._stack.append(_set_items({}, items))
        elif name in _FROM_MARK:
            self._stack.append(_FROM_MARK[name](self._pop_to_mark()))
        else:
            raise NotPlainError(f"{name} at byte {position} is not allowed: only plain data is read")

    def _remember(self, index: int, position: int) -> None:
        # Pickle numbers its memo in order.
        if index == len(self._memo):
            self._memo.append(self._top(object))
        elif index < len(self._memo):
            self._memo[index] = self._top(object)
        else:
            raise NotPlainError(f"memo {index} at byte {position} is out of order")

    def _top(self, kind: type) -> Any:
        """The value on top of the stack, which is a ``kind``."""
        if len(self._stack) <= (self._marks[-1] if self._marks else 0) or not isinstance(self._stack[-1], kind):
            raise NotPlainError(f"a damaged pickle (no {kind.__name__} is open)")
        return self._stack[-1]

    def _pop(self, count: int) -> list[Any]:
        if len(self._stack) - count < (self._marks[-1] if self._marks else 0):
            raise NotPlainError("a damaged pickle (a value is missing)")
        values = self._stack[-count:]
        del self._stack[-count:]
        return values

    def _pop_to_mark(self) -> list[Any]:
        if not self._marks:
            raise NotPlainError("a damaged pickle (a mark is missing)")
        height = self._marks.pop()
        values = self._stack[height:]
        del self._stack[height:]
        return values


def _set_items(values: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
    """Sets keys and values, which alternate in ``items``.

    A key is a text or a whole number. A chain of n tuples that each hold the previous one twice would take 2^n steps to
    hash, and a file can hold any number of tuples with the same hash.
    """
    keys = items[::2]
    if len(items) % 2:
        raise NotPlainError("a damaged pickle (a key has no value)")
    for kind in set(map(type, keys)) - {str, int}:
        raise NotPlainError(f"a key of type {kind.__name__} is not allowed")
    values.update(zip(keys, items[1::2], strict=True))
    return values
