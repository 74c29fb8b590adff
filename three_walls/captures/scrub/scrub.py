"""Scrubs exports: a new file that analysis reads alike, without what tells of people and machines."""

from __future__ import annotations

import lzma
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path

import zstandard

from three_walls.captures.scrub.command_line import REMOVED, reduce_command
from three_walls.captures.scrub.copying import Copied, Pairs, plain_pairs, write_export
from three_walls.captures.scrub.hosts import HostNames
from three_walls.captures.scrub.leaks import scan_for_leaks
from three_walls.captures.scrub.secrets import Secrets, find_secrets
from three_walls.captures.scrub.texts import TextFilter
from three_walls.inputs.config.environment import read_environment, unquote
from three_walls.inputs.nsys.export import NsysExport
from three_walls.inputs.nsys.identity import read_host
from three_walls.inputs.nsys.reader import check_is_nsys, launch_words
from three_walls.inputs.nsys.recorded_environment import environment_blocks, launch_environment
from three_walls.inputs.nsys.source import COMPRESSED_SUFFIXES, find_traces, hash_file, plain_sqlite
from three_walls.model.errors import InputError, UsageError
from three_walls.model.scrubbed import Scrubbed
from three_walls.tables.environment_variables import allowed_variables
from three_walls.tables.scrub import ScrubRules, scrub_rules

_CHUNK_BYTES = 1 << 20


def scrub(source: Path, target: Path, force: bool = False) -> list[Scrubbed]:
    """Scrubs ``source`` into ``target``: a file into a file, or every export of a directory into another directory.

    The exports of a directory share their hosts' pseudonyms. Raises UsageError where the target may not be written,
    InputError where a source cannot be read, or where a removed value is found in the result, which is deleted then.
    """
    sources = find_traces([source])
    is_directory = source.is_dir()
    targets = [target / one.name for one in sources] if is_directory else [target]
    for one, its_target in zip(sources, targets, strict=True):
        _check_target(one, its_target, force)
    if is_directory:
        _make_directory(target)
    hosts = HostNames(is_whole_run=is_directory)
    return [_scrub_one(one, its_target, hosts) for one, its_target in zip(sources, targets, strict=True)]


def _check_target(source: Path, target: Path, force: bool) -> None:
    if target.exists() and source.samefile(target):
        raise UsageError(f"{target}: expected another file to write to, found the input itself; it is never changed")
    if target.is_dir():
        raise UsageError(f"{target}: expected a file to write to, found a directory")
    if target.exists() and not force:
        raise UsageError(f"{target}: exists already; choose another name, or --force to replace it")
    if target.suffix not in (".sqlite", *COMPRESSED_SUFFIXES):
        raise UsageError(f"{target}: expected a name that ends in .sqlite, .sqlite.xz or .sqlite.zst")


def _make_directory(target: Path) -> None:
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{target}: cannot be created ({error.strerror})") from error


def _scrub_one(source: Path, target: Path, hosts: HostNames) -> Scrubbed:
    digest = hash_file(source)
    try:
        staging = tempfile.TemporaryDirectory(dir=target.parent, prefix=".scrubbing-")
    except OSError as error:
        raise UsageError(f"{target}: cannot be written ({error.strerror})") from error
    with staging as folder, plain_sqlite(source) as plain, NsysExport(plain, source) as export:
        check_is_nsys(export, source)
        rules, secrets = scrub_rules(), find_secrets(export)
        pairs = plain_pairs(export, rules)
        arguments = _add_launch(export, pairs, secrets, rules)
        host = _add_host(export, pairs, hosts, digest)
        judge = TextFilter(rules, secrets)
        new = Path(folder).resolve() / "export.sqlite"
        try:
            copied = write_export(plain, export, new, rules, judge, pairs)
        except sqlite3.Error as error:
            raise InputError(f"{source}: expected a complete export, found a damaged database ({error})") from error
        scan = scan_for_leaks(new, secrets, judge.kept)
        if scan.leaked:
            raise InputError(
                f"{source}: {scan.leaked} of {scan.searched} removed values are still in the scrubbed file, so it was "
                "deleted; the export holds them in a place that scrubbing keeps, please report its table names"
            )
        packed = _pack(new, target.suffix)
        packed.chmod(0o644 & ~_umask())
        packed.replace(target)
        return _summarize(source, target, export, copied, secrets, judge, arguments, host, scan.searched)


