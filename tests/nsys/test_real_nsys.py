"""``three-walls attach`` and reports with a real Nsight Systems: ``make test-nsys``. No GPU is needed.

Without a GPU no program begins a capture (cudaProfilerStart), so where a report is wanted, the range is left out.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import REPOSITORY

NSYS = os.environ.get("THREE_WALLS_NSYS", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not NSYS, reason="THREE_WALLS_NSYS does not name an nsys (make test-nsys)"),
]
PATIENCE_S = 120
ALWAYS = (
    "import three_walls.capture.attach.attach_job as a; plain = a.nsys_options; a.nsys_options = lambda *_, **__: "
    "[word for word in plain(False, is_attached=True) if not word.startswith('--capture-range')]; "
)
PROGRAM = """
import os, signal, sys, time
open("runs", "a").write("x")
signal.signal(signal.SIGUSR1, lambda *_: print("usr1", flush=True))
os.write(1, b"ready \\xff\\n")
os.write(2, b"to stderr\\n")
time.sleep(float(sys.argv[1]))
sys.exit(3)
"""


def attach_words(folder: Path, seconds: float, *options: str, before: str = "") -> list[str]:
    (folder / "train.py").write_text(PROGRAM)
    code = f"{before}from three_walls.__main__ import main; main()"
    words = [sys.executable, "-c", code, "attach", "--nsys", NSYS, *options]
    return [*words, "--", sys.executable, "train.py", str(seconds)]


def environment() -> dict[str, str]:
    ranks = ("RANK", "SLURM_", "OMPI_", "PMI_", "MASTER_", "TORCHELASTIC_")
    return {name: text for name, text in os.environ.items() if not name.startswith(ranks)} | {
        "PYTHONPATH": str(REPOSITORY)
    }


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(words, cwd=folder, env=environment(), capture_output=True, timeout=PATIENCE_S, check=False)


def test_the_program_ends_as_without_the_profiler_and_its_report_is_exported(tmp_path: Path) -> None:
    done = run(attach_words(tmp_path, 0.5, before=ALWAYS), tmp_path)
    assert (done.returncode, done.stdout) == (3, b"ready \xff\n")
    assert b"to stderr\n" in done.stderr
    assert (tmp_path / "runs").read_text() == "x"
    directory = tmp_path / "profiles" / "run"
    if (directory / "rank0.qdstrm").exists():  # seen twice in 30 runs on a machine with a load of 5 per core
        assert b"the profiler could not import its report" in done.stderr
        pytest.skip("this nsys failed to import what it had recorded")
    assert {"rank0.log", "rank0.nsys-rep", "rank0.sqlite", "rank0.json"} <= {path.name for path in directory.iterdir()}
    assert b"expected CUDA kernels, found none" in done.stderr
    assert b"the analysis failed (exit code 4)" in done.stderr


def test_a_program_that_never_begins_the_capture_is_named(tmp_path: Path) -> None:
    done = run(attach_words(tmp_path, 0.1), tmp_path)
    assert done.returncode == 3
    assert b"the program never began the capture (cudaProfilerStart)" in done.stderr


def test_signals_reach_the_program_once(tmp_path: Path) -> None:
    words = attach_words(tmp_path, 30)
    process = subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready \xff\n"
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == b"usr1\n"
    process.terminate()
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output) == (-signal.SIGTERM, b""), errors


def test_a_profiler_that_is_killed_leaves_the_program_alone(tmp_path: Path) -> None:
    words = attach_words(tmp_path, 2)
    process = subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 1
    os.kill(int(children[0]), signal.SIGKILL)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3, errors
    assert b"it was killed (signal 9)" in errors


def test_a_report_and_its_tables_are_read_like_its_export(tmp_path: Path) -> None:
    capture = [NSYS, "profile", "--trace=nvtx", "--sample=none", "--cpuctxsw=none", "-o", str(tmp_path / "cpu"), "true"]
    assert run(capture, tmp_path).returncode == 0
    before = sorted(tmp_path.iterdir())
    words = [sys.executable, "-m", "three_walls"]
    read = run([*words, "analyze", "--nsys", NSYS, "cpu.nsys-rep", "--out", "out/report"], tmp_path)
    assert (read.returncode, b"cpu.sqlite: expected CUDA kernels, found none" in read.stderr) == (4, True)
    assert len(list((tmp_path / "out" / "three-walls-exports").rglob("cpu.sqlite"))) == 1
    shutil.rmtree(tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before
    exported = run([NSYS, "export", "--type", "parquetdir", "cpu.nsys-rep"], tmp_path)
    if exported.returncode:
        pytest.skip("this nsys does not write directories of tables")
    read = run([*words, "analyze", "cpu_pqtdir"], tmp_path)
    assert (read.returncode, b"cpu_pqtdir: expected CUDA kernels, found none" in read.stderr) == (4, True)
