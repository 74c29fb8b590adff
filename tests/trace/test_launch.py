"""Environments are found wherever an export holds them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from trace_builder import TraceBuilder

from three_walls.trace.launch_record import environment_blocks, launch_environment, other_environments
from three_walls.trace.nsys_export import NsysExport


def test_every_place_is_read_and_values_may_hold_semicolons(tmp_path: Path) -> None:
    builder = TraceBuilder().steps(1).launched_as("train.py", RANK="0")
    block = builder.string("A_KEY=1\0B=2")
    path = builder.write(tmp_path / "trace.sqlite")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('DeviceEnvironment', 'C=3;4;D_TOKEN=x=y')")
    with NsysExport(path, path) as export:
        assert launch_environment(export) == ['RANK="0"']
        assert environment_blocks(export) == {block: "A_KEY=1\0B=2"}
        assert other_environments(export) == ["C=3;4", "D_TOKEN=x=y", "A_KEY=1", "B=2"]


def test_an_export_without_any_has_none(tmp_path: Path) -> None:
    path = TraceBuilder().steps(1).write(tmp_path / "trace.sqlite")
    with NsysExport(path, path) as export:
        assert (launch_environment(export), other_environments(export)) == ([], [])
