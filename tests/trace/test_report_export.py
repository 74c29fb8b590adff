"""Reports that were not exported: what a fake ``nsys`` makes of them, and what is read where there is none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from trace_builder import TraceBuilder

from tests.capture.fake_nsys import calls_of, make_fake_nsys
from three_walls import analyze
from three_walls.cli.analyze import analyze_command
from three_walls.lib.errors import InputError, NothingToAnalyzeError
from three_walls.trace import report_export
from three_walls.trace.report_export import NSYS_VARIABLE, find_nsys
from three_walls.trace.trace_files import find_traces, find_unread


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the only nsys on PATH."""
    folder = tmp_path / "bin"
    make_fake_nsys(folder, TraceBuilder().steps(2).write(tmp_path / "x.sqlite"))
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv(NSYS_VARIABLE, raising=False)
    return folder


@pytest.fixture
def no_nsys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv(NSYS_VARIABLE, raising=False)


def write_report(path: Path, content: str = "report") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    return path


def age(path: Path, seconds: int) -> None:
    os.utime(path, (1_700_000_000 - seconds, 1_700_000_000 - seconds))


def test_a_report_is_exported_once_and_again_when_it_changes(tmp_path: Path, nsys: Path) -> None:
    report = write_report(tmp_path / "runs" / "rank0.nsys-rep")
    exports = tmp_path / "out" / "exports"
    (first,) = find_traces([report], exports)
    assert first.name == "rank0.sqlite"
    assert first.read_bytes() == (nsys / "export.sqlite").read_bytes()
    assert find_traces([report], exports) == [first]
    assert calls_of(nsys) == ["export"]
    report.write_text("another")
    (second,) = find_traces([report], exports)
    assert second != first
    assert calls_of(nsys) == ["export", "export"]
    assert [path.name for path in report.parent.iterdir()] == ["rank0.nsys-rep"]


def test_of_a_mixed_directory_each_capture_is_read_once(tmp_path: Path, nsys: Path) -> None:
    runs = tmp_path / "runs"
    for name in ("rank0", "rank1", "rank2"):
        age(write_report(runs / f"{name}.nsys-rep", name), 50)
    for name, seconds in (("rank0.sqlite", 20), ("rank1.sqlite", 90), ("rank3.sqlite.xz", 0)):
        (runs / name).touch()
        age(runs / name, seconds)
    found = find_traces([runs], tmp_path / "exports")
    assert [path.name for path in found] == ["rank0.sqlite", "rank1.sqlite", "rank2.sqlite", "rank3.sqlite.xz"]
    assert [path.parent == runs for path in found] == [True, False, False, True]  # the older export was made again
    assert calls_of(nsys) == ["export", "export"]
    assert find_unread([runs]) == []


