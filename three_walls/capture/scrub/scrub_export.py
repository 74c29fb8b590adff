"""Scrubs exports: writes a new file with the same analysis but nothing that identifies people and machines.

Allowed tables and columns are copied cell by cell, into a database that never held anything else.
"""

from __future__ import annotations

import lzma
import re
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import zstandard

from three_walls.capture.scrub.cut_to_steps import condition_of, find_span
from three_walls.capture.scrub.secrets import Secrets, find_secrets, scan_for_leaks
from three_walls.capture.scrub.texts import REMOVED, Placeholders, TextFilter, is_public_variable, reduce_command
from three_walls.lib.errors import InputError, UsageError
from three_walls.lib.files import UNFINISHED, check_target, whole_file, working_directory, write_errors
from three_walls.megatron.settings.run_config import ConfigValue
from three_walls.tables.environment_variables import allowed_variables
from three_walls.tables.shareable import ScrubRules, scrub_rules
from three_walls.trace.identity import read_host
from three_walls.trace.launch_record import (
    environment_blocks,
    launch_environment,
    launch_words,
    read_environment,
    unquote,
)
from three_walls.trace.nccl_payload import read_layouts, reduce_payload
from three_walls.trace.nsys_export import NsysExport
from three_walls.trace.read_trace import check_is_nsys
from three_walls.trace.spans import Span
from three_walls.trace.table_directory import list_tables
from three_walls.trace.trace_files import find_traces, hash_file, plain_name, plain_sqlite
from three_walls.trace.unpack import COMPRESSED_SUFFIXES

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
    database: sqlite3.Connection,
    export: NsysExport,
    rules: ScrubRules,
    texts: TextFilter,
    pairs: Pairs,
    span: Span | None = None,
) -> LeftOut:
    """Fills ``database`` from the database ``original`` that is attached to it, which is also open as ``export``.

    ``span``: when what is copied ran; None for all.

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
        _copy_table(database, export, table, rules, left_out, span)
    left_out.strings = _copy_strings(database, export, rules, texts)
    database.execute("COMMIT")
    left_out.columns.sort()
    left_out.pairs = dict(sorted(left_out.pairs.items()))
    texts.results.update(row[0] for row in database.execute("SELECT sql FROM main.sqlite_master"))
    texts.results.update(f"{name}={value}" for rows in pairs.values() for name, value in rows)
    return left_out


def _copy_table(
    database: sqlite3.Connection,
    export: NsysExport,
    table: str,
    rules: ScrubRules,
    left_out: LeftOut,
    span: Span | None,
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
    where = "1" if span is None else condition_of(export, table, span)
    database.execute(f'INSERT INTO main."{table}" SELECT {cells} FROM original."{table}" WHERE {where} ORDER BY rowid')


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


_CHUNK_BYTES = 1 << 20
_WRITE_ERRORS = ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_TRUNCATE", "SQLITE_IOERR_FSYNC")
_HOST_NUMBERS = ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID")


@dataclass(frozen=True, slots=True)
class ScrubSummary:
    """What was left out of one export: names and counts only, never a value."""

    source: Path
    target: Path
    source_bytes: int
    target_bytes: int
    left_out: LeftOut
    blocks: int
    """Strings left out that are environments of whole processes."""
    variables: tuple[str, ...]
    """Names of the environment variables left out."""
    arguments: int
    """Words of the command line left out."""
    texts: Mapping[str, int]
    """How many different texts were replaced, by what replaces them (``range`` for range-1, range-2, ...)."""
    host: str | None
    """What the machine is called now."""
    searched: int
    """How many removed values were searched for in the bytes of the new file; none was found."""


def scrub(source: Path, target: Path, force: bool = False, steps: Span | None = None) -> list[ScrubSummary]:
    """Scrubs ``source`` into ``target``: a file into a file, or every export of a directory into another directory.

    ``steps``: numbers of the steps to keep, from the first to before the last; None for the whole capture.

    The exports of a directory share the placeholders of hosts and words. A target appears whole or not at all. Raises
    UsageError where it may not or cannot be written, and InputError where a source cannot be read or a removed value is
    found in the result, which is then not written.
    """
    sources = find_traces([source])
    is_directory = source.is_dir() and sources != [source]  # one directory of tables is one export
    names = [plain_name(path) if path.is_dir() else path.name for path in sources]
    targets = [target / name for name in names] if is_directory else [target]
    for source_path, target_path in zip(sources, targets, strict=True):
        _check_target(source_path, target_path, force)
    if is_directory:
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{target}: cannot be created ({error.strerror})") from error
    hosts, placeholders = HostNames(is_whole_run=is_directory), Placeholders()
    return [
        _scrub_export(source_path, target_path, hosts, placeholders, force, steps)
        for source_path, target_path in zip(sources, targets, strict=True)
    ]


def _check_target(source: Path, target: Path, force: bool) -> None:
    if target.exists() and source.samefile(target):
        raise UsageError(f"{target}: expected another file to write to, found the input itself, which is never changed")
    check_target(target, force)
    if target.suffix not in (".sqlite", *COMPRESSED_SUFFIXES):
        raise UsageError(f"{target}: expected a name that ends in .sqlite, .sqlite.xz or .sqlite.zst")


def _scrub_export(
    source: Path, target: Path, hosts: HostNames, placeholders: Placeholders, force: bool, steps: Span | None
) -> ScrubSummary:
    digest = hash_file(source)
    with ExitStack() as files:
        original = files.enter_context(plain_sqlite(source))
        export = files.enter_context(NsysExport(original, source))
        check_is_nsys(export, source)
        span = None if steps is None else find_span(source, export, steps)
        # The new file has a name only until SQLite has opened it: nothing of it is left, however the program ends.
        with write_errors(target), working_directory(UNFINISHED, target.absolute().parent) as folder:
            new = files.enter_context((folder / "new.sqlite").open("w+b"))
            try:
                database = files.enter_context(closing(open_new(folder / "new.sqlite")))
            except sqlite3.Error as error:
                raise OSError(0, str(error)) from error
        with _database_errors(source, target):
            attach_original(database, original)
        rules, secrets = scrub_rules(), find_secrets(export)
        pairs = select_pairs(export, rules)
        arguments = _add_launch(export, pairs, secrets, rules)
        host = _add_host(export, pairs, hosts, digest)
        texts = TextFilter(rules, secrets, placeholders)
        with _database_errors(source, target):
            left_out = write_export(database, export, rules, texts, pairs, span)
        searched, leaked = scan_for_leaks(new, secrets, texts.results)
        if leaked:
            raise InputError(
                f"{source}: {leaked} of {searched} removed values were still in the scrubbed file, so it was "
                "deleted; a place that scrubbing keeps contains them: please report the table names of this export"
            )
        with write_errors(target):
            target_bytes = _publish(new, target, force)
        return ScrubSummary(
            source=source,
            target=target,
            source_bytes=sum(path.stat().st_size for path in (list_tables(source) if source.is_dir() else [source])),
            target_bytes=target_bytes,
            left_out=left_out,
            blocks=len(environment_blocks(export)),
            variables=tuple(sorted(secrets.variables)),
            arguments=arguments,
            texts={kind: len(replaced) for kind, replaced in sorted(texts.replaced.items())},
            host=host,
            searched=searched,
        )


@contextmanager
def _database_errors(source: Path, target: Path) -> Iterator[None]:
    """Errors of SQLite as the fault of the source, or where it says so of the disk that is written."""
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorname", "").startswith(_WRITE_ERRORS):
            raise UsageError(f"{target}: cannot be written ({error})") from error
        raise InputError(f"{source}: expected a complete export, found a damaged database ({error})") from error


def _publish(plain: BinaryIO, target: Path, force: bool) -> int:
    """Writes ``plain`` to ``target``, compressed as its name asks; returns the size. Raises OSError."""
    plain.seek(0)
    with whole_file(target.absolute(), may_replace=force) as unfinished, unfinished.open("wb") as packed:
        if target.suffix == ".xz":
            with lzma.open(packed, "wb") as compressing:
                shutil.copyfileobj(plain, compressing, _CHUNK_BYTES)
        elif target.suffix == ".zst":
            zstandard.ZstdCompressor(level=10).copy_stream(plain, packed)
        else:
            shutil.copyfileobj(plain, packed, _CHUNK_BYTES)
    return target.stat().st_size


def _add_launch(export: NsysExport, pairs: Pairs, secrets: Secrets, rules: ScrubRules) -> int:
    """Adds the reduced command line and the environment to ``pairs``, and dropped words to ``secrets``.

    Returns how many words were left out.
    """
    words = launch_words(export)
    reduced, dropped = reduce_command(words, rules.scripts)
    _add_dropped(words, dropped, secrets)
    command, *arguments = reduced
    rows = pairs.setdefault("META_DATA_CAPTURE", []) if words or launch_environment(export) else []
    if words:
        rows.append(("PROCESS_0:COMMAND", command))
        rows += [(f"PROCESS_0:ARGUMENT_{order}", word) for order, word in enumerate(arguments)]
    for row in launch_environment(export):
        name, separator, quoted = row.partition("=")
        if separator and is_public_variable(name):
            value = unquote(quoted) if allowed_variables().shows(name, unquote(quoted)) else REMOVED
            rows.append(("PROCESS_0:ENVIRONMENT_VARIABLE", f'{name}="{value}"'))
        elif separator:
            secrets.variables.add(name)
    return max(0, len(words) - len(reduced))


def _add_dropped(words: Sequence[str], dropped: frozenset[str], secrets: Secrets) -> None:
    looks_secret = allowed_variables().looks_secret
    for before, word in zip(["", *words], words, strict=False):
        name, has_equals, value = word.partition("=")
        if word in dropped and has_equals:
            secrets.add_value(value, is_secret=looks_secret(name))
        elif word in dropped and not word.startswith("-"):
            secrets.add_value(word, is_secret=before.startswith("-") and looks_secret(before))
    for word in dropped - frozenset(words):  # pieces of a command string for a shell
        secrets.add_value(re.sub(r"^[\w.+~-]+=", "", word).strip("'\""))


def _add_host(export: NsysExport, pairs: Pairs, hosts: HostNames, digest: str) -> str | None:
    """Adds the host's pseudonym to ``pairs`` and returns it; None where the export records no host."""
    host = read_host(export)
    if host is None:
        return None
    name = hosts.name(host, read_environment(launch_environment(export)), digest)
    pairs.setdefault("TARGET_INFO_SYSTEM_ENV", []).append(("Hostname", name))
    return name


