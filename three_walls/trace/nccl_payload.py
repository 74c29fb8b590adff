"""What NCCL records of each call in its own NVTX ranges: communicator, bytes, peer.

Recent exports hold the payload of a range as a blob (NVTX_EVENTS.binaryData). It begins with a header of 32 bytes (u32
domain, u32, u32 schema id, u32, u64 payload size, u64). The fields follow at the offsets that
NVTX_PAYLOAD_SCHEMA_ENTRIES states for that domain and schema. Schemas change with NCCL's version, so fields are found
by name. A payload whose size is not the one that its schema states is refused and counted.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from three_walls.lib import limits
from three_walls.trace.nsys_export import NsysExport
from three_walls.trace.read_tables import NVTX, NVTX_RANGE_TYPES, process_of
from three_walls.trace.schemas import NCCL_CALLS, ExportNcclCalls

SCHEMAS, ENTRIES = "NVTX_PAYLOAD_SCHEMAS", "NVTX_PAYLOAD_SCHEMA_ENTRIES"

GROUP_START, GROUP_END = "ncclGroupStart", "ncclGroupEnd"
"""Calls without payload; the kernels of grouped calls are launched inside the end of their group."""

FIELD_NAMES = ("NCCL communicator ID", "Message size [bytes]", "Peer rank")
"""NCCL's names of the fields that are read."""

_HEADER = struct.Struct("<IIIIQQ")
_FIELDS = dict(zip(FIELD_NAMES, ("communicator", "message_bytes", "peer"), strict=True))
_FORMATS = {
    number: struct.Struct(form)
    for number, form in {5: "<i", 6: "<I", 15: "<i", 16: "<I", 17: "<q", 18: "<Q", 22: "<Q"}.items()
}
"""NVTX_PAYLOAD_ENTRY_TYPE_* of nvtx3/nvToolsExtPayload.h: int, unsigned, (u)int32, (u)int64, size_t."""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    offset: int
    form: struct.Struct


@dataclass(frozen=True, slots=True)
class _Layout:
    payload_bytes: int
    fields: tuple[_Field, ...]


Layouts = Mapping[tuple[int, int], _Layout]
"""By domain and schema."""


def holds_payloads(export: NsysExport) -> bool:
    """Whether any range has a payload and a schema to read it by."""
    if not export.has(NVTX, "binaryData") or SCHEMAS not in export.columns:
        return False
    return bool(export.rows(f"SELECT 1 FROM {NVTX} WHERE binaryData IS NOT NULL LIMIT 1"))


def read_nccl_calls(export: NsysExport) -> tuple[ExportNcclCalls, int]:
    """NCCL calls with a message, and starts and ends of groups (schemas.NCCL_CALLS), sorted; and how many were refused.

    Empty if the export holds no payloads.
    """
    layouts = read_layouts(export)
    if not layouts or not export.has(NVTX, "start", "end", "eventType", "globalTid", "binaryData"):
        return pl.DataFrame(schema=NCCL_CALLS), 0
    calls, refused = [], 0
    for thread, start_ns, end_ns, name, blob in _ranges(export, "e.binaryData IS NOT NULL"):
        payload = _bytes_of(blob)
        layout = _layout_of(payload, layouts)
        if layout is None:
            continue  # the payload of another library
        fields = _decode(payload, layout)
        if fields is None:
            refused += 1
        elif "message_bytes" in fields:  # a call without a message creates or destroys a communicator
            row = {"thread": thread, "start_ns": start_ns, "end_ns": end_ns, "call_name": name}
            calls.append(row | fields)
    if not calls:
        return pl.DataFrame(schema=NCCL_CALLS), refused
    marks = [
        {"thread": thread, "start_ns": start_ns, "end_ns": end_ns, "call_name": name}
        for thread, start_ns, end_ns, name, _ in _ranges(export, "e.binaryData IS NULL", (GROUP_START, GROUP_END))
    ]
    columns = {name: dtype for name, dtype in NCCL_CALLS.items() if name != "process"}
    frame = pl.DataFrame([*calls, *marks], schema=columns).with_columns(process=process_of("thread"))
    return frame.select(NCCL_CALLS.names()).sort("thread", "start_ns", "end_ns", "call_name"), refused


