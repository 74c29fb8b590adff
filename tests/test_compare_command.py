"""compare and plan next as a person meets them, and the CI examples."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jsonschema
import pytest
import yaml

from tests.paths import REPOSITORY
from tests.runs.sample_runs import make_run, without_steps
from tests.runs.test_settings import DEEPEP
from three_walls.cli.main import main
from three_walls.report.json_report import render_json

UNSET = {"moe_router_dtype": None, "cuda_graph_scope": None}


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


@pytest.fixture
def three_walls(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Runs a command in ``tmp_path``, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["three-walls", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as done:
            code = done.code if isinstance(done.code, int) else 0
        return Done(code, *capsys.readouterr())

    return run


@cache
def render_reports() -> dict[str, str]:
    """Reports of a base, an edit that is 40 ms faster, one that is slower, and one of another model."""
    faster = make_run("edit", 560, buckets_ms={"ep_all_to_all": 100}, settings={**UNSET, **DEEPEP})
    runs = (
        make_run("base", settings=UNSET),
        faster,
        make_run("worse", 640, settings={**UNSET, "micro_batch_size": 2}),
        make_run("other", 300, settings={**UNSET, "num_layers": 2}),
        without_steps(make_run("window", None, settings=UNSET)),
    )
    return {run.name: render_json(run.report) for run in runs}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A directory with those reports."""
    for name, text in render_reports().items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(text)
    return tmp_path


def test_the_answer_comes_first_then_settings_buckets_and_the_wall(three_walls: Command, runs: Path) -> None:
    done = three_walls("compare", runs / "base", runs / "edit")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "1.07 times as fast (6.7% shorter): 600 -> 560 ms unprofiled"
    head = " ".join(lines[1:3])
    assert head.startswith(
        "Beyond the spread of the steps (±1.7%). Changed: moe_flex_dispatcher_backend unset -> deepep, "
    )
    assert "moe_token_dispatcher_type alltoall -> flex" in head
    heads = [line for line in lines if line.isupper()]
    assert heads == ["SETTINGS THAT DIFFER", "WHERE THE CHANGE IS", "WHAT IS THE WALL NOW"]
    assert "Measured: 40.0 ms saved. Predicted for the entry: 0-89 ms. Inside the predicted range." in done.stdout


def test_a_run_against_itself_does_not_differ(three_walls: Command, runs: Path) -> None:
    done = three_walls("compare", runs / "base", runs / "base", "--fail-if", "step > +0%", "--strict")
    assert done.returncode == 0
    assert done.stdout.startswith("No difference: 600 -> 600 ms unprofiled\n")


def test_every_format_has_the_same_numbers(three_walls: Command, runs: Path) -> None:
    texts = {form: three_walls("compare", runs / "base", runs / "edit", "--format", form).stdout for form in (
        "text", "md", "html", "json", "csv",
    )}  # fmt: skip
    for form in ("text", "md", "html"):
        for number in ("150 ms", "100 ms", "-50.0 ms", "40.0 ms"):
            assert number in texts[form], form
    rows = json.loads(texts["json"])["pairs"][0]["budget"]["rows"]
    assert (rows[0]["bucket"], rows[0]["change_ns"]) == ("ep_all_to_all", -50_000_000)
    table = list(csv.DictReader(io.StringIO(texts["csv"])))
    changes = {row["bucket"]: row["change_ns"] for row in rows}
    assert {row["Bucket"]: int(row["Change [ns]"]) for row in table} == changes
    assert not re.search(r"https?://|<script src|@import", texts["html"])


def test_several_runs_are_a_table_then_each(three_walls: Command, runs: Path) -> None:
    done = three_walls("compare", runs / "base", runs / "edit", runs / "worse", "--repeat", runs / "base")
    assert done.stdout.startswith("edit: 1.07 times as fast (6.7% shorter): 600 -> 560 ms unprofiled\n")
    assert "EDIT: WHERE THE CHANGE IS" in done.stdout
    assert "6.7% longer" in three_walls("compare", runs / "base", runs / "edit", runs / "worse", "-q").stdout


