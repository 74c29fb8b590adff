"""Writes a report to disk: report.html, report.json, overrides.txt and overrides/*, all of one run or none.

The files in overrides/ are those of the plan's entries. Those of an earlier report go with it, and those of anybody
else stay. No file system replaces several files at once, but one symbolic link it does. So for a moment all names are
links through one link, ``current``, and replacing that one publishes the report::

    out/report.html -> .three-walls-x/current/report.html        .three-walls-x/current -> old, then -> new

Then each link becomes the file it leads to, and goes where it leads to none. Whatever ends the program between two of
these calls, all names lead to files of one run, and the next run into the same directory puts the files back into the
place of the links.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from three_walls.model.errors import UsageError
from three_walls.model.report import Report
from three_walls.report.html_report import render_html
from three_walls.report.json_report import render_json
from three_walls.report.overrides_file import ENTRIES_DIR, ENTRY_HEAD, ENTRY_NAME, render_entries, render_overrides

NAMES = ("report.html", "report.json", "overrides.txt")
STAGING_PREFIX = ".three-walls-"
"""Directories of this name and a number hold a report that is being written. What is left of a killed run is removed by
the next."""
_NUMBER_BYTES = 8
"""Of that number, which is random, in hexadecimal digits."""
LOCK_NAME = ".three-walls.lock"
_HEAD_BYTES = 200
"""Enough of a file to see whether it is one of an entry."""
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What flock fails with on a file system that has no locks, as Lustre mounted without them."""
_WITHOUT_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)
"""What symlink fails with on a file system that has no symbolic links, as FAT."""


def write_report(report: Report, out_dir: Path) -> list[Path]:
    """Write the files into ``out_dir``, creating it. Other files in it are not touched.

    Returns the paths of the three files, and that of the directory with the files of the entries if there are any.

    Everything is rendered before the disk is touched. Runs that write into one directory at the same time take turns.
    Where writing fails or is interrupted, the earlier report stays as it was, and a directory without a report stays
    without one. Raises UsageError when the directory cannot be written.
    """
    # A lone surrogate (of a file name that is not UTF-8) is written as \udcXX, which JSON reads back as it was.
    entries = render_entries(report)
    texts = dict(zip(NAMES, (render_html(report), render_json(report), render_overrides(report)), strict=True))
    contents = {name: text.encode("utf-8", errors="backslashreplace") for name, text in (texts | entries).items()}
    try:
        with _alone_in(out_dir) as is_alone:
            if is_alone:  # then nobody is at work in what other runs left
                _settle_leftovers(out_dir)
            _publish(contents, out_dir)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"cannot write the report to {out_dir}: {reason}; choose a directory you can write") from error
    return [out_dir / name for name in (*NAMES, *([ENTRIES_DIR] if entries else ()))]


def _settle_leftovers(out_dir: Path) -> None:
    for leftover in out_dir.glob(STAGING_PREFIX + "[0-9a-f]" * (2 * _NUMBER_BYTES)):
        if leftover.is_dir() and not leftover.is_symlink():
            with suppress(OSError):  # another user's
                _settle(leftover)


@contextmanager
def _alone_in(out_dir: Path) -> Iterator[bool]:
    """Create ``out_dir`` and lock it; False where its file system has no locks. An empty one is removed on failure."""
    made = [path for path in (out_dir, *out_dir.parents) if not path.exists()]
    lock = out_dir / LOCK_NAME
    try:
        descriptor = _lock(lock)
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                _unlock(descriptor, lock)
    except BaseException:
        for path in made:
            with suppress(OSError):  # another run is using it
                path.rmdir()
        raise


def _lock(lock: Path) -> int | None:
    """The open and locked lock file; None on a file system that has no locks."""
    while True:
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:  # a run that failed has just removed the directory
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(descriptor, lock):
                return descriptor
        except BaseException as error:
            _unlock(descriptor, lock)
            if isinstance(error, OSError) and error.errno in _WITHOUT_LOCKS:
                lock.unlink(missing_ok=True)
                return None
            raise
        os.close(descriptor)


