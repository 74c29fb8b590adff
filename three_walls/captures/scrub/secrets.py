"""What must not survive: values of variables, dropped arguments, paths, names of people and machines.

:func:`find_secrets` collects them from the export, :func:`scan_for_leaks` searches the bytes of the finished file.
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
"""Shorter values occur by chance anywhere; they are not searched for."""

_HOME = re.compile(r"(/(?:home|Users|users)/([^/\s:;,'\"]+))")
_WORD = re.compile(r"[A-Za-z]{1,12}|[\d.,:-]{1,11}|[A-Za-z]+=?\d{1,3}")
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
    """Values to keep out. ``strict`` ones may occur nowhere, ``loose`` ones only within texts that are kept anyway (a
    project called "attention" does not make the kernels' names a leak). ``identities`` are removed as whole words.
    """

    strict: set[str] = field(default_factory=set)
    loose: set[str] = field(default_factory=set)
    identities: set[str] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)
    """Names of the variables that are left out, for the summary."""

    def add_value(self, value: str, is_secret: bool = False) -> None:
        """Adds a removed value, unless other texts hold it by chance."""
        value = value.strip()
        for home, owner in _homes_in(value):
            self._add(home, self.strict)
            self.add_identity(owner)
        if _is_common_word(value):
            return
        is_strict = is_secret or holds_key(value) or looks_random(value) or "/" in value or "@" in value
        self._add(value, self.strict if is_strict else self.loose)

    def add_identity(self, name: str) -> None:
        """Adds the name of a person or a machine."""
        if len(name) >= 2 and name.lower() not in _NOBODY:
            self.identities.add(name)

    def add_variables(self, rows: Iterable[str], are_kept: bool) -> None:
        """Adds the variables of an environment; with ``are_kept`` those that may be shown are not secrets."""
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
        """Whether ``text`` holds a strict value, or the name of a person or a machine."""
        return any(value in text for value in self.strict) or self._identify_in(text)

    def _identify_in(self, text: str) -> bool:
        return any(
            name in text and re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", text)
            for name in self.identities
        )

    def _add(self, value: str, to: set[str]) -> None:
        if len(value.encode("utf-8", "replace")) >= _SHORTEST_BYTES:
            to.add(value)


def find_secrets(export: NsysExport) -> Secrets:
    """Everything in ``export`` that identifies people and machines, except for the launched command line."""
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
    """``searched``: how many values were searched for; ``leaked``: how many of them are in the file."""

    searched: int
    leaked: int


def scan_for_leaks(path: Path, secrets: Secrets, kept: Iterable[str]) -> Scan:
    """Searches ``path`` (not compressed) for every value of ``secrets``, in UTF-8 and UTF-16 as SQLite may store it.

    A loose value that one of the ``kept`` texts holds occurs by chance; it was not left over.
    """
    by_chance = "\n".join(sorted(kept))
    loose = (secrets.loose | {name for name in secrets.identities if len(name) >= _SHORTEST_BYTES}) - secrets.strict
    wanted = secrets.strict | {value for value in loose if value not in by_chance}
    return Scan(len(wanted), len(_find(path, wanted)))


def _find(path: Path, wanted: set[str]) -> set[str]:
    """Which of ``wanted`` are in the file. One pass for all: there can be tens of thousands."""
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
    """The file's bytes as texts, a character per byte, some pieces at a time; pieces overlap by ``overlap`` bytes."""
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


def _homes_in(text: str) -> list[tuple[str, str]]:
    """Home directories in ``text``, each with its owner's name."""
    return [(home, owner) for home, owner in _HOME.findall(text)]


def looks_random(word: str) -> bool:
    """Whether ``word`` looks like a key or a digest: a long run in which letters and digits alternate.

    Names of classes end in a digit (``TransposeBackward0``) or hold one (``LayerNorm2dBackward0``); keys hold many.
    """
    return any(len(run) >= 16 and _changes(run) >= 4 for run in re.split(r"[^A-Za-z0-9]", word))


def _changes(run: str) -> int:
    """How often letters and digits alternate in ``run``."""
    return sum(before.isdigit() != after.isdigit() for before, after in pairwise(run))


def _is_common_word(text: str) -> bool:
    """Whether ``text`` is a word or a short number that other texts hold by chance."""
    return _WORD.fullmatch(text) is not None
