"""Files appear whole or not at all, and nothing else is left of them."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.paths import REPOSITORY
from three_walls.lib.files import UNFINISHED, encode, whole_file, working_directory, write_texts


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write(path: Path, text: str, *, may_replace: bool = True) -> None:
    with whole_file(path, may_replace=may_replace) as unfinished:
        unfinished.write_text(text)


def test_a_file_appears_at_the_end_and_replaces_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "report.txt"
    write(path, "first")
    with whole_file(path) as unfinished:
        unfinished.write_text("second")
        assert path.read_text() == "first"
    assert path.read_text() == "second"
    assert names_in(tmp_path) == ["report.txt"]


def test_a_file_that_appeared_meanwhile_stays_where_it_may_not_be_replaced(tmp_path: Path) -> None:
    write(tmp_path / "new.txt", "mine", may_replace=False)
    with pytest.raises(FileExistsError):
        write(tmp_path / "new.txt", "other", may_replace=False)
    assert (tmp_path / "new.txt").read_text() == "mine"
    assert names_in(tmp_path) == ["new.txt"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OSError])
def test_where_writing_ends_early_the_earlier_file_stays_and_nothing_else(
    tmp_path: Path, error: type[BaseException]
) -> None:
    write(tmp_path / "report.txt", "earlier")
    with pytest.raises(error), whole_file(tmp_path / "report.txt") as unfinished:
        unfinished.write_text("half")
        raise error
    assert (tmp_path / "report.txt").read_text() == "earlier"
    assert names_in(tmp_path) == ["report.txt"]


def test_texts_take_their_places_in_order_once_all_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"parts/a.txt": "a", "all.txt": "b"}
    (tmp_path / "parts").mkdir()
    write_texts(texts, tmp_path)
    assert {name: (tmp_path / name).read_text() for name in texts} == texts
    replaced: list[str] = []
    replace = os.replace

    def watch(source: Path, target: Path) -> None:
        assert replaced or (source.parents[1] / "all.txt").exists()
        replaced.append(str(Path(target).relative_to(tmp_path)))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watch)
    write_texts(texts, tmp_path)
    assert replaced == list(texts)
    assert names_in(tmp_path) == ["all.txt", "parts"]


def test_a_full_disk_leaves_all_earlier_files(tmp_path: Path) -> None:
    """Python ignores the signal of the limit: writing fails, as on a full disk."""
    write_texts({"a.txt": "old", "b.txt": "old"}, tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, hard))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            write_texts({"a.txt": "new", "b.txt": "new" * 5_000}, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [(tmp_path / name).read_text() for name in names_in(tmp_path)] == ["old", "old"]


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "a.txt").symlink_to("precious")
    write_texts({"a.txt": "new"}, tmp_path)
    assert ((tmp_path / "a.txt").read_text(), (tmp_path / "precious").read_text()) == ("new", "mine")
    assert not (tmp_path / "a.txt").is_symlink()


def test_a_file_has_the_rights_that_the_user_chose(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        write(tmp_path / "a.txt", "a")
    finally:
        os.umask(mask)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o640


def test_a_lone_surrogate_is_spelled_out() -> None:
    assert encode("run-\udcff é") == "run-\\udcff é".encode()


def test_the_next_run_removes_what_a_killed_one_left_and_nothing_that_is_in_use(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from three_walls.lib.files import whole_file\n"
        "with whole_file(Path(sys.argv[1]) / 'a.txt') as unfinished:\n"
        "    unfinished.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path], cwd=REPOSITORY, check=False)
    (left,) = names_in(tmp_path)
    assert left.startswith(UNFINISHED)
    (tmp_path / f"{UNFINISHED}mine.txt").write_text("no directory")
    with working_directory(UNFINISHED, tmp_path) as in_use:
        write(tmp_path / "a.txt", "whole")
        assert in_use.is_dir()
    assert names_in(tmp_path) == [f"{UNFINISHED}mine.txt", "a.txt"]


@pytest.mark.parametrize("call", ["open", "flock"])
def test_a_directory_that_another_run_removed_before_it_was_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    module = os if call == "open" else fcntl
    real, removed = getattr(module, call), []

    def remove_first(*arguments: Any, **options: Any) -> Any:
        for directory in [] if removed else tmp_path.glob(f"{UNFINISHED}*"):
            removed.append(directory)
            shutil.rmtree(directory)
        return real(*arguments, **options)

    monkeypatch.setattr(module, call, remove_first)
    with working_directory(UNFINISHED, tmp_path) as directory:
        assert directory.is_dir()
    assert len(removed) == 1


def test_a_file_system_without_locks_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", refuse)
    write(tmp_path / "a.txt", "whole")
    assert names_in(tmp_path) == ["a.txt"]
