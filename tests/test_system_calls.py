"""What the program asks of the system, as strace sees it: no network, inputs only read, nothing written elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from trace_builder import TraceBuilder

from tests.paths import REPOSITORY

STRACE = shutil.which("strace")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.attack,
    pytest.mark.skipif(STRACE is None, reason="strace is not installed"),
]

CALL = re.compile(r"^\d+\s+(?P<name>\w+)\((?P<arguments>.*)\)\s+= (?P<result>-?\d+|\?)")
PATH = re.compile(r'(?:(?:AT_FDCWD|\d+)(?:<(?P<folder>[^>]*)>)?, )?"(?P<path>(?:[^"\\]|\\.)*)"')
CHANGES = (
    *("mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "rename", "renameat", "renameat2", "link", "linkat"),
    *("symlink", "symlinkat", "chmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchownat", "truncate", "mknod"),
    *("mknodat", "creat", "utimensat", "setxattr", "lsetxattr", "removexattr"),
)
HARMLESS = re.compile(r"/dev/(null|tty|shm/.*)|/proc/\d+/task/\d+/comm|/proc/self/task/\d+/comm|/proc/self/fd/\d+")
"""What libraries write to: names of threads, and devices. A descriptor leads to a file whose opening was judged."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traced")
    for name in ("tmp", "out"):
        (folder / name).mkdir()
    TraceBuilder().steps(4).launched_as("python pretrain_gpt.py", TOKEN_OF_SOMEBODY="x").write(folder / "rank0.sqlite")
    subprocess.run(["xz", "-0", "--keep", "rank0.sqlite"], cwd=folder, check=True)
    (folder / "overrides.txt").write_text("model.recompute_granularity=null\n")
    (folder / "run_config.yaml").write_text("model: {num_layers: 4}\n")
    return folder


def calls_of(folder: Path, *arguments: str, modules: Path = REPOSITORY) -> list[re.Match[str]]:
    """The finished calls that open or change files or use the network, of the program and of its children."""
    log = folder / "strace.log"
    tracing = [str(STRACE), "-f", "-y", "-s", "4096", "-e", "trace=%file,%network", "-o", str(log)]
    environment = os.environ | {
        "PYTHONPATH": f"{modules}{os.pathsep}{REPOSITORY}",
        "TMPDIR": str(folder / "tmp"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [*tracing, sys.executable, "-m", "three_walls", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if not log.exists() or "ptrace" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr.strip()}")
    assert done.returncode in (0, 1), done.stderr  # 1: an override fails
    calls = [call for line in log.read_text(errors="replace").splitlines() if (call := CALL.match(line))]
    assert len(calls) > 100
    return calls


def paths_of(call: re.Match[str], folder: Path) -> list[Path]:
    """Every path among the arguments of ``call``, made absolute."""
    found = [(match["folder"] or str(folder), match["path"]) for match in PATH.finditer(call["arguments"])]
    return [Path(os.path.normpath(Path(start) / path)) for start, path in found]


def changed_paths(call: re.Match[str], folder: Path) -> list[Path]:
    """The paths that ``call`` creates, changes or removes."""
    if call["name"] in CHANGES:
        paths = paths_of(call, folder)
        # The first path of a symbolic link is its text, and that of a hard link is only read.
        return paths[-1:] if call["name"] in ("symlink", "symlinkat", "link", "linkat") else paths
    is_opened = call["name"] in ("open", "openat", "openat2")
    may_write = re.search(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_TMPFILE", call["arguments"])
    return paths_of(call, folder) if is_opened and may_write and call["result"] != "-1" else []


COMMANDS = {
    "analyze": ("analyze", "rank0.sqlite.xz", "--quiet", "--out", "out/report"),
    "scrub": ("scrub", "rank0.sqlite.xz", "out/scrubbed.sqlite.zst"),
    "verify": ("verify", "overrides.txt", "--config", "run_config.yaml"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_sent_and_nothing_is_written_elsewhere(folder: Path, command: str) -> None:
    inputs = {path: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != "strace.log"}
    calls = calls_of(folder, *COMMANDS[command])
    network = [call[0] for call in calls if call["name"] in ("socket", "connect", "sendto", "bind", "sendmsg")]
    assert [line for line in network if "AF_UNIX" not in line] == []
    allowed = [(folder / "out").resolve(), (folder / "tmp").resolve()]
    changed = [(path, call[0]) for call in calls for path in changed_paths(call, folder.resolve())]
    assert [
        line
        for path, line in changed
        if not any(path.is_relative_to(place) for place in allowed) and not HARMLESS.fullmatch(str(path))
    ] == []
    assert inputs == {path: path.read_bytes() for path in inputs}
    assert list((folder / "tmp").iterdir()) == []


def test_the_check_would_find_a_write_and_a_connection(folder: Path) -> None:
    program = "import socket, pathlib\npathlib.Path('elsewhere').touch()\nsocket.socket()\n"
    (folder / "sitecustomize.py").write_text(program)
    calls = calls_of(folder, "--help", modules=folder)
    assert any(call["name"] == "socket" and "AF_INET" in call[0] for call in calls)
    assert folder.resolve() / "elsewhere" in [path for call in calls for path in changed_paths(call, folder.resolve())]
