"""The cases of benchmarks/gpu, and what its command makes of a run."""

from __future__ import annotations

import sys

import pytest

from tests.paths import REPOSITORY
from tests.try_each import try_each
from three_walls.advice.format.load_rules import load_rule_base
from three_walls.facts.sheet import DEFINITIONS

KIT = REPOSITORY / "benchmarks" / "gpu"
sys.path.insert(0, str(KIT))

import case as cases  # noqa: E402 - scripts beside the package
import run_cases as kit  # noqa: E402
import worker  # noqa: E402

CASES = sorted(KIT.glob("cases/*.yaml"))
RULES = {rule.id for rule in load_rule_base(DEFINITIONS).rules}


@try_each(CASES, lambda path: path.stem)
def test_a_case_changes_something_in_every_edit_and_names_rules_that_exist(path: kit.Path) -> None:
    case = kit.read_case(path)
    assert case.edits
    assert len({edit.name for edit in case.edits}) == len(case.edits)
    for edit in case.edits:
        assert edit.overrides or edit.environment or edit.profiler or edit.faults not in (None, case.faults), edit.name
        assert edit.rule is None or edit.rule in RULES, edit.rule
        assert all("=" in override for override in edit.overrides)


def test_every_edit_has_a_base_before_and_after_it() -> None:
    case = kit.read_case(KIT / "cases" / "one-by-one-experts.yaml")
    assert [edit.name for edit in kit.order(case)] == ["base", "grouped-gemm", "micro-batch-2", "base"]


def test_what_nvidia_smi_read_becomes_one_line_per_gpu() -> None:
    lines = [
        "0, 1980, 2619, 300.5, 50, 0x0, 100",
        "0, 1755, 2619, 690.1, 62, 0x4, 100",
        "1, 1980, 2619, 1, 40, 0x1, 9",
        "?",
    ]
    assert kit.summarize_gpus(lines) == (
        "GPU 0: SM 1755-1980 MHz, 690 W, 62 C, reasons 0x0|0x4",
        "GPU 1: SM 1980-1980 MHz, 1 W, 40 C, reasons 0x1",
    )


