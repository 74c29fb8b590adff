"""A command as a shell calls it, but in this process: a new one imports for most of a second."""

from __future__ import annotations

import io
import subprocess
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from three_walls.cli.main import main


class _Printed(io.TextIOWrapper):
    """What a command prints, as text or as bytes."""

    def __init__(self) -> None:
        self.bytes = io.BytesIO()
        super().__init__(self.bytes, encoding="utf-8", write_through=True)

    def text(self) -> str:
        return self.bytes.getvalue().decode()


def call(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The exit code and output of ``three-walls ARGUMENTS`` in the directory ``cwd``."""
    words = ["three-walls", *map(str, arguments)]
    out, err, code = _Printed(), _Printed(), 0
    with chdir(cwd), patch("sys.argv", words), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return subprocess.CompletedProcess(words, code, out.text(), err.text())