@pytest.mark.usefixtures("no_nsys")
def test_without_nsys_exports_are_read_and_what_is_not_read_is_named(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for name, seconds in (("rank0", 50), ("rank1", 50), ("rank2", 50)):
        age(write_report(runs / f"{name}.nsys-rep"), seconds)
    for name, seconds in (("rank0.sqlite", 20), ("rank1.sqlite", 90)):
        (runs / name).touch()
        age(runs / name, seconds)
    assert find_traces([runs]) == [runs / "rank0.sqlite", runs / "rank1.sqlite"]
    assert [path.name for path, _ in find_unread([runs])] == ["rank1.nsys-rep", "rank2.nsys-rep"]


@pytest.mark.usefixtures("no_nsys")
def test_a_directory_of_reports_names_them_and_the_loop_that_exports_them(tmp_path: Path) -> None:
    runs = tmp_path / "a b"
    for rank in range(5):
        write_report(runs / f"rank{rank}.nsys-rep")
    with pytest.raises(InputError) as caught:
        find_traces([runs])
    message = str(caught.value)
    assert "found 5 reports that were not exported (rank0.nsys-rep, rank1.nsys-rep, rank2.nsys-rep, ...)" in message
    loop = message.partition("; run: ")[2]
    called = subprocess.run(
        ["/bin/bash", "-c", f"nsys() {{ printf '%s\\n' \"$5\" >> calls; }}; {loop}"], cwd=tmp_path, check=True
    )
    assert called.returncode == 0
    exported = (tmp_path / "calls").read_text().splitlines()
    assert exported == [str(runs / f"rank{rank}.sqlite") for rank in range(5)]


@pytest.mark.usefixtures("no_nsys")
def test_a_report_without_nsys_gets_the_command_that_exports_it(tmp_path: Path) -> None:
    report = write_report(tmp_path / "rank0.nsys-rep")
    with pytest.raises(InputError, match=r"PATH to export it; run: nsys export --type sqlite rank0\.nsys-rep"):
        find_traces([report])


def test_an_export_that_fails_is_a_line_with_the_reason_and_leaves_nothing(tmp_path: Path, nsys: Path) -> None:
    (nsys / "does").write_text("cannot export")
    with pytest.raises(InputError) as caught:
        find_traces([write_report(tmp_path / "rank0.nsys-rep")], tmp_path / "exports")
    assert str(caught.value).endswith("rank0.nsys-rep: nsys export failed (the report is of a newer version)")
    assert not [path for path in (tmp_path / "exports").rglob("*") if path.is_file()]


def test_a_named_nsys_counts_and_must_exist(tmp_path: Path, nsys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = write_report(tmp_path / "rank0.nsys-rep")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv(NSYS_VARIABLE, str(nsys / "nsys"))
    assert len(find_traces([report], tmp_path / "exports")) == 1
    monkeypatch.setenv(NSYS_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(InputError, match="no such program"):
        find_traces([report], tmp_path / "exports")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "rank0.sqlite").touch()
    assert find_unread([tmp_path / "runs"]) == []  # nobody needs an nsys there
    monkeypatch.setenv(NSYS_VARIABLE, "1")
    assert find_nsys() is None
    monkeypatch.setenv("PATH", str(nsys))
    assert find_nsys() == str(nsys / "nsys")


@pytest.mark.slow
@pytest.mark.usefixtures("no_nsys")
def test_the_report_names_what_was_not_read(tmp_path: Path) -> None:
    TraceBuilder().steps(4).write(tmp_path / "rank0.sqlite")
    write_report(tmp_path / "rank1.nsys-rep")
    messages = [warning.message for warning in analyze(tmp_path).warnings if warning.code == "report-not-exported"]
    assert messages == [
        "rank1.nsys-rep: no nsys is on PATH to export this report; it was not exported and is left out."
    ]


def test_an_export_that_is_named_like_a_report_is_read_as_it_is(tmp_path: Path, nsys: Path) -> None:
    path = TraceBuilder().steps(2).write(tmp_path / "rank0.nsys-rep")
    assert find_traces([path]) == [path]
    assert calls_of(nsys) == []


def test_the_option_names_nsys_and_exports_lie_next_to_the_output(
    tmp_path: Path, nsys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(report_export, "_named", [])
    (nsys / "export.sqlite").write_bytes(
        TraceBuilder().api("cudaMalloc_v3020", 1, 2).write(tmp_path / "y").read_bytes()
    )
    report = write_report(tmp_path / "runs" / "rank0.nsys-rep")
    out = tmp_path / "out" / "report"
    words = ["--nsys", str(nsys / "nsys"), str(report), "--out", str(out)]
    result = CliRunner().invoke(analyze_command, words)
    assert isinstance(result.exception, NothingToAnalyzeError)
    assert "rank0.sqlite: expected CUDA kernels, found none" in str(result.exception)
    assert [path.name for path in (tmp_path / "out" / "three-walls-exports").rglob("*.sqlite")] == ["rank0.sqlite"]
    missing = CliRunner().invoke(analyze_command, ["--nsys", "nothing", str(report), "--out", str(out)])
    assert isinstance(missing.exception, InputError)
    assert "nothing: no such program" in str(missing.exception)
