"""Train a base configuration and its single edits in turn, and capture the base: pairs of predicted and measured gains.

    python benchmarks/gpu/run_cases.py benchmarks/gpu/cases/NAME.yaml ... --out DIR [--nsys NSYS] [--seconds N]
    python benchmarks/gpu/run_cases.py benchmarks/gpu/cases/NAME.yaml ... --dry-run [--python PYTHON]

The runs of a case alternate: base, edits, base, edits, ..., base. So every edit has a base close to it in time, and the
drift of the machine shows. One more run of the base is captured with Nsight Systems, one report per rank. For every run
DIR/NAME holds the logs of its ranks and a line of runs.jsonl: median and quartiles of the steps after the warm-up, and
what nvidia-smi read meanwhile. A dry run needs no GPU: it checks the cases and says how long they take. See
benchmarks/gpu/README.md.
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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from case import BASE, Case, Edit, alike, kept_steps, labels_of, order, overrides_of, rank_environment, read_case
from cpus import share_cpus, show_cpus

HERE = Path(__file__).resolve().parent
STEP_TIME = re.compile(rb"elapsed time per iteration \(ms\): ([0-9.]+)")
ERROR = re.compile(r"[\w.]*(Error|Exception)\b|make.*: \*\*\* ")
"""How tracebacks and make begin the line that says why they end."""
RANK = re.compile(r"^\[rank\d+\]: ?")
GPU_FIELDS = "index,clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active,memory.used"
CAPTURED = 99
"""The number of the captured base."""
RUN_LIMIT_S = 180
"""A training that takes longer hangs."""
CAPTURE = (
    "--sample=none", "--cpuctxsw=none", "--cuda-memory-usage=true", "--cuda-graph-trace=node",
    "--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--force-overwrite=true",
)  # fmt: skip
TRACES = {
    "capture": "cuda,nvtx",
    "ranges": None,
    "calls": "cuda",
    "alternating": "cuda,nvtx",
    "alternating-ranges": None,
}
"""What Nsight Systems records for each way to profile; None: it does not run, only the ranges are pushed.

Alternating: every other step pushes ranges, so that the drift of the machine falls out of their cost."""
RANGES = {"calls": "none", "alternating": "every other", "alternating-ranges": "every other"}
Pins = Sequence[Collection[int]] | None
"""The CPUs of each rank; None where the system chooses."""


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
    cpus: tuple[str, ...]
    """Those that each rank may use; empty where ranks are not pinned."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, help="folder for what comes out")
    parser.add_argument("--nsys", default="nsys", help="Nsight Systems' command")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="after so many seconds start the closing base alone"
    )
    parser.add_argument("--rounds", type=int, help="run every edit so often, between bases; else as the case says")
    parser.add_argument(
        "--only", choices=("capture", "edits"), help="capture the bases only, or time without capturing"
    )
    parser.add_argument("--no-pin", action="store_true", help="let the system choose the CPUs of each rank")
    parser.add_argument("--dry-run", action="store_true", help="check the cases and plan their time; needs three-walls")
    parser.add_argument("--python", help="for a dry run: an interpreter with Megatron-Bridge, which then judges, too")
    options = parser.parse_args()
    cases = [read_case(path) for path in options.cases]
    if options.rounds:
        cases = [replace(case, rounds=options.rounds) for case in cases]
    if options.dry_run:
        from dry_run import report  # the only part that needs three-walls

        sys.exit(report(cases, options.only, options.python))
    if options.out is None:
        parser.error("--out is needed")
    deadline = time.monotonic() + options.seconds
    pins = None if options.no_pin else share_cpus(max(case.gpus for case in cases))
    print(f"CPUs of the ranks: {' '.join(map(show_cpus, pins)) if pins else 'as the system chooses'}", flush=True)
    if options.only != "edits":
        capture(cases, options.out, options.nsys, deadline, pins)
    if options.only != "capture":
        for number, same in enumerate(alike(cases)):
            supply = Supply(same[0], unused(options.out / f"workers{number}"), pins)
            for case in same:
                measure(case, supply, options.out / case.name, options.nsys, deadline, pins)
            supply.stop()