def test_the_error_of_a_run_is_the_last_that_its_logs_name(tmp_path: kit.Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_text("Traceback (most recent call last):\nValueError: first\nRuntimeError: CUDA out of memory\nmore\n")
    assert kit.last_error([log]) == "RuntimeError: CUDA out of memory"
    log.write_text("[rank0]: torch.distributed.DistBackendError: NCCL error\n[rank0]:[W] destroy_process_group\n")
    assert kit.last_error([log]) == "torch.distributed.DistBackendError: NCCL error"
    log.write_text("make: *** No targets specified and no makefile found.  Stop.\nlater\n")
    assert kit.last_error([log]) == "make: *** No targets specified and no makefile found.  Stop."
    log.write_text("starting\nkilled\n")
    assert kit.last_error([log]) == "killed"
    log.write_text("")
    assert kit.last_error([log]) is None


WORKER = """
import json, sys, time
from pathlib import Path
folder = Path(sys.argv[3])
def write(name, text):
    (folder / "half").write_text(text)
    (folder / "half").rename(folder / name)
write("ready", "forks")
number = 0
while not (folder / "stop").exists():
    job_file = folder / f"job{number}.json"
    if not job_file.exists():
        time.sleep(0.01)
        continue
    job = json.loads(job_file.read_text())
    setting = dict(override.split("=", 1) for override in job["overrides"])
    profiled = setting.get("profiling.use_nsys_profiler") == "true"
    lines = []
    for step in range(int(setting["train.train_iters"])):
        inside = profiled and int(setting["profiling.profile_step_start"]) <= step
        ms = 100 + 50 * inside - 20 * (setting.get("fast") == "true")
        lines.append(f" elapsed time per iteration (ms): {ms}.0 |")
    fails = setting.get("fail") == "true"
    Path(job["log"]).write_text("ValueError: told to fail" if fails else "\\n".join(lines))
    write(f"status{number}", str(int(fails)))
    number += 1
"""


@pytest.fixture
def kit_folder(tmp_path: kit.Path, monkeypatch: pytest.MonkeyPatch) -> kit.Path:
    """The kit with a worker that only writes a log, and an nsys and nvidia-smi that do nothing."""
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "common.yaml").write_text("{recipes: r, recipe: r, iterations: 8, warmup: 2, overrides: [a=1]}")
    for name, script in {"nsys": 'shift 11\nexec "$@"', "nvidia-smi": "exit 0"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{kit.os.environ['PATH']}")
    for module in (kit, cases):
        monkeypatch.setattr(module, "HERE", tmp_path)
    return tmp_path


def lines_of(folder: kit.Path) -> list[tuple[str | None, float]]:
    lines = [kit.json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    return [(line["edit"], line["median_ms"]) for line in lines]


def test_the_log_of_a_captured_base_gives_the_steps_before_the_profiler(kit_folder: kit.Path) -> None:
    (kit_folder / "small.yaml").write_text("edits: [{name: fast, overrides: [fast=true]}]")
    case = kit.read_case(kit_folder / "small.yaml")
    kit.capture([case], kit_folder / "out", str(kit_folder / "nsys"), float("inf"), None)
    assert lines_of(kit_folder / "out" / "small") == [(None, 100.0)]


def test_edits_run_between_bases_and_profiled_edits_give_profiled_steps(kit_folder: kit.Path) -> None:
    (kit_folder / "small.yaml").write_text("edits: [{name: fast, overrides: [fast=true]}]")
    (kit_folder / "cost.yaml").write_text(
        "{like: small, edits: [{name: ranges, profiler: ranges}, {name: calls, profiler: calls}]}"
    )
    for name, expected in {
        "small": [(None, 100.0), ("fast", 80.0), (None, 100.0)],
        "cost": [(None, 100.0), ("ranges", 150.0), ("calls", 150.0), (None, 100.0)],
    }.items():
        case = kit.read_case(kit_folder / f"{name}.yaml")
        supply = kit.Supply(case, kit_folder / name / "workers", None)
        kit.measure(case, supply, kit_folder / name, str(kit_folder / "nsys"), float("inf"), None)
        supply.stop()
        assert lines_of(kit_folder / name) == expected


def measure(kit_folder: kit.Path, text: str, deadline: float = float("inf")) -> list[tuple[str | None, float]]:
    (kit_folder / "case.yaml").write_text(text)
    case = kit.read_case(kit_folder / "case.yaml")
    supply = kit.Supply(case, kit.unused(kit_folder / "workers"), None)
    kit.measure(case, supply, kit_folder / "out", str(kit_folder / "nsys"), deadline, None)
    supply.stop()
    return lines_of(kit_folder / "out")


def test_every_round_runs_every_edit_between_bases(kit_folder: kit.Path) -> None:
    runs = measure(kit_folder, "{rounds: 4, edits: [{name: fast, overrides: [fast=true]}]}")
    assert runs == [(None, 100.0), *[("fast", 80.0), (None, 100.0)] * 4]


def test_the_edits_of_a_base_that_fails_do_not_run(kit_folder: kit.Path) -> None:
    runs = measure(kit_folder, "{overrides: [fail=true], edits: [{name: fast, overrides: [fast=true]}]}")
    assert runs == [(None, None)]


def test_workers_that_cannot_fork_are_ended_too(kit_folder: kit.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (kit_folder / "worker.py").write_text(WORKER.replace('"forks"', '"once"'))
    made: list[kit.Workers] = []

    def record(*arguments: object) -> kit.Workers:
        made.append(workers_of(*arguments))
        return made[-1]

    workers_of = kit.Workers
    monkeypatch.setattr(kit, "Workers", record)
    measure(kit_folder, "{overrides: [fail=true], edits: [{name: fast, overrides: [fast=true]}]}")
    assert len(made) > 1
    assert all(process.poll() is not None for workers in made for process in workers.processes)


def test_an_edit_that_fails_ends_nothing(kit_folder: kit.Path) -> None:
    runs = measure(kit_folder, "{edits: [{name: bad, overrides: [fail=true]}, {name: fast, overrides: [fast=true]}]}")
    assert runs == [(None, 100.0), ("bad", None), ("fast", 80.0), (None, 100.0)]


def test_without_time_for_the_next_edit_the_closing_base_still_runs(
    kit_folder: kit.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0, 0, 9, 9])
    monkeypatch.setattr(kit.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(kit, "train", lambda case, edit, number, *_: run_of(case, edit, number))
    text = "{edits: [{name: a, overrides: [a=1]}, {name: b, overrides: [b=1]}]}"
    assert [edit for edit, _ in measure(kit_folder, text, deadline=5)] == [None, "a", None]


def run_of(case: cases.Case, edit: cases.Edit, number: int) -> kit.Run:
    name = None if edit is cases.BASE else edit.name
    return kit.Run(case.name, name, None, number, 100.0, (100.0, 100.0), (100.0,), 1.0, None, (), ())


def test_a_command_that_is_repeated_adds_runs_with_the_next_numbers(kit_folder: kit.Path) -> None:
    text = "edits: [{name: fast, overrides: [fast=true]}]"
    measure(kit_folder, text)
    assert measure(kit_folder, text) == [(None, 100.0), ("fast", 80.0), (None, 100.0)] * 2
    assert (kit_folder / "out" / "02-base.rank0.log").exists()
    assert (kit_folder / "out" / "03-base.rank0.log").exists()


def test_recipes_and_models_may_lie_beside_a_case(tmp_path: kit.Path) -> None:
    (tmp_path / "mine.yaml").write_text("{recipes: mine.py, recipe: small, models: models, edits: []}")
    case = kit.read_case(tmp_path / "mine.yaml")
    assert (case.recipes, case.models) == (str(tmp_path / "mine.py"), tmp_path / "models")
    assert kit.read_case(KIT / "cases" / "dense.yaml").models.is_dir()


def test_a_worker_reads_recipes_of_a_file(tmp_path: kit.Path) -> None:
    (tmp_path / "mine.py").write_text("def small():\n    return 'a configuration'\n")
    assert worker.import_recipes(str(tmp_path / "mine.py")).small() == "a configuration"


@pytest.mark.parametrize(
    ("files", "is_taken"),
    [(["helpers_cpp.py"], True), (["helpers_cpp.py", "Makefile"], False), ([], False)],
    ids=["a wheel", "a source tree", "a wheel without helpers"],
)
def test_helpers_of_a_wheel_are_taken_and_those_of_a_source_tree_compiled(
    tmp_path: kit.Path, monkeypatch: pytest.MonkeyPatch, files: list[str], is_taken: bool
) -> None:
    datasets = tmp_path / "megatron" / "core" / "datasets"
    datasets.mkdir(parents=True)
    for folder in (datasets, datasets.parent, datasets.parent.parent):
        (folder / "__init__.py").touch()
    (datasets / "utils.py").write_text("def compile_helpers():\n    raise SystemExit(1)\n")
    for name in files:
        (datasets / name).touch()
    for name in [name for name in sys.modules if name.partition(".")[0] == "megatron"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    worker.use_compiled_helpers()
    utils = sys.modules["megatron.core.datasets.utils"]
    for name in [name for name in sys.modules if name.partition(".")[0] == "megatron"]:
        monkeypatch.delitem(sys.modules, name)
    if is_taken:
        utils.compile_helpers()
    else:
        with pytest.raises(SystemExit):
            utils.compile_helpers()
