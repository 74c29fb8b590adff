"""Exports reports of Nsight Systems (``.nsys-rep``) by calling ``nsys export``."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from three_walls.lib.errors import InputError
from three_walls.lib.files import whole_file
from three_walls.lib.shell import quote_file

NSYS_VARIABLE = "NSYS"
"""Environment variable with the ``nsys`` to call; by default the one on PATH."""
REPORT_SUFFIX = ".nsys-rep"
_PROGRESS = re.compile(r"\[\d+%[ =]*\]|Processing \d+ events:")
_LONGEST_COMPLAINT = 300


_named: list[str] = []
"""The nsys of this process's command line; not in the environment, which is passed on to attached programs. Empty text:
none."""


def name_nsys(path: str) -> None:
    """From now on, :func:`find_nsys` finds ``path``, a path or a name on PATH."""
    _named[:] = [shutil.which(path) or os.path.join(os.curdir, path)]  # noqa: PTH118 - Path drops the ./


def run_no_nsys() -> None:
    """From now on, :func:`find_nsys` finds none: this process runs no other program."""
    _named[:] = [""]


def find_nsys() -> str | None:
    """The ``nsys`` to call, or None. Raises InputError where --nsys, or $NSYS as a path, names no program.

    Launch scripts also use a variable of this name as a switch (``NSYS=1``), which is no path and counts for nothing.
    """
    if _named == [""]:
        return None
    name = _named[0] if _named else os.environ.get(NSYS_VARIABLE)
    program = shutil.which(name or "nsys") or (shutil.which("nsys") if name and os.sep not in name else None)
    if name and program is None and os.sep in name:
        raise InputError(f"--nsys or ${NSYS_VARIABLE}: {name}: no such program")
    return program


def export_report(nsys: str, report: Path, target: Path) -> None:
    """Writes the SQLite export of ``report`` to ``target``, whole or not at all. Raises InputError with the reason."""
    try:
        with whole_file(target) as unfinished:
            words = [
                nsys,
                "export",
                "--type=sqlite",
                "--force-overwrite=true",
                "-o",
                str(unfinished),
                os.fspath(report.absolute()),
            ]
            done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, check=False)
            if done.returncode or not unfinished.exists():
                complaint = _last_line(done.stderr) or _last_line(done.stdout) or f"exit code {done.returncode}"
                raise InputError(f"{report}: nsys export failed ({complaint})")
    except OSError as error:
        raise InputError(f"{report}: cannot be exported ({error.strerror})") from error


def export_once(report: Path, exports: Path, progress: Callable[[str], None]) -> Path:
    """The SQLite export of ``report``, made under ``exports`` unless an earlier call made it from the same bytes.

    Nothing is written next to the report: its directory may be read-only, or another program's. Raises InputError where
    there is no nsys, or where it fails.
    """
    nsys = find_nsys()
    if nsys is None:
        raise InputError(
            f"{report}: expected a SQLite export, found an Nsight report and no nsys on PATH to export it; "
            f"{describe_export([report])}"
        )
    try:
        with report.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        target = exports / digest[:16] / f"{report.name.removesuffix(REPORT_SUFFIX)}.sqlite"
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            progress(f"exporting {report.name}")
            export_report(nsys, report, target)
    except OSError as error:
        raise InputError(f"{report}: cannot be exported to {exports} ({error.strerror})") from error
    return target


def describe_export(reports: Sequence[Path]) -> str:
    """The command that exports ``reports`` where there is an nsys, as a clause of a message."""
    if len(reports) == 1:
        return f"run: nsys export --type sqlite {quote_file(reports[0].name)}"
    directory = str(reports[0].parent)
    where = "" if directory == "." else f"{quote_file(directory)}/"
    return (
        f"run: for report in {where}*{REPORT_SUFFIX}; "
        'do nsys export --type sqlite -o "${report%.nsys-rep}.sqlite" "$report"; done'
    )


def _last_line(output: bytes) -> str:
    """The last line that is no progress bar."""
    text = output.decode("utf-8", errors="replace")
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip() and not _PROGRESS.search(line)]
    return lines[-1][:_LONGEST_COMPLAINT] if lines else ""
