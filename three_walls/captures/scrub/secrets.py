"""What must not be in the scrubbed copy: values of variables, dropped arguments, paths, names of people and machines.

:func:`find_secrets` collects these values from the export, :func:`scan_for_leaks` searches the finished file for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import polars as pl

from three_walls.inputs.nsys.export import NsysExport
from three_walls.inputs.nsys.launch import launch_environment, other_environments, unquote
from three_walls.tables.environment_variables import allowed_variables
from three_walls.tables.scrub import holds_key

_SHORTEST_BYTES = 6
"""Shorter values are not searched for: they occur anywhere by chance."""

_HOME = re.compile(r"(/(?:home|Users|users)/([^/\s:;,'\"]+))")
"""A home directory, and in it the name of its owner."""

_WORD = re.compile(r"[A-Za-z]{1,12}|[\d.,:-]{1,11}|[A-Za-z]+=?\d{1,3}")
"""A word or a short number that other texts contain by chance."""

_PIECE_BYTES = 1 << 18
_PIECES_AT_ONCE = 32
_CODES = ("utf-8", "utf-16-le", "utf-16-be")
_OWNERS = frozenset({"USER", "LOGNAME", "USERNAME", "SUDO_USER"})
_HOSTS = frozenset({"HOSTNAME", "HOST", "NAME", "SLURMD_NODENAME", "SLURM_NODELIST", "SLURM_JOB_NODELIST"})
_IDENTITY_KEYS = ("USER_NAME", "EXPORT_USER", "EXPORT_HOST", "DEVICE_DISPLAY_NAME", "Hostname")
_PATH_KEYS = ("WORKING_DIR", "TargetInstallDir", "InjectionFilesStoragePath", "_PATH_ABS")
_NOBODY = frozenset({"root", "user", "local", "localhost"})


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
        if len(name) >= 2 and name.lower() not in _NOBODY:
            self.identities.add(name)

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

    def occur_in(self, text: str) -> bool:
        """Whether ``text`` contains a strict value, or the name of a person or a machine."""
        return any(value in text for value in self.strict) or any(
            name in text and re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", text)
            for name in self.identities
        )

    def _add(self, value: str, to: set[str]) -> None:
        if len(value.encode("utf-8", "replace")) >= _SHORTEST_BYTES:
            to.add(value)


def find_secrets(export: NsysExport) -> Secrets:
    """The secrets of ``export``: everything that identifies people and machines, except for the command line."""
    secrets = Secrets()
    secrets.add_variables(launch_environment(export), are_kept=True)
    secrets.add_variables(other_environments(export), are_kept=False)
    for table in ("META_DATA_CAPTURE", "META_DATA_EXPORT", "TARGET_INFO_SYSTEM_ENV"):
        for name, value in export.pairs(table):
            if name.endswith(_IDENTITY_KEYS):
                secrets.add_identity(value)
            elif name.endswith(_PATH_KEYS):
                secrets.add_value(value)
    return secrets


@dataclass(frozen=True, slots=True)
class Scan:
    """The result of searching a file for secrets."""

    searched: int
    """How many values were searched for."""
    leaked: int
    """How many of them are in the file."""


def scan_for_leaks(path: Path, secrets: Secrets, kept: Iterable[str]) -> Scan:
    """Searches the uncompressed file ``path`` for every value of ``secrets``, in UTF-8 and UTF-16 like SQLite's text.

    A loose value that is part of one of the ``kept`` texts occurs by chance and is no leak.
    """
    by_chance = "\n".join(sorted(kept))
    loose = (secrets.loose | {name for name in secrets.identities if len(name) >= _SHORTEST_BYTES}) - secrets.strict
    wanted = secrets.strict | {value for value in loose if value not in by_chance}
    return Scan(len(wanted), len(_find(path, wanted)))


def _find(path: Path, wanted: set[str]) -> set[str]:
    """Which of ``wanted`` are in the file. All are searched in one pass: there can be tens of thousands."""
    forms = {value.encode(code, "replace").decode("latin-1"): value for value in sorted(wanted) for code in _CODES}
    if not forms:
        return set()
    found: set[str] = set()
    for pieces in _read_texts(path, overlap=max(map(len, forms)) - 1):
        texts = pl.Series(pieces)
        hits = texts.filter(texts.str.contains_any(list(forms)))
        for matches in hits.str.extract_many(list(forms), overlapping=True).to_list():
            found |= {forms[match] for match in matches}
    return found


def _read_texts(path: Path, overlap: int) -> Iterator[list[str]]:
    """The file's bytes as lists of texts, a character per byte. Consecutive texts overlap by ``overlap`` bytes."""
    pieces: list[str] = []
    tail = b""
    with path.open("rb") as stream:
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
