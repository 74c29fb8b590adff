"""A program that takes the command line of ``nsys`` and does what a test tells it to, without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

SCRIPT = """#!{python} -IS
import os, shutil, signal, subprocess, sys, time
folder = {folder!r}
words = sys.argv[1:]
with open(os.path.join(folder, "calls"), "a") as calls:
    calls.write(words[0] + "\\n")
with open(os.path.join(folder, "words"), "a") as given:
    given.write(" ".join(words) + "\\n")
does = open(os.path.join(folder, "does")).read()
target = words[words.index("-o") + 1]
if words[0] == "export":
    if does == "cannot export":
        print("Processing 5 events: [100%]\\nthe report is of a newer version", file=sys.stderr)
        sys.exit(1)
    shutil.copyfile(os.path.join(folder, "export.sqlite"), target)
    sys.exit(0)
if does == "refuses":
    sys.exit("no license")
if does == "hangs":
    time.sleep(60)
print("nsys speaks", flush=True)
program = subprocess.Popen(words[words.index("-o") + 2:], start_new_session=True, close_fds=False)
if does == "crashes":
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
code = program.wait()
if does == "":
    target = target.replace("%q{{RANK}}", os.environ.get("RANK", "")).replace("%%", "%")
    with open(target + ".nsys-rep", "w") as report:
        report.write("report")
sys.exit(99 if does == "fails at the end" else code if code >= 0 else 128 - code)
"""


def make_fake_nsys(folder: Path, export: Path | None = None, does: str = "") -> Path:
    """An ``nsys`` in ``folder`` whose exports are copies of ``export``; ``calls`` and ``words`` there list what for.

    ``does``: what goes wrong, see the script.
    """
    folder.mkdir(exist_ok=True)
    (folder / "does").write_text(does)
    if export is not None:
        (folder / "export.sqlite").write_bytes(export.read_bytes())
    nsys = folder / "nsys"
    nsys.write_text(SCRIPT.format(python=sys.executable, folder=str(folder)))
    nsys.chmod(0o755)
    return nsys


def calls_of(folder: Path) -> list[str]:
    """What the fake was called for."""
    return (folder / "calls").read_text().split() if (folder / "calls").exists() else []
