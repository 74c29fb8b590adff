"""What NCCL says of each call in its own NVTX ranges: communicator, bytes, peer.

Recent exports hold the payload of a range as a blob (NVTX_EVENTS.binaryData): 32 bytes of header (u32 domain, u32,
u32 schema id, u32, u64 payload size, u64 total size), then the fields where NVTX_PAYLOAD_SCHEMA_ENTRIES of that domain
and schema puts them. Fields are found by name; a blob that is shorter than its schema says is not read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from three_walls.trace.export import NsysExport
from three_walls.trace.schemas import NCCL_CALLS

NVTX = "NVTX_EVENTS"
SCHEMAS, ENTRIES = "NVTX_PAYLOAD_SCHEMAS", "NVTX_PAYLOAD_SCHEMA_ENTRIES"

_HEADER = struct.Struct("<IIIIQQ")
_U32, _COMMUNICATOR, _U64 = 5, 18, 22  # entry types of the export that NCCL uses
_FORMATS = {_U32: struct.Struct("<I"), _COMMUNICATOR: struct.Struct("<Q"), _U64: struct.Struct("<Q")}
_FIELDS = {"NCCL communicator ID": "communicator", "Message size [bytes]": "message_bytes", "Peer rank": "peer"}
_THREAD_BITS = 0xFFFFFF


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    offset: int
    form: struct.Struct


@dataclass(frozen=True, slots=True)
class _Layout:
    payload_bytes: int
    fields: tuple[_Field, ...]


def read_nccl_calls(export: NsysExport) -> pl.DataFrame:
    """NCCL calls that name their communicator (schemas.NCCL_CALLS), sorted; empty if the export holds no payloads."""
    layouts = _read_layouts(export)
    if not layouts or not export.has(NVTX, "start", "end", "globalTid", "binaryData"):
        return pl.DataFrame(schema=NCCL_CALLS)
    text = "e.text" if "text" in export.columns[NVTX] else "NULL"
    joined = "LEFT JOIN StringIds s ON s.id = e.textId" if export.has(NVTX, "textId") else ""
    sql = (
        f'SELECT e.globalTid, e.start, e."end", coalesce({text}{", s.value" if joined else ", NULL"}), e.binaryData '
        f"FROM {NVTX} e {joined} WHERE e.binaryData IS NOT NULL"
    )
    rows = []
    for thread, start_ns, end_ns, name, blob in export.rows(sql):
        said = decode(blob, layouts)
        if said is None or "communicator" not in said or thread is None or start_ns is None:
            continue
        process = thread - thread % (_THREAD_BITS + 1)
        rows.append(
            (process, thread, start_ns, end_ns, name, said["communicator"], said.get("message_bytes"), said.get("peer"))
        )
    return pl.DataFrame(rows, schema=NCCL_CALLS, orient="row").sort("thread", "start_ns", "end_ns", "call_name")


def decode(blob: object, layouts: Mapping[tuple[int, int], _Layout]) -> dict[str, int] | None:
    """Fields of one payload by our names; None where it is not of a known schema, or too short for it."""
    if isinstance(blob, str):  # some exporters write blobs as hexadecimal text
        try:
            blob = bytes.fromhex(blob)
        except ValueError:
            return None
    if not isinstance(blob, bytes) or len(blob) < _HEADER.size:
        return None
    domain, _, schema, _, payload_bytes, _ = _HEADER.unpack_from(blob)
    layout = layouts.get((domain, schema))
    if layout is None or len(blob) < _HEADER.size + max(layout.payload_bytes, payload_bytes):
        return None
    return {one.name: one.form.unpack_from(blob, _HEADER.size + one.offset)[0] for one in layout.fields}


def _read_layouts(export: NsysExport) -> dict[tuple[int, int], _Layout]:
    """Layouts by domain and schema, of those that hold a communicator."""
    wanted = ("domainId", "schemaId")
    if not export.has(SCHEMAS, *wanted, "payloadSize") or not export.has(ENTRIES, *wanted, "type", "name", "offset"):
        return {}
    sizes = export.rows(f"SELECT DISTINCT domainId, schemaId, payloadSize FROM {SCHEMAS}")
    entries = export.rows(f'SELECT DISTINCT domainId, schemaId, name, type, "offset" FROM {ENTRIES}')
    layouts = {}
    for domain, schema, payload_bytes in sizes:
        fields = [
            _Field(_FIELDS[name], offset or 0, _FORMATS[kind])
            for its_domain, its_schema, name, kind, offset in entries
            if (its_domain, its_schema) == (domain, schema) and name in _FIELDS and kind in _FORMATS
        ]
        fits = all(one.offset + one.form.size <= (payload_bytes or 0) for one in fields)
        if fits and any(one.name == "communicator" for one in fields):
            layouts[domain, schema] = _Layout(payload_bytes or 0, tuple(sorted(fields, key=lambda one: one.offset)))
    return layouts
