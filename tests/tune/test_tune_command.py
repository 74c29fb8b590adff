"""``three-walls tune`` with a trainer that writes Megatron's lines: what it finds, ends, resumes and leaves behind."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import lzma
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.capture.fake_nsys import calls_of, make_fake_nsys
from tests.paths import REPOSITORY
from three_walls.tuning import journal, supervise_job

TRAINER = REPOSITORY / "tests" / "tune" / "trainer.py"
PATIENCE_S = 240
SPACE = "a: [1]\nb: [1]\nc: [1]\nd: [1]\n"
EFFECTS = {"effects": {"a=1": -0.1, "b=1": 0.05}, "together": {"a=1 b=1": -0.15}, "drift": 0.02, "noise": 0.005}


def environment(folder: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "SLURM_", "NSYS"))}
    return inherited | {"PYTHONPATH": str(REPOSITORY), "TRAINER": str(folder / "told.json"), "PATH": "/usr/bin:/bin"}


PROGRAM = ("-m", "three_walls")
LOGGED = ("--space", "space.yaml", "--runs", "3", "--megatron-lm", "--", sys.executable, str(TRAINER))
"""Options of a job whose log prints Megatron-LM's arguments."""


def command(
    folder: Path,
    *options: str,
    told: dict[str, Any] | None = None,
    program: tuple[str, str] = PROGRAM,
    space: str = SPACE,
) -> list[str]:
    (folder / "told.json").write_text(json.dumps(told or EFFECTS))
    (folder / "space.yaml").write_text(space)
    options = options or ("--space", "space.yaml", "--patience", "3", "--", sys.executable, str(TRAINER))
    return [sys.executable, *program, "tune", *options]


