"""Reads pickles of plain data, and refuses everything else.

A pickle is a program: Python's reader imports the names in it and calls functions. So every opcode is first checked
against a list of those that build dicts, lists, tuples, text, numbers, booleans and None. Only then is the pickle read,
by an unpickler that refuses to import anything. Nesting needs no limit, because neither pass recurses.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

from three_walls.inputs import limits

_SCALARS = {
    "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT",
    "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
}  # fmt: skip
_CONTAINERS = {"EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "LIST", "DICT"}
_MEMO_READS = {"BINGET", "LONG_BINGET"}
_MEMO_WRITES = {"MEMOIZE", "BINPUT", "LONG_BINPUT"}
_FILLS_AND_MARKS = {"MARK", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "STOP"}
_SHORT_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_BUFFER_BYTES = 1 << 20


class NotPlainError(Exception):
    """The pickle is damaged or holds something other than plain data; the message states what, and where."""


def read_plain_pickle(data: bytes) -> Any:
    """The value that ``data`` holds. Raises NotPlainError. Nothing in ``data`` is ever run.

    Parts that the pickle shares stay shared, so a walk over the value may reach one part very often.
    """
    try:
        _check_opcodes(data)
        # Buffered, because from a pickle without frames the unpickler would read a few bytes at a time.
        return _PlainUnpickler(io.BufferedReader(io.BytesIO(data), _BUFFER_BYTES)).load()
    except (pickle.UnpicklingError, ValueError, TypeError, LookupError, AttributeError, EOFError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise NotPlainError(f"a damaged pickle ({reason})") from error
    except (OverflowError, MemoryError) as error:
        raise NotPlainError("a pickle that asks for more memory than there is") from error


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise NotPlainError(f"it imports {module}.{name}, which is not allowed")

    def persistent_load(self, pid: Any) -> Any:
        raise NotPlainError(f"it asks for an outside object ({type(pid).__name__}), which is not allowed")


def _check_opcodes(data: bytes) -> None:
    """Raises NotPlainError at the first opcode that is not allowed, and ValueError where the opcodes end too early.

    A tuple that holds other tuples may not be recalled from the memo. As a key of a dict it would be hashed, and in a
    chain of n tuples that each hold the previous one twice that takes 2^n steps. Tuples of up to three scalars may be
    recalled.
    """
    memo_size = containers = scalars_before = 0
    is_nested_tuple = False  # whether a nested tuple is on top of the stack
    nested_tuples: set[int] = set()  # their places in the memo
    argument: Any
    for opcode, argument, position in pickletools.genops(data):
        name = opcode.name
        if name in _MEMO_READS:
            if argument in nested_tuples:
                raise NotPlainError(f"a nested tuple is used again at byte {position}, which is not allowed")
            scalars_before = 0
        elif name in _SCALARS:
            if name == "LONG4" and argument.bit_length() >= 8 * limits.MOST_INTEGER_BYTES:
                raise NotPlainError(f"an integer of more than {limits.MOST_INTEGER_BYTES} bytes at byte {position}")
            scalars_before += 1
        elif name in _MEMO_WRITES:
            # Pickle numbers its memo in order. A larger number would make the unpickler allocate memory for it.
            index = memo_size if argument is None else argument
            if index > memo_size:
                raise NotPlainError(f"memo {index} at byte {position} is out of order")
            memo_size = max(memo_size, index + 1)
            (nested_tuples.add if is_nested_tuple else nested_tuples.discard)(index)
            continue
        elif name in _CONTAINERS:
            containers += 1
            if containers > limits.MOST_SNAPSHOT_CONTAINERS:
                raise NotPlainError(f"it holds more than {limits.MOST_SNAPSHOT_CONTAINERS:,} dicts, lists and tuples")
            is_nested_tuple = name == "TUPLE" or scalars_before < _SHORT_TUPLES.get(name, 0)
            scalars_before = 0
            continue
        elif name == "PROTO":
            continue
        elif name == "FRAME":  # a frame only states how much to read at once
            if argument > len(data):
                raise NotPlainError(f"it ends within the frame at byte {position}")
            continue
        elif name in _FILLS_AND_MARKS:
            scalars_before = 0
        else:
            raise NotPlainError(f"{name} at byte {position} is not allowed: only plain data is read")
        is_nested_tuple = False