def test_out_writes_a_page_json_and_markdown(three_walls: Command, runs: Path) -> None:
    done = three_walls("compare", runs / "base", runs / "edit", "--format", "md", "--full", "-o", runs / "out")
    assert sorted(path.name for path in (runs / "out").iterdir()) == ["compare.html", "compare.json", "compare.md"]
    assert done.stdout == (runs / "out" / "compare.md").read_text()
    assert done.stderr.count("Wrote ") == 3  # stdout is for the format
    short = three_walls("compare", runs / "base", runs / "edit", "--format", "md").stdout
    assert "## Where the change is" in short
    assert "## Communication" in done.stdout
    assert "## Communication" not in short


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["base", "worse", "--fail-if", "step > +3%"], 1, "failed: step > +3% (worse)"),
        (["base", "edit", "--fail-if", "step > +3%"], 0, ""),
        (["base", "base", "--fail-if", "memory.peak > 70 GiB"], 6, "condition not judged: memory.peak > 70 GiB (base)"),
        (["base", "base", "--fail-if", "memory.peak > 70 GiB", "--ignore-unknown"], 0, "warning: condition not judged"),
        (["base", "worse", "--fail-if", "memory.peak > 1 GiB", "--fail-if", "step > +3%"], 1, "failed: step > +3%"),
        (["base", "edit", "--fail-if", "stpe > +3%"], 2, "near names: step"),
        (["base", "edit", "--format", "csv", "--table", "bucket"], 2, "expected one of settings"),
        (["base"], 2, "Missing argument 'AFTER...'"),
        (
            ["base", "edit", "--repeat", "worse"],
            2,
            "configuration, found other micro_batch_size",
        ),
        (["base", "edit", "--repeat", "other"], 2, "num_layers 48 and 2"),
        (["base", "edit", "--repeat", "base"], 0, ""),
        (["base", "none"], 3, "none: no such file or directory"),
        (["perf/main.json", "edit"], 3, "perf/main.json: no such file or directory"),
        (["base", "other"], 7, "num_layers 48 and 2"),
        (["base", "other", "--force", "-q"], 0, ""),
        (["window", "window"], 6, "no training steps were found in the trace of BEFORE and AFTER"),
        (["base", "window"], 6, "no training steps were found in the trace of AFTER: analyze with --step-range"),
        (["window", "window", "--fail-if", "step > +3%"], 6, "condition not judged: step > +3% (window)"),
        (["window", "window", "--ignore-unknown"], 0, "warning: the steps cannot be compared (window)"),
    ],
)
def test_exit_codes(three_walls: Command, runs: Path, arguments: list[str], exit_code: int, message: str) -> None:
    assert (runs / "base").is_dir()
    done = three_walls("compare", *arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (exit_code, False)
    assert message in done.stderr
    codes = re.findall(r"^ +(\d)  \w| {2,}(\d)  \w", three_walls("compare", "--help").stdout, re.MULTILINE)
    assert str(exit_code) in {code for pair in codes for code in pair}


def test_texts_of_a_run_stay_text(three_walls: Command, runs: Path) -> None:
    hostile = "<script>alert(1)</script>\x1b[31m|x"
    for form in ("html", "md", "text"):
        done = three_walls("compare", f"{runs / 'base'},name={hostile}", runs / "edit", "--format", form)
        assert done.returncode == 0
        assert "\x1b" not in done.stdout
        assert form == "text" or "<script>alert" not in done.stdout


def test_plan_next_proposes_the_first_entry_that_was_not_tried(three_walls: Command, runs: Path) -> None:
    history = runs / "history"
    for place, name in enumerate(("base", "edit", "worse")):
        (history / f"{place}-{name}").mkdir(parents=True)
        (runs / name / "report.json").rename(history / f"{place}-{name}" / "report.json")
    done = three_walls("plan", "next", history)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Try next: Replay attention and routing as CUDA graphs\n")
    assert "exposed-ep-alltoall-deepep" in done.stdout
    document = json.loads(three_walls("plan", "next", history, "--format", "json").stdout)
    assert [run["decision"] for run in document["runs"]] == ["base", "accepted", "reverted"]
    assert document["next_trial"]["rule"] == "launch-starved-cuda-graphs"
    assert "accepted" in three_walls("plan", "next", history, "--format", "csv").stdout
    assert three_walls("plan", "next", runs / "none").returncode == 3


def gate_step(path: Path) -> str:
    """The shell commands of the job's step or script that compares."""
    document = yaml.safe_load(path.read_text())
    if path.name.startswith("github"):
        steps = [step for job in document["jobs"].values() for step in job["steps"]]
        return next(step["run"] for step in steps if "three-walls compare" in step.get("run", ""))
    scripts = [job["script"] for job in document.values() if isinstance(job, dict) and "script" in job]
    return "\n".join(next(script for script in scripts if any("three-walls compare" in line for line in script)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
@pytest.mark.parametrize(("after", "exit_code"), [("edit", 0), ("worse", 1)])
def test_the_gate_of_the_ci_examples_passes_and_fails_as_it_must(
    runs: Path, name: str, after: str, exit_code: int
) -> None:
    """The commands are run as they are in the example, on reports."""
    (runs / "bin").mkdir()
    program = runs / "bin" / "three-walls"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {sys.executable} -m three_walls "$@"\n')
    program.chmod(0o755)
    (runs / "perf").mkdir()
    (runs / "base" / "report.json").rename(runs / "perf" / "main.json")
    (runs / after).rename(runs / "report")
    environment = os.environ | {
        "PATH": f"{runs / 'bin'}:{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(runs / "summary.md"),
    }
    script = gate_step(REPOSITORY / "docs" / "ci" / name)
    command = ["bash", "-eo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=runs, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == exit_code, done.stderr
    assert (runs / "comparison" / "compare.html").is_file()  # to keep, also where the gate fails
    if name.startswith("github"):
        assert "unprofiled" in (runs / "summary.md").read_text()


def test_compare_json_follows_its_published_schema(three_walls: Command, runs: Path) -> None:
    schema = json.loads((REPOSITORY / "docs" / "generated" / "compare.schema.json").read_text())
    document = json.loads(
        three_walls("compare", runs / "base", runs / "edit", "--fail-if", "step > 1%", "--format", "json").stdout
    )
    jsonschema.validate(document, schema)
    del document["pairs"][0]["step"]["basis"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)