@dataclass(slots=True)
class HostNames:
    """Pseudonyms of hosts, the same for all exports that are scrubbed together."""

    is_whole_run: bool
    """Whether the exports of a directory are scrubbed together."""
    pseudonyms: dict[str, str] = field(default_factory=dict)
    """By host."""

    def name(self, host: str, environment: Mapping[str, ConfigValue], digest: str) -> str:
        """``host-1``, ``host-2``, ... for exports scrubbed together, in the order of the files.

        For an export scrubbed alone the launcher's host number counts, so that exports of the same run agree. Where
        there is none and the run has several hosts, the name is unique to the export: two hosts must never look like
        the same.
        """
        if host not in self.pseudonyms:
            self.pseudonyms[host] = self._choose(environment, digest)
        return self.pseudonyms[host]

    def _choose(self, environment: Mapping[str, ConfigValue], digest: str) -> str:
        if self.is_whole_run:
            return f"host-{len(self.pseudonyms) + 1}"
        for variable in _HOST_NUMBERS:
            number = _number(environment, variable)
            if number is not None:
                return f"host-{number + 1}"
        world, local = _number(environment, "WORLD_SIZE"), _number(environment, "LOCAL_WORLD_SIZE")
        return "host-1" if world is not None and world == local else f"host-of-{digest[:8]}"


def _number(environment: Mapping[str, ConfigValue], variable: str) -> int | None:
    text = str(environment[variable].value) if variable in environment else ""
    return int(text) if text.isdecimal() and len(text) < 10 else None
