"""Writes a report to disk: report.html, report.json, overrides.txt and overrides/*.

Each file is whole at any moment, and report.json is the last one that is replaced. The files in overrides/ are those of
the plan's entries. Those of an earlier report are removed, and those of anybody else stay.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from three_walls.lib.errors import UsageError
from three_walls.lib.files import write_texts
from three_walls.report.html_report import render_html
from three_walls.report.json_report import render_json
from three_walls.report.overrides_file import ENTRIES_DIR, ENTRY_HEAD, ENTRY_NAME, render_entries, render_overrides
from three_walls.report.report import Report

NAMES = ("report.html", "report.json", "overrides.txt")
_HEAD_BYTES = 200
"""Enough of a file to see whether it is one of an entry."""


def write_report(report: Report, out_dir: Path) -> list[Path]:
    """Writes the files into ``out_dir``, creating it. Other files in it are not touched.

    Returns the paths of the three files, and that of the directory with the files of the entries if there are any.

    Everything is rendered before the disk is touched, and written before an earlier file is replaced. Raises UsageError
    when the directory cannot be written.
    """
    entries = render_entries(report)
    texts = entries | {
        "overrides.txt": render_overrides(report),
        "report.html": render_html(report),
        "report.json": render_json(report),
    }
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        _check_places(out_dir, texts)
        if entries:
            (out_dir / ENTRIES_DIR).mkdir(exist_ok=True)
        earlier = [path for path in _find_entries(out_dir) if f"{ENTRIES_DIR}/{path.name}" not in entries]
        write_texts(texts, out_dir)
        for path in earlier:
            path.unlink()
        if earlier:
            with suppress(OSError):  # other files are in it
                (out_dir / ENTRIES_DIR).rmdir()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"cannot write the report to {out_dir}: {reason}; choose a directory you can write") from error
    return [out_dir / name for name in (*NAMES, *([ENTRIES_DIR] if entries else ()))]


def _check_places(out_dir: Path, names: Iterable[str]) -> None:
    """Raises OSError for a directory in the place of a file, and for anything but a directory in that of overrides/.

    A link to a directory would lead out of the report's.
    """
    for path in (out_dir / name for name in names):
        if path.is_dir() and not path.is_symlink():
            raise IsADirectoryError(errno.EISDIR, f"{path.name} is a directory")
        folder = path.parent
        if folder != out_dir and (folder.is_symlink() or (folder.exists() and not folder.is_dir())):
            raise NotADirectoryError(errno.ENOTDIR, f"{folder.name} is no directory")


def _find_entries(out_dir: Path) -> list[Path]:
    """The files that an earlier report wrote for the entries of its plan: by name, and by how they begin."""
    folder, entries = out_dir / ENTRIES_DIR, []
    is_own = folder.is_dir() and not folder.is_symlink()
    for path in sorted(folder.iterdir()) if is_own else ():
        if ENTRY_NAME.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            with suppress(PermissionError), path.open("rb") as file:  # another user's
                if ENTRY_HEAD.match(file.read(_HEAD_BYTES).decode("utf-8", errors="replace")):
                    entries.append(path)
    return entries
