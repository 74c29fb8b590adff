"""The cache beside the report: what was analyzed before comes back unchanged, what changed is analyzed again."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from trace_builder import TraceBuilder

from tests.called import call
from three_walls import analyze, pipeline, report_cache
from three_walls.inputs.nsys.source import hash_file
from three_walls.model.report import InputFile, Report
from three_walls.report.json_report import render_json
from three_walls.report_cache import FOLDER, AnalysisRequest, CachedReport, open_cache

NOTE = "analyzed before"


@pytest.fixture(scope="module")
def small_report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return analyze(TraceBuilder().steps(4).write(tmp_path_factory.mktemp("small") / "rank0.sqlite"))


@pytest.fixture
def request_of_all(tmp_path: Path) -> AnalysisRequest:
    """An analysis with every kind of input."""
    inputs = tmp_path / "inputs"
    (inputs / "logs").mkdir(parents=True)
    (inputs / "rules" / "host").mkdir(parents=True)
    names = (
        "rank0.sqlite",
        "rank1.sqlite",
        "logs/train.log",
        "run_config.yaml",
        "snapshot.pickle",
        "rules/host/a.yaml",
    )
    for name in names:
        (inputs / name).write_text(f"content of {name}")
    return AnalysisRequest(
        traces=(inputs / "rank0.sqlite", inputs / "rank1.sqlite"),
        logs=(inputs / "logs",),
        config=inputs / "run_config.yaml",
        settings=("a=1",),
        memory_snapshot=inputs / "snapshot.pickle",
        step_range=None,
        bridge_version=None,
        rules=inputs / "rules",
        allowed=(),
        exports=tmp_path / "exports",
    )


Look = Callable[..., CachedReport]


@pytest.fixture
def look(tmp_path: Path) -> Look:
    (tmp_path / "out").mkdir()

    def look(request: AnalysisRequest) -> CachedReport:
        found = open_cache(request, tmp_path / "out", lambda _: None)
        assert found is not None
        return found

    return look


def _report_of(request: AnalysisRequest, report: Report) -> Report:
    return replace(report, inputs=tuple(InputFile(path.name, hash_file(path), None, None) for path in request.traces))


def _report_and_text(request: AnalysisRequest, report: Report) -> tuple[Report, str]:
    report = _report_of(request, report)
    return report, render_json(report)


@pytest.fixture
def kept(look: Look, request_of_all: AnalysisRequest, small_report: Report) -> Report:
    report = _report_of(request_of_all, small_report)
    look(request_of_all).keep(report, render_json(report))
    return report


def test_the_same_inputs_and_options_find_the_report(look: Look, request_of_all: AnalysisRequest, kept: Report) -> None:
    found = look(request_of_all).find()
    assert found is not None
    assert found.inputs == kept.inputs


@pytest.mark.parametrize(
    "name", ["rank1.sqlite", "logs/train.log", "run_config.yaml", "snapshot.pickle", "rules/host/a.yaml"]
)
def test_a_changed_input_is_analyzed_again(
    name: str, tmp_path: Path, look: Look, request_of_all: AnalysisRequest, kept: Report
) -> None:
    path = tmp_path / "inputs" / name
    before, stat = path.read_text(), path.stat()
    path.write_text(before.upper())  # of the same size
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert look(request_of_all).find() is None
    path.write_text(before)
    found = look(request_of_all).find()
    assert found is not None
    assert found.inputs == kept.inputs


def test_inputs_that_were_moved_are_the_same(
    tmp_path: Path, look: Look, request_of_all: AnalysisRequest, kept: Report
) -> None:
    moved = (tmp_path / "inputs").rename(tmp_path / "moved")
    request = replace(
        request_of_all,
        traces=(moved / "rank0.sqlite", moved / "rank1.sqlite"),
        logs=(moved / "logs",),
        config=moved / "run_config.yaml",
        memory_snapshot=moved / "snapshot.pickle",
    )
    (tmp_path / "inputs").mkdir()
    (moved / "rules").rename(tmp_path / "inputs" / "rules")
    found = look(request).find()
    assert found is not None
    assert found.inputs == kept.inputs
    (moved / "rank1.sqlite").rename(moved / "rank2.sqlite")  # its name is in the report
    assert look(replace(request, traces=(moved / "rank0.sqlite", moved / "rank2.sqlite"))).find() is None


@pytest.mark.parametrize("name", ["logs/more.log", "rules/host/b.yaml", "rules/sources.yaml", "rank0.sqlite-wal"])
def test_a_further_input_is_read(
    name: str, tmp_path: Path, look: Look, request_of_all: AnalysisRequest, kept: Report
) -> None:
    assert kept
    (tmp_path / "inputs" / name).write_text("new")
    assert look(request_of_all).find() is None


@pytest.mark.parametrize(
    "change",
    [
        {"settings": ("a=2",)},
        {"settings": ("a=1", "a=1")},
        {"step_range": "iteration"},
        {"bridge_version": "0.4.2"},
        {"allowed": ("semantic",)},
        {"config": None},
        {"logs": ()},
        {"memory_snapshot": None},
        {"rules": None},
    ],
)
def test_other_options_are_another_analysis(
    change: dict[str, object], look: Look, request_of_all: AnalysisRequest, kept: Report
) -> None:
    assert kept
    assert look(replace(request_of_all, **change)).find() is None  # type: ignore[arg-type]


def test_traces_in_another_order_are_another_analysis(
    look: Look, request_of_all: AnalysisRequest, kept: Report
) -> None:
    assert kept
    assert look(replace(request_of_all, traces=request_of_all.traces[::-1])).find() is None


def test_another_version_analyzes_again(
    look: Look, request_of_all: AnalysisRequest, kept: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept
    monkeypatch.setattr(report_cache, "VERSION", "99.0")
    assert look(request_of_all).find() is None


@pytest.mark.parametrize("where", ["RULES_DIR", "TABLES_DIR"])
def test_an_edited_table_or_rule_of_the_program_analyzes_again(
    where: str, tmp_path: Path, look: Look, request_of_all: AnalysisRequest, small_report: Report,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(report_cache, where, tmp_path / "data")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thresholds.yaml").write_text("a: 1")
    look(request_of_all).keep(*_report_and_text(request_of_all, small_report))
    assert look(request_of_all).find() is not None
    (tmp_path / "data" / "thresholds.yaml").write_text("a: 25")
    assert look(request_of_all).find() is None


def test_an_input_that_changed_meanwhile_is_not_kept(
    look: Look, request_of_all: AnalysisRequest, small_report: Report
) -> None:
    place = look(request_of_all)
    report = _report_of(request_of_all, small_report)
    (request_of_all.logs[0] / "train.log").write_text("the job went on")
    place.keep(report, render_json(report))
    assert place.find() is None
    assert look(request_of_all).find() is None


def test_a_report_without_one_of_the_traces_is_not_kept(
    look: Look, request_of_all: AnalysisRequest, small_report: Report
) -> None:
    report = _report_of(request_of_all, small_report)
    look(request_of_all).keep(replace(report, inputs=report.inputs[:1]), render_json(report))
    assert look(request_of_all).find() is None


def test_an_unchanged_trace_is_hashed_once(
    look: Look, request_of_all: AnalysisRequest, small_report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    monkeypatch.setattr(report_cache, "hash_file", lambda path: hashed.append(path.name) or hash_file(path))
    report = _report_of(request_of_all, small_report)
    monkeypatch.setattr(report_cache, "_RESOLUTION_NS", -(10**15))  # as if the files were old
    look(request_of_all).keep(report, render_json(report))
    hashed.clear()
    assert look(request_of_all).find() is not None
    assert hashed == []
    monkeypatch.setattr(report_cache, "_RESOLUTION_NS", 10**15)  # as if they were written just now
    (request_of_all.traces[0].parent / "rank0.sqlite").write_text("content of rank0.sqlite")
    assert look(request_of_all).find() is not None
    assert hashed == ["rank0.sqlite"]
    look(request_of_all).keep(report, render_json(report))
    assert look(request_of_all).find() is not None
    assert hashed == ["rank0.sqlite"] * 2


def test_a_damaged_entry_is_written_again(
    tmp_path: Path, look: Look, request_of_all: AnalysisRequest, kept: Report
) -> None:
    (entry,) = (tmp_path / "out" / FOLDER).glob("*.report")
    whole = entry.read_bytes()
    for damaged in (b"", whole[:-20], b"no zlib", whole[:50] + b"x" + whole[51:]):
        entry.write_bytes(damaged)
        (tmp_path / "out" / FOLDER / "files.json").write_bytes(damaged)
        place = look(request_of_all)
        assert place.find() is None
        place.keep(kept, render_json(kept))
        assert entry.read_bytes() == whole


def test_no_directory_of_an_input_is_in_the_cache(
    tmp_path: Path, look: Look, request_of_all: AnalysisRequest, small_report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_cache, "_RESOLUTION_NS", -(10**15))
    look(request_of_all).keep(*_report_and_text(request_of_all, small_report))
    text = (tmp_path / "out" / FOLDER / "files.json").read_text()
    assert "rank0.sqlite" in text
    assert tmp_path.name not in text


def test_the_newest_reports_are_kept(
    tmp_path: Path, look: Look, request_of_all: AnalysisRequest, small_report: Report
) -> None:
    report = _report_of(request_of_all, small_report)
    requests = [replace(request_of_all, settings=(f"a={number}",)) for number in range(11)]
    for number, request in enumerate(requests):
        look(request).keep(report, render_json(report))
        for entry in (tmp_path / "out" / FOLDER).glob("*.report"):
            age_s = 0 if look(request)._outline in entry.name else 100
            os.utime(entry, ns=(0, entry.stat().st_mtime_ns - age_s * 10**9))
        assert look(request).find() is not None, number
    assert [look(request).find() is not None for request in requests] == [False] * 3 + [True] * 8


def test_a_folder_that_leads_elsewhere_is_left_alone(
    tmp_path: Path, look: Look, request_of_all: AnalysisRequest, small_report: Report
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / FOLDER).symlink_to(tmp_path / "elsewhere")
    look(request_of_all).keep(*_report_and_text(request_of_all, small_report))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, look: Look, request_of_all: AnalysisRequest, small_report: Report
) -> None:
    (tmp_path / "out" / FOLDER).write_text("a file")
    look(request_of_all).keep(*_report_and_text(request_of_all, small_report))
    assert look(request_of_all).find() is None


def test_an_input_that_cannot_be_read_has_no_place(tmp_path: Path, request_of_all: AnalysisRequest) -> None:
    missing = replace(request_of_all, config=tmp_path / "none.yaml")
    assert open_cache(missing, tmp_path, lambda _: None) is None


def _files(out: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in out.rglob("*") if path.is_file() and FOLDER not in path.parts}


@pytest.mark.slow
def test_a_second_run_analyzes_nothing_and_writes_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    TraceBuilder().steps(4).write(tmp_path / "rank0.sqlite")
    command = ("analyze", "rank0.sqlite", "--out", "out")
    first = call(*command, cwd=tmp_path)
    files = _files(tmp_path / "out")
    (tmp_path / "out" / "report.html").unlink()
    assert NOTE not in first.stderr
    fresh = call(*command, "--no-cache", cwd=tmp_path)
    assert NOTE not in fresh.stderr
    monkeypatch.setattr(pipeline, "analyze", None)
    second = call(*command, cwd=tmp_path)
    assert (second.returncode, second.stdout) == (0, first.stdout)
    assert NOTE in second.stderr
    assert _files(tmp_path / "out") == files


@pytest.mark.slow
def test_history_is_read_anew(tmp_path: Path) -> None:
    TraceBuilder().steps(4).write(tmp_path / "rank0.sqlite")
    command = ("analyze", "rank0.sqlite", "--quiet", "--out")
    call(*command, "runs/earlier", cwd=tmp_path)
    call(*command, "out", "--history", "runs", cwd=tmp_path)
    history = (tmp_path / "out" / "report.json").read_text()
    assert '"history": null' not in history
    again = call(*command, "out", cwd=tmp_path)
    assert NOTE in again.stderr
    assert '"history": null' in (tmp_path / "out" / "report.json").read_text()


@pytest.mark.slow
def test_without_a_cache_none_is_read_or_written(tmp_path: Path) -> None:
    TraceBuilder().steps(4).write(tmp_path / "rank0.sqlite")
    for _ in range(2):
        assert NOTE not in call("analyze", "rank0.sqlite", "--out", "out", "--no-cache", "-q", cwd=tmp_path).stderr
    assert not (tmp_path / "out" / FOLDER).exists()
    call("analyze", "rank0.sqlite", "--out", "out", "-q", cwd=tmp_path)
    kept = {path: path.read_bytes() for path in (tmp_path / "out" / FOLDER).iterdir()}
    assert NOTE not in call("analyze", "rank0.sqlite", "--out", "out", "--no-cache", "-q", cwd=tmp_path).stderr
    assert {path: path.read_bytes() for path in (tmp_path / "out" / FOLDER).iterdir()} == kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "rank0.sqlite"]


def test_only_a_report_that_is_written_is_kept(tmp_path: Path) -> None:
    TraceBuilder().steps(4).write(tmp_path / "rank0.sqlite")
    call("analyze", "rank0.sqlite", "--format", "text", cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.sqlite"]
