"""Whatever ends a scrub, nothing is left of it, and the target is whole or not there."""

from __future__ import annotations

import lzma
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.capture.scrub.conftest import plant
from tests.capture.scrub.test_scrub import comparable
from three_walls.capture.scrub.scrub_export import scrub
from three_walls.lib.errors import InputError, UsageError

pytestmark = [pytest.mark.slow, pytest.mark.attack]

_SCRUB = (
    "import signal, sys\n"
    "from pathlib import Path\n"
    "from three_walls.capture.scrub.scrub_export import scrub\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
    "print('ready', flush=True)\n"
    "scrub(Path(sys.argv[1]), Path(sys.argv[2]), force=True)\n"
)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    plain = plant(tmp_path / "plain.sqlite")
    packed = tmp_path / "in" / "rank0.sqlite.xz"
    packed.parent.mkdir()
    packed.write_bytes(lzma.compress(plain.read_bytes()))
    return packed


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_scrub_leaves_nothing_and_the_old_target_whole(
    tmp_path: Path, packed: Path, monkeypatch: pytest.MonkeyPatch, by: signal.Signals
) -> None:
    out, temporary = tmp_path / "out", tmp_path / "tmp"
    out.mkdir()
    temporary.mkdir()
    target = out / "rank0.sqlite.xz"
    scrub(packed, target)
    old = target.read_bytes()
    moments = random.Random(int(by))
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", _SCRUB, str(packed), str(target)],
            env=os.environ | {"TMPDIR": str(temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(moments.uniform(0, 0.35))
        process.send_signal(by)
        process.communicate()
        assert target.read_bytes() == old
        if by is not signal.SIGKILL:
            assert (names_in(temporary), names_in(out)) == ([], [target.name])
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    scrub(packed, target, force=True)  # it removes what the killed ones left
    assert (names_in(temporary), names_in(out)) == ([], [target.name])


def test_a_target_that_appears_meanwhile_stays(tmp_path: Path, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scrubbing = "three_walls.capture.scrub.scrub_export"
    find_secrets = sys.modules[scrubbing].find_secrets
    target = tmp_path / "out.sqlite"

    def find_late(export: object) -> object:
        target.write_bytes(b"mine")
        return find_secrets(export)

    monkeypatch.setattr(f"{scrubbing}.find_secrets", find_late)
    with pytest.raises(UsageError, match="exists already"):
        scrub(packed, target)
    assert target.read_bytes() == b"mine"


def test_links_devices_and_folders_are_no_targets(tmp_path: Path, packed: Path) -> None:
    (tmp_path / "file.sqlite").write_bytes(b"mine")
    (tmp_path / "link.sqlite").symlink_to(tmp_path / "file.sqlite")
    (tmp_path / "dangling.sqlite").symlink_to(tmp_path / "nothing")
    (tmp_path / "folder.sqlite").mkdir()
    os.mkfifo(tmp_path / "pipe.sqlite")
    before = names_in(tmp_path)
    for name, found in (
        ("link", "a symbolic link"),
        ("dangling", "a symbolic link"),
        ("folder", "a directory"),
        ("pipe", "a device or a pipe"),
    ):
        with pytest.raises(UsageError, match=found):
            scrub(packed, tmp_path / f"{name}.sqlite", force=True)
    with pytest.raises(UsageError, match=r"cannot be written \(No such file or directory\)"):
        scrub(packed, tmp_path / "missing" / "out.sqlite")
    assert names_in(tmp_path) == before
    assert (tmp_path / "file.sqlite").read_bytes() == b"mine"


@pytest.mark.parametrize("limit_bytes", [4_096, 20_000])
@pytest.mark.parametrize("source", ["plain.sqlite", "in/rank0.sqlite.xz"])
def test_a_full_disk_is_one_line_and_the_old_target_stays(
    tmp_path: Path, packed: Path, limit_bytes: int, source: str
) -> None:
    assert packed.exists()
    target = tmp_path / "out.sqlite"
    scrub(tmp_path / source, target)
    old = target.read_bytes()
    assert len(old) > 20_000
    before = names_in(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))  # Python ignores the signal: writing fails
    try:
        with pytest.raises((UsageError, InputError)) as caught:
            scrub(tmp_path / source, target, force=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert "damaged" not in str(caught.value)
    assert (target.read_bytes(), names_in(tmp_path)) == (old, before)
    assert comparable(target)["step"]["kept"] == 2