def unused(folder: Path) -> Path:
    """The folder, or the first beside it with a further number that does not exist: a command may be repeated."""
    names = itertools.chain([folder], (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2)))
    return next(name for name in names if not name.exists())


class Workers:
    """One process per rank with Megatron-Bridge imported; see worker.py for how they are asked."""

    def __init__(
        self,
        case: Case,
        folder: Path,
        pins: Pins,
        edit: Edit = BASE,
        before: Sequence[Sequence[str]] = (),
    ) -> None:
        self.folders = [unused(folder / f"worker{rank}") for rank in range(case.gpus)]
        self.cpus = tuple(pins[: case.gpus]) if pins else ()
        self.processes = []
        self.jobs = 0
        for rank, own in enumerate(self.folders):
            own.mkdir(parents=True)
            command = [
                *(before[rank] if before else ()),
                sys.executable,
                str(HERE / "worker.py"),
                case.recipes,
                str(case.models),
                str(own),
            ]
            # A profiler records the environment that a process began with, and libraries read some of it when loaded.
            variables = {**os.environ, **case.environment, **edit.environment, **rank_environment(case, rank)}
            pin = partial(os.sched_setaffinity, 0, self.cpus[rank]) if self.cpus else None
            with (own / "log").open("w") as log:
                self.processes.append(
                    subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables, preexec_fn=pin
                    )
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

    def end(self) -> None:
        """Let the processes end, without waiting for them."""
        for own in self.folders:
            (own / "stop").touch()

    def stop(self, wait_s: float = 10) -> None:
        self.end()
        for process in self.processes:
            try:
                process.wait(wait_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

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

    def __init__(self, case: Case, folder: Path, pins: Pins, ahead: int = 2) -> None:
        self._case, self._folder, self._pins, self._made = case, folder, pins, 0
        self._taken: list[Workers] = []
        self._waiting: list[Workers] = [self._make()]
        self._ahead = 1 if self._waiting[0].can_fork else ahead

    def take(self) -> Workers:
        if self._ahead == 1:
            return self._waiting[0]
        while len(self._waiting) <= self._ahead:
            self._waiting.append(self._make())
        self._taken.append(self._waiting.pop(0))
        return self._taken[-1]

    def stop(self) -> None:
        for workers in self._taken + self._waiting:
            workers.stop()

    def _make(self) -> Workers:
        self._made += 1
        return Workers(self._case, self._folder / str(self._made), self._pins)


def capture(cases: Sequence[Case], folder: Path, nsys: str, deadline: float, pins: Pins) -> None:
    """Profile one training of each base. While one trains, the next imports and the last writes its report."""
    captured = [case for case in cases if case.capture]
    started: dict[str, Workers] = {}
    for number, case in enumerate(captured):
        for soon in captured[number : number + 2]:
            if soon.name not in started:
                started[soon.name] = start_profiled(soon, BASE, folder / soon.name, nsys, pins)
        if time.monotonic() > deadline:
            print(f"{case.name}: no time left for a capture", flush=True)
            continue
        profiled = Edit("base", profiler="capture")
        run = train(case, profiled, CAPTURED, started[case.name], folder / case.name)
        started[case.name].end()
        write_line(run, folder / case.name)
        if case.expect is not None:
            (folder / f"{case.name}.labels.yaml").write_text(yaml.safe_dump(labels_of(case), sort_keys=False))
        print(f"{case.name} captured: {run.median_ms} ms, {run.steps_ms[-5:]} {run.error or ''}", flush=True)
    for workers in started.values():
        workers.stop(90)


def measure(case: Case, supply: Supply, folder: Path, nsys: str, deadline: float, pins: Pins) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    profiled = {
        edit.name: start_profiled(case, edit, folder, nsys, pins)
        for edit in case.edits
        if edit.profiler and TRACES[edit.profiler]
    }
    first = count_runs(folder)
    last = BASE
    for number, edit in enumerate(order(case), first):
        if time.monotonic() > deadline:
            if last is BASE:
                print(f"{case.name}: no time left for {edit.name}", flush=True)
                break
            edit = BASE  # the edit before it tells more with a base on either side
        workers = profiled.get(edit.name) or supply.take()
        run = train(case, edit, number, workers, folder)
        write_line(run, folder)
        print(f"{case.name} {edit.name}: {run.median_ms} ms {run.quartiles_ms} {run.error or ''}", flush=True)
        if edit.name in profiled:
            workers.stop(90)
        if run.error and number == first:
            print(f"{case.name}: the base failed, so its edits do not run", flush=True)
            break
        last = edit


def count_runs(folder: Path) -> int:
    """How many timed runs a folder holds: those of a repeated command have the next numbers."""
    lines = folder / "runs.jsonl"
    numbers = [json.loads(line)["number"] for line in lines.read_text().splitlines()] if lines.exists() else []
    return sum(number != CAPTURED for number in numbers)


def write_line(run: Run, folder: Path) -> None:
    with (folder / "runs.jsonl").open("a") as lines:
        lines.write(json.dumps(asdict(run)) + "\n")


def start_profiled(case: Case, edit: Edit, folder: Path, nsys: str, pins: Pins) -> Workers:
    trace = f"--trace={TRACES[edit.profiler or 'capture']}"
    output = folder if edit is BASE else folder / edit.name
    before = [
        [nsys, "profile", trace, *CAPTURE, *metrics_of(case, rank), "--output", str(output / f"rank{rank}")]
        for rank in range(case.gpus)
    ]
    return Workers(case, output, pins, edit, before)


def metrics_of(case: Case, rank: int) -> list[str]:
    """Each rank samples the counters of its own GPU: one process can."""
    return [f"--gpu-metrics-device={rank}"] if case.metrics else []


def train(case: Case, edit: Edit, number: int, workers: Workers, folder: Path) -> Run:
    name = f"{number:02d}-{edit.name}"
    logs = [folder / f"{name}.rank{rank}.log" for rank in range(case.gpus)]
    port = free_port()
    watch = subprocess.Popen(
        ["nvidia-smi", f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader,nounits", "-lms", "1000"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    started = time.monotonic()
    job = {
        "recipe": case.recipe, "overrides": overrides_of(case, edit, folder),
        "environment": {**edit.environment, "MASTER_PORT": str(port)},
        "fork": not (edit.profiler and TRACES[edit.profiler]) and workers.can_fork, "limit_s": RUN_LIMIT_S,
        "faults": case.faults if edit.faults is None else edit.faults,
        "ranges_in_steps": RANGES.get(edit.profiler or "", "all"),
    }  # fmt: skip
    statuses = workers.run([{**job, "log": str(log)} for log in logs])
    wall_s = time.monotonic() - started
    watch.terminate()
    gpus = tuple((watch.communicate()[0] or "").splitlines())
    steps = [float(found) for found in STEP_TIME.findall(logs[-1].read_bytes())] if logs[-1].exists() else []
    kept = [steps[step] for step in kept_steps(case, edit) if step < len(steps)]
    failed = any(status != "0" for status in statuses)
    return Run(
        case=case.name,
        edit=None if edit.name == BASE.name else edit.name,
        rule=edit.rule,
        number=number,
        median_ms=statistics.median(kept) if kept and not failed else None,
        quartiles_ms=quartiles(kept) if len(kept) > 1 and not failed else None,
        steps_ms=tuple(steps),
        wall_s=round(wall_s, 1),
        error=last_error([log for log in logs if log.exists()]) or f"exit statuses {statuses}" if failed else None,
        gpus=summarize_gpus(gpus),
        cpus=tuple(map(show_cpus, workers.cpus)),
    )


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def last_error(logs: Sequence[Path]) -> str | None:
    """The last line that names an error, in the first log with one; else the last line of the first log with any."""
    ends = []
    for log in logs:
        lines = [RANK.sub("", line) for line in log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if ERROR.match(line)]
        if errors:
            return errors[-1][:500]
        ends += lines[-1:]
    return ends[0][:500] if ends else None


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


def free_port() -> int:
    """A port that nothing listens on and that the system gives to no connection: two of these commands may run."""
    for port in itertools.count(29500 + 20 * (os.getpid() % 50)):
        with socket.socket() as tried:
            if tried.connect_ex(("localhost", port)) != 0:
                return port
    raise AssertionError("unreachable")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
