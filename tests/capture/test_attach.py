"""What ``three-walls attach`` does around a program, with a fake profiler; the program itself must notice nothing."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from trace_builder import MEGATRON, TraceBuilder

from tests.capture.fake_nsys import calls_of, make_fake_nsys
from tests.paths import REPOSITORY

pytestmark = pytest.mark.slow

PATIENCE_S = 60
ATTACH = [sys.executable, "-m", "three_walls", "attach", "--no-analyze"]
PRINTS = [sys.executable, "-c", "import os; os.write(1, b'out\\xff\\r'); os.write(2, b'err\\n'); raise SystemExit(3)"]
COUNTS = "open('runs', 'a').write('x'); "
"""Lets a program leave a mark each time it runs."""
WAITS = [
    sys.executable,
    "-c",
    "import signal, sys, time\n"
    "got = []\n"
    "for name in ('SIGTERM', 'SIGUSR1', 'SIGINT', 'SIGHUP'):\n"
    "    signal.signal(getattr(signal, name), lambda number, _: got.append(number))\n"
    "print('ready', flush=True)\n"
    "while signal.SIGTERM not in got: time.sleep(0.01)\n"
    "time.sleep(0.3)\n"
    "print(*got, flush=True)\n"
    "sys.exit(7)\n",
]
LAUNCHERS = ("RANK", "WORLD_SIZE", "SLURM_", "OMPI_", "PMI_", "MASTER_", "TORCHELASTIC_", "NSYS")


def environment(nsys: Path | None = None, **variables: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    path = "/usr/bin:/bin" if nsys is None else f"{nsys.parent}:/usr/bin:/bin"
    return inherited | {"PYTHONPATH": str(REPOSITORY), "PATH": path} | variables


def attach(
    folder: Path, program: list[str], *options: str, nsys: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*ATTACH, *options, "--", *program],
        cwd=folder,
        env=environment(nsys, **variables),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )


def start(folder: Path, program: list[str], nsys: Path | None = None, before: str = "") -> subprocess.Popen[bytes]:
    """Attach as a process, once the program has printed ``ready``. ``before``: code that runs first."""
    code = f"{before}\nimport sys; from three_walls.__main__ import main; main()"
    words = [sys.executable, "-c", code, "attach", "--no-analyze", "--", *program]
    process = subprocess.Popen(words, cwd=folder, env=environment(nsys), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def wait_until(is_so: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def notes(done: subprocess.CompletedProcess[bytes]) -> str:
    return "\n".join(line for line in done.stderr.decode().splitlines() if line.startswith("three-walls attach:"))


@pytest.mark.parametrize("is_profiled", [True, False])
def test_output_and_exit_code_are_the_programs_byte_for_byte(tmp_path: Path, is_profiled: bool) -> None:
    nsys = make_fake_nsys(tmp_path / "bin", TraceBuilder().steps(2).write(tmp_path / "x.sqlite"))
    done = attach(tmp_path, PRINTS, "--ranks", "0" if is_profiled else "1", nsys=nsys)
    assert (done.returncode, done.stdout) == (3, b"out\xff\r")
    assert b"err\n" in done.stderr
    run = tmp_path / "profiles" / "run"
    assert sorted((run / "rank0.log").read_bytes()) == sorted(b"err\nout\xff\r")
    assert calls_of(nsys.parent) == (["profile", "export"] if is_profiled else [])
    assert (run / "rank0.sqlite").exists() is is_profiled
    assert json.loads((run / "rank0.json").read_text())["exported"] is is_profiled


@pytest.mark.parametrize(
    ("options", "visible", "sampled"),
    [(["--gpu-metrics"], "4,5", "5"), (["--gpu-metrics"], "GPU-1,GPU-2", ""), ([], "4,5", "")],
)
def test_hardware_counters_of_the_ranks_gpu_are_sampled_when_asked_for(
    tmp_path: Path, options: list[str], visible: str, sampled: str
) -> None:
    nsys = make_fake_nsys(tmp_path / "bin", TraceBuilder().steps(2).write(tmp_path / "x.sqlite"))
    done = attach(tmp_path, PRINTS, *options, nsys=nsys, LOCAL_RANK="1", CUDA_VISIBLE_DEVICES=visible)
    assert done.returncode == 3
    words = (nsys.parent / "words").read_text().splitlines()[0].split()
    assert [word for word in words if "gpu-metrics" in word] == ([f"--gpu-metrics-device={sampled}"] if sampled else [])
    assert ("are not sampled" in notes(done)) is (visible != "4,5")


@pytest.mark.parametrize("is_profiled", [True, False])
def test_the_program_gets_the_environment_of_the_job(tmp_path: Path, is_profiled: bool) -> None:
    nsys = make_fake_nsys(tmp_path / "bin", TraceBuilder().steps(2).write(tmp_path / "x.sqlite"))
    program = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
    given = environment(nsys, MINE="1")
    done = attach(tmp_path, program, "--ranks", "0" if is_profiled else "1", nsys=nsys, MINE="1")
    seen = json.loads(done.stdout)
    # The shell that starts the program under the profiler adds its own; nothing else is set, changed or missing.
    assert {name: value for name, value in seen.items() if name not in ("PWD", "OLDPWD", "SHLVL", "_")} == {
        name: value for name, value in given.items() if name not in ("PWD", "OLDPWD", "SHLVL", "_")
    }


def test_stdout_and_stderr_that_are_one_file_keep_their_order(tmp_path: Path) -> None:
    lines = "import os\nfor i in range(200): os.write(1 + i % 2, b'%d ' % i)"
    with (tmp_path / "both").open("wb") as both:
        words = [*ATTACH, "--", sys.executable, "-c", lines]
        subprocess.run(words, cwd=tmp_path, env=environment(), stdout=both, stderr=both, check=True)
    expected = b"".join(b"%d " % number for number in range(200))
    assert expected in (tmp_path / "both").read_bytes()
    assert (tmp_path / "profiles" / "run" / "rank0.log").read_bytes() == expected


@pytest.mark.attack
@pytest.mark.parametrize(
    ("does", "note"),
    [
        ("refuses", "the profiler failed before it started the program (exit code 1; see rank0.nsys.log)"),
        ("crashes", "the profiler wrote no report: it was killed (signal 9)"),
        ("fails at the end", "the profiler wrote no report: the program never began the capture"),
        ("cannot export", "nsys export failed (the report is of a newer version)"),
        ("hangs", "the profiler did not start the program, which now runs without it"),
        (None, "nsys is not on PATH; rank 0 runs without the profiler"),
    ],
)
def test_whatever_the_profiler_does_the_program_runs_once_and_its_exit_code_counts(
    tmp_path: Path, does: str | None, note: str
) -> None:
    nsys = None if does is None else make_fake_nsys(tmp_path / "bin", None, does)
    if does == "cannot export":
        assert nsys is not None
        (nsys.parent / "nsys").write_text((nsys.parent / "nsys").read_text().replace('does == ""', "True"))
    program = [sys.executable, "-c", f"{COUNTS}import time; time.sleep(0.6 * {does == 'crashes'}); raise SystemExit(5)"]
    patient = "import three_walls.capture.attach.run_program as program; program.START_S = 0.5"
    code = f"{patient}\nfrom three_walls.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "attach", "--no-analyze", "--", *program],
        cwd=tmp_path,
        env=environment(nsys),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 5
    assert (tmp_path / "runs").read_text() == "x"
    assert note in notes(done)
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("is_profiled", [True, False])
def test_a_signal_reaches_the_program_once_and_it_may_end_as_it_likes(tmp_path: Path, is_profiled: bool) -> None:
    process = start(tmp_path, WAITS, make_fake_nsys(tmp_path / "bin") if is_profiled else None)
    for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGTERM):
        process.send_signal(number)
        time.sleep(0.05)
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 7, errors
    sent = (signal.SIGUSR1, signal.SIGHUP, signal.SIGTERM)
    heard = [number for number in sent if signal.getsignal(number) != signal.SIG_IGN]  # as SIGHUP under nohup
    assert sorted(output.split()) == sorted(b"%d" % number for number in heard)


def test_a_program_that_a_signal_ends_ends_attach_by_the_same_signal(tmp_path: Path) -> None:
    done = attach(tmp_path, ["sh", "-c", "kill -SEGV $$"])
    assert done.returncode == -signal.SIGSEGV


@pytest.mark.attack
def test_a_program_does_not_outlive_a_killed_attach(tmp_path: Path) -> None:
    code = "import os, time; open('pid', 'w').write(str(os.getpid())); print('ready', flush=True); time.sleep(60)"
    process = start(tmp_path, [sys.executable, "-c", code], make_fake_nsys(tmp_path / "bin"))
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    wait_until(lambda: not Path(f"/proc/{(tmp_path / 'pid').read_text()}/cwd").exists())


@pytest.mark.attack
def test_a_signal_before_the_program_starts_ends_attach_without_starting_it(tmp_path: Path) -> None:
    nsys = make_fake_nsys(tmp_path / "bin", None, "hangs")
    words = [*ATTACH, "--", sys.executable, "-c", COUNTS]
    process = subprocess.Popen(words, cwd=tmp_path, env=environment(nsys), stderr=subprocess.DEVNULL)
    wait_until(lambda: calls_of(nsys.parent))
    process.terminate()
    assert process.wait(timeout=PATIENCE_S) == -signal.SIGTERM
    assert not (tmp_path / "runs").exists()


def test_a_program_that_does_not_exist_has_the_exit_code_of_a_shell(tmp_path: Path) -> None:
    done = attach(tmp_path, ["./nothing"])
    assert (done.returncode, b"./nothing: No such file" in done.stderr) == (127, True)


@pytest.mark.attack
def test_without_a_place_for_its_files_attach_becomes_the_program(tmp_path: Path) -> None:
    (tmp_path / "profiles").write_text("a file")
    done = attach(tmp_path, PRINTS)
    assert (done.returncode, done.stdout) == (3, b"out\xff\r")
    assert "runs without profiler and log" in notes(done)


@pytest.mark.attack
def test_an_error_of_attach_itself_keeps_no_program_from_running(tmp_path: Path) -> None:
    code = (
        "import three_walls.capture.attach.attach_job as a; a.Tee = None\nfrom three_walls.__main__ import main; main()"
    )
    words = [sys.executable, "-c", code, "attach", "--", *PRINTS]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (3, b"out\xff\r")
    assert "TypeError: 'NoneType' object is not callable; the program runs without profiler and log" in notes(done)


@pytest.mark.attack
def test_rank_0_waits_for_the_others_and_goes_on_without_those_that_do_not_come(tmp_path: Path) -> None:
    done = attach(
        tmp_path, ["true"], "--wait", "0", "--ranks", "0-9", SLURM_PROCID="0", SLURM_NTASKS="4", SLURM_JOB_ID="7"
    )
    assert "no end of ranks 1, 2, 3 after 0 s: going on without them" in notes(done)
    other = attach(tmp_path, ["true"], "--wait", "0", SLURM_PROCID="3", SLURM_NTASKS="4", SLURM_JOB_ID="7")
    assert "no end of ranks" not in notes(other)
    assert (tmp_path / "profiles" / "slurm-7.0" / "rank3.json").exists()


@pytest.mark.attack
@pytest.mark.parametrize(("world", "calls"), [("1", ["profile", "export"]), ("2", ["profile"])])
def test_a_failed_rank_of_several_keeps_no_launcher_waiting(tmp_path: Path, world: str, calls: list[str]) -> None:
    nsys = make_fake_nsys(tmp_path / "bin", TraceBuilder().steps(2).write(tmp_path / "x.sqlite"))
    done = attach(tmp_path, PRINTS, "--wait", "50", nsys=nsys, RANK="0", WORLD_SIZE=world)
    assert done.returncode == 3
    assert calls_of(nsys.parent) == calls


def test_rank_0_waits_for_a_rank_that_ends_later(tmp_path: Path) -> None:
    nsys = make_fake_nsys(tmp_path / "bin", TraceBuilder().steps(2).write(tmp_path / "x.sqlite"))
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "host", "MASTER_PORT": "1"}
    later = [*ATTACH, "--", sys.executable, "-c", "import time; time.sleep(0.8)"]
    with subprocess.Popen(later, cwd=tmp_path, env=environment(nsys, RANK="1", **job), stderr=subprocess.DEVNULL):
        done = attach(tmp_path, ["true"], "--when-done", "ls $THREE_WALLS_RUN", nsys=nsys, RANK="0", **job)
    assert {b"rank1.sqlite", b"rank1.json"} <= set(done.stdout.split())
    assert "no end of ranks" not in notes(done)


@pytest.mark.attack
def test_closed_output_is_no_reason_not_to_run(tmp_path: Path) -> None:
    program = shlex.join([*ATTACH, "--", sys.executable, "-c", f"print(1); {COUNTS}raise SystemExit(3)"])
    done = subprocess.run(["bash", "-c", f"{program} >&- 2>&- <&-"], cwd=tmp_path, env=environment(), check=False)
    assert done.returncode == 3
    assert (tmp_path / "runs").read_text() == "x"
    assert (tmp_path / "profiles" / "run" / "rank0.log").read_text() == "1\n"


@pytest.mark.attack
def test_a_child_that_the_program_leaves_behind_holds_nothing_up(tmp_path: Path) -> None:
    begin_s = time.monotonic()
    done = attach(tmp_path, ["sh", "-c", "sleep 20 & echo $! >left; echo done; exit 4"])
    assert (done.returncode, done.stdout) == (4, b"done\n")
    assert time.monotonic() - begin_s < 15
    os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)


def test_the_verdict_is_printed_at_the_end_and_a_command_runs_then(tmp_path: Path) -> None:
    trace = TraceBuilder().steps(4).launched_as(MEGATRON, RANK="0", WORLD_SIZE="1").write(tmp_path / "x.sqlite")
    nsys = make_fake_nsys(tmp_path / "bin", trace)
    done = attach(tmp_path, PRINTS, "--analyze", "--when-done", 'ls "$THREE_WALLS_RUN"/report', nsys=nsys)
    assert done.returncode == 3
    assert b"report.html" in done.stdout.splitlines()
    assert (tmp_path / "profiles" / "run" / "report" / "report.json").exists()


@pytest.mark.attack
def test_an_analysis_that_fails_is_named_and_changes_no_exit_code(tmp_path: Path) -> None:
    nsys = make_fake_nsys(tmp_path / "bin", TraceBuilder().api("cudaMalloc_v3020", 1, 2).write(tmp_path / "x.sqlite"))
    (tmp_path / "profiles" / "run").mkdir(parents=True)
    (tmp_path / "profiles" / "run" / "rank5.nsys-rep").write_text("a report that its rank could not export")
    done = attach(tmp_path, PRINTS, "--analyze", nsys=nsys)
    assert done.returncode == 3
    assert calls_of(nsys.parent) == ["profile", "export"]
    again = f"three-walls analyze {tmp_path / 'profiles' / 'run'} --out"
    assert f"the analysis failed (exit code 4); to repeat it: {again}" in notes(done)


@pytest.mark.attack
def test_a_launcher_is_refused_with_the_command_that_is_right(tmp_path: Path) -> None:
    done = attach(tmp_path, ["torchrun", "--nproc-per-node", "2", "train.py"])
    assert done.returncode == 2
    assert b"torchrun --nproc-per-node 2 --no-python three-walls attach -- python train.py" in done.stderr
