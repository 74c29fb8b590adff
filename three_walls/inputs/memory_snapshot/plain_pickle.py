"""Reads pickles of plain data, and refuses everything else.

A pickle is a program. Python's own reader runs it: names are imported, functions called, and one opcode can ask for
gigabytes. This reader knows only the opcodes that build dicts, lists, tuples, texts, numbers, booleans and None;
nothing in it could import or call. Memory is bounded by the size of the file and by the limits below.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

MOST_CONTAINERS = 20_000_000
"""Dicts, lists and tuples in one file; a snapshot of a million events has fewer than ten million."""
MOST_STACK = 1_000_000
"""Values that wait for their container: pickle collects a thousand at a time, per level of nesting."""
MOST_LONG_BYTES = 64


class NotPlainError(Exception):
    """The pickle holds something that is not plain data, or is damaged; the message says what and where."""


def read_plain_pickle(data: bytes) -> Any:
    """The value that ``data`` holds. Raises NotPlainError; never runs anything, never reads beyond ``data``."""
    return _Reader(data).read()


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []
        self.containers = 0

    def read(self) -> Any:
        data, steps, stack = self.data, _STEPS, self.stack
        while True:
            if self.at >= len(data):
                raise NotPlainError(f"it ends at byte {self.at} without a STOP")
            code = data[self.at]
            if code == _LONG_BINGET and self.at + 5 <= len(data):  # a third of a snapshot's opcodes: no detour for them
                self.at += 5
                self.recall(_U4.unpack_from(data, self.at - 4)[0])
                continue
            if code == _STOP:
                if len(stack) != 1 or self.marks:
                    raise NotPlainError(f"it stops with {len(stack)} values instead of one")
                return stack[0]
            step = steps.get(code)
            if step is None:
                raise NotPlainError(f"{_name(code)} at byte {self.at} is not allowed: only plain data is read")
            self.at += 1
            step(self)
            if len(stack) > MOST_STACK:
                raise NotPlainError(f"more than {MOST_STACK:,} values wait at byte {self.at}")

    def take(self, size: int) -> bytes:
        start = self.at
        self.at += size
        if self.at > len(self.data):
            raise NotPlainError(f"it ends within the value at byte {start}")
        return self.data[start : self.at]

    def number(self, form: struct.Struct) -> int:
        return int(form.unpack(self.take(form.size))[0])

    def pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise NotPlainError(f"nothing is on the stack at byte {self.at}")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0) or type(self.stack[-1]) is not kind:
            raise NotPlainError(f"expected a {kind.__name__} on the stack at byte {self.at}")
        return self.stack[-1]

    def since_mark(self) -> list[Any]:
        if not self.marks:
            raise NotPlainError(f"no mark on the stack at byte {self.at}")
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def push_container(self, value: Any) -> None:
        self.containers += 1
        if self.containers > MOST_CONTAINERS:
            raise NotPlainError(f"it holds more than {MOST_CONTAINERS:,} dicts, lists and tuples")
        self.stack.append(value)

    def memoize(self, index: int) -> None:
        """Pickle numbers what it remembers in order; any other number would be a way to ask for memory."""
        value = self.pop()
        self.stack.append(value)
        if index > len(self.memo):
            raise NotPlainError(f"memo {index} at byte {self.at} is out of order")
        if index == len(self.memo):
            self.memo.append(value)
        else:
            self.memo[index] = value

    def recall(self, index: int) -> None:
        if index >= len(self.memo):
            raise NotPlainError(f"memo {index} at byte {self.at} was never written")
        self.stack.append(self.memo[index])

    def text(self, size: int) -> None:
        try:
            self.stack.append(str(self.take(size), "utf-8", "surrogatepass"))
        except UnicodeDecodeError as error:
            raise NotPlainError(f"the text before byte {self.at} is no UTF-8") from error

    def long(self, size: int) -> None:
        if not 0 <= size <= MOST_LONG_BYTES:
            raise NotPlainError(f"a number of {size} bytes at byte {self.at} is not allowed")
        self.stack.append(int.from_bytes(self.take(size), "little", signed=True))

    def append(self) -> None:
        value = self.pop()
        self.top(list).append(value)

    def extend(self) -> None:
        items = self.since_mark()
        self.top(list).extend(items)

    def set_item(self) -> None:
        value = self.pop()
        key = self.pop()
        self.fill(self.top(dict), [key, value])

    def set_items(self) -> None:
        items = self.since_mark()
        self.fill(self.top(dict), items)

    def fill(self, target: dict[Any, Any], items: list[Any]) -> None:
        if len(items) % 2:
            raise NotPlainError(f"a key without a value at byte {self.at}")
        for index in range(0, len(items), 2):
            key = items[index]
            if type(key) not in (str, int):
                raise NotPlainError(f"a key of type {type(key).__name__} at byte {self.at} is not allowed")
            target[key] = items[index + 1]

    def tuple_of(self, count: int) -> None:
        items = [self.pop() for _ in range(count)]
        self.push_container(tuple(reversed(items)))

    def mark(self) -> None:
        if len(self.marks) > MOST_STACK:
            raise NotPlainError(f"more than {MOST_STACK:,} containers are open at byte {self.at}")
        self.marks.append(len(self.stack))

    def dict_since_mark(self) -> None:
        items = self.since_mark()
        target: dict[Any, Any] = {}
        self.fill(target, items)
        self.push_container(target)

    def protocol(self) -> None:
        if self.number(_U1) > 5:
            raise NotPlainError("its protocol is newer than 5")

    def frame(self) -> None:
        """Frames only say how much to read at once."""
        if self.number(_U8) > len(self.data) - self.at:
            raise NotPlainError(f"it ends within the frame at byte {self.at}")


_U1, _U2, _U4, _U8 = (struct.Struct(form) for form in ("<B", "<H", "<I", "<Q"))
_I4, _F8 = struct.Struct("<i"), struct.Struct(">d")
_STOP, _LONG_BINGET = ord("."), ord("j")

Step = Callable[[_Reader], None]

_STEPS: dict[int, Step] = {
    0x80: _Reader.protocol,
    0x95: _Reader.frame,
    0x94: lambda r: r.memoize(len(r.memo)),  # MEMOIZE
    ord("h"): lambda r: r.recall(r.number(_U1)),  # BINGET
    ord("j"): lambda r: r.recall(r.number(_U4)),  # LONG_BINGET
    ord("q"): lambda r: r.memoize(r.number(_U1)),  # BINPUT
    ord("r"): lambda r: r.memoize(r.number(_U4)),  # LONG_BINPUT
    ord("N"): lambda r: r.stack.append(None),
    0x88: lambda r: r.stack.append(True),
    0x89: lambda r: r.stack.append(False),
    ord("J"): lambda r: r.stack.append(r.number(_I4)),  # BININT
    ord("K"): lambda r: r.stack.append(r.number(_U1)),  # BININT1
    ord("M"): lambda r: r.stack.append(r.number(_U2)),  # BININT2
    0x8A: lambda r: r.long(r.number(_U1)),  # LONG1
    0x8B: lambda r: r.long(r.number(_I4)),  # LONG4
    ord("G"): lambda r: r.stack.append(_F8.unpack(r.take(8))[0]),  # BINFLOAT
    0x8C: lambda r: r.text(r.number(_U1)),  # SHORT_BINUNICODE
    ord("X"): lambda r: r.text(r.number(_U4)),  # BINUNICODE
    0x8D: lambda r: r.text(r.number(_U8)),  # BINUNICODE8
    ord("}"): lambda r: r.push_container({}),
    ord("]"): lambda r: r.push_container([]),
    ord(")"): lambda r: r.push_container(()),
    0x85: lambda r: r.tuple_of(1),
    0x86: lambda r: r.tuple_of(2),
    0x87: lambda r: r.tuple_of(3),
    ord("t"): lambda r: r.push_container(tuple(r.since_mark())),  # TUPLE
    ord("l"): lambda r: r.push_container(r.since_mark()),  # LIST
    ord("d"): _Reader.dict_since_mark,
    ord("("): _Reader.mark,
    ord("a"): _Reader.append,
    ord("e"): _Reader.extend,
    ord("s"): _Reader.set_item,
    ord("u"): _Reader.set_items,
}

_REFUSED = {
    ord("c"): "GLOBAL (imports a name)",
    0x93: "STACK_GLOBAL (imports a name)",
    ord("R"): "REDUCE (calls a function)",
    ord("b"): "BUILD (changes an object)",
    ord("i"): "INST (makes an object)",
    ord("o"): "OBJ (makes an object)",
    0x81: "NEWOBJ (makes an object)",
    0x92: "NEWOBJ_EX (makes an object)",
    ord("P"): "PERSID (asks for an outside object)",
    ord("Q"): "BINPERSID (asks for an outside object)",
    0x82: "EXT1 (a registered object)",
    0x83: "EXT2 (a registered object)",
    0x84: "EXT4 (a registered object)",
    0x97: "NEXT_BUFFER (an outside buffer)",
}


def _name(code: int) -> str:
    return _REFUSED.get(code, f"opcode 0x{code:02x}")
