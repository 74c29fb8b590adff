"""What was made of the program's own documents is made once, until the program or its documents change."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from three_walls.tables import checked_documents
from three_walls.tables.checked_documents import recall


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder for what is kept, and a document of the program."""
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "limits.yaml").write_text("lowest: 1\n")
    monkeypatch.setattr(checked_documents, "TABLES_DIR", tmp_path / "tables")
    monkeypatch.setattr(checked_documents, "CHECKED_DIR", tmp_path / "checked")
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    checked_documents._program_digest.cache_clear()
    yield tmp_path / "checked"
    checked_documents._program_digest.cache_clear()


def make(value: object, content: bytes = b"") -> object:
    return recall("limits", content, lambda: value)


def test_an_object_is_made_once(kept: Path) -> None:
    assert make({"lowest": 1}) == make("made again") == {"lowest": 1}
    assert [path.name for path in kept.iterdir()] == ["limits.pickle"]


@pytest.mark.usefixtures("kept")
def test_it_is_made_again_for_another_content() -> None:
    make(1, b"lowest: 1")
    assert make(2, b"lowest: 2") == 2


def test_it_is_made_again_once_any_document_has_changed(kept: Path) -> None:
    make(1)
    os.utime(kept.parent / "tables" / "limits.yaml", (1, 1))
    checked_documents._program_digest.cache_clear()
    assert make(2) == 2


@pytest.mark.parametrize(
    "damage", [lambda _: b"", lambda content: content[:34], lambda content: content[:32] + b"\x80\x05."]
)
def test_a_damaged_pickle_counts_for_nothing(kept: Path, damage: Callable[[bytes], bytes]) -> None:
    make(1)
    path = kept / "limits.pickle"
    path.write_bytes(damage(path.read_bytes()))
    assert make(2) == make(3) == 2


@pytest.mark.usefixtures("kept")
def test_an_error_is_not_kept() -> None:
    with pytest.raises(ZeroDivisionError):
        recall("limits", b"", lambda: 1 // 0)
    assert make(2) == 2


def test_nothing_is_kept_where_python_keeps_nothing(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    assert make(1) == 1
    assert not kept.exists()


def test_a_folder_that_cannot_be_written_is_no_error(kept: Path) -> None:
    kept.write_text("a file")
    assert make(1) == 1


def test_what_checks_documents_is_imported_only_to_check_one() -> None:
    program = (
        "import sys\nimport three_walls.pipeline\nfrom three_walls.tables.thresholds import replay_thresholds\n"
        "print('pydantic' in sys.modules)\nreplay_thresholds()\nprint('pydantic' in sys.modules)"
    )
    nothing_kept = [sys.executable, "-B", "-X", "pycache_prefix=/dev/null/none", "-c", program]
    assert subprocess.run(nothing_kept, capture_output=True, text=True, check=True).stdout.split() == ["False", "True"]
