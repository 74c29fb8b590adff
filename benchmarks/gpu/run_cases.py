"""Train a base configuration and its single edits in turn, and capture the base: pairs of predicted and measured gains.

    python benchmarks/gpu/run_cases.py benchmarks/gpu/cases/NAME.yaml ... --out DIR [--nsys NSYS] [--seconds N]

The runs of a case alternate: base, edits, base, edits, ..., base. So every edit has a base close to it in time, and the
drift of the machine shows. One more run of the base is captured with Nsight Systems, one report per rank. For every run
DIR/NAME holds the logs of its ranks and a line of runs.jsonl: median and quartiles of the steps after the warm-up, and
what nvidia-smi read meanwhile. See benchmarks/gpu/README.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
STEP_TIME = re.compile(rb"elapsed time per iteration \(ms\): ([0-9.]+)")
GPU_FIELDS = "index,clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active,memory.used"
RUN_LIMIT_S = 180
"""A training that takes longer hangs."""
CAPTURE = (
    "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--cuda-memory-usage=true",
    "--cuda-graph-trace=node", "--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--force-overwrite=true",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A base configuration and its edits, as ``cases/*.yaml`` holds them; ``common.yaml`` comes before them."""

    name: str
    recipes: str
    recipe: str
    gpus: int
    overrides: tuple[str, ...]
    environment: Mapping[str, str]
    edits: tuple[Edit, ...]
    iterations: int
    warmup: int
    edits_between_bases: int
    capture: bool


@dataclass(frozen=True)
class Edit:
    """What one run changes: overrides, variables of the environment, and the rule that proposes it, if one does."""

    name: str
    overrides: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    rule: str | None = None
    iterations: int | None = None
    warmup: int | None = None


@dataclass(frozen=True)
class Run:
    """What one training gave. Times in milliseconds; ``None`` where it failed before a step after the warm-up."""

    case: str
    edit: str | None
    rule: str | None
    number: int
    median_ms: float | None
    quartiles_ms: tuple[float, float] | None
    steps_ms: tuple[float, ...]
    wall_s: float
    error: str | None
    gpus: tuple[str, ...]


BASE = Edit("base")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--nsys", default="nsys", help="Nsight Systems' command")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no run after so many seconds")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    cases = [read_case(path) for path in options.cases]
    supply = Supply(cases[0], options.out / "workers")
    for case in cases:
        measure(case, supply, options.out / case.name, options.nsys, deadline)
    supply.stop()


def read_case(path: Path) -> Case:
    data = yaml.safe_load(path.read_text())
    common = yaml.safe_load((HERE / "common.yaml").read_text())
    edits = tuple(
        Edit(
            edit["name"], tuple(edit.get("overrides", ())), edit.get("environment", {}), edit.get("rule"),
            edit.get("iterations"), edit.get("warmup"),
        )
        for edit in data.get("edits", [])
    )  # fmt: skip
    return Case(
        name=path.stem,
        recipes=common["recipes"],
        recipe=data.get("recipe", common["recipe"]),
        gpus=data.get("gpus", 2),
        overrides=(*common["overrides"], *data.get("overrides", ())),
        environment={**common["environment"], **data.get("environment", {})},
        edits=edits,
        iterations=data.get("iterations", common["iterations"]),
        warmup=data.get("warmup", common["warmup"]),
        edits_between_bases=data.get("edits_between_bases", 2),
        capture=data.get("capture", True),
    )


class Workers:
    """One process per rank with Megatron-Bridge imported; see worker.py for how they are asked."""

    def __init__(self, case: Case, folder: Path, before: Sequence[Sequence[str]] | None = None) -> None:
        self.folders = [folder / f"worker{rank}" for rank in range(case.gpus)]
        self.processes = []
        self.jobs = 0
        for rank, own in enumerate(self.folders):
            own.mkdir(parents=True)
            command = [
                *(before[rank] if before else ()),
                sys.executable,
                str(HERE / "worker.py"),
                case.recipes,
                str(own),
            ]
            # A profiler records the environment that a process began with.
            environment = {**os.environ, **rank_environment(case, rank)}
            with (own / "log").open("w") as log:
                self.processes.append(
                    subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
                )

    @property
    def can_fork(self) -> bool:
        return all(self._await(own / "ready", process) == "forks" for own, process in self._each())

    def run(self, jobs: Sequence[Mapping[str, Any]]) -> list[str]:
        """Give each rank its job; return their exit statuses."""
        number, self.jobs = self.jobs, self.jobs + 1
        for own, process in self._each():
            self._await(own / "ready", process)
        for own, job in zip(self.folders, jobs, strict=True):
            (own / "part").write_text(json.dumps(job))
            (own / "part").rename(own / f"job{number}.json")
        return [self._await(own / f"status{number}", process) for own, process in self._each()]

    def stop(self, wait_s: float = 10) -> None:
        for own, process in self._each():
            (own / "stop").touch()
            try:
                process.wait(wait_s)
            except subprocess.TimeoutExpired:
                process.kill()

    def _each(self) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
        return zip(self.folders, self.processes, strict=True)

    @staticmethod
    def _await(path: Path, process: subprocess.Popen[bytes]) -> str:
        while not path.exists():
            if process.poll() is not None:
                return f"the worker ended with {process.returncode}: see {path.parent}/log"
            time.sleep(0.02)
        return path.read_text()


