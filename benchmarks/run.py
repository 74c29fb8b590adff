"""Measures ``three-walls analyze`` next to the floor, nsys-ai and ``nsys stats``, in one interleaved run.

    python benchmarks/run.py                       # 6 MB and 100 MB
    python benchmarks/run.py --steps 9 --steps 57 --long 800 --write    # and 600 MB, 2.6 GB; writes docs/performance.md

The programs take turns, so that what else the machine does slows them alike; of several rounds each program's best one
counts. Compare the ratios: seconds depend on the machine, and CPU seconds of all threads on how busy it is.

- analyze: ``three-walls analyze`` by ``benchmarks/stages.py``, with all files of the report.
- floor: ``benchmarks/floor.py``, which reads the same columns and does nothing with them.
- nsys-ai: ``nsys-ai diagnose``, from an environment of its own, on a fresh copy: it writes indexes into its input.
- nsys stats: four of its reports, where ``nsys`` (``--nsys PATH``) works; else the error is shown.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import click

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.processes import OWN, REPOSITORY, FailedProgramError, Use, measure

SMALL = REPOSITORY / "sample_traces" / "wide-nvlink-alltoall.sqlite"
BASE = REPOSITORY / "sample_traces" / "qwen-alltoall-ep8.sqlite.xz"
KEPT = REPOSITORY / ".venvs"
"""Not under version control: environments, and traces that were generated."""
PAGE = REPOSITORY / "docs" / "performance.md"
BEGIN, END = "<!-- measured by benchmarks/run.py: begin -->", "<!-- measured by benchmarks/run.py: end -->"
NSYS_AI = "nsys-ai==0.3.0"
NSYS_REPORTS = {
    "cuda_gpu_kern_sum": "gpukernsum",
    "cuda_api_sum": "cudaapisum",
    "nvtx_sum": "nvtxsum",
    "cuda_gpu_mem_time_sum": "gpumemtimesum",
}
"""A report -> its name before Nsight Systems 2023."""
ANALYZE, FLOOR = "analyze", "floor"

Program = Callable[[Path, Path], Use]
"""From a trace and an empty directory to what it took."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A program on a trace: its best run, or why there is none."""

    program: str
    best: Use | None
    error: str = ""


def analyze(trace: Path, folder: Path) -> Use:
    """The command as a user runs it, with its table of stages on stderr.

    The table has the peak of memory: to measure that of each stage, the command has the kernel forget the one before.
    """
    stages = REPOSITORY / "benchmarks" / "stages.py"
    use = measure([sys.executable, stages, trace, "--quiet", "--out", folder / "report"], OWN)
    return replace(use, peak_bytes=int(float(use.stderr.split()[-1]) * 1e6))


def read_floor(trace: Path, folder: Path) -> Use:  # noqa: ARG001
    """The least that any reader of the trace does."""
    return measure([sys.executable, REPOSITORY / "benchmarks" / "floor.py", trace])


def diagnose(trace: Path, folder: Path) -> Use:
    """nsys-ai on a copy, in an empty directory and with an empty home: it writes into both."""
    copy = shutil.copyfile(trace, folder / trace.name)
    command = [KEPT / "nsys-ai" / "bin" / "nsys-ai", "diagnose", copy, "--no-browser"]
    return measure(command, {"HOME": str(folder), "XDG_CACHE_HOME": str(folder)}, folder)


def run_nsys(nsys: str, report: str) -> Program:
    """``nsys stats`` with ``report``, on a copy: it may write next to its input."""

    def stats(trace: Path, folder: Path) -> Use:
        copy = shutil.copyfile(trace, folder / trace.name)
        use = measure([nsys, "stats", "--force-export=false", "--report", report, copy], folder=folder)
        if "ERROR" in use.stderr:
            raise FailedProgramError(next(line for line in use.stderr.splitlines() if "ERROR" in line))
        return use

    return stats


def list_nsys_reports(nsys: str) -> list[str]:
    """``NSYS_REPORTS`` by the names that this nsys has; the new ones where it cannot be asked."""
    try:
        done = subprocess.run([nsys, "stats", "--help-reports"], capture_output=True, text=True, check=False)
    except OSError:
        return [*NSYS_REPORTS]
    known = set(re.findall(r"^ +(\w+)", done.stdout + done.stderr, re.MULTILINE))
    return [old if old in known else name for name, old in NSYS_REPORTS.items()]


def install_nsys_ai() -> None:
    """Makes the environment of nsys-ai. Raises FailedProgramError where it cannot be installed."""
    home = KEPT / "nsys-ai"
    if not (home / "bin" / "nsys-ai").exists():
        venv.create(home, with_pip=True)
        measure([home / "bin" / "python", "-m", "pip", "install", "--quiet", NSYS_AI])


