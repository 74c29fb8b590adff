"""``three-walls render``: every format again from report.json alone, byte for byte what analyze wrote."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.analyzed_samples import analyze_sample, reads_sample
from tests.paths import REPOSITORY
from tests.report.sample_report import sample_report
from three_walls import pipeline
from three_walls.cli.analyze import analyze_command
from three_walls.cli.render import render_command
from three_walls.lib.errors import UsageError
from three_walls.report.json_report import render_json
from three_walls.report.render_report import FORMATS, render
from three_walls.report.report import SCHEMA_VERSION, Report
from three_walls.report.write_report import write_report

FIRST = "tests/report/report-3.0.json.xz"
"""The sample report as it was written with schema 3.0."""
FILES = ["overrides.txt", "report.html", "report.json"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a report as analyze writes it."""
    folder = tmp_path_factory.mktemp("written")
    write_report(sample_report(), folder)
    return folder


def run(*arguments: str | Path) -> Result:
    done = CliRunner().invoke(render_command, [*map(str, arguments)])
    assert isinstance(done.exception, SystemExit | type(None) | UsageError), done.exception
    return done


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_directory_is_written_again_byte_for_byte(written: Path, tmp_path: Path) -> None:
    done = run(written / "report.json", "--out", tmp_path / "again")
    assert done.exit_code == 0
    assert files_in(tmp_path / "again") == files_in(written)
    assert len(files_in(written)) > len(FILES)  # the files of the entries too


@pytest.mark.parametrize("form", ["html", "json"])
def test_standard_output_is_the_file(written: Path, form: str) -> None:
    assert run(written, "--format", form).stdout_bytes == (written / f"report.{form}").read_bytes()


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_goes_to_a_file_a_directory_and_standard_output(written: Path, tmp_path: Path, form: str) -> None:
    suffix = "txt" if form == "text" else form
    options = ["--table", "budget"] if form == "csv" else []
    printed = run(written, "--format", form, *options).stdout_bytes
    assert printed == render(sample_report(), form, table="budget").encode()
    run(written, *options, "--format", form, "--out", tmp_path / "file")
    run(written, *options, "--format", form, "--out", tmp_path)
    assert (tmp_path / "file").read_bytes() == printed
    assert (tmp_path / f"{'budget' if form == 'csv' else 'report'}.{suffix}").read_bytes() == printed


def test_the_ending_of_the_file_states_the_format(written: Path, tmp_path: Path) -> None:
    run(written, "--out", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == (written / "report.html").read_bytes()


def test_all_tables_go_into_a_directory(written: Path, tmp_path: Path) -> None:
    run(written, "--format", "csv", "--out", tmp_path)
    assert {"budget.csv", "facts.csv", "waits.csv"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "csv"], "expected --table with the name of a table, found none; there are warnings, "),
        (["--format", "csv", "--table", "budgets"], "found 'budgets' (did you mean budget?); there are "),
        (["--format", "md", "--table", "budget"], "--table: it chooses the table of --format csv"),
        (["--format", "md", "--out", "missing/report.md"], "its directory is missing or read-only"),
    ],
)
def test_a_mistake_is_one_line(written: Path, arguments: list[str], message: str) -> None:
    done = run(written, *arguments)
    assert isinstance(done.exception, UsageError)
    assert message in str(done.exception)
    assert done.stdout == ""


