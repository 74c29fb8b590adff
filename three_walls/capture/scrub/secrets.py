"""What must not be in the scrubbed copy: values of variables, dropped arguments, paths, names of people and machines.

:func:`find_secrets` collects these values from the export, :func:`scan_for_leaks` searches the finished file for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import BinaryIO

import polars as pl

from three_walls.tables.environment_variables import allowed_variables
from three_walls.tables.shareable import holds_key
from three_walls.trace.launch_record import launch_environment, other_environments, unquote
from three_walls.trace.nsys_export import EXPORT_METADATA, NsysExport

_SHORTEST_BYTES = 6
"""Shorter values are not searched for: they occur anywhere by chance."""
_HOME = re.compile(r"(/(?:home|Users|users)/([^/\s:;,'\"]+))")
"""A home directory, and in it the name of its owner."""
_WORD = re.compile(r"[A-Za-z]{1,12}|[\d.,:-]{1,11}|[A-Za-z]+=?\d{1,3}")
"""A word or a short number that other texts contain by chance."""
_LONGEST_SEARCHED = 64
"""Characters. Of a longer value its beginning is searched for: a periodic one would match itself everywhere."""
_LONGEST_NAME = 64
"""Of a host or a user; a longer one is searched for like any other value."""
_PIECE_BYTES = 1 << 18
_PIECES_AT_ONCE = 32
_CODES = ("utf-8", "utf-16-le", "utf-16-be")
_OWNERS = frozenset({"USER", "LOGNAME", "USERNAME", "SUDO_USER"})
_HOSTS = frozenset({"HOSTNAME", "HOST", "NAME", "SLURMD_NODENAME", "SLURM_NODELIST", "SLURM_JOB_NODELIST"})
_IDENTITY_KEYS = ("USER_NAME", "EXPORT_USER", "EXPORT_HOST", "DEVICE_DISPLAY_NAME", "Hostname")
_PATH_KEYS = ("WORKING_DIR", "TargetInstallDir", "InjectionFilesStoragePath", "_PATH_ABS")
_NOBODY = frozenset({"root", "user", "local", "localhost"})


class _Lookup:
    """Finds any of many values in a text, in work that does not depend on their number."""

    def __init__(self, size: int, values: set[str]) -> None:
        self.size = size
        self._width = min(map(len, values), default=0)
        self._beginnings = {value[: self._width] for value in values}
        self._by_length: dict[int, set[str]] = {}
        for value in values:
            self._by_length.setdefault(len(value), set()).add(value)

    def occurrences(self, text: str) -> Iterator[tuple[int, str]]:
        """Where the values occur in ``text``."""
        if not self._width:
            return
        for start in range(len(text) - self._width + 1):
            if text[start : start + self._width] in self._beginnings:
                for length, values in self._by_length.items():
                    candidate = text[start : start + length]
                    if candidate in values:
                        yield start, candidate


def _is_alphanumeric(text: str, place: int) -> bool:
    return 0 <= place < len(text) and text[place].isalnum()


@dataclass(slots=True)
class Secrets:
    """Values to keep out of the copy."""

    strict: set[str] = field(default_factory=set)
    """Values that may occur nowhere."""
    loose: set[str] = field(default_factory=set)
    """Values that may occur within texts that are kept anyway: a project called "attention" does not make the names of
    kernels a leak."""
    identities: set[str] = field(default_factory=set)
    """Names of people and machines; a text that contains one as a whole word is replaced."""
    variables: set[str] = field(default_factory=set)
    """Names of the environment variables left out, for the summary."""
    _strict: _Lookup | None = None
    _names: _Lookup | None = None

    def add_value(self, value: str, is_secret: bool = False) -> None:
        """Adds a removed value, unless it is so common that other texts contain it by chance."""
        value = value.strip()
        for home, owner in _HOME.findall(value):
            self._add(home, self.strict)
            self.add_identity(owner)
        if _WORD.fullmatch(value):
            return
        is_strict = is_secret or holds_key(value) or looks_random(value) or "/" in value or "@" in value
        self._add(value, self.strict if is_strict else self.loose)

    def add_identity(self, name: str) -> None:
        """Adds the name of a person or a machine."""
        if len(name) > _LONGEST_NAME:
            self._add(name, self.strict)
            return
        for identity in {name, name.partition(".")[0]}:  # node7.example.org is called node7 too
            if len(identity) >= 2 and identity.lower() not in _NOBODY:
                self.identities.add(identity)

    def add_variables(self, rows: Iterable[str], are_kept: bool) -> None:
        """Adds those variables of an environment whose value may not be shown.

        ``are_kept``: whether the environment is kept, that is, the launched process's and not another's.
        """
        allowed = allowed_variables()
        for row in rows:
            name, separator, quoted = row.partition("=")
            value = unquote(quoted)
            if not separator or allowed.shows(name, value):
                continue
            if are_kept or not allowed.allows(name):
                self.variables.add(name)
            if name in _OWNERS or name in _HOSTS:
                self.add_identity(value)
            self.add_value(value, is_secret=allowed.looks_secret(name))

    def occur_in(self, text: str, counts: Callable[[str], bool] = lambda _: True) -> bool:
        """Whether ``text`` contains a strict value, or as a whole word a name of a person or a machine that ``counts``.

        The work is linear in the length of ``text``, however many values there are.
        """
        if self._strict is None or self._strict.size != len(self.strict):
            self._strict = _Lookup(len(self.strict), {value[:_LONGEST_SEARCHED] for value in self.strict})
        if any(True for _ in self._strict.occurrences(text)):
            return True
        if self._names is None or self._names.size != len(self.identities):
            self._names = _Lookup(len(self.identities), {name.lower() for name in self.identities})
        lowered = text.lower()
        return any(
            counts(name)
            for start, name in self._names.occurrences(lowered)
            if not (_is_alphanumeric(lowered, start - 1) or _is_alphanumeric(lowered, start + len(name)))
        )

    def _add(self, value: str, to: set[str]) -> None:
        if len(value.encode("utf-8", "replace")) >= _SHORTEST_BYTES:
            to.add(value)


def find_secrets(export: NsysExport) -> Secrets:
    """The secrets of ``export``: everything that identifies people and machines, except for the command line."""
    secrets = Secrets()
    secrets.add_variables(launch_environment(export), are_kept=True)
    secrets.add_variables(other_environments(export), are_kept=False)
    for table in ("META_DATA_CAPTURE", *EXPORT_METADATA, "TARGET_INFO_SYSTEM_ENV"):
        for name, value in export.pairs(table):
            if name.endswith(_IDENTITY_KEYS):
                secrets.add_identity(value)
            elif name.endswith(_PATH_KEYS):
                secrets.add_value(value)
    return secrets


def scan_for_leaks(stream: BinaryIO, secrets: Secrets, texts: Iterable[str]) -> tuple[int, int]:
    """Searches the uncompressed file ``stream`` for every value of ``secrets``, in UTF-8 and UTF-16 like SQLite's text.

    Returns how many values were searched for, and how many of them are in the file. Of a long value its beginning is
    searched for. A loose value that is part of one of the ``texts`` (of the result) occurs by chance and is no leak.
    """
    loose = (secrets.loose | {name for name in secrets.identities if len(name) >= _SHORTEST_BYTES}) - secrets.strict
    by_chance = _find([sorted(texts)], {value[:_LONGEST_SEARCHED]: value for value in loose})
    targets = {value[:_LONGEST_SEARCHED]: value for value in secrets.strict | (loose - by_chance)}
    forms = {
        beginning.encode(code, "replace").decode("latin-1"): value
        for beginning, value in sorted(targets.items())
        for code in _CODES
    }
    leaked = _find(_read_texts(stream, overlap=max(map(len, forms), default=1) - 1), forms)
    return len(targets), len(leaked)


def _find(batches: Iterable[list[str]], values: Mapping[str, str]) -> set[str]:
    """What ``values`` gives for those of its keys that occur in a text. All are searched in one pass."""
    leaked: set[str] = set()
    if not values:
        return leaked
    for batch in batches:
        texts = pl.Series(batch, dtype=pl.String)
        hits = texts.filter(texts.str.contains_any(list(values)))
        for matches in hits.str.extract_many(list(values), overlapping=True).to_list():
            leaked |= {values[match] for match in matches}
    return leaked


def _read_texts(stream: BinaryIO, overlap: int) -> Iterator[list[str]]:
    """The file's bytes as lists of texts, a character per byte. Consecutive texts overlap by ``overlap`` bytes."""
    pieces: list[str] = []
    tail = b""
    stream.seek(0)
    while block := stream.read(_PIECE_BYTES):
        pieces.append((tail + block).decode("latin-1"))
        tail = (tail + block)[-overlap:] if overlap else b""
        if len(pieces) == _PIECES_AT_ONCE:
            yield pieces
            pieces = []
    if pieces:
        yield pieces


def looks_random(word: str) -> bool:
    """Whether ``word`` looks like a key or a digest: a long run in which letters and digits alternate often.

    Names of classes contain a digit or two (``TransposeBackward0``, ``LayerNorm2dBackward0``), keys many.
    """
    return any(len(run) >= 16 and _count_changes(run) >= 4 for run in re.split(r"[^A-Za-z0-9]", word))


def _count_changes(run: str) -> int:
    """How often ``run`` changes between digits and letters."""
    return sum(before.isdigit() != after.isdigit() for before, after in pairwise(run))