def _unlock(descriptor: int, lock: Path) -> None:
    """Remove the lock file, unless another run holds it, and close it, which unlocks it."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(descriptor, lock):
            lock.unlink()
    os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is that at ``path``: the run that held the lock before has removed its own."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _publish(contents: Mapping[str, bytes], out_dir: Path) -> None:
    staging = out_dir / f"{STAGING_PREFIX}{os.urandom(_NUMBER_BYTES).hex()}"
    try:
        names = (*contents, *(name for name in _list_entries(out_dir) if name not in contents))
        folders = sorted({str(Path(name).parent) for name in names})
        for version in ("old", "new"):
            (staging / version).mkdir(parents=True)
            for folder in folders[1:]:  # after the directory itself
                (staging / version / folder).mkdir()
        for name, content in contents.items():
            (staging / "new" / name).write_bytes(content)
        if folders[1:]:
            _make_folder(out_dir / ENTRIES_DIR)
        for name in names:
            _keep(out_dir / name, staging / "old" / name)
        if _has_links(staging):
            for name in names:
                (staging / "link").symlink_to(_link_text(staging, name))
                (staging / "link").replace(out_dir / name)
            (staging / "link").symlink_to("new")
            (staging / "link").replace(staging / "current")  # from here on the report is the new one
        else:
            _replace_each(staging, names)
        _settle(staging)
    except BaseException:
        _settle(staging)
        raise


def _list_entries(out_dir: Path) -> list[str]:
    """The files that an earlier report wrote for the entries of its plan: by name, and by how they begin."""
    folder, found = out_dir / ENTRIES_DIR, []
    is_own = folder.is_dir() and not folder.is_symlink()
    for path in sorted(folder.iterdir()) if is_own else ():
        if ENTRY_NAME.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            with suppress(PermissionError), path.open("rb") as file:  # another user's
                if ENTRY_HEAD.match(file.read(_HEAD_BYTES).decode("utf-8", errors="replace")):
                    found.append(f"{ENTRIES_DIR}/{path.name}")
    return found


def _make_folder(folder: Path) -> None:
    """Make a directory for the files of the entries; a link to one would lead out of the report's."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise NotADirectoryError(errno.ENOTDIR, f"{folder.name} is no directory")
    folder.mkdir(exist_ok=True)


def _keep(path: Path, kept: Path) -> None:
    """Make ``kept`` another name of the file at ``path``, or a copy where the file system has no hard links."""
    if path.is_symlink():
        kept.symlink_to((path.parent / path.readlink()).absolute())
    elif path.is_dir():
        raise IsADirectoryError(errno.EISDIR, f"{path.name} is a directory")
    elif path.exists():
        try:
            kept.hardlink_to(path)
        except OSError:
            shutil.copy2(path, kept)


def _has_links(staging: Path) -> bool:
    """Make ``current`` a link to the old files; False where the file system has no symbolic links."""
    try:
        (staging / "current").symlink_to("old")
    except OSError as error:
        if error.errno not in _WITHOUT_LINKS:
            raise
        return False
    return True


def _replace_each(staging: Path, names: Iterable[str]) -> None:
    """Move the new files to their places one after the other; the old ones come back where that fails."""
    try:
        for name in names:
            if (staging / "new" / name).exists():
                (staging / "new" / name).replace(staging.parent / name)
            else:  # of an earlier report
                (staging.parent / name).unlink()
    except BaseException:
        for name in names:
            if os.path.lexists(staging / "old" / name):
                (staging / "old" / name).replace(staging.parent / name)
            else:
                (staging.parent / name).unlink(missing_ok=True)
        raise


def _link_text(staging: Path, name: str) -> str:
    return f"{'../' * name.count('/')}{staging.name}/current/{name}"


def _settle(staging: Path) -> None:
    """Put the files that ``current`` names into the place of the links to them, and remove ``staging``."""
    folders = (staging / "old", staging / "new")
    staged = {path.relative_to(folder) for folder in folders for path in folder.rglob("*") if not path.is_dir()}
    for name in (*NAMES, *sorted({str(path) for path in staged} - set(NAMES))):
        path, file = staging.parent / name, staging / "current" / name
        if path.is_symlink() and str(path.readlink()) == _link_text(staging, name):
            if os.path.lexists(file):
                file.replace(path)
            else:  # it is not in this report
                path.unlink()
    if any(path.parent.name for path in staged):
        with suppress(OSError):  # files are in it
            (staging.parent / ENTRIES_DIR).rmdir()
    if staging.is_dir():
        shutil.rmtree(staging)