def test_the_report_that_is_read_is_never_replaced_by_another_format(written: Path, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_bytes((written / "report.json").read_bytes())
    done = run(tmp_path, "--format", "md", "--out", tmp_path / "report.json")
    assert "found REPORT itself" in str(done.exception)
    assert json.loads((tmp_path / "report.json").read_text())["schema_version"]


def test_a_report_of_the_first_minor_version_renders(tmp_path: Path) -> None:
    """That of 3.0 is kept as it was written: fields that later versions add need defaults, nested ones too."""
    (tmp_path / "report.json").write_bytes(lzma.decompress((REPOSITORY / FIRST).read_bytes()))
    assert json.loads((tmp_path / "report.json").read_text())["schema_version"] == "3.0"
    for form in FORMATS:
        done = run(tmp_path, "--format", form, *(["--table", "budget"] if form == "csv" else []))
        assert done.exit_code == 0, done.exception
        assert done.stdout
    assert json.loads(run(tmp_path, "--format", "json").stdout)["schema_version"] == SCHEMA_VERSION
    assert len(files_in(tmp_path)) == 1
    run(tmp_path, "--out", tmp_path / "again")
    assert {Path(name).name for name in files_in(tmp_path / "again")} >= set(FILES)


@pytest.fixture
def analyzed(monkeypatch: pytest.MonkeyPatch) -> Report:
    """Analysis gives the sample report, whatever is analyzed."""
    report = sample_report()
    monkeypatch.setattr(pipeline, "analyze_run", lambda *_, **__: report)
    return report


def analyze(*arguments: str | Path) -> Result:
    return CliRunner().invoke(analyze_command, ["rank0.sqlite", *map(str, arguments)])


@pytest.mark.parametrize("form", ["json", "html", "md", "text"])
def test_analyze_prints_a_format_alone_and_writes_nothing(
    analyzed: Report, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = analyze("--format", form)
    assert done.stdout == render(analyzed, form)
    assert not list(tmp_path.iterdir())


def test_analyze_with_a_format_and_a_directory_names_the_files_on_standard_error(
    analyzed: Report, tmp_path: Path
) -> None:
    done = analyze("--format", "json", "--out", tmp_path)
    assert done.stdout == render_json(analyzed)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["overrides", *FILES]
    assert done.stderr.splitlines()[0] == f"Wrote {tmp_path / 'report.html'}"


@pytest.mark.usefixtures("analyzed")
def test_quiet_prints_the_verdict_and_the_files(tmp_path: Path) -> None:
    lines = analyze("--quiet", "--out", tmp_path).stdout.splitlines()
    assert lines[0] == "Communication-bound: exposed expert all-to-all"
    assert [line.split()[0] for line in lines[1:]] == ["Wrote"] * 4


def test_full_markdown_has_every_section(analyzed: Report) -> None:
    assert analyze("--format", "md", "--full").stdout == render(analyzed, "md", is_full=True)
    assert "## Facts" not in analyze("--format", "md").stdout


def test_an_abstention_is_named_with_quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = sample_report()
    abstained = replace(report, verdict=replace(report.verdict, wall=None, abstained=True))
    monkeypatch.setattr(pipeline, "analyze_run", lambda *_, **__: abstained)
    assert analyze("--quiet", "--out", tmp_path).stdout.startswith("No wall named\n")


@pytest.mark.slow
@reads_sample("wide-nvlink-alltoall.sqlite")
def test_a_real_report_renders_again_to_the_same_bytes(tmp_path: Path) -> None:
    report = analyze_sample("wide-nvlink-alltoall.sqlite")
    write_report(report, tmp_path / "first")
    run(tmp_path / "first", "--out", tmp_path / "again")
    assert files_in(tmp_path / "again") == files_in(tmp_path / "first")
    for form in ("md", "text"):
        assert run(tmp_path / "first", "--format", form, "--full").stdout == render(report, form, is_full=True)


def test_a_history_goes_into_the_report_and_comes_back_with_it(analyzed: Report, tmp_path: Path) -> None:
    runs = REPOSITORY / "sample_traces" / "te-host-bound-runs"
    text = analyze("--history", runs, "--format", "md", "--full", "--out", tmp_path).stdout
    assert "## What was tried" in text
    assert "| 01-micro-batch-2 | micro_batch_size: 1 -> 2 | accepted |" in text
    assert run(tmp_path, "--format", "md", "--full").stdout == text
    assert "What was tried" not in render(analyzed, "md", is_full=True)


def test_the_help_states_the_schema_that_is_read() -> None:
    assert f"of schema {SCHEMA_VERSION.partition('.')[0]} works too" in " ".join(run("--help").output.split())