class Supply:
    """Workers for run after run: always the same where they can fork, else fresh ones, imported ahead of their turn."""

    def __init__(self, case: Case, folder: Path, ahead: int = 2) -> None:
        self._case, self._folder, self._made = case, folder, 0
        self._waiting: list[Workers] = [self._make()]
        self._ahead = 1 if self._waiting[0].can_fork else ahead

    def take(self) -> Workers:
        if self._ahead == 1:
            return self._waiting[0]
        while len(self._waiting) <= self._ahead:
            self._waiting.append(self._make())
        return self._waiting.pop(0)

    def stop(self) -> None:
        for workers in self._waiting:
            workers.stop()

    def _make(self) -> Workers:
        self._made += 1
        return Workers(self._case, self._folder / str(self._made))


def measure(case: Case, supply: Supply, folder: Path, nsys: str, deadline: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    profiled = start_profiled(case, folder, nsys) if case.capture else None
    with (folder / "runs.jsonl").open("a") as lines:
        for number, edit in enumerate(order(case)):
            if time.monotonic() > deadline:
                print(f"{case.name}: no time left for {edit.name}", flush=True)
                break
            run = train(case, edit, number, supply.take(), folder)
            lines.write(json.dumps(asdict(run)) + "\n")
            lines.flush()
            print(f"{case.name} {edit.name}: {run.median_ms} ms {run.quartiles_ms} {run.error or ''}", flush=True)
            if number == 0 and profiled:  # the base runs: capture it before time is spent on edits
                run = train(case, BASE, 99, profiled, folder, profile=True)
                profiled.stop(90)
                print(f"{case.name} captured: {run.steps_ms[-5:]} {run.error or ''}", flush=True)


def start_profiled(case: Case, folder: Path, nsys: str) -> Workers:
    before = [[nsys, "profile", *CAPTURE, "--output", str(folder / f"rank{rank}")] for rank in range(case.gpus)]
    return Workers(case, folder, before)


def order(case: Case) -> Iterator[Edit]:
    """base, edits, base, edits, ..., base."""
    yield BASE
    for start in range(0, len(case.edits), case.edits_between_bases):
        yield from case.edits[start : start + case.edits_between_bases]
        yield BASE


def train(case: Case, edit: Edit, number: int, workers: Workers, folder: Path, *, profile: bool = False) -> Run:
    iterations, warmup = edit.iterations or case.iterations, edit.warmup or case.warmup
    name = f"{number:02d}-{edit.name}"
    logs = [folder / f"{name}.rank{rank}.log" for rank in range(case.gpus)]
    overrides = [*case.overrides, *edit.overrides]
    overrides.append(f"train.train_iters={iterations + (2 if profile else 0)}")
    if profile:
        overrides += [
            "profiling.use_nsys_profiler=true", f"profiling.profile_step_start={iterations - 3}",
            f"profiling.profile_step_end={iterations}", f"profiling.profile_ranks={list(range(case.gpus))}",
            f"logger.save_config_filepath={folder / 'run_config.yaml'}",
        ]  # fmt: skip
    port = free_port()
    watch = subprocess.Popen(
        ["nvidia-smi", f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader,nounits", "-lms", "1000"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    started = time.monotonic()
    jobs = []
    for rank in range(case.gpus):
        environment = {
            **case.environment, **edit.environment, **rank_environment(case, rank), "MASTER_PORT": str(port),
        }  # fmt: skip
        jobs.append({
            "recipe": case.recipe, "overrides": overrides, "environment": environment, "log": str(logs[rank]),
            "fork": not profile and workers.can_fork, "limit_s": RUN_LIMIT_S,
        })  # fmt: skip
    statuses = workers.run(jobs)
    wall_s = time.monotonic() - started
    watch.terminate()
    gpus = tuple((watch.communicate()[0] or "").splitlines())
    steps = [float(found) for found in STEP_TIME.findall(logs[-1].read_bytes())]
    kept = steps[warmup:iterations]
    failed = any(status != "0" for status in statuses)
    return Run(
        case=case.name,
        edit=None if edit is BASE else edit.name,
        rule=edit.rule,
        number=number,
        median_ms=statistics.median(kept) if kept and not failed else None,
        quartiles_ms=quartiles(kept) if len(kept) > 1 and not failed else None,
        steps_ms=tuple(steps),
        wall_s=round(wall_s, 1),
        error=last_error(logs) if failed else None,
        gpus=summarize_gpus(gpus),
    )


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def last_error(logs: Sequence[Path]) -> str:
    for log in logs:
        lines = [
            line for line in log.read_text(errors="replace").splitlines() if re.match(r"\w*(Error|Exception)\b", line)
        ]
        if lines:
            return lines[-1][:500]
    return "see the log"


def summarize_gpus(lines: Sequence[str]) -> tuple[str, ...]:
    """Of each GPU the lowest and highest clock, the highest temperature and power, and the reasons of slower clocks."""
    by_index: dict[str, list[list[str]]] = {}
    for line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(GPU_FIELDS.split(",")):
            by_index.setdefault(cells[0], []).append(cells)
    return tuple(
        f"GPU {index}: SM {min(int(row[1]) for row in rows)}-{max(int(row[1]) for row in rows)} MHz, "
        f"{max(float(row[3]) for row in rows):.0f} W, {max(int(row[4]) for row in rows)} C, "
        f"reasons {'|'.join(sorted({row[5] for row in rows}))}"
        for index, rows in sorted(by_index.items())
    )


def rank_environment(case: Case, rank: int) -> dict[str, str]:
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(case.gpus), "LOCAL_WORLD_SIZE": str(case.gpus),
        "MASTER_ADDR": "localhost",
    }  # fmt: skip


def free_port() -> int:
    """A port that nothing listens on and that the system gives to no connection."""
    for port in itertools.count(29500):
        with socket.socket() as tried:
            if tried.connect_ex(("localhost", port)) != 0:
                return port
    raise AssertionError("unreachable")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
