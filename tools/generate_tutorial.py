"""Writes what the commands print into docs/tutorial.md, part of ``make docs``.

A block of text below a comment ``<!-- output: WHAT -->`` is the output of the last command above it: ``1-3`` (lines),
``all``, or a heading (from it to the next empty line).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "tutorial.md"
_PART = re.compile(
    r"```bash\n(?P<command>.*?)```|<!-- output: (?P<what>[^>]+) -->\n```text\n(?P<output>.*?)```\n", re.DOTALL
)


def generate() -> str:
    """The page with the output of each of its commands. All of them are run but those that need a job."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sample_traces").symlink_to(REPOSITORY / "sample_traces")
        printed: list[str] = []

        def replace(part: re.Match[str]) -> str:
            if command := part["command"]:
                if not command.startswith("torchrun"):
                    printed[:] = run(command, Path(folder)).splitlines()
                return part[0]
            return f"<!-- output: {part['what']} -->\n```text\n{_choose(printed, part['what'])}\n```\n"

        return _PART.sub(replace, PAGE.read_text(encoding="utf-8"))


def run(command: str, folder: Path) -> str:
    """What the three-walls ``command`` prints in ``folder``; raises CalledProcessError where it fails."""
    name, *words = shlex.split(command.replace("\\\n", " "))
    if name != "three-walls":
        raise ValueError(f"expected a command of three-walls, found {command!r}")
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-m", "three_walls", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def _choose(lines: list[str], what: str) -> str:
    if what == "all":
        return "\n".join(lines)
    if match := re.fullmatch(r"(\d+)-(\d+)", what):
        return "\n".join(lines[int(match[1]) - 1 : int(match[2])])
    chosen = lines[lines.index(what) :]
    return "\n".join(chosen[: chosen.index("") if "" in chosen else len(chosen)])


if __name__ == "__main__":
    PAGE.write_text(generate(), encoding="utf-8")
