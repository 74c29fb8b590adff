"""Runs cases in this process, one after the other, with limits on memory and time; :mod:`campaign` forks it.

A case that never ends, crashes the interpreter or is killed for its memory ends the worker with it. The campaign
sees that, and starts another.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.case import Case, read_case
from tests.fuzz.laws import Outcome, describe_files, find_broken_laws
from tests.paths import REPOSITORY

MEMORY_BYTES = 2 << 30
"""Address space that a case may take beyond what the libraries have when loaded."""
FILE_BYTES = 1 << 29
CPU_S = 8.0
"""Of one case: a sound case of the largest kind takes half a second on a busy machine."""


def load_program() -> None:
    """Imports everything that a case may need, without a query of polars: its threads would not survive a fork."""
    for package in (
        "cli",
        "report",
        "advice",
        "advice.format",
        "advice.plan",
        "tables",
    ):  # commands import what they need when they run
        for path in sorted(REPOSITORY.joinpath("three_walls", *package.split(".")).glob("*.py")):
            importlib.import_module(f"three_walls.{package}.{path.stem}")
    importlib.import_module("three_walls.pipeline")
    importlib.import_module("three_walls.runs.read_runs")

    _read_bundled_rules_once()


@functools.cache
def _read_bundled_rules_once() -> None:
    """Bundled rules never change, and each command that reads rules of a user would read all of them again."""
    from three_walls.advice import judge_warnings
    from three_walls.advice.format import load_rules, rule_sources
    from three_walls.lib import load_documents
    from three_walls.lib.resources import RULES_DIR

    bundled: dict[tuple[Path, Any], Any] = {}
    for module in (load_documents, load_rules, rule_sources, judge_warnings):
        reading = module.read_table  # type: ignore[attr-defined]

        def read(path: Path, kind: Any, problems: Any, context: Any = None, *, reading: Any = reading) -> Any:
            if not path.is_relative_to(RULES_DIR):
                return reading(path, kind, problems, context)
            if (path, kind) not in bundled:
                bundled[path, kind] = reading(path, kind, problems, context)
            return bundled[path, kind]

        module.read_table = read  # type: ignore[attr-defined]


def run_case(case: Case, place: Path | None = None) -> tuple[list[str], int]:
    """Runs ``case`` in a directory of its own, made in ``place``; returns the laws that it broke and its exit code."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=place) as root:
        directory, temporary = Path(root) / "work", Path(root) / "tmp"
        directory.mkdir()
        temporary.mkdir()
        for file in case.files:
            file.write(directory)
        given = describe_files(directory)
        before = Path.cwd()
        os.chdir(directory)
        tempfile.tempdir = str(temporary)
        try:
            outcome = _run_command(case.words, Path(root))
        finally:
            tempfile.tempdir = None
            os.chdir(before)
        broken = list(find_broken_laws(case, outcome, directory, given))
        left = sorted(path.name for path in temporary.iterdir())
        if left:
            broken.append(f"files: left in the temporary directory: {left}")
        return broken, outcome.exit_code


def _run_command(words: list[str], root: Path) -> Outcome:
    """Runs the command line as a process would, with its output in files."""
    from three_walls.cli import main as cli

    escaped, exit_code = "", 0
    started = time.process_time()
    with _redirected(root) as (out, err):
        try:
            if words[0] == "load-report":
                _load_report(words[1])
            else:
                sys.argv = ["three-walls", *words]
                cli.main()
        except SystemExit as end:
            exit_code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            escaped = f"{type(error).__name__} at {Path(at.filename).name}:{at.name}: {str(error)[:300]}"
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
    return Outcome(exit_code, escaped, out.read_bytes(), err.read_bytes(), time.process_time() - started)


def _load_report(path: str) -> None:
    """What a program does that reads a report.json; no command does."""
    from three_walls.lib.errors import ThreeWallsError
    from three_walls.report.json_report import load_report

    try:
        load_report(path)
    except ThreeWallsError as error:
        print(f"three-walls: error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)


@contextlib.contextmanager
def _redirected(root: Path) -> Iterator[tuple[Path, Path]]:
    """Standard output and error of the process, libraries included, go to files that are yielded."""
    out, err = root / "stdout", root / "stderr"
    kept = [os.dup(1), os.dup(2)]
    streams = sys.stdout, sys.stderr
    for descriptor, path in ((1, out), (2, err)):
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(target, descriptor)
        os.close(target)
    sys.stdout = io.TextIOWrapper(
        io.FileIO(1, "w", closefd=False), "utf-8", errors="surrogateescape", write_through=True
    )
    sys.stderr = io.TextIOWrapper(
        io.FileIO(2, "w", closefd=False), "utf-8", errors="backslashreplace", write_through=True
    )
    try:
        yield out, err
    finally:
        sys.stdout, sys.stderr = streams
        for descriptor, saved in zip((1, 2), kept, strict=True):
            os.dup2(saved, descriptor)
            os.close(saved)


def serve(requests: int, answers: int, place: Path) -> None:
    """Reads cases as JSON lines from one descriptor until it ends, and writes the broken laws of each to the other."""
    _limit_memory()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with os.fdopen(requests, encoding="utf-8") as incoming, os.fdopen(answers, "w", encoding="utf-8") as outgoing:
        for line in incoming:
            case = read_case(line)
            signal.setitimer(signal.ITIMER_PROF, CPU_S)
            started = time.process_time()
            exit_code = -1
            try:
                broken, exit_code = run_case(case, place)
            except BaseException as error:
                broken = [f"fuzzer: {type(error).__name__}: {error}", *traceback.format_exc().splitlines()[-6:]]
            signal.setitimer(signal.ITIMER_PROF, 0)
            spent = time.process_time() - started
            outgoing.write(json.dumps({"broken": broken, "cpu_s": spent, "exit_code": exit_code}) + "\n")
            outgoing.flush()


def _limit_memory() -> None:
    with open("/proc/self/statm") as statm:  # noqa: PTH123
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
