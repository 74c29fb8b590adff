"""Every connection to a database is closed, however its use ends; Python 3.13 warns of one that is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from trace_builder import TraceBuilder

from tests.paths import REPOSITORY, is_open
from three_walls.lib.errors import InputError
from three_walls.trace.nsys_export import NsysExport


def test_an_export_is_open_until_its_block_ends(tmp_path: Path) -> None:
    path = TraceBuilder().steps(2).write(tmp_path / "rank0.sqlite")
    assert not is_open(path)
    with NsysExport(path, path):
        assert is_open(path)
    assert not is_open(path)


@pytest.mark.parametrize("stop", [InputError("damaged"), KeyboardInterrupt(), MemoryError()], ids=repr)
def test_an_export_whose_tables_cannot_be_listed_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: BaseException
) -> None:
    path = TraceBuilder().steps(2).write(tmp_path / "rank0.sqlite")

    def fail(*_: object) -> None:
        raise stop

    monkeypatch.setattr(NsysExport, "rows", fail)
    with pytest.raises(type(stop)) as caught:
        NsysExport(path, path)
    assert caught.value is stop  # its traceback keeps the export alive, so nothing but the program closed it
    assert not is_open(path)


def test_every_connection_is_opened_by_what_closes_it() -> None:
    """A connection of sqlite3 is a context manager too, but its block ends a transaction and leaves it open."""
    closed_elsewhere = {
        "three_walls/trace/nsys_export.py": 1,
        "three_walls/capture/scrub/scrub_export.py": 1,
        "benchmarks/inflate.py": 1,
    }
    unclosed = {
        str(path.relative_to(REPOSITORY)): count
        for folder in ("three_walls", "tests", "tools", "benchmarks")
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        if (count := len(re.findall(r"(?<!closing\()sqlite3\.connect\(", path.read_text())))
    }
    assert unclosed == closed_elsewhere
