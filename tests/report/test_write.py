"""Writing a report: whole files, report.json last, and none of an earlier run that are not written any more."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from three_walls.lib.errors import UsageError
from three_walls.report.html_report import render_html
from three_walls.report.overrides_file import ENTRIES_DIR, render_entries
from three_walls.report.report import Report
from three_walls.report.write_report import NAMES, write_report

pytestmark = pytest.mark.slow

TOUCHING_THE_DISK = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "fcntl.flock")
"""Audit events of the calls that writing makes."""
FINISHED, INTERRUPTED = 0, 99
"""Exit codes of a child process that wrote a report, or met the fault it was given."""


ENTRIES = {"1": ("01-a.bridge.txt", "02-b.env"), "2": ("01-a.bridge.txt", "02-c.py"), "4": ("03-d.megatron.txt",)}
"""Number of a run to the files of its entries: run 3 has none."""


def render_short_entries(report: Report) -> dict[str, str]:
    run = report.tool_version
    text = f"# three-walls {run}: entry 1 of the plan, alone: {'x' * 10_000}\n"
    return {f"{ENTRIES_DIR}/{name}": text for name in ENTRIES.get(run, ())}


@pytest.fixture
def short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that hold their run's number, which is the tool version, and some bulk."""
    for kind in ("html", "json", "overrides"):
        monkeypatch.setattr(
            f"three_walls.report.write_report.render_{kind}", lambda report: report.tool_version * 10_000
        )
    monkeypatch.setattr("three_walls.report.write_report.render_entries", render_short_entries)


def run_of(out_dir: Path) -> str:
    """The number of the run whose report is in ``out_dir``, and nothing else. Fails for files of several runs."""
    (run,) = {(out_dir / name).read_text()[0] for name in NAMES}
    entries = {path.name: path.read_text()[14] for path in out_dir.glob(f"{ENTRIES_DIR}/*")}
    assert entries == dict.fromkeys(ENTRIES.get(run, ()), run)
    assert sorted(path.name for path in out_dir.iterdir()) == sorted([*NAMES, *([ENTRIES_DIR] if entries else ())])
    return run


