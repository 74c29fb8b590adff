"""Writing a report: the three files of one run, or those that were there before."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from three_walls.model.errors import UsageError
from three_walls.model.report import Report
from three_walls.report.html_report import render_html
from three_walls.report.overrides_file import ENTRIES_DIR, render_entries
from three_walls.report.write import LOCK_NAME, NAMES, write_report

pytestmark = pytest.mark.slow

TOUCHING_THE_DISK = ("open", "os.rename", "os.symlink", "os.link", "os.mkdir", "os.remove", "os.rmdir", "fcntl.flock")
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
        monkeypatch.setattr(f"three_walls.report.write.render_{kind}", lambda report: report.tool_version * 10_000)
    monkeypatch.setattr("three_walls.report.write.render_entries", render_short_entries)


def run_of(out_dir: Path) -> str | None:
    """The number of the run whose report is in ``out_dir``; None where there is none. Fails for files of several.

    A link that leads nowhere is no file.
    """
    found = {(out_dir / name).read_text()[0] if (out_dir / name).exists() else None for name in NAMES}
    assert len(found) == 1, found
    run = found.pop()
    entries = {path.name: path.read_text()[14] for path in out_dir.glob(f"{ENTRIES_DIR}/*") if path.exists()}
    assert entries == dict.fromkeys(ENTRIES.get(run or "", ()), run)
    return run


def names_of(run: str | None) -> list[str]:
    """What is in the directory of a report of that run."""
    return [*(NAMES if run else ()), *([ENTRIES_DIR] if run in ENTRIES else ())]


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


@pytest.mark.attack
@pytest.mark.usefixtures("short_texts")
@pytest.mark.parametrize(
    ("fault", "has_report"), [(kill, True), (kill, False), (fill_the_disk, True), (interrupt, False)]
)
def test_wherever_writing_ends_the_files_are_those_of_one_run(
    report: Report, tmp_path: Path, fault: Callable[[], None], has_report: bool
) -> None:
    """And the next run removes what a killed one left, and nothing else."""
    found, locks_left = set(), 0
    for number in range(1, 99):
        out_dir = tmp_path / str(number)
        out_dir.mkdir()
        (out_dir / "notes.md").write_text("mine")
        if has_report:
            write_report(replace(report, tool_version="1"), out_dir)
        reached = tmp_path / "reached"
        reached.unlink(missing_ok=True)
        write_in_child(replace(report, tool_version="2"), out_dir, at_call(number, fault, reached))
        found.add(run_of(out_dir))
        if fault is not kill:
            expected = [*names_of(run_of(out_dir)), "notes.md"]
            names = sorted(path.name for path in out_dir.iterdir())
            locks_left += LOCK_NAME in names  # where removing the lock is itself what fails
            assert [name for name in names if name != LOCK_NAME] == sorted(expected), number
        write_report(replace(report, tool_version="3"), out_dir)
        assert run_of(out_dir) == "3"
        assert sorted(path.name for path in out_dir.iterdir()) == sorted([*NAMES, "notes.md"])
        assert not any(path.is_symlink() for path in out_dir.iterdir())
        assert (out_dir / "notes.md").read_text() == "mine"
        if not reached.exists():
            break
    assert 20 < number < 98
    assert locks_left <= 2
    assert found == {"1" if has_report else None, "2"}


@pytest.mark.usefixtures("short_texts")
def test_a_failure_leaves_no_empty_directory(report: Report, tmp_path: Path) -> None:
    out_dir = tmp_path / "deep" / "out"
    for number in range(1, 20):
        fault = at_call(number, fill_the_disk, tmp_path / "reached")
        assert write_in_child(report, out_dir, fault) == INTERRUPTED
        assert list(tmp_path.iterdir()) == [tmp_path / "reached"], number


@pytest.mark.usefixtures("short_texts")
def test_a_limit_of_the_file_size_leaves_the_old_report(report: Report, tmp_path: Path) -> None:
    write_report(replace(report, tool_version="1"), tmp_path)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))

    assert write_in_child(replace(report, tool_version="2"), tmp_path, limit) == INTERRUPTED
    assert run_of(tmp_path) == "1"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names_of("1"))


@pytest.mark.usefixtures("short_texts")
def test_runs_at_the_same_time_take_turns(report: Report, tmp_path: Path) -> None:
    out_dir = tmp_path / "out"
    for _ in range(4):
        children = []
        for run in range(1, 5):
            child = os.fork()
            if child == 0:
                try:
                    write_report(replace(report, tool_version=str(run)), out_dir)
                finally:
                    os._exit(0 if sys.exc_info()[0] is None else 1)
            children.append(child)
        for child in children:
            assert os.waitpid(child, 0)[1] == 0
        assert run_of(out_dir) is not None
        assert sorted(path.name for path in out_dir.iterdir()) == sorted(names_of(run_of(out_dir)))


@pytest.mark.usefixtures("short_texts")
@pytest.mark.parametrize("is_full", [False, True])
def test_a_file_system_without_links_gets_its_files_one_by_one(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    write_report(replace(report, tool_version="1"), tmp_path)
    monkeypatch.setattr(os, "symlink", refuse)
    monkeypatch.setattr(os, "link", refuse)
    if is_full:
        moves = iter([*[os.replace] * 2, lambda *_, **__: fill_the_disk(), *[os.replace] * 9])
        monkeypatch.setattr(os, "replace", lambda *paths, **options: next(moves)(*paths, **options))
        with pytest.raises(UsageError, match="No space left on device"):
            write_report(replace(report, tool_version="2"), tmp_path)
    else:
        write_report(replace(report, tool_version="2"), tmp_path)
    assert run_of(tmp_path) == ("1" if is_full else "2")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names_of(run_of(tmp_path)))


@pytest.mark.usefixtures("short_texts")
def test_a_file_system_without_locks_is_written_to(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", refuse)
    write_report(replace(report, tool_version="1"), tmp_path)
    assert run_of(tmp_path) == "1"


@pytest.mark.usefixtures("short_texts")
def test_a_run_waits_for_the_one_that_writes(report: Report, tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / LOCK_NAME).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        writer = threading.Thread(target=write_report, args=(replace(report, tool_version="1"), tmp_path))
        writer.start()
        time.sleep(0.2)
        assert run_of(tmp_path) is None
    writer.join(30)
    assert run_of(tmp_path) == "1"


@pytest.mark.usefixtures("short_texts")
def test_links_of_the_user_are_replaced_and_what_they_lead_to_stays(report: Report, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    for name in NAMES:
        (tmp_path / name).symlink_to("precious")
    write_report(replace(report, tool_version="1"), tmp_path)
    assert run_of(tmp_path) == "1"
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.usefixtures("short_texts")
def test_a_directory_that_has_the_name_of_a_file_is_one_line(report: Report, tmp_path: Path) -> None:
    write_report(replace(report, tool_version="1"), tmp_path)
    (tmp_path / "overrides.txt").unlink()
    (tmp_path / "overrides.txt").mkdir()
    with pytest.raises(UsageError, match=r"overrides\.txt is a directory"):
        write_report(replace(report, tool_version="2"), tmp_path)
    assert (tmp_path / "report.html").read_text()[0] == "1"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names_of("1"))


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

    monkeypatch.setattr("three_walls.report.write.render_html", lambda _: "")
    monkeypatch.setattr("three_walls.report.write.render_json", fail)
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
    assert run_of(out_dir) == "3"
    assert list(elsewhere.iterdir()) == []