def run(
    folder: Path,
    *options: str,
    told: dict[str, Any] | None = None,
    program: tuple[str, str] = PROGRAM,
    space: str = SPACE,
) -> subprocess.CompletedProcess[str]:
    words = command(folder, *options, told=told, program=program, space=space)
    if program == PROGRAM:
        return start(words[3:], folder)
    return subprocess.run(
        words, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


@cache
def make_starter() -> subprocess.Popen[str]:
    """Starts ``three-walls`` again and again."""
    words = [sys.executable, "-c", STARTER, "three_walls"]
    variables = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(words, env=variables, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.fixture(scope="module", autouse=True)
def end_starter() -> Iterator[None]:
    yield
    make_starter().communicate()


def start(
    words: list[str], folder: Path, kill: Callable[[int], None] = lambda _: None
) -> subprocess.CompletedProcess[str]:
    """Runs ``three-walls WORDS`` in ``folder`` to its end. ``kill`` gets the number of the process."""
    starter = make_starter()
    assert starter.stdin
    assert starter.stdout
    with TemporaryDirectory() as outputs:
        print(
            json.dumps([words, str(folder), environment(folder), outputs, PATIENCE_S]), file=starter.stdin, flush=True
        )
        kill(int(starter.stdout.readline()))
        code = os.waitstatus_to_exitcode(int(starter.stdout.readline()))
        return subprocess.CompletedProcess(words, code, *(Path(outputs, name).read_text() for name in ("out", "err")))


def list_processes(folder: Path) -> list[str]:
    """The command lines of the processes of the job."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            is_ours = os.fsencode(folder / "told.json") in (path.parent / "environ").read_bytes() + b" ".join(words)
        except OSError:
            continue
        if is_ours and b"three_walls" not in words and path.parent.name != str(os.getpid()):
            found.append(b" ".join(words).decode())
    return found


def results(folder: Path) -> dict[str, Any]:
    tuned: dict[str, Any] = json.loads((folder / "tuned" / "tune.json").read_text())
    return tuned


def read_journal(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "tuned" / "journal.jsonl").read_text().splitlines()]


pytestmark = pytest.mark.slow

STARTER = """
import json, os, signal, sys
from three_walls.__main__ import main
import three_walls.report.terminal_report, three_walls.tuning.tune_job

for line in sys.stdin:
    process = os.fork()
    if not process:
        words, folder, variables, outputs, patience_s = json.loads(line)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        for descriptor, name in enumerate((os.devnull, f"{outputs}/out", f"{outputs}/err")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), descriptor)
        sys.argv = ["three-walls", *words]
        signal.alarm(patience_s)
        main()
        os._exit(0)
    print(process, flush=True)
    print(os.waitpid(process, 0)[1], flush=True)
"""
"""Runs a command line of ``three-walls`` in a process of its own, without importing it again."""

SLOWLY = """
import runpy, subprocess, sys, time
start = subprocess.Popen.__init__

def start_slowly(self, *arguments, **keywords):
    start(self, *arguments, **keywords)
    time.sleep(0.5)

subprocess.Popen.__init__ = start_slowly
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
"""Runs a script in which a command has ended before it can be waited for."""


IMPATIENTLY = """
from three_walls.__main__ import main
from three_walls.tuning import run_trial

run_trial.GRACE_S = 1.0
main()
"""
"""Runs a command line of ``three-walls`` that gives a job a second, and not ten, to end when it is asked to."""


def test_the_exit_code_of_a_command_that_ends_at_once_is_not_lost() -> None:
    liveness, held = os.pipe()
    lock = os.dup(held)
    words = [sys.executable, "-c", SLOWLY, supervise_job.__file__, str(liveness), str(lock), "1", "false"]
    try:
        done = subprocess.run(words, pass_fds=[liveness, lock], timeout=20, check=False)
    finally:
        os.close(liveness)
        os.close(held)
        os.close(lock)
    assert done.returncode == 1


def test_what_interacts_is_found_and_failures_are_named_and_leave_no_process(tmp_path: Path) -> None:
    words = ("--space", "space.yaml", "--patience", "3", "--runs", "10", "--", sys.executable, str(TRAINER))
    told = EFFECTS | {"fails": {"c=1": "oom", "d=1": "stays"}}
    done = run(tmp_path, *words, told=told, program=("-c", IMPATIENTLY))
    assert done.returncode == 0, done.stderr
    tuned = results(tmp_path)
    assert set(tuned["overrides"]) == {"a=1", "b=1"}
    assert abs(tuned["gain"] - 0.18) < 0.04
    failures = " ".join(each["failure"] for each in tuned["runs"])
    assert "out of memory" in failures
    assert "hung" in failures
    assert list_processes(tmp_path) == []
    assert (tmp_path / "tuned" / "overrides.txt").read_text() == "a=1\nb=1\n"
    next_one = subprocess.run(
        [sys.executable, "-m", "three_walls", "plan", "next", "tuned/runs"],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert next_one.returncode == 0, next_one.stderr
    ran = sorted((tmp_path / "tuned" / "runs").iterdir())
    compared = subprocess.run(
        [sys.executable, "-m", "three_walls", "compare", str(ran[0]), str(ran[-1])],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert compared.returncode == 0, compared.stderr


def test_a_dry_run_shows_every_command_and_runs_none(tmp_path: Path) -> None:
    done = run(
        tmp_path, "--dry-run", "--space", "space.yaml", "--megatron-lm", "--", sys.executable, str(TRAINER),
        "--save", "checkpoints", "--load", "start",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names, first = done.stdout.splitlines()[:2]
    assert names == "no setting that three-walls knows, and appended as it is: a, b, c, d"
    assert "--save-interval 1000000000" in first
    assert "--exit-interval 25" in first
    assert "--load start" in first
    assert "--save checkpoints" not in first
    assert "a=1" in done.stdout
    assert not (tmp_path / "told.runs").exists()
    assert not (tmp_path / "tuned").exists()


def test_a_dry_run_says_what_is_not_known_of_the_command(tmp_path: Path) -> None:
    dry = ("--dry-run", "--space", "space.yaml")
    lines = run(tmp_path, *dry, "--", "bash", "run.sh", "a=1", space="a: [1, 2]\nb: [1, 2]\n").stdout.splitlines()
    assert lines[0].startswith("the command is neither Megatron-Bridge's nor Megatron-LM's")
    assert "not told to end after 25 iterations, nor to save nothing" in lines[0]
    assert lines[1].startswith("the command states no value of b: unless the log of the base prints it")
    known = run(tmp_path, *dry, "--bridge", "--", "bash", "run.sh", "a=1", "b=1", space="a: [1, 2]\nb: [1, 2]\n").stdout
    assert known.splitlines()[1].startswith("base: ")
    misspelt = run(tmp_path, *dry, "--bridge", "--", "bash", "run.sh", space="micro_batch_sise: [1, 2]\n").stdout
    assert "micro_batch_sise (did you mean micro_batch_size?)" in misspelt
    without = run(tmp_path, "--dry-run", "--bridge", "--", "bash", "run.sh").stdout
    assert without.splitlines()[1].startswith("nsys is not on PATH")
    assert "plan, which its capture gives" not in without
    assert "at most 2 runs," in without  # of the base, should the first break off


def test_where_nsys_is_missing_no_capture_is_said_to_take_too_long(tmp_path: Path) -> None:
    done = run(tmp_path, "--budget", "0.1s", "--", sys.executable, str(TRAINER))
    assert [note for note in results(tmp_path)["notes"] if "nsys" in note or "capture" in note] == [
        "nsys is not on PATH: tuned by logs alone, without a plan; give --space to say what to try"
    ], done.stderr


def test_a_base_that_fails_is_said_with_its_reason(tmp_path: Path) -> None:
    done = run(tmp_path, told={"fails": {"": "crash"}})
    assert done.returncode == 8
    assert "The base fails, so nothing was tried\nAssertionError: hidden size has to be divisible" in done.stdout
    assert results(tmp_path)["end"] == "the base fails"
    assert "unknown" not in done.stdout.partition("WHAT WAS TRIED")[0]  # of what was never tried
    assert done.stderr.endswith("once the base runs, go on with: three-walls tune --resume --out tuned\n")


@pytest.mark.parametrize("options", [(), ("--patience", "3", "--", sys.executable, str(TRAINER))])
def test_a_base_that_the_machine_breaks_off_runs_once_more(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = run(tmp_path, *options, told={**EFFECTS, "breaks": {"1": "network"}})
    assert done.returncode == 0
    assert "run 1: base (again, because it likelier failed by chance)" in done.stderr
    assert bool(results(tmp_path)["kept"]) == (not options)  # no plan without nsys, nor without a space


def test_a_base_that_breaks_off_twice_ends_the_tuning(tmp_path: Path) -> None:
    done = run(tmp_path, told={"breaks": {"1": "network", "2": "hang"}})
    assert done.returncode == 8
    assert "unhandled system error, NCCL version 2.28.9; it hung after 3 iterations: no more for 3 s" in (
        " ".join(done.stdout.split())
    )
    assert len(results(tmp_path)["runs"]) == 2


def test_a_log_without_iterations_is_said_to_have_none(tmp_path: Path) -> None:
    done = run(tmp_path, "--space", "space.yaml", "--", "echo", "hello")
    assert done.returncode == 8
    assert "its log has no line of an iteration as Megatron prints it" in done.stdout


@pytest.mark.parametrize("is_known", [True, False])
def test_a_job_that_does_not_hear_when_to_end_is_ended(tmp_path: Path, is_known: bool) -> None:
    options = ("--space", "space.yaml", "--runs", "2", *(["--megatron-lm"] if is_known else []))
    told = {"iterations": 100_000, "pause_s": 0.01}
    done = run(tmp_path, *options, "--", sys.executable, str(TRAINER), told=told)
    assert done.returncode == (8 if is_known else 0), done.stderr
    unheard = "it went on past 25 iterations, so --exit-interval 25 does not reach it: write {overrides} where its"
    assert (unheard in " ".join(done.stdout.split())) is is_known  # else nothing told it to end
    assert not list_processes(tmp_path)


@pytest.mark.parametrize(("argument", "is_heard"), [({"micro_batch_size": 1}, False), ({"num_layers": 1}, True)])
def test_a_tuning_ends_after_two_runs_whose_logs_have_the_bases_values(
    tmp_path: Path, argument: dict[str, int], is_heard: bool
) -> None:
    words = [*LOGGED[:2], "--runs", "6", *LOGGED[4:]]
    done = run(tmp_path, *words, told={"arguments": argument}, space="--micro-batch-size: [1, 2, 4, 8]\n")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert ("End: no override reaches the job: its script has to pass its arguments on." in said) is not is_heard
    assert ("no edit changes the step by what matters: do the overrides reach the job?" in said) is is_heard
    assert (len(results(tmp_path)["runs"]) == 3) is not is_heard


@pytest.mark.parametrize(("size", "is_heard"), [(1, False), (2, True)])
def test_an_edit_that_its_own_log_denies_is_not_measured(tmp_path: Path, size: int, is_heard: bool) -> None:
    told: dict[str, Any] = {"arguments": {"micro_batch_size": size, "tensor_model_parallel_size": 1}}
    done = run(tmp_path, *LOGGED, told=told, space="micro_batch_size: [2]\n")
    assert done.returncode == 0, done.stderr
    denied = "micro_batch_size is 1 in its log, as in the base's: the override did not reach the job"
    assert (denied in done.stdout + done.stderr) is not is_heard


def test_a_run_whose_global_batch_follows_its_micro_batch_is_not_measured(tmp_path: Path) -> None:
    told: dict[str, Any] = {"batch_sizes": {"--micro-batch-size": 4}, "effects": {"--micro-batch-size": -0.5}}
    done = run(tmp_path, *LOGGED, told=told, space="micro_batch_size: [2]\n")
    assert done.returncode == 0, done.stderr
    assert results(tmp_path)["kept"] == {}
    assert "its steps are of 4 samples, the base's of 8" in done.stderr


def test_the_value_that_the_bases_log_prints_is_not_tried(tmp_path: Path) -> None:
    told: dict[str, Any] = {"arguments": {"micro_batch_size": 1, "tensor_model_parallel_size": 1}}
    done = run(tmp_path, *LOGGED, told=told, space="micro_batch_size: [1, 2]\n")
    assert done.returncode == 0, done.stderr
    assert "micro_batch_size=2" in done.stdout
    assert "micro_batch_size=1" not in done.stdout


@pytest.mark.parametrize(
    ("of_the_base", "settled"),
    [("b=0", [["a", "b", "c"]]), pytest.param("b=1", [["a"], ["c"]], marks=pytest.mark.exhaustive)],
)
def test_first_values_with_which_the_step_stays_are_the_bases(
    tmp_path: Path, of_the_base: str, settled: list[list[str]]
) -> None:
    other = {"b=0": "b=1", "b=1": "b=0"}[of_the_base]
    words = ("--space", "space.yaml", "--runs", "10", "--", sys.executable, str(TRAINER))
    space = "a: [0, 1]\nb: [0, 1]\nc: [0, 1]\n"
    told = {"effects": {"a=1": -0.2, other: 0.15, "c=1": 0.1}, "noise": 0.005}
    done = run(tmp_path, *words, told=told, space=space)
    assert done.returncode == 0, done.stderr
    tuned, journal = results(tmp_path), read_journal(tmp_path)
    assert tuned["overrides"] == ["a=1"]
    stated = [line for line in journal if line.get("stated")]
    assert stated[0]["words"] == ["a=0", "b=0", "c=0"]
    assert [line["stated"] for line in stated if not line["changed"]] == settled
    assert [each["changed"] for each in tuned["runs"]][1] == ({} if of_the_base == "b=0" else {"b": "b=0"})
    assert len(tuned["runs"]) <= 10


@pytest.mark.parametrize("saves", [False, True])
def test_a_job_that_saves_all_the_same_is_named(tmp_path: Path, saves: bool) -> None:
    done = run(tmp_path, *LOGGED, told={"saves": saves}, space="micro_batch_size: [2]\n")
    assert ("the base saves checkpoints" in done.stderr) is saves
    assert any("the base saves checkpoints" in note for note in results(tmp_path)["notes"]) is saves


@pytest.mark.exhaustive
def test_a_run_whose_supervisor_is_killed_is_made_again_once(tmp_path: Path) -> None:
    killed = "kill -9 $PPID; sleep 60"
    once = f"test -e killed || {{ touch killed; {killed}; }}; exec {sys.executable} {TRAINER} {{overrides}}"
    options = ("--space", "space.yaml", "--runs", "2", "--patience", "20", "--", "sh", "-c")
    done = run(tmp_path, *options, once, space="a: [1]\n")
    assert done.returncode == 0, done.stderr
    assert [bool(each["failure"]) for each in results(tmp_path)["runs"]] == [False, False]
    assert [line["run"] for line in read_journal(tmp_path) if line["kind"] == "begin"] == [0, 0, 1]
    always = run(tmp_path, "--out", "other", *options, f"{killed} {{overrides}}")
    assert (always.returncode, "exit code 137 (SIGKILL)" in always.stdout) == (8, True)


def test_a_tuning_that_is_ended_says_how_it_goes_on(tmp_path: Path) -> None:
    words = command(tmp_path, told={"fails": {"": "hang"}})
    process = subprocess.Popen(words, cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.PIPE, text=True)
    until_s = time.monotonic() + PATIENCE_S
    while not (tmp_path / "told.runs").exists() and time.monotonic() < until_s:
        time.sleep(0.02)
    process.terminate()
    errors = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 143
    assert "three-walls tune: go on with: three-walls tune --resume --out tuned\n" in errors
    assert list_processes(tmp_path) == []


def test_of_a_command_that_does_not_start_it_is_said_what_it_printed_last(tmp_path: Path) -> None:
    done = run(tmp_path, "--space", "space.yaml", "--", "./missing.sh")
    assert done.returncode == 8
    assert "exit code 127: ./missing.sh: No such file or directory" in done.stdout


def test_where_the_budget_is_spent_after_the_base_nothing_is_said_about_edits(tmp_path: Path) -> None:
    done = run(tmp_path, "--budget", "0.1s", "--space", "space.yaml", "--", sys.executable, str(TRAINER))
    assert done.returncode == 0, done.stderr
    assert "Nothing was tried but the base" in done.stdout
    assert results(tmp_path)["end"] == "the budget of time is spent: --resume with a larger --budget goes on"


@pytest.mark.parametrize("fails", [{}, pytest.param({"c=1": "hang"}, marks=pytest.mark.exhaustive)])
def test_a_run_is_ended_when_the_budget_is_spent_and_made_again_where_there_is_more(
    tmp_path: Path, fails: dict[str, str]
) -> None:
    job = ("--space", "space.yaml", "--", sys.executable, str(TRAINER))
    started_s = time.monotonic()
    done = run(tmp_path, "--budget", "5s", *job, told={"fails": fails, "effects": {"c=1": -0.3}}, space="c: [1]\n")
    assert done.returncode == 0, done.stderr
    assert ("c=1: ended, because the budget of time is spent" in results(tmp_path)["notes"]) is bool(fails)
    if fails:
        assert time.monotonic() - started_s < 15
        assert [each["name"] for each in results(tmp_path)["runs"]] == ["base"]
        assert results(tmp_path)["end"] == "the budget of time is spent: --resume with a larger --budget goes on"
        assert list_processes(tmp_path) == []
        again = run(tmp_path, "--resume", "--budget", "60s", told={"effects": {"c=1": -0.3}}, space="c: [1]\n")
        assert again.returncode == 0, again.stderr
    assert results(tmp_path)["settings"] == {"c": 1}
    assert not any(each["failure"] for each in results(tmp_path)["runs"])


def test_a_tuning_is_not_begun_twice_in_one_directory(tmp_path: Path) -> None:
    assert run(tmp_path, told={"fails": {"": "crash"}}).returncode == 8
    assert run(tmp_path).returncode == 2


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_tuning_that_waits_for_another_says_so(tmp_path: Path, is_taken: bool) -> None:
    said = []

    def say(line: str) -> None:
        said.append(line)
        first.close()

    first = (tmp_path / "lock").open("w")
    if is_taken:
        fcntl.flock(first, fcntl.LOCK_EX)
    with journal.locked(tmp_path, say):
        assert (
            said == [f"another tuning runs in {tmp_path}, or its ranks still end: waiting for 120 s at most"] * is_taken
        )
    first.close()


def test_a_full_disk_is_named_by_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal.os, "fsync", fail)
    with pytest.raises(OSError, match="No space left on device") as raised:
        journal.append(tmp_path, {"kind": "resume"})
    assert raised.value.filename == str(tmp_path / journal.NAME)


@pytest.mark.exhaustive
def test_once_what_made_the_base_fail_is_mended_a_tuning_goes_on_with_options_that_may_change(tmp_path: Path) -> None:
    failing = {"fails": {"": "crash"}}
    assert run(tmp_path, told=failing).returncode == 8
    assert run(tmp_path, "--resume", told=failing).returncode == 8
    done = run(tmp_path, "--resume", "--runs", "2", space="other: [1]\n")  # the space is that of the start
    assert done.returncode == 0, done.stderr
    runs = results(tmp_path)["runs"]
    assert [(each["name"] == "base", bool(each["failure"])) for each in runs] == [
        (True, True), (True, True), (True, False), (False, False)
    ]  # fmt: skip
    assert runs[-1]["changed"].keys() <= {"a", "b", "c", "d"}
    refused = run(tmp_path, "--resume", "--iterations", "12")
    assert (refused.returncode, "--iterations stays as it was" in refused.stderr) == (2, True)


def test_what_another_version_wrote_is_refused_in_one_line(tmp_path: Path) -> None:
    assert run(tmp_path, told={"fails": {"": "crash"}}).returncode == 8
    for name, content, code in (
        ("journal.jsonl", '{"kind": "run", "run": 0}', 3),
        ("journal.jsonl", "[1]", 3),
        ("journal.jsonl", "{}", 3),
        ("asked.json", "[]", 2),
        ("asked.json", '{"command": ["x"]}', 2),
    ):
        written = tmp_path / "tuned" / name
        own = written.read_text()
        written.write_text(f"{content}\n")
        refused = run(tmp_path, "--resume")
        assert (refused.returncode, len(refused.stderr.splitlines())) == (code, 1)
        assert "version" in refused.stderr
        written.write_text(own)


@pytest.mark.parametrize("killed", [True, False])
def test_a_run_that_is_killed_and_whose_script_hides_it_has_ended_early(tmp_path: Path, killed: bool) -> None:
    told: dict[str, Any] = {"effects": {"a=1": -0.3}, "fails": {"a=1": "killed"} if killed else {}}
    script = f"{sys.executable} {TRAINER} {{overrides}}; true"
    done = run(tmp_path, "--space", "space.yaml", "--", "bash", "-c", script, told=told, space="a: [1]\n")
    assert done.returncode == 0, done.stderr
    early = "it ended after 14 iterations, the base after 25, and its log says no error"
    assert [run["failure"] for run in results(tmp_path)["runs"]] == ["", early if killed else ""]


def test_a_variable_without_a_value_is_refused(tmp_path: Path) -> None:
    assert "--env: expected NAME=VALUE, found TOKEN" in run(tmp_path, "--env", "TOKEN", "--", "./x").stderr
    assert run(tmp_path, "--dry-run", "--env", "EMPTY=", "--space", "space.yaml", "--", "./x").returncode == 0


def test_what_was_asked_for_is_the_users_alone_to_read(tmp_path: Path) -> None:
    assert run(tmp_path, "--env", "TOKEN=x", "--space", "space.yaml", "--", "./missing.sh").returncode == 8
    assert (tmp_path / "tuned" / "asked.json").stat().st_mode & 0o77 == 0
    assert not any("TOKEN" in (tmp_path / "tuned" / name).read_text() for name in ("tune.html", "tune.json"))


def test_overrides_take_the_place_of_the_template_and_variables_reach_the_job(tmp_path: Path) -> None:
    shell = f'test "$MINE" = 1 && {sys.executable} {TRAINER} {{overrides}} || exit 3'
    done = run(tmp_path, "--env", "MINE=1", "--space", "space.yaml", "--runs", "3", "--", "bash", "-c", shell)
    assert done.returncode == 0, done.stderr
    assert any("=1" in line for line in (tmp_path / "told.runs").read_text().splitlines())
    refused = run(tmp_path, "--out", "x", "--space", "space.yaml", "--", "bash", "-c", f"{TRAINER} a=0")
    assert refused.returncode == 2
    assert "{overrides}" in refused.stderr


def make_nsys(folder: Path) -> Path:
    """A stand-in whose captures are a sample."""
    export = folder / "base.sqlite"
    export.write_bytes(lzma.decompress((REPOSITORY / "sample_traces" / "qwen-alltoall-ep8.sqlite.xz").read_bytes()))
    return make_fake_nsys(folder / "bin", export)


@pytest.mark.parametrize(
    ("moments", "is_profiled"),
    [
        pytest.param(12, False, marks=pytest.mark.attack),
        pytest.param(50, False, marks=pytest.mark.exhaustive),
        pytest.param(25, True, marks=pytest.mark.exhaustive),
    ],
)
def test_kills_at_random_moments_leave_no_process_and_lose_no_run(
    tmp_path: Path, moments: int, is_profiled: bool
) -> None:
    rng = random.Random(1)
    told = EFFECTS | {"pause_s": 0.01, "fails": {"d=1": "stays"}}
    options: tuple[str, ...] = ()
    if is_profiled:
        options = ("--bridge", "--ranks", "0", "--runs", "8", "--nsys", str(make_nsys(tmp_path)), "--patience", "3")
        options += ("--space", "space.yaml", "--", sys.executable, str(TRAINER))
    words = command(tmp_path, *options, told=told)
    journal = tmp_path / "tuned" / "journal.jsonl"

    def kill(process: int) -> None:
        end_s = time.monotonic() + rng.uniform(0.0, 3.0)
        while time.monotonic() < end_s and not (journal.exists() and journal.stat().st_size > written):
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.5))
        with contextlib.suppress(ProcessLookupError):  # it was finished
            os.kill(process, rng.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGINT)))

    seen = 0
    for moment in range(moments):
        written = journal.stat().st_size if journal.exists() else 0
        start(words[3:], tmp_path, kill)
        end_s = time.monotonic() + 15
        while (left := list_processes(tmp_path)) and time.monotonic() < end_s:
            time.sleep(0.1)
        assert left == [], moment
        lines = journal.read_text().splitlines() if journal.exists() else []
        runs = [line for line in lines if '"kind": "run"' in line]
        assert len(runs) >= seen
        seen = len(runs)
        if journal.exists():
            words = command(tmp_path, "--resume", told=told)
    goes_on = ["--resume"] if journal.exists() else []  # on a busy machine each may have come before the first run
    assert run(tmp_path, *goes_on, told=told).returncode == 0
    kept = set(results(tmp_path)["overrides"])
    assert "a=1" in kept
    numbers = [each["run"] for each in results(tmp_path)["runs"]]
    assert numbers == list(range(len(numbers)))
    captures = [line for line in read_journal(tmp_path) if line["kind"] == "profile"]
    assert len(captures) == is_profiled