def write_in_child(report: Report, out_dir: Path, prepare: Callable[[], None]) -> int:
    """Write ``report`` in a child process, which calls ``prepare`` first; its exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        code = INTERRUPTED
        try:
            prepare()
            write_report(report, out_dir)
            code = FINISHED
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def at_call(number: int, fault: Callable[[], None], reached: Path) -> Callable[[], None]:
    """Creates ``reached`` and calls ``fault`` in the place of the ``number``-th call that touches the disk."""
    calls = 0

    def prepare() -> None:
        def watch(event: str, _: Any) -> None:
            nonlocal calls
            if event in TOUCHING_THE_DISK:
                calls += 1
                if calls == number:
                    reached.touch()
                    fault()

        sys.addaudithook(watch)

    return prepare


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fill_the_disk() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupt() -> None:
    raise KeyboardInterrupt


def test_it_creates_the_directory_and_names_what_it_wrote(report: Report, page: str, tmp_path: Path) -> None:
    out_dir = tmp_path / "deep" / "run.three-walls"
    assert write_report(report, out_dir) == [out_dir / name for name in (*NAMES, ENTRIES_DIR)]
    assert sorted(p.name for p in out_dir.iterdir()) == sorted((*NAMES, ENTRIES_DIR))
    assert {f"{ENTRIES_DIR}/{path.name}" for path in (out_dir / ENTRIES_DIR).iterdir()} == set(render_entries(report))
    assert (out_dir / "report.html").read_text(encoding="utf-8") == page == render_html(report)
    assert json.loads((out_dir / "report.json").read_bytes())["verdict"]["wall"] == "communication"


@pytest.mark.usefixtures("short_texts")
def test_a_limit_of_the_file_size_leaves_the_old_report(report: Report, tmp_path: Path) -> None:
    write_report(replace(report, tool_version="1"), tmp_path)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))

    assert write_in_child(replace(report, tool_version="2"), tmp_path, limit) == INTERRUPTED
    assert run_of(tmp_path) == "1"


@pytest.mark.attack
@pytest.mark.usefixtures("short_texts")
@pytest.mark.parametrize("fault", [kill, fill_the_disk, interrupt])
def test_wherever_writing_ends_each_file_is_whole_and_nothing_else_is_left(
    report: Report, tmp_path: Path, fault: Callable[[], None]
) -> None:
    """The next run removes what a killed one left."""
    for number in range(1, 99):
        out_dir = tmp_path / str(number)
        write_report(replace(report, tool_version="1"), out_dir)
        reached = tmp_path / "reached"
        reached.unlink(missing_ok=True)
        write_in_child(replace(report, tool_version="2"), out_dir, at_call(number, fault, reached))
        texts = {name: (out_dir / name).read_text() for name in NAMES}
        assert {name for name, text in texts.items() if text not in ("1" * 10_000, "2" * 10_000)} == set()
        if texts["report.json"][0] == "2":
            assert len(set(texts.values())) == 1
        strays = {path.name for path in out_dir.iterdir()} - {*NAMES, ENTRIES_DIR}
        if fault is not kill and strays:
            assert texts["report.json"][0] == "2"  # all is written, and removing the directory is itself what fails
        write_report(replace(report, tool_version="3"), out_dir)
        assert run_of(out_dir) == "3"
        if not reached.exists():
            break
    assert 20 < number < 98


@pytest.mark.usefixtures("short_texts")
def test_links_of_the_user_are_replaced_and_what_they_lead_to_stays(report: Report, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "out").mkdir()
    for name in NAMES:
        (tmp_path / "out" / name).symlink_to("../precious")
    write_report(replace(report, tool_version="1"), tmp_path / "out")
    assert run_of(tmp_path / "out") == "1"
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.usefixtures("short_texts")
def test_a_directory_that_has_the_name_of_a_file_is_one_line(report: Report, tmp_path: Path) -> None:
    write_report(replace(report, tool_version="1"), tmp_path)
    (tmp_path / "overrides.txt").unlink()
    (tmp_path / "overrides.txt").mkdir()
    with pytest.raises(UsageError, match=r"overrides\.txt is a directory"):
        write_report(replace(report, tool_version="2"), tmp_path)
    assert (tmp_path / "report.html").read_text()[0] == "1"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*NAMES, ENTRIES_DIR])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.usefixtures("short_texts")
def test_a_directory_that_may_not_be_written_keeps_its_report(report: Report, tmp_path: Path) -> None:
    write_report(replace(report, tool_version="1"), tmp_path)
    tmp_path.chmod(0o555)
    with pytest.raises(UsageError, match="Permission denied"):
        write_report(replace(report, tool_version="2"), tmp_path)
    tmp_path.chmod(0o755)
    assert run_of(tmp_path) == "1"


def test_nothing_is_touched_when_rendering_fails(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Report) -> str:
        raise RuntimeError("a template is broken")

    monkeypatch.setattr("three_walls.report.write_report.render_html", lambda _: "")
    monkeypatch.setattr("three_walls.report.write_report.render_json", fail)
    with pytest.raises(RuntimeError):
        write_report(report, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_file_name_that_is_not_utf_8_reads_back_as_it_was(report: Report, tmp_path: Path) -> None:
    odd = replace(report, inputs=(replace(report.inputs[0], path_name="run-\udcff.sqlite"),))
    write_report(odd, tmp_path)
    assert json.loads((tmp_path / "report.json").read_bytes())["inputs"][0]["path_name"] == "run-\udcff.sqlite"


@pytest.mark.usefixtures("short_texts")
def test_a_file_in_the_way_is_one_clear_line(report: Report, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(UsageError) as caught:
        write_report(report, tmp_path / "taken")
    assert str(caught.value).startswith(f"cannot write the report to {tmp_path / 'taken'}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("short_texts")
def test_files_of_the_earlier_plan_go_and_those_of_anybody_else_stay(report: Report, tmp_path: Path) -> None:
    write_report(replace(report, tool_version="1"), tmp_path)
    folder = tmp_path / ENTRIES_DIR
    others = ("01-own.bridge.txt", "notes.md", "02-b.env.bak", "1-b.env")
    for name in others:
        (folder / name).write_text("model.x=1")
    (folder / "99-marked.notes").write_text("# three-walls 1: entry 1 of the plan, alone: x")  # no name of ours
    (tmp_path / "precious").write_text("# three-walls 1: entry 1 of the plan, alone: x")
    (folder / "07-link.env").symlink_to("../precious")
    write_report(replace(report, tool_version="2"), tmp_path)
    kept = ["99-marked.notes", "07-link.env", *others]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*ENTRIES["2"], *kept])
    assert [(folder / name).read_text() for name in others] == ["model.x=1"] * len(others)
    write_report(replace(report, tool_version="3"), tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == sorted(kept)
    assert (tmp_path / "precious").exists()


@pytest.mark.usefixtures("short_texts")
def test_a_directory_that_the_user_left_empty_stays_and_one_of_ours_goes(report: Report, tmp_path: Path) -> None:
    (tmp_path / ENTRIES_DIR).mkdir()
    write_report(replace(report, tool_version="3"), tmp_path)
    assert (tmp_path / ENTRIES_DIR).is_dir()
    write_report(replace(report, tool_version="1"), tmp_path)
    write_report(replace(report, tool_version="3"), tmp_path)
    assert not (tmp_path / ENTRIES_DIR).exists()


@pytest.mark.usefixtures("short_texts")
@pytest.mark.parametrize("is_link", [False, True])
def test_nothing_is_written_through_a_link_that_has_the_name_of_the_directory(
    report: Report, tmp_path: Path, is_link: bool
) -> None:
    out_dir, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    out_dir.mkdir()
    elsewhere.mkdir()
    if is_link:
        (out_dir / ENTRIES_DIR).symlink_to(elsewhere)
    else:
        (out_dir / ENTRIES_DIR).write_text("mine")
    with pytest.raises(UsageError, match="overrides is no directory"):
        write_report(replace(report, tool_version="1"), out_dir)
    assert [path.name for path in out_dir.iterdir()] == [ENTRIES_DIR]
    write_report(replace(report, tool_version="3"), out_dir)  # it has no entries to write
    assert sorted(path.name for path in out_dir.iterdir()) == sorted([*NAMES, ENTRIES_DIR])
    assert list(elsewhere.iterdir()) == []
