"""A user's path may name anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from three_walls.cli.verify import read_overrides
from three_walls.lib import limits
from three_walls.lib.errors import InputError
from three_walls.lib.files import is_directory, read_text_file
from three_walls.log.read_log import find_logs
from three_walls.megatron.settings.saved_config import read_config_file
from three_walls.memory_snapshot.read_snapshot import load_snapshot
from three_walls.trace.trace_files import find_traces


def test_files_and_directories_are_distinguished(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert is_directory(tmp_path)
    assert not is_directory(tmp_path / "file")


def test_a_pipe_is_refused_everywhere_and_nobody_waits_for_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for read in (
        lambda: find_traces([pipe]),
        lambda: find_logs([pipe]),
        lambda: load_snapshot(pipe),
        lambda: read_config_file(pipe),
        lambda: read_overrides(pipe),
    ):
        with pytest.raises(InputError, match="found a pipe or a device"):
            read()


def test_a_name_that_no_file_can_have_is_one_line() -> None:
    for read in (find_traces, find_logs):
        with pytest.raises(InputError, match="File name too long"):
            read([Path("a" * 5000)])


def test_text_is_read_with_or_without_a_mark_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfmodel: {}")
    assert read_text_file(path, "YAML") == "model: {}"
    monkeypatch.setattr(limits, "MOST_TEXT_BYTES", 4)
    with pytest.raises(InputError, match="expected YAML, found more than"):
        read_text_file(path, "YAML")
