"""Which files a caller may name: those in some folders, and no others, whatever links lead out of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from three_walls.lib.errors import InputError, UsageError

MOST_ENTRIES = 100_000
"""Files and directories below a directory that is named."""
_BESIDE = ("-wal", "-shm", "-journal")
"""Suffixes of what SQLite reads next to a database."""


class Folders:
    """Some folders. All that is read below them is checked once more for links that lead out."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = tuple(folder.resolve() for folder in folders)

    def find(self, name: str) -> Path:
        """The file or directory ``name``, without links; a relative name is looked for in each folder.

        Raises UsageError for one outside of the folders and for a directory with a link that leads out of them, and
        InputError where there is none of that name.
        """
        if not name or "\0" in name:
            raise UsageError(f"expected the path of a file or directory, found {name!r}")
        inside = [place for folder in self.folders if self._holds(place := _follow(folder / name))]
        if not inside:
            raise UsageError(f"{name}: expected a path in {self}, found one outside")
        found = next((place for place in inside if place.exists()), None)
        if found is None:
            raise InputError(f"{name}: no such file or directory in {self}")
        outside = next((entry for entry in _list_links(found) if not self._holds(_follow(entry))), None)
        if outside is not None:
            raise UsageError(f"{name}: {outside.name} is a link that leads out of {self}")
        return found

    def _holds(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self.folders)

    def __str__(self) -> str:
        return ", ".join(map(str, self.folders))


def _follow(path: Path) -> Path:
    """``path`` without links; of links in a circle the place where it closes."""
    return Path(os.path.realpath(path))


def _list_links(path: Path) -> Iterator[Path]:
    """Links that are read with ``path``: below a directory, through further links too, or next to a file."""
    if not path.is_dir():
        yield from (beside for suffix in _BESIDE if (beside := Path(f"{path}{suffix}")).is_symlink())
        return
    seen, left, entries = {path}, [path], 0
    while left:
        for entry in left.pop().iterdir():
            entries += 1
            if entries > MOST_ENTRIES:
                raise UsageError(f"{path}: expected a directory with at most {MOST_ENTRIES:,} entries below it")
            if entry.is_symlink():
                yield entry
            target = _follow(entry)
            if target.is_dir() and target not in seen:
                seen.add(target)
                left.append(target)
