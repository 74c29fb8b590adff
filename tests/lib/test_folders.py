"""Which files a caller may name: none outside of the folders, whatever leads there."""

from __future__ import annotations

from pathlib import Path

import pytest

from three_walls.lib import folders as folders_module
from three_walls.lib.errors import InputError, UsageError
from three_walls.lib.folders import Folders


@pytest.fixture
def allowed(tmp_path: Path) -> Path:
    """A folder with a trace and a directory, next to a secret."""
    (tmp_path / "secret").write_text("key")
    (tmp_path / "allowed" / "run").mkdir(parents=True)
    (tmp_path / "allowed" / "rank0.sqlite").touch()
    (tmp_path / "allowed" / "run" / "rank1.sqlite").touch()
    return tmp_path / "allowed"


def test_files_and_directories_inside_are_found_by_relative_and_absolute_names(allowed: Path) -> None:
    folders = Folders([allowed])
    for name in ("rank0.sqlite", "run/../rank0.sqlite", str(allowed / "rank0.sqlite")):
        assert folders.find(name) == allowed / "rank0.sqlite"
    assert folders.find(".") == allowed
    (allowed / "same").symlink_to("rank0.sqlite")
    assert folders.find("same") == allowed / "rank0.sqlite"


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "run/../../secret", "link", "up/secret", "..", "", "a\0b"]
)
def test_nothing_outside_is_found(allowed: Path, name: str) -> None:
    (allowed / "link").symlink_to(allowed.parent / "secret")
    (allowed / "up").symlink_to(allowed.parent)
    with pytest.raises(UsageError):
        Folders([allowed]).find(name)


def test_whether_something_exists_outside_is_not_told(allowed: Path) -> None:
    told = set()
    for name in ("../secret", "../nothing"):
        with pytest.raises(UsageError) as error:
            Folders([allowed]).find(name)
        told.add(str(error.value).replace(name, "NAME"))
    assert len(told) == 1


def test_a_missing_file_inside_is_an_input_that_cannot_be_read(allowed: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        Folders([allowed]).find("rank7.sqlite")


def test_a_directory_with_a_link_that_leads_out_is_refused_through_other_links_too(allowed: Path) -> None:
    (allowed / "other").mkdir()
    (allowed / "other" / "log.txt").symlink_to("/etc/hostname")
    assert Folders([allowed]).find("run")
    (allowed / "run" / "more").symlink_to(allowed / "other")
    for name in ("run", "."):
        with pytest.raises(UsageError, match=r"log\.txt is a link that leads out"):
            Folders([allowed]).find(name)


def test_what_sqlite_reads_next_to_a_database_is_checked_too(allowed: Path) -> None:
    (allowed / "rank0.sqlite-wal").symlink_to(allowed.parent / "secret")
    with pytest.raises(UsageError, match="leads out"):
        Folders([allowed]).find("rank0.sqlite")


def test_circles_of_links_and_huge_directories_end(allowed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (allowed / "run" / "circle").symlink_to(allowed / "run")
    (allowed / "run" / "self").symlink_to("self")
    assert Folders([allowed]).find("run")
    with pytest.raises(InputError, match="no such file"):
        Folders([allowed]).find("run/self")
    monkeypatch.setattr(folders_module, "MOST_ENTRIES", 1)
    with pytest.raises(UsageError, match="at most 1 entries"):
        Folders([allowed]).find("run")
