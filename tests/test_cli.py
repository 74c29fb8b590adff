"""The command line as a user meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from trace_builder import TraceBuilder

from tests.called import call
from tests.paths import REPOSITORY
from three_walls.cli import main

pytestmark = pytest.mark.slow


def three_walls(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "three_walls", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "COLUMNS": "80"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_analyze_prints_the_verdict_and_writes_three_files(tmp_path: Path) -> None:
    TraceBuilder().steps(4).write(tmp_path / "rank0.sqlite")
    done = call("analyze", "rank0.sqlite", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout  # plain where it is no terminal
    out = tmp_path / "rank0.three-walls"
    assert sorted(path.name for path in out.iterdir()) == ["overrides.txt", "report.html", "report.json"]
    assert done.stdout.splitlines()[-1] == (
        f"Wrote {Path('rank0.three-walls') / 'report.html'} (next to it: report.json, overrides.txt)"
    )
    assert len(done.stdout.splitlines()) <= 40
    assert json.loads((out / "report.json").read_text())["step"]["kept"] == 2


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    TraceBuilder().steps(6).write(tmp_path / "rank0.sqlite")
    for out in ("a", "b"):
        assert three_walls("analyze", "rank0.sqlite", "--out", out, "--quiet", cwd=tmp_path).returncode == 0
    for name in ("report.html", "report.json", "overrides.txt"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["analyze"], 2, "Missing argument 'TRACES...'"),
        (["analyze", "trace.sqlite", "--format", "csv"], 2, "--format csv: expected --table with the name of a table"),
        (["whatif", "trace.sqlite", "--set", "moe_layer_freq=abc"], 2, "expected a number, or a list of numbers"),
        (["analyze", "trace.sqlite", "--stepp-range", "x"], 2, "No such option"),
        (["analyze", "trace.sqlite", "--step-range", "("], 2, "expected a regular expression"),
        (["analyze", "trace.sqlite", "--step-range", "it(?=er)"], 2, "is not supported; write the text itself, as in "),
        (["analyze", "trace.sqlite", "--step-range", r"(a)\1"], 2, "are not supported; write the repeated text again"),
        (["analyze", "trace.sqlite", "--step-range", "(?>a)"], 2, "unrecognized flag; of groups there are (...)"),
        (["analyze", "trace.sqlite", "--step-range", r"step\Z"], 2, "for the end of the text, write $"),
        (["analyze", "trace.sqlite", "--step-range", "step{"], 2, "for the character {, write \\{"),
        (
            ["analyze", "trace.sqlite", "--step-range", "a{999}{999}"],
            2,
            "too large when it is written out; write fewer",
        ),
        (["analyse", "trace.sqlite"], 2, "No such command"),
        (["analyze", "trace.sqlite", "--bridge-version", "newest"], 2, "expected one of 0.3.0, "),
        (
            ["analyze", "trace.sqlite", "--bridge-version", "9.9.9"],
            2,
            "no data of 9.9.9 is known; the nearest is main (a snapshot of ",
        ),
        (["analyze", "trace.sqlite", "--step-range", "epoch"], 2, "the trace has none (capture with -t cuda,nvtx)"),
        (["analyze", "trace.sqlite", "--rules", "empty"], 2, "expected .yaml files in its folders (memory, "),
        (["analyze", "trace.sqlite", "--table", "budget"], 2, "--table: it chooses the table of --format csv"),
        (["analyze", "trace.sqlite", "--set", "moe_router_top=8"], 2, "did you mean moe_router_topk"),
        (["analyze", "trace.sqlite", "--set", "recompute_granularity=half"], 2, "expected one of full, selective"),
        (["analyze", "trace.sqlite", "--config", "none.yaml"], 3, "found no such file"),
        (["analyze", "trace.sqlite", "--config", "text.sqlite"], 3, "expected Megatron-Bridge's configuration"),
        (["analyze", "missing.sqlite"], 3, "no such file"),
        (["analyze", "text.sqlite"], 3, "expected a SQLite export"),
        (["analyze", "empty.sqlite"], 4, "expected CUDA kernels, found none"),
        (["analyze", "trace.sqlite", "--rules", "rules"], 5, "rules"),
    ],
)
def test_every_mistake_is_one_line_and_its_own_exit_code(
    tmp_path: Path, arguments: list[str], exit_code: int, message: str
) -> None:
    TraceBuilder().steps(4).write(tmp_path / "trace.sqlite")
    TraceBuilder().api("cudaMalloc_v3020", 1, 2).write(tmp_path / "empty.sqlite")
    (tmp_path / "text.sqlite").write_text("hello")
    (tmp_path / "empty").mkdir()
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "sources.yaml").write_text("not: [valid")
    done = call(*arguments, cwd=tmp_path)
    assert done.returncode == exit_code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not list(tmp_path.glob("*.three-walls"))
    if exit_code != 5:  # a rule base lists every error it has, a line each
        assert done.stderr.count("\n") == 1


def test_help_shows_examples_and_exit_codes(tmp_path: Path) -> None:
    done = call("analyze", "--help", cwd=tmp_path)
    assert done.returncode == 0
    for word in ("Examples:", "Exit codes:", "--step-range", "--out", "rank*.sqlite"):
        assert word in done.stdout


def test_facts_defines_every_fact(tmp_path: Path) -> None:
    done = call("facts", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.count("[ns]") > 20
    assert "launch_starved_ns [ns]" in done.stdout


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    TraceBuilder().steps(4).write(tmp_path / "trace.sqlite")
    (tmp_path / "taken").write_text("a file")
    done = call("analyze", "trace.sqlite", "--out", "taken/report", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1


def test_settings_and_a_saved_configuration_are_merged_and_said_with_their_sources(tmp_path: Path) -> None:
    TraceBuilder().steps(4).write(tmp_path / "rank0.sqlite")
    (tmp_path / "run_config.yaml").write_text(
        "model: {num_moe_experts: 60, expert_model_parallel_size: 8, num_layers: 4}", encoding="utf-8"
    )
    options = ["--config", "run_config.yaml", "--set", "model.num_layers=2", "--set", "env_vars.WORLD_SIZE=16"]
    done = call("analyze", "rank0.sqlite", *options, "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["config"]["values"]["num_moe_experts"] == {"value": 60, "source": "config file", "confirmed_by": []}
    assert report["config"]["values"]["num_layers"] == {"value": 2, "source": "--set", "confirmed_by": []}
    assert report["config"]["environment"]["WORLD_SIZE"] == {"value": "16", "source": "--set", "confirmed_by": []}
    assert {
        "key": "num_layers",
        "values": [
            {"value": 2, "source": "--set", "confirmed_by": []},
            {"value": 4, "source": "config file", "confirmed_by": []},
        ],
    } in report["config"]["conflicts"]
    codes = {warning["code"]: warning["message"] for warning in report["warnings"]}
    assert codes["layout-contradiction"] == "The number of experts (60) is not divisible by EP (8)."
    assert "config-conflict" not in codes  # the user meant it


def test_names_with_line_breaks_and_escapes_stay_on_one_line(tmp_path: Path) -> None:
    done = call("analyze", "new\nline\x1b[31m.sqlite", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr == "three-walls: error: new\\nline\\x1b[31m.sqlite: no such file or directory\n"


def test_a_group_without_a_command_shows_its_help(tmp_path: Path) -> None:
    done = call("rules", cwd=tmp_path)
    assert "Usage:" in done.stdout + done.stderr
    assert "three-walls: error" not in done.stderr


@pytest.mark.parametrize(("arguments", "code"), [(("facts",), 0), (("rules", "show", "no-such-rule"), 2)])
def test_output_that_nobody_reads_to_its_end_changes_no_exit_code(
    tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "three_walls", *arguments]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, bool(done.stderr)) == (code, code != 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_behind_the_output_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "three_walls", "facts"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, cwd=tmp_path, env=environment, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 3
    assert done.stderr == b"three-walls: error: output: cannot be read or written (No space left on device)\n"


def test_a_file_of_overrides_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "overrides.txt").write_bytes(b"\xff\xfe")
    done = call("verify", "overrides.txt", "--recipe", "vanilla_gpt_pretrain_config", cwd=tmp_path)
    assert done.returncode == 3
    assert "found a file that is not UTF-8 text" in done.stderr


def test_an_interrupt_while_the_program_is_still_loading_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "polars.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)\n")
    done = three_walls("facts", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "three-walls: error: interrupted\n")


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "\\xb1"), ("utf-8", "\u00b1")])
def test_an_output_that_has_not_every_character_shows_its_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, encoding: str, shown: str
) -> None:
    logs = sorted(REPOSITORY.glob("sample_traces/te-host-bound-runs/*-base/train.log"))[:2]
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    done = three_walls("compare", *map(str, logs), cwd=tmp_path)
    assert (done.returncode, shown in done.stdout) == (0, True), done.stderr


class PanicException(BaseException):
    """As polars raises where its Rust code panics."""


@pytest.mark.parametrize(
    ("error", "exit_code", "message"),
    [
        (
            PanicException("called `Result::unwrap()`\nnote: more"),
            70,
            "internal error, please report it (PanicException",
        ),
        (MemoryError(), 3, "the inputs take more memory than there is"),
        (RecursionError("maximum recursion depth exceeded"), 3, "an input is nested too deeply"),
        (GeneratorExit(), 70, "internal error"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_no_exception_passes_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    exit_code: int,
    message: str,
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(main, "cli", fail)
    with pytest.raises(SystemExit) as caught:
        main.main()
    assert caught.value.code == exit_code
    errors = capsys.readouterr().err
    assert errors.startswith(f"three-walls: error: {message}")
    assert errors.count("\n") == 1


@pytest.mark.attack
@pytest.mark.parametrize("delay_s", [0.05, 0.3, 0.8, 1.3])
def test_an_interrupt_at_any_moment_is_one_line(tmp_path: Path, delay_s: float) -> None:
    TraceBuilder().steps(4).write(tmp_path / "rank0.sqlite")
    program = "import pathlib\nfrom three_walls.__main__ import main\npathlib.Path('began').touch()\nmain()"
    command = [sys.executable, "-c", program, "doctor", "rank0.sqlite"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        while not (tmp_path / "began").exists():
            time.sleep(0.005)
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
    assert (process.returncode, errors) in [(130, "three-walls: error: interrupted\n"), (0, "")]


def test_a_trace_with_the_longest_name_there_is_has_a_report(tmp_path: Path) -> None:
    name = "\N{GREEK SMALL LETTER ALPHA}" * 124 + ".sqlite"
    TraceBuilder().steps(4).write(tmp_path / "short.sqlite").rename(tmp_path / name)
    done = call("analyze", name, "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