@pytest.mark.exhaustive
def test_the_plan_of_the_profiled_base_is_tried_and_what_gains_otherwise_than_predicted_is_profiled_again(
    tmp_path: Path,
) -> None:
    nsys = make_nsys(tmp_path)
    words = (
        "--bridge",
        "--ranks",
        "0",
        "--runs",
        "6",
        "--budget",
        "30m",
        "--nsys",
        str(nsys),
        "--",
        sys.executable,
        str(TRAINER),
    )
    planned = run(tmp_path, "--dry-run", *words)
    assert "the same with what was kept, where that is measured outside its prediction" in planned.stdout
    told = {"effects": {"model.moe_grouped_gemm=true": -0.7}, "noise": 0.005}
    done = run(tmp_path, *words, told=told)
    assert done.returncode == 0, done.stderr
    assert calls_of(nsys.parent) == ["profile", "export"] * 2
    first, again = (line for line in (nsys.parent / "words").read_text().splitlines() if line.startswith("profile"))
    assert "model.moe_grouped_gemm=true" not in first
    assert "model.moe_grouped_gemm=true" in again  # it gained more than was predicted
    assert any(note.startswith("profiled again") for note in results(tmp_path)["notes"])
    tried = [each for each in results(tmp_path)["runs"] if each["changed"]]
    low, likely, high = tried[0]["predicted"]
    assert low <= likely <= high
    assert results(tmp_path)["pairs"][0]["set"]
    assert "logger.save_config_filepath" in (tmp_path / "told.runs").read_text()
    assert list_processes(tmp_path) == []
    captures = [line for line in read_journal(tmp_path) if line["kind"] == "profile"]
    saved = [json.loads((Path(line["trace"]) / "run_config.yaml").read_text()) for line in captures]
    assert [each["model"]["moe_grouped_gemm"] for each in saved] == [False, True]

    # Had the first capture taken twenty minutes, there would be no time for another one, and the page would say so.
    journal = tmp_path / "tuned" / "journal.jsonl"
    lines = read_journal(tmp_path)
    captures = [place for place, line in enumerate(lines) if line["kind"] == "profile"]
    lines[captures[0]]["wall_s"] = 1200.0
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines[: captures[1]]))
    assert run(tmp_path, "--resume", told=told).returncode == 0
    assert calls_of(nsys.parent) == ["profile", "export"] * 2
    assert any(
        note.startswith("not profiled again: a capture and a run take 120") for note in results(tmp_path)["notes"]
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("runs", [7, 8])
def test_a_capture_predicts_the_values_of_a_space_where_enough_runs_are_left(tmp_path: Path, runs: int) -> None:
    nsys = make_nsys(tmp_path)
    space = "moe_grouped_gemm: [false, true]\nmoe_permute_fusion: [false, true]\nmoe_router_fusion: [false, true]\n"
    words = (
        *("--bridge", "--ranks", "0", "--runs", str(runs), "--nsys", str(nsys), "--space", "space.yaml"),
        *("--", sys.executable, str(TRAINER), "model.moe_grouped_gemm=false"),
        *("model.moe_permute_fusion=false", "model.moe_router_fusion=false"),
    )
    assert ("profiled base, which predicts" in run(tmp_path, "--dry-run", *words, space=space).stdout) == (runs == 8)
    assert "profiled" not in run(tmp_path, "--no-capture", "--dry-run", *words, space=space).stdout
    told = {"effects": {"model.moe_grouped_gemm=true": -0.3}, "noise": 0.005}
    done = run(tmp_path, *words, told=told, space=space)
    assert done.returncode == 0, done.stderr
    tried = results(tmp_path)["runs"]
    assert len(tried) <= 7
    if runs == 7:
        assert calls_of(nsys.parent) == []
        assert not any(each["predicted"] for each in tried)
    else:
        assert calls_of(nsys.parent) == ["profile", "export"]
        assert all(each["predicted"] for each in tried if each["changed"])
        assert "moe_grouped_gemm" in tried[1]["changed"]
    assert "model.moe_grouped_gemm=true" in results(tmp_path)["overrides"]


def test_values_that_the_release_refuses_beside_each_other_are_not_run_together(tmp_path: Path) -> None:
    base = ("model.moe_token_dispatcher_type=alltoall", "model.moe_shared_expert_overlap=false")
    told = {
        "arguments": {"moe_shared_expert_intermediate_size": 512},
        "fails": {"model.moe_token_dispatcher_type=allgather model.moe_shared_expert_overlap=true": "crash"},
    }
    words = ("--bridge", "--space", "space.yaml", "--runs", "3", "--", sys.executable, str(TRAINER), *base)
    space = "moe_token_dispatcher_type: [alltoall, allgather]\nmoe_shared_expert_overlap: [false, true]\n"
    done = run(tmp_path, *words, told=told, space=space)
    assert done.returncode == 0, done.stderr
    assert not [each["failure"] for each in results(tmp_path)["runs"] if each["failure"]]
    assert len({frozenset(each["changed"].values()) for each in results(tmp_path)["runs"]}) == 3