def _add_launch(export: NsysExport, pairs: Pairs, secrets: Secrets, rules: ScrubRules) -> int:
    """Adds the reduced command line and the variables that may be shown; how many words were left out."""
    words = launch_words(export)
    reduced = reduce_command(words, rules.scripts)
    _note_dropped(words, frozenset(reduced.dropped), secrets)
    command, *arguments = reduced.words
    rows = pairs.setdefault("META_DATA_CAPTURE", []) if words or launch_environment(export) else []
    if words:
        rows.append(("PROCESS_0:COMMAND", command))
        rows += [(f"PROCESS_0:ARGUMENT_{order}", word) for order, word in enumerate(arguments)]
    for row in launch_environment(export):
        name, separator, quoted = row.partition("=")
        if separator and allowed_variables().allows(name):
            shown = unquote(quoted) if allowed_variables().shows(name, unquote(quoted)) else REMOVED
            rows.append(("PROCESS_0:ENVIRONMENT_VARIABLE", f'{name}="{shown}"'))
    return max(0, len(words) - len(reduced.words))


def _note_dropped(words: Sequence[str], dropped: frozenset[str], secrets: Secrets) -> None:
    looks_secret = allowed_variables().looks_secret
    for before, word in zip(["", *words], words, strict=False):
        name, has_equals, value = word.partition("=")
        if word in dropped and has_equals:
            secrets.add_value(value, is_secret=looks_secret(name))
        elif word in dropped and not word.startswith("-"):
            secrets.add_value(word, is_secret=before.startswith("-") and looks_secret(before))
    for word in dropped - frozenset(words):  # pieces of a shell's command string
        secrets.add_value(re.sub(r"^[\w.+~-]+=", "", word).strip("'\""))


def _add_host(export: NsysExport, pairs: Pairs, hosts: HostNames, digest: str) -> str | None:
    host = read_host(export)
    if host is None:
        return None
    name = hosts.name(host, read_environment(launch_environment(export)), digest)
    pairs.setdefault("TARGET_INFO_SYSTEM_ENV", []).append(("Hostname", name))
    return name


def _pack(plain: Path, suffix: str) -> Path:
    if suffix not in COMPRESSED_SUFFIXES:
        return plain
    packed = plain.with_name(plain.name + suffix)
    with plain.open("rb") as stream, packed.open("wb") as out:
        if suffix == ".xz":
            with lzma.open(out, "wb") as compressing:
                shutil.copyfileobj(stream, compressing, _CHUNK_BYTES)
        else:
            zstandard.ZstdCompressor(level=10).copy_stream(stream, out)
    return packed


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _summarize(
    source: Path,
    target: Path,
    export: NsysExport,
    copied: Copied,
    secrets: Secrets,
    judge: TextFilter,
    arguments: int,
    host: str | None,
    searched: int,
) -> Scrubbed:
    return Scrubbed(
        source=source,
        target=target,
        source_bytes=source.stat().st_size,
        target_bytes=target.stat().st_size,
        tables=dict(sorted(copied.tables.items())),
        columns=tuple(sorted(copied.columns)),
        pairs=dict(sorted(copied.pairs.items())),
        strings=copied.strings,
        blocks=len(environment_blocks(export)),
        variables=tuple(sorted(secrets.variables)),
        arguments=arguments,
        texts=dict(sorted(judge.replaced.items())),
        host=host,
        searched=searched,
    )