def reduce_payload(blob: object, layouts: Layouts) -> bytes | None:
    """A copy of a payload with only what :func:`read_nccl_calls` reads of it; None if that is nothing."""
    payload = _bytes_of(blob)
    layout = _layout_of(payload, layouts)
    if layout is None or _decode(payload, layout) is None:
        return None
    domain, _, schema, _, payload_bytes, _ = _HEADER.unpack_from(payload)
    reduced = bytearray(len(payload))
    _HEADER.pack_into(reduced, 0, domain, 0, schema, 0, payload_bytes, 0)
    for field in layout.fields:
        place = slice(_HEADER.size + field.offset, _HEADER.size + field.offset + field.form.size)
        reduced[place] = payload[place]
    return bytes(reduced)


def _ranges(export: NsysExport, condition: str, only: tuple[str, ...] = ()) -> list[tuple[int, int, int, str, object]]:
    """Ranges that have ended, as (thread, start, end, text, payload); with ``only``, those with these texts."""
    text, join = export.text_of(NVTX)
    where = f"e.eventType IN {NVTX_RANGE_TYPES} AND {condition}"
    if only:
        where += f" AND {text} IN {only}"
    ranges = []
    columns = f'e.globalTid, e.start, e."end", CAST({text} AS TEXT), e.binaryData'
    for thread, start_ns, end_ns, name, payload in export.rows(f"SELECT {columns} FROM {NVTX} e {join} WHERE {where}"):
        are_numbers = isinstance(thread, int) and isinstance(start_ns, int) and isinstance(end_ns, int)
        if are_numbers and -limits.LATEST_TIME_NS <= start_ns <= end_ns <= limits.LATEST_TIME_NS:
            ranges.append((thread, start_ns, end_ns, name or "", payload))
    return ranges


def _bytes_of(blob: object) -> bytes:
    """The payload; some exporters write blobs as hexadecimal text."""
    if isinstance(blob, str):
        try:
            return bytes.fromhex(blob)
        except ValueError:
            return b""
    return blob if isinstance(blob, bytes) else b""


def _layout_of(payload: bytes, layouts: Layouts) -> _Layout | None:
    if len(payload) < _HEADER.size:
        return None
    domain, _, schema, _, _, _ = _HEADER.unpack_from(payload)
    return layouts.get((domain, schema))


def _decode(payload: bytes, layout: _Layout) -> dict[str, int] | None:
    """The fields of a payload by column name; None unless header, schema and data agree on its size.

    A message that no memory could hold is refused as well.
    """
    payload_bytes = _HEADER.unpack_from(payload)[4]
    if payload_bytes != layout.payload_bytes or len(payload) != _HEADER.size + payload_bytes:
        return None
    if any(field.offset < 0 or field.offset + field.form.size > payload_bytes for field in layout.fields):
        return None
    fields: dict[str, int] = {
        field.name: field.form.unpack_from(payload, _HEADER.size + field.offset)[0] for field in layout.fields
    }
    if not 0 <= fields.get("message_bytes", 0) < limits.MOST_COPY_BYTES or fields.get("peer", 0) >= 1 << 31:
        return None
    return fields | {"communicator": fields["communicator"] % (1 << 64)}


def read_layouts(export: NsysExport) -> Layouts:
    """The layouts of the schemas that hold a communicator, by domain and schema.

    Every process registers its own schemas; where two processes disagree on one, it is not used.
    """
    keys = ("domainId", "schemaId")
    if not export.has(SCHEMAS, *keys, "payloadSize") or not export.has(ENTRIES, *keys, "idx", "type", "name", "offset"):
        return {}
    sizes: dict[tuple[int, int], set[int]] = {}
    for domain, schema, size in export.rows(f"SELECT DISTINCT domainId, schemaId, payloadSize FROM {SCHEMAS}"):
        sizes.setdefault((domain, schema), set()).add(size or 0)
    fields: dict[tuple[int, int], dict[str, set[_Field]]] = {}
    entries = f'SELECT DISTINCT domainId, schemaId, idx, type, name, "offset" FROM {ENTRIES}'
    for domain, schema, order, kind, name, offset in export.rows(entries):
        if name in _FIELDS and kind in _FORMATS and (isinstance(offset, int) or (offset is None and order == 0)):
            # An offset that is not recorded is 0 for the first entry and unknown for all others.
            field = _Field(_FIELDS[name], offset or 0, _FORMATS[kind])
            fields.setdefault((domain, schema), {}).setdefault(field.name, set()).add(field)
    layouts = {}
    for key, variants_of in fields.items():
        is_unique = len(sizes.get(key, ())) == 1 and all(len(variants) == 1 for variants in variants_of.values())
        if "communicator" in variants_of and is_unique:
            layouts[key] = _Layout(
                sizes[key].pop(), tuple(variants.pop() for _, variants in sorted(variants_of.items()))
            )
    return layouts
