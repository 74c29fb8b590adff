"""Writing a report: three whole files, or nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from three_walls.model.errors import UsageError
from three_walls.model.report import Report
from three_walls.report.html_report import render_html
from three_walls.report.write import write_report

pytestmark = pytest.mark.slow

NAMES = ["report.html", "report.json", "overrides.txt"]


def fail_at(call: int, error: BaseException) -> Callable[..., None]:
    """An os.replace whose ``call``-th call raises ``error``."""
    calls = 0
    real = os.replace

    def replace_or_fail(*paths: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise error
        real(*paths)

    return replace_or_fail


def test_it_creates_the_directory_and_names_what_it_wrote(report: Report, page: str, tmp_path: Path) -> None:
    out_dir = tmp_path / "deep" / "run.three-walls"
    assert write_report(report, out_dir) == [out_dir / name for name in NAMES]
    assert sorted(p.name for p in out_dir.iterdir()) == sorted(NAMES)
    assert (out_dir / "report.html").read_text(encoding="utf-8") == page == render_html(report)
    assert json.loads((out_dir / "report.json").read_bytes())["verdict"]["wall"] == "communication"


@pytest.mark.parametrize("call", [1, 2, 3])
def test_an_interrupt_leaves_nothing_behind(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    monkeypatch.setattr(os, "replace", fail_at(call, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        write_report(report, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_the_earlier_report_whole(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(report, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(os, "replace", fail_at(2, OSError(28, "No space left on device")))
    with pytest.raises(UsageError, match="No space left on device"):
        write_report(report, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_nothing_is_touched_when_rendering_fails(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Report) -> str:
        raise RuntimeError("a template is broken")

    monkeypatch.setattr("three_walls.report.write.render_json", fail)
    with pytest.raises(RuntimeError):
        write_report(report, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_file_name_that_is_not_utf_8_reads_back_as_it_was(report: Report, tmp_path: Path) -> None:
    odd = replace(report, inputs=(replace(report.inputs[0], path_name="run-\udcff.sqlite"),))
    write_report(odd, tmp_path)
    assert json.loads((tmp_path / "report.json").read_bytes())["inputs"][0]["path_name"] == "run-\udcff.sqlite"


def test_a_file_in_the_way_is_one_clear_line(report: Report, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(UsageError) as caught:
        write_report(report, tmp_path / "taken")
    assert str(caught.value).startswith(f"cannot write the report to {tmp_path / 'taken'}: ")
    assert "\n" not in str(caught.value)
