"""scrub, doctor and capture as a person meets them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from trace_builder import TraceBuilder

from tests.called import call
from tests.capture.scrub.conftest import SECRETS, plant

pytestmark = pytest.mark.slow


def test_scrub_says_what_went_by_name_and_never_by_value(tmp_path: Path) -> None:
    plant(tmp_path / "rank0.sqlite")
    done = call("scrub", "rank0.sqlite", "shared.sqlite.xz", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "WANDB_API_KEY" in done.stdout
    assert "none is left" in done.stdout
    assert not [secret for secret in SECRETS.values() if secret in done.stdout]
    assert call("analyze", "shared.sqlite.xz", cwd=tmp_path).returncode == 0


def test_scrub_counts_a_variable_without_a_name_and_does_not_print_what_stands_there(tmp_path: Path) -> None:
    plant(tmp_path / "rank0.sqlite")
    with closing(sqlite3.connect(tmp_path / "rank0.sqlite")) as export, export:
        row = ("PROCESS_0:ENVIRONMENT_VARIABLE", "https://brunhild.example/?token=abcdefgh")
        export.execute("INSERT INTO META_DATA_CAPTURE (name, value) VALUES (?, ?)", row)
    done = call("scrub", "rank0.sqlite", "shared.sqlite", cwd=tmp_path)
    assert done.returncode == 0
    assert "brunhild" not in done.stdout + done.stderr
    assert b"brunhild" not in (tmp_path / "shared.sqlite").read_bytes()


def test_analyze_prints_no_value_that_is_not_on_the_list(tmp_path: Path) -> None:
    plant(tmp_path / "rank0.sqlite")
    done = call("analyze", "rank0.sqlite", cwd=tmp_path)
    written = "".join(path.read_text() for path in (tmp_path / "rank0.three-walls").iterdir() if path.is_file())
    listed = {"path", "kernel", "host"}  # an allowed variable, a kernel's name, the rank's host
    for place, secret in SECRETS.items():
        assert secret not in done.stdout + done.stderr
        assert place in listed or secret not in written


def test_doctor_prints_text_or_json(tmp_path: Path) -> None:
    TraceBuilder().steps(4).write(tmp_path / "rank0.sqlite")
    assert "two or more clean steps" in call("doctor", "rank0.sqlite", cwd=tmp_path).stdout
    assert json.loads(call("doctor", "rank0.sqlite", "--json", cwd=tmp_path).stdout)["ranks"] == 1


def test_capture_wraps_a_command_and_runs_nothing(tmp_path: Path) -> None:
    command = "capture --framework megatron-lm --steps 20-25 -- torchrun train.py --lr 1".split()  # noqa: SIM905
    done = call(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "python train.py --lr 1 --profile --profile-step-start 20 --profile-step-end 25" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        (["scrub", "trace.sqlite"], 2, "Missing argument 'OUT'"),
        (["scrub", "missing.sqlite", "out.sqlite"], 3, "no such file"),
        (["scrub", "text.sqlite", "out.sqlite"], 3, "expected a SQLite export"),
        (["scrub", "trace.sqlite", "out.db"], 2, "expected a name that ends in .sqlite"),
        (["scrub", "trace.sqlite", "missing/out.sqlite"], 2, "cannot be written"),
        (["scrub", "trace.sqlite", "trace.sqlite", "--force"], 2, "found the input itself"),
        (["doctor"], 2, "Missing argument"),
        (["doctor", "text.sqlite"], 3, "expected a SQLite export"),
        (["doctor", "empty.sqlite"], 4, "expected CUDA kernels"),
        (["capture", "--steps", "5-6"], 2, "at least 3 steps"),
        (["capture", "--", "make", "train"], 2, "state which: --framework"),
        (["capture", "--framework", "bridge", "--", "make"], 2, "expected a command that runs a Python file"),
    ],
)
def test_every_mistake_is_one_line_and_its_own_exit_code(
    tmp_path: Path, arguments: list[str], exit_code: int, says: str
) -> None:
    TraceBuilder().steps(4).write(tmp_path / "trace.sqlite")
    TraceBuilder().api("cudaMalloc_v3020", 1, 2).write(tmp_path / "empty.sqlite")
    (tmp_path / "text.sqlite").write_text("hello")
    done = call(*arguments, cwd=tmp_path)
    assert done.returncode == exit_code, done.stderr
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
