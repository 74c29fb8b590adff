"""Writes a report to disk: report.html, report.json and overrides.txt, each whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from three_walls.model.errors import UsageError
from three_walls.model.report import Report
from three_walls.report.html_report import render_html
from three_walls.report.json_report import render_json
from three_walls.report.overrides_file import render_overrides


def write_report(report: Report, out_dir: Path) -> list[Path]:
    """Write the three files into ``out_dir``, creating it; returns their paths.

    Everything is rendered before the disk is touched. An interrupt leaves no half-written file, and a
    directory without a report stays without one. Raises UsageError when the directory cannot be written.
    """
    texts = {
        "report.html": render_html(report),
        "report.json": render_json(report),
        "overrides.txt": render_overrides(report),
    }
    try:
        return _write_together(texts, out_dir)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"cannot write the report to {out_dir}: {reason}; choose a directory you can write") from error


def _write_together(texts: dict[str, str], out_dir: Path) -> list[Path]:
    """Stage all files within ``out_dir``, because renaming is atomic only within a file system, then move them."""
    out_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out_dir, prefix=".writing-") as staging:
        for name, text in texts.items():
            # A lone surrogate (a file name that is not UTF-8) becomes \udcXX, which JSON reads back as it was.
            (Path(staging) / name).write_bytes(text.encode("utf-8", errors="backslashreplace"))
        return _move_all(Path(staging), [out_dir / name for name in texts])


def _move_all(staging: Path, targets: list[Path]) -> list[Path]:
    new = [target for target in targets if not target.exists()]
    try:
        for target in targets:
            os.replace(staging / target.name, target)  # noqa: PTH105 - the one call that tests make fail
    except BaseException:
        for target in new:
            target.unlink(missing_ok=True)
        raise
    return targets
