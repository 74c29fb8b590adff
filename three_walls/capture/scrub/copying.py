"""Writes the new export: allowed tables and columns, cell by cell, into a database that never held anything else."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from three_walls.capture.scrub.texts import TextFilter
from three_walls.tables.shareable import ScrubRules
from three_walls.trace.nccl_payload import read_layouts, reduce_payload
from three_walls.trace.nsys_export import NsysExport

_ID_KINDS = ("kernel_ids", "call_ids", "range_ids")
"""Kinds of string ids. Where a string is used as several kinds the first counts: a kernel keeps its name."""


@dataclass(slots=True)
class LeftOut:
    """What was left out of a copy: names and counts only."""

    tables: dict[str, int] = field(default_factory=dict)
    """Tables, with their number of rows."""
    columns: list[str] = field(default_factory=list)
    """Columns of tables that stay, as ``TABLE.column``."""
    pairs: dict[str, int] = field(default_factory=dict)
    """Name/value tables, with the number of their rows."""
    strings: int = 0
    """Of StringIds, also those that hold the environment of a whole process."""


Pairs = dict[str, list[tuple[str, str]]]
"""Name/value tables of the new export, their rows in order."""


def select_pairs(export: NsysExport, rules: ScrubRules) -> Pairs:
    """The rows of name/value tables that ``rules`` keep."""
    return {
        table: [
            (name, value)
            for name, value in export.pairs(table)
            if any(name_re.fullmatch(name) and value_re.fullmatch(value) for name_re, value_re in patterns.items())
        ]
        for table, patterns in rules.pairs.items()
        if export.has(table, "name", "value")
    }


def open_new(path: Path) -> sqlite3.Connection:
    """A connection to the new export at ``path``, an empty file. It writes no other file. Raises sqlite3.Error."""
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, isolation_level=None)
    database.text_factory = lambda raw: raw.decode("utf-8", "replace")
    try:
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        database.execute("PRAGMA temp_store = MEMORY")
    except BaseException:  # the caller has nothing to close yet
        database.close()
        raise
    return database


def attach_original(database: sqlite3.Connection, path: Path) -> None:
    """Attaches the export at ``path`` as ``original``. Raises sqlite3.Error where it is damaged."""
    quoted_uri = path.resolve().as_uri().replace("'", "''")
    database.execute(f"ATTACH '{quoted_uri}?mode=ro&immutable=1' AS original")


def write_export(
    database: sqlite3.Connection, export: NsysExport, rules: ScrubRules, texts: TextFilter, pairs: Pairs
) -> LeftOut:
    """Fills ``database`` from the database ``original`` that is attached to it, which is also open as ``export``.

    Only what may be kept is ever written, so no deleted data can linger in the file. Ids of strings stay the same.
    Raises sqlite3.Error where the source is damaged or the disk is full.
    """
    left_out = LeftOut()
    layouts = read_layouts(export)

    # Python refuses texts that are no UTF-8, so functions are given bytes.
    def filter_text(kind: str, text: bytes) -> str:
        return texts.filter(kind, text.decode("utf-8", "replace"))

    def reduce_cell(type_name: str, payload: bytes | None) -> bytes | None:
        if type_name == "text" and payload is not None:
            return reduce_payload(payload.decode("latin-1"), layouts)
        return reduce_payload(payload, layouts)

    database.create_function("filtered", 2, filter_text, deterministic=True)
    database.create_function("reduced", 2, reduce_cell, deterministic=True)
    database.execute("BEGIN")
    for table, rows in pairs.items():
        _create(database, table, ["name TEXT", "value TEXT"])
        database.executemany(f'INSERT INTO main."{table}" VALUES (?, ?)', rows)
        left_out.pairs[table] = len(export.pairs(table)) - len(rows)
    for table in sorted(export.columns):
        _copy_table(database, export, table, rules, left_out)
    left_out.strings = _copy_strings(database, export, rules, texts)
    database.execute("COMMIT")
    left_out.columns.sort()
    left_out.pairs = dict(sorted(left_out.pairs.items()))
    texts.results.update(row[0] for row in database.execute("SELECT sql FROM main.sqlite_master"))
    texts.results.update(f"{name}={value}" for rows in pairs.values() for name, value in rows)
    return left_out


def _copy_table(
    database: sqlite3.Connection, export: NsysExport, table: str, rules: ScrubRules, left_out: LeftOut
) -> None:
    if table in rules.pairs or table == "StringIds":
        return
    have = export.columns[table]
    kinds = {name: kind for name, kind in rules.column_kinds.get(table, {}).items() if name in have}
    if not kinds:
        # Tables named ENUM_ hold constants of the format; to list them would hide what matters.
        if not table.startswith("ENUM_"):
            quoted_table = table.replace('"', '""')
            left_out.tables[table] = int(export.rows(f'SELECT count(*) FROM "{quoted_table}"')[0][0])
        return
    left_out.columns += [f"{table}.{name}" for name in have if name not in kinds]
    columns = [_column(name, kinds[name]) for name in have if name in kinds]
    _create(database, table, [declaration for declaration, _ in columns])
    cells = ", ".join(cell for _, cell in columns)
    database.execute(f'INSERT INTO main."{table}" SELECT {cells} FROM original."{table}" ORDER BY rowid')


def _column(name: str, kind: str) -> tuple[str, str]:
    """The declaration of a column, and the expression that makes its cells from the original ones."""
    if kind == "nccl_payloads":
        return f'"{name}" BLOB', f'reduced(typeof("{name}"), CAST("{name}" AS BLOB))'
    if kind in ("range_texts", "gpu_names", "sentences", "field_names", "metric_names"):
        filtered = f"filtered('{kind}', CAST(\"{name}\" AS BLOB))"
        return f'"{name}" TEXT', f"CASE WHEN typeof(\"{name}\") = 'text' THEN {filtered} END"
    return f'"{name}" INTEGER', f"CASE WHEN typeof(\"{name}\") IN ('integer', 'real') THEN \"{name}\" END"


def _copy_strings(database: sqlite3.Connection, export: NsysExport, rules: ScrubRules, texts: TextFilter) -> int:
    """Copies the strings that kept columns refer to; returns how many were left out."""
    if not export.has("StringIds", "id", "value"):
        return 0
    _create(database, "StringIds", ["id INTEGER", "value TEXT"])
    uses: dict[int, str] = {}
    for kind in _ID_KINDS:
        for table, columns in rules.column_kinds.items():
            for column, column_kind in columns.items():
                if column_kind == kind and export.has(table, column):
                    query = f'SELECT DISTINCT "{column}" FROM main."{table}" WHERE "{column}" IS NOT NULL'
                    for (number,) in database.execute(query):
                        uses.setdefault(number, kind)
    count = 0
    rows: list[tuple[int, str]] = []
    for number, text in database.execute("SELECT id, value FROM original.StringIds ORDER BY rowid"):
        if number in uses and isinstance(text, str):
            rows.append((number, texts.filter(uses[number], text)))
        else:
            count += 1
    database.executemany("INSERT INTO main.StringIds VALUES (?, ?)", rows)
    return count


def _create(database: sqlite3.Connection, table: str, columns: Sequence[str]) -> None:
    database.execute(f'CREATE TABLE main."{table}" ({", ".join(columns)})')
