"""A pickle is a program: only what builds plain data is obeyed."""

from __future__ import annotations

import contextlib
import copyreg
import os
import pickle
import pickletools
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from three_walls.lib import limits
from three_walls.lib.errors import InputError
from three_walls.memory_snapshot.plain_pickle import NotPlainError, find_other_opcode, read_plain_pickle
from three_walls.memory_snapshot.read_snapshot import load_snapshot

pytestmark = pytest.mark.slow

MILLION = 1_000_000
INTEGERS = st.integers(-(2**63), 2**64 - 1)
POOLS = st.tuples(st.integers(0, 65_535), st.integers(0, 65_535))
SCALARS = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False) | st.text() | POOLS | st.just(())
PLAIN = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text() | INTEGERS, inner), max_leaves=20
)


class Runs:
    """Creates a file when it is unpickled as Python does."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


class Registered:
    pass


@given(PLAIN, st.integers(2, 5))
def test_plain_data_is_read_as_python_reads_it(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    assert read_plain_pickle(data) == pickle.loads(data) == value


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_snapshot_is_read(protocol: int) -> None:
    """PyTorch's own functions write with Python's default protocol: 4, and 5 since Python 3.14."""
    frame = {"name": "f" * 300, "filename": "é.py", "line": 1}
    event = {"action": "alloc", "addr": 2**63, "size": 70_000, "stream": 0, "time_us": 2**50, "frames": [frame] * 30}
    segment = {"segment_pool_id": (0, 700), "is_expandable": False, "blocks": [], "address": 2**40, "total_size": 300}
    settings = {
        "garbage_collection_threshold": 0.8,
        "roundup": None,
        "max_split_size": 2**64 - 1,
        "divisions": {"1": 2},
    }
    snapshot = {"segments": [segment], "device_traces": [[event] * 3, []], "allocator_settings": settings}
    snapshot["external_annotations"] = [{"device": 0, "time_us": 2**50, "name": f"step {n}"} for n in range(300)]
    assert read_plain_pickle(pickle.dumps(snapshot, protocol)) == snapshot


def test_a_snapshot_that_pytorchs_c_code_pickled_is_read() -> None:
    """As torch::cuda::_memory_snapshot_pickled writes it: protocol 2, numbers of 8 bytes, each container numbered."""

    def text(word: bytes) -> bytes:
        return b"X" + struct.pack("<I", len(word)) + word

    segment = b"}q\x04(" + text(b"address") + b"q\x05\x8a\x08" + struct.pack("<q", 2**40)
    segment += text(b"segment_pool_id") + b"r\0\1\0\0K\0K\1\x86r\1\1\0\0" + text(b"is_expandable") + b"\x89u"
    data = b"\x80\x02}q\0(" + text(b"segments") + b"q\1]q\2(" + segment + b"eu."
    assert pickle.loads(data) == read_plain_pickle(data)
    assert read_plain_pickle(data)["segments"][0]["segment_pool_id"] == (0, 1)


@pytest.mark.parametrize(
    "value",
    [
        b"a",
        (1,),
        (1, 2, 3),
        ("a", "b"),
        ((0, 1), 2),
        {1},
        2**64,
        1 + 2j,
        range(3),
    ],
    ids=str,
)
def test_a_pickle_of_anything_else_is_refused_with_what_to_do(value: Any) -> None:
    with pytest.raises(NotPlainError, match=r"at byte \d+, which .* does not write; save .* as \.json$"):
        read_plain_pickle(pickle.dumps({"segments": value}))


PIECES = [
    b"}",
    b"]",
    b")",
    b"(",
    b"K.",
    b"K.K.\x86",
    b"M\x93\x93",
    b"JRRRR",
    b"\x8c\x01b",
    b"\x8c\x05",
    b"X\x02\0\0\0oo",
]
PIECES += [
    b"\x94",
    b"h\0",
    b"jRRRR",
    b"u",
    b"s",
    b"e",
    b"a",
    b"N",
    b"\x88",
    b"G" + b"R" * 8,
    b"\x8a\x05cos..",
    b"\x80\x04",
]
NAMES = {
    b"cos\nsystem\n",
    b"\x93",
    b"R",
    b"b",
    b"\x81",
    b"\x92",
    b"ios\nsystem\n",
    b"o",
    b"\x82\1",
    b"P1\n",
    b"Q",
    b"\x97",
}
"""Opcodes that import, call, or ask for objects."""


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.sampled_from(sorted(NAMES)), st.integers(0, 12))
def test_a_pickle_with_a_name_is_never_given_to_pythons_reader(plain: list[bytes], name: bytes, at: int) -> None:
    data = b"".join([*plain[:at], name, *plain[at:]]) + b"."
    if find_other_opcode(data) is None:  # the opcode became part of an argument
        with contextlib.suppress(ValueError):  # text that is no UTF-8
            for opcode, _, _ in pickletools.genops(data):
                assert opcode.code.encode("latin-1") not in {piece[:1] for piece in NAMES}


def test_shared_parts_stay_shared() -> None:
    shared = [1, 2]
    first, second = read_plain_pickle(pickle.dumps([shared, shared]))
    assert first is second


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        read_plain_pickle(data)
    except NotPlainError as refused:
        assert "\n" not in str(refused)


@given(PLAIN, st.integers(0, 10_000), st.integers(0, 255))
def test_a_damaged_pickle_is_read_or_refused(value: Any, at: int, byte: int) -> None:
    data = bytearray(pickle.dumps(value))
    data[at % len(data)] = byte
    with contextlib.suppress(NotPlainError):
        read_plain_pickle(bytes(data))


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_nothing_in_a_pickle_is_run(tmp_path: Path, protocol: int) -> None:
    data = pickle.dumps(Runs(tmp_path / "made"), protocol)
    with pytest.raises(NotPlainError, match="does not write"):
        read_plain_pickle(data)
    assert not (tmp_path / "made").exists()
    pickle.loads(data)  # Python's own reader would have run it
    assert (tmp_path / "made").exists()


def deep(levels: int) -> bytes:
    return b"\x80\x04" + b"]" * levels + b"a" * (levels - 1) + b"."


HOSTILE = {
    "os.system by name": b"cos\nsystem\n(S'true'\ntR.",
    "a name from the stack": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
    "an instance": b"(ios\nsystem\n.",
    "an object": b"\x80\x02)\x81.",
    "a changed object": b"\x80\x02}}b.",
    "an outside object": b"Pname\n.",
    "an outside object from the stack": b"\x80\x02K\x01Q.",
    "a registered object": b"\x80\x02\x82\x01.",
    "an outside buffer": b"\x80\x05\x97.",
    "a memo that asks for gigabytes": b"\x80\x02]r\xff\xff\xff\x7f.",
    "a memo that was never written": b"\x80\x02h\x05.",
    "a text longer than the file": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x.",
    "bytes that reserve memory": b"\x80\x05\x96" + struct.pack("<Q", 1 << 60) + b".",
    "a frame longer than the file": b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N.",
    "a number of a gigabyte": b"\x80\x02\x8b" + struct.pack("<i", 1 << 30) + b"\x00.",
    "a number of negative length": b"\x80\x02\x8b" + struct.pack("<i", -5) + b".",
    "a list as a key": b"\x80\x02}]Ns.",
    "a key without a value": b"\x80\x02}(Nu.",
    "an end without a value": b"\x80\x02.",
    "an end within a container": b"\x80\x02](K\x01.",
    "no end": b"\x80\x02N",
    "nothing": b"",
    "millions that wait": b"\x80\x02" + b"N" * (MILLION + 2),
    "deep nesting": deep(MILLION + 2),
    "millions of open containers": b"\x80\x02" + b"(" * (MILLION + 3),
    "an append below the mark": b"\x80\x02](K\x01a.",
    "text that is no UTF-8": b"\x80\x04\x8c\x01\xff.",
    "a future protocol": b"\x80\x09N.",
}


DAMAGED_BUT_PLAIN = {
    "a memo that was never written",
    "a list as a key",
    "a key without a value",
    "an end without a value",
    "an end within a container",
    "deep nesting",
    "an append below the mark",
    "text that is no UTF-8",
    "a frame longer than the file",
    "a future protocol",
}
"""Their opcodes are harmless, so Python's reader refuses them, or what they hold is no snapshot."""


