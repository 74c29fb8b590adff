"""Runs many cases on a few forked workers, and watches over them."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.case import Case
from tests.fuzz.generate import WEIGHTS
from tests.fuzz.worker import CPU_S, load_program, serve

WALL_S = 240.0
"""Of one case. It is far above the limit on CPU time: only a case that waits without computing reaches it."""
_PLACE_BYTES = 4 << 30
CASES_PER_WORKER = 400
"""Then a worker is replaced, so that what its cases keep in memory does not add up."""


@dataclass(frozen=True, slots=True)
class Result:
    """One case and the laws that it broke."""

    case: Case
    broken: tuple[str, ...]
    cpu_s: float
    exit_code: int | None
    """None where the process did not survive the case."""

    @property
    def law(self) -> str:
        """Names the first broken law without its numbers: failures with the same one are taken for one fault."""
        first = self.broken[0] if self.broken else ""
        law, _, what = first.partition(": ")
        if law in ("escaped", "exit-code"):
            return f"{law}: {what.partition(' at ')[0] if law == 'escaped' else ' '.join(what.split()[:12])}"[:160]
        return law


@dataclass(slots=True)
class Worker:
    """A forked process that runs one case at a time."""

    place: Path
    pid: int = 0
    requests: int = -1
    answers: int = -1
    case: Case | None = None
    started: float = 0.0
    cases: int = 0

    def start(self) -> None:
        """Forks the process; this one must not have run a query of polars."""
        self.place.mkdir(exist_ok=True)
        from_parent, self.requests = os.pipe()
        self.answers, to_parent = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            status = 70
            try:
                os.close(self.requests)
                os.close(self.answers)
                serve(from_parent, to_parent, self.place)
                status = 0
            finally:
                os._exit(status)
        os.close(from_parent)
        os.close(to_parent)
        self.cases = 0

    def send(self, case: Case) -> None:
        """Lets the worker run ``case``; starts one where none runs."""
        if self.cases >= CASES_PER_WORKER:
            self.stop()
        if not self.pid:
            self.start()
        self.case, self.started, self.cases = case, time.monotonic(), self.cases + 1
        line = json.dumps(json.loads(case.to_json())).encode() + b"\n"
        while line:
            line = line[os.write(self.requests, line) :]

    def receive(self) -> Result:
        """The result of the case that was sent, once :attr:`answers` is readable."""
        assert self.case is not None
        data = b""
        while not data.endswith(b"\n"):
            chunk = os.read(self.answers, 1 << 16)
            if not chunk:
                return self._bury()
            data += chunk
        answer = json.loads(data)
        return Result(self.case, tuple(answer["broken"]), answer["cpu_s"], answer["exit_code"])

    def _bury(self) -> Result:
        """The result of a case that ended its worker."""
        assert self.case is not None
        _, status = os.waitpid(self.pid, 0)
        spent = time.monotonic() - self.started
        if not os.WIFSIGNALED(status):
            found = f"died: the process ended itself with exit code {os.waitstatus_to_exitcode(status)}"
        elif os.WTERMSIG(status) == signal.SIGPROF:
            found = f"time: more than {CPU_S:.0f} s of CPU time"
        elif os.WTERMSIG(status) == signal.SIGKILL and spent > WALL_S:
            found = f"time: more than {WALL_S:.0f} s"
        else:
            found = f"died: killed by {signal.Signals(os.WTERMSIG(status)).name}"
        self._forget()
        return Result(self.case, (found,), spent, None)

    def kill_if_late(self) -> None:
        """Ends a worker whose case waits for ever."""
        if self.pid and self.case is not None and time.monotonic() - self.started > WALL_S:
            os.kill(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Ends an idle worker."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._forget()

    def _forget(self) -> None:
        os.close(self.requests)
        os.close(self.answers)
        shutil.rmtree(self.place, ignore_errors=True)
        self.pid = 0


def run_cases(cases: Iterable[Case], workers_count: int = 2) -> Iterator[Result]:
    """Runs ``cases`` on ``workers_count`` workers; yields each result when it is there."""
    load_program()
    incoming = iter(cases)
    with (
        tempfile.TemporaryDirectory(prefix="three-walls-fuzz-", dir=_choose_place()) as root,
        selectors.DefaultSelector() as selector,
    ):
        workers = [Worker(Path(root) / str(number)) for number in range(workers_count)]
        try:
            for worker in workers:
                _give(worker, incoming, selector)
            while selector.get_map():
                for key, _ in selector.select(timeout=1.0):
                    worker = key.data
                    selector.unregister(worker.answers)
                    result = worker.receive()
                    _give(worker, incoming, selector)
                    yield result
                for worker in workers:
                    worker.kill_if_late()
        finally:
            for worker in workers:
                worker.stop()


def _choose_place() -> Path | None:
    """A file system in memory, if there is one with enough space: a case makes and removes a dozen small files."""
    memory = Path("/dev/shm")
    has_space = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > _PLACE_BYTES
    return memory if has_space else None


def _give(worker: Worker, cases: Iterator[Case], selector: selectors.BaseSelector) -> None:
    case = next(cases, None)
    if case is not None:
        worker.send(case)
        selector.register(worker.answers, selectors.EVENT_READ, worker)


def run_one(case: Case) -> Result:
    """Runs ``case`` in a process of its own."""
    return next(run_cases([case], 1))


@dataclass(slots=True)
class Tally:
    """What a campaign did."""

    cases: Counter[str] = field(default_factory=Counter)
    """By kind."""
    exit_codes: Counter[tuple[str, int | None]] = field(default_factory=Counter)
    cpu_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    failures: list[Result] = field(default_factory=list)
    slowest: Result | None = None
    """Of those that broke no law."""

    def add(self, result: Result) -> None:
        """Counts ``result``."""
        kind = result.case.id.rsplit("-", 2)[0]
        kind = kind if kind in WEIGHTS else "kept"
        self.cases[kind] += 1
        self.exit_codes[kind, result.exit_code] += 1
        self.cpu_s[kind] += result.cpu_s
        if result.broken:
            self.failures.append(result)
        elif self.slowest is None or result.cpu_s > self.slowest.cpu_s:
            self.slowest = result

    def describe(self) -> Iterator[str]:
        """A line per kind, then one per law that was broken, with the first case that broke it."""
        for kind, count in sorted(self.cases.items()):
            ends = sorted(
                (code, ends) for (of, code), ends in self.exit_codes.items() if of == kind and code is not None
            )
            shares = ", ".join(f"{code}: {ended / count:.0%}" for code, ended in ends)
            yield f"{kind:10} {count:6} cases {self.cpu_s[kind] / count * 1000:6.0f} ms each; exit codes {shares}"
        if self.slowest is not None:
            yield f"slowest: {self.slowest.case.id} ({self.slowest.cpu_s:.2f} s, with the making of its files)"
        laws = Counter(failure.law for failure in self.failures)
        for law, count in laws.most_common():
            first = next(failure for failure in self.failures if failure.law == law)
            yield f"FAILED {count:5}  {first.case.id}: {first.broken[0]}"


def take(cases: Iterator[Case], until: Callable[[], bool]) -> Iterator[Case]:
    """``cases`` until ``until`` holds."""
    for case in cases:
        if until():
            return
        yield case
