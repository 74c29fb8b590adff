"""The fuzzer holds the program to its laws, and would notice a program that breaks them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.case import Case, GivenFile, read_case
from tests.fuzz.generate import WEIGHTS, kind_of, make_case
from tests.fuzz.laws import check_report
from tests.paths import REPOSITORY

KEPT = REPOSITORY / "tests" / "fuzz_cases"


def fuzz(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: it forks, which the threads of other tests' queries would not survive."""
    command = [sys.executable, "-m", "tests.fuzz", "--workers", "1", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.attack
def test_no_kept_case_breaks_a_law_again() -> None:
    done = fuzz("--replay", KEPT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(list(KEPT.glob('*.json')))} cases, 0 failed" in done.stdout


PLANTED = """
import os, sys, time
from pathlib import Path
import three_walls.cli.analyze as analyze, three_walls.log.read_log as inputs
from tests.fuzz import worker
from tests.fuzz.campaign import run_one
from tests.fuzz.generate import make_case
from tests.fuzz.minimize import minimize

case = make_case("log", 1, 1)
sound = inputs.read_logs
def raises(paths): raise ValueError("planted")
def panics(paths): raise BaseException("planted")
def prints(paths): print("planted", file=sys.stderr); return sound(paths)
def hangs(paths):
    while True: pass
def crashes(paths): os.abort()
def leaves_a_file(paths): Path("planted").touch(); return sound(paths)
def changes_its_input(paths): Path(paths[0]).write_bytes(b"planted"); return sound([])
def takes_memory(paths): return bytearray(8 << 30)
def leaks(paths): print("zq7Kv93LmX2pR8tWc5"); return sound(paths)

worker.CPU_S = 1.0
for fault in (sound, raises, panics, prints, hangs, crashes, leaves_a_file, changes_its_input, takes_memory, leaks):
    inputs.read_logs = fault
    result = run_one(case)
    print(fault.__name__, "|", result.broken[0] if result.broken else "every law holds")
inputs.read_logs = raises
print("minimised", "|", len(minimize(run_one(case), run_one).to_json()))
"""


@pytest.mark.slow
@pytest.mark.attack
def test_a_planted_fault_of_each_sort_is_found_and_none_where_there_is_none() -> None:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", PLANTED], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    found = dict(line.split(" | ") for line in done.stdout.splitlines())
    assert found.pop("read_logs") == "every law holds", done.stderr
    assert int(found.pop("minimised")) < 5_000
    expected = {
        "raises": "exit-code: 70",
        "panics": "",
        "prints": "stderr: 2 lines",
        "hangs": "time: ",
        "crashes": "died: killed by SIGABRT",
        "leaves_a_file": "files: expected [], found ['planted']",
        "changes_its_input": "input: 'train.log' was changed",
        "takes_memory": "memory: ",
        "leaks": "planted: ",
    }
    for name, law in expected.items():
        assert found[name].startswith(law), found
        assert found[name] != "every law holds"


@pytest.mark.slow
def test_a_case_is_made_again_from_its_name_and_kept_as_text() -> None:
    for number, kind in enumerate(WEIGHTS):
        case = make_case(kind, 5, number)
        assert case == make_case(kind, 5, number)
        assert case != make_case(kind, 6, number)
        assert read_case(case.to_json()) == case
        for file in case.files:
            if not any(change[0] == "node" for change in file.changes):
                assert file.content() == file.as_literal().content()


def test_every_kind_is_in_a_mixed_run() -> None:
    assert {kind_of(1, number) for number in range(300)} == set(WEIGHTS)


def test_a_report_whose_sums_are_wrong_breaks_a_law(tmp_path: Path) -> None:
    time = {"busy_ns": 3, "exposed_ns": 1, "hidden_ns": 1}
    step = {"kept": True, "index": 0, "start_ns": 0, "end_ns": 9, "budget": {"gemm": 8}}
    rank = '{"rank": 0, "steps": [%s], "communication": {"p2p": %s}, "gap_causes": []}'
    text = '{"budget": [{"bucket": "gemm", "ns": 5}], "verdict": {"step_ns": 6}, "ranks": [%s]}'
    path = tmp_path / "report.json"
    path.write_text(text % (rank % (str(step), str(time))).replace("'", '"').replace("True", "true"))
    assert [law.split(":")[0] for law in check_report(path)][:3] == ["sum", "sum", "sum"]
    path.write_text('{"budget": NaN}')
    assert list(check_report(path)) == ["json: NaN is no JSON number"]


def test_changes_of_an_export_are_applied_in_their_order() -> None:
    renamed = ["sql", ["ALTER TABLE StringIds RENAME TO gone", "DROP TABLE missing"]]
    file = GivenFile("a.sqlite", "export/plain", (renamed, ["cut", 5_000], ["pack", "xz"]))
    assert file.content().startswith(b"\xfd7zXZ")
    assert b"gone" in GivenFile("a.sqlite", "export/plain", (renamed,)).content()
    assert Case("x-1-1", (("doctor",), ("a.sqlite",)), (file,)).words == ["doctor", "a.sqlite"]