@pytest.mark.attack
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_snapshot_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "snapshot.pickle").write_bytes(HOSTILE[name])
    assert (find_other_opcode(HOSTILE[name]) is None) == (name in DAMAGED_BUT_PLAIN)
    with pytest.raises(InputError) as caught:
        load_snapshot(tmp_path / "snapshot.pickle")
    assert caught.value.exit_code == 3
    assert "expected a memory snapshot of PyTorch" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_class_in_the_extension_registry_is_refused() -> None:
    copyreg.add_extension(__name__, "Registered", 240)
    try:
        data = pickle.dumps(Registered, 2)
        assert pickle.loads(data) is Registered
        with pytest.raises(NotPlainError, match="EXT1"):
            read_plain_pickle(data)
    finally:
        copyreg.remove_extension(__name__, "Registered", 240)


def test_containers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_SNAPSHOT_CONTAINERS", 3)
    assert read_plain_pickle(pickle.dumps([[], []])) == [[], []]
    with pytest.raises(NotPlainError, match="more than 3"):
        read_plain_pickle(pickle.dumps([[], [], []]))


def tuples_of_tuples(levels: int) -> bytes:
    """A dict whose key is a tuple that holds a tuple twice, and so on: 2**levels parts when it is hashed."""
    doubled = b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86\x94" for n in range(levels))
    return b"\x80\x04K\x01K\x02\x86\x94" + doubled + b"}h" + bytes([levels]) + b"Ns."


@pytest.mark.parametrize("between", [b"", b"\x80\x04", b"\x95" + bytes(8)], ids=["nothing", "a protocol", "a frame"])
def test_a_key_that_would_take_ages_to_hash_is_refused(between: bytes) -> None:
    data = tuples_of_tuples(60).replace(b"\x86\x94", b"\x86" + between + b"\x94")
    with pytest.raises(NotPlainError, match="TUPLE2"):
        read_plain_pickle(data)


def test_a_flat_tuple_may_be_shared() -> None:
    pool = (0, 7)
    assert read_plain_pickle(pickle.dumps([{"pool": pool}, {"pool": pool}])) == [{"pool": pool}] * 2


def test_entries_that_a_pickle_repeats_by_reference_are_refused(tmp_path: Path) -> None:
    block = {"size": 1, "state": "active_allocated", "frames": []}
    segment = {"device": 0, "address": 1, "total_size": 1, "blocks": [block] * 30_000}
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment] * 30_000}))
    with pytest.raises(InputError, match="repeats its entries by reference"):
        load_snapshot(path)