def measure_trace(trace: Path, programs: dict[str, Program], rounds: int) -> list[Measured]:
    """Runs the programs in turns; one that failed once is not tried again."""
    runs: dict[str, list[Use]] = {name: [] for name in programs}
    errors: dict[str, str] = {}
    for turn in range(rounds):
        for name, program in programs.items():
            if name in errors:
                continue
            click.echo(f"{trace.name}: {name}, round {turn + 1} of {rounds}", err=True)
            with TemporaryDirectory(dir=KEPT) as folder:
                try:
                    runs[name].append(program(trace, Path(folder)))
                except (FailedProgramError, OSError) as error:
                    errors[name] = str(error)
    best = {name: min(found, key=lambda use: use.cpu_s) for name, found in runs.items() if found}
    return [Measured(name, best.get(name), errors.get(name, "")) for name in programs]


def render_trace(trace: Path, measured: list[Measured]) -> list[str]:
    """The programs on one trace as Markdown, then the stages of the analysis."""
    uses = {found.program: found.best for found in measured}
    floor, own = uses[FLOOR], uses[ANALYZE]
    lines = [
        f"### {trace.name}, {trace.stat().st_size / 1e6:,.0f} MB",
        "",
        "| program | CPU s | wall s | peak MB | CPU / floor | CPU / analyze |",
        "|---|---|---|---|---|---|",
    ]
    for found in measured:
        use = found.best
        if use is None:
            lines.append(f"| {found.program} | failed: {found.error} | | | | |")
            continue
        of_floor, of_own = (f"{use.cpu_s / other.cpu_s:.2f}" if other else "" for other in (floor, own))
        lines.append(
            f"| {found.program} | {use.cpu_s:.2f} | {use.wall_s:.2f} | {use.peak_bytes / 1e6:,.0f} | "
            f"{of_floor} | {of_own} |"
        )
    if own:
        _, title, rows = own.stderr.partition("stage ")
        lines += ["", "Stages of analyze, of the same run:", "", "```text", (title + rows).strip(), "```"]
    return [*lines, ""]


def describe_machine(nsys: str) -> str:
    """Processor, cores, memory and versions, on one line."""
    try:
        found = subprocess.run([nsys, "--version"], capture_output=True, text=True, check=False).stdout
        nsys_version = found.strip() or "no nsys"
    except OSError:
        nsys_version = "no nsys"
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    packages = ", ".join(f"{name} {version(name)}" for name in ("three-walls", "polars", "adbc-driver-sqlite"))
    return (
        f"{model}, {os.cpu_count()} cores, {memory_bytes / 2**30:.0f} GiB; {platform.system()} "
        f"{platform.release().partition('-')[0]}, Python {platform.python_version()}, {packages}, "
        f"{NSYS_AI.replace('==', ' ')}, {nsys_version}"
    )


def make_traces(steps: tuple[int, ...]) -> list[Path]:
    """The small sample, and one trace for each number of steps; those that were generated are kept."""
    return [SMALL, *(_inflate(f"{count}-steps", count) for count in steps)]


def make_long_trace(steps: int) -> Path:
    """A trace of so many steps without the ranges of operators, as a capture of minutes is made."""
    return _inflate(f"{steps}-steps-without-operators", steps, "--without", "aten::*")


def _inflate(name: str, steps: int, *options: str) -> Path:
    trace = KEPT / "benchmark_traces" / f"{name}.sqlite"
    if not trace.exists():
        program = REPOSITORY / "benchmarks" / "inflate.py"
        measure([sys.executable, program, BASE, trace, "--steps", str(steps), *options], OWN)
    return trace


@click.command()
@click.argument("traces", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--steps", multiple=True, type=int, default=(9,), help="Also a trace of so many steps, 11 MB each.")
@click.option("--long", "long_steps", type=int, help="Also so many steps without operators, 3 MB each; no peers.")
@click.option("--rounds", default=3, help="How often each program runs; its best run counts.")
@click.option("--peers/--no-peers", default=True, help="Whether nsys-ai and nsys stats run too.")
@click.option("--nsys", default="nsys", help="The nsys that runs the reports.")
@click.option("--write", is_flag=True, help="Write the table of docs/performance.md.")
def main(
    traces: tuple[Path, ...],
    steps: tuple[int, ...],
    long_steps: int | None,
    rounds: int,
    peers: bool,
    nsys: str,
    write: bool,
) -> None:
    """Measures TRACES (plain exports); without any, a sample and generated ones."""
    KEPT.mkdir(exist_ok=True)
    programs: dict[str, Program] = {ANALYZE: analyze, FLOOR: read_floor}
    if peers:
        try:
            install_nsys_ai()
        except FailedProgramError as error:
            click.echo(f"nsys-ai cannot be installed: {error}", err=True)
        programs["nsys-ai diagnose"] = diagnose
        programs |= {f"nsys stats {report}": run_nsys(nsys, report) for report in list_nsys_reports(nsys)}
    load = f"The load average was {os.getloadavg()[0]:.0f} when they began: above 0, wall seconds mean little."
    lines = [f"{describe_machine(nsys)}. Best of {rounds} interleaved rounds. {load}", ""]
    for trace in traces or make_traces(steps):
        lines += render_trace(trace, measure_trace(trace, programs, rounds))
    if long_steps:
        trace = make_long_trace(long_steps)
        lines += render_trace(trace, measure_trace(trace, {ANALYZE: analyze, FLOOR: read_floor}, rounds))
    text = "\n".join(lines).rstrip() + "\n"
    click.echo(text)
    if write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
