"""Compares every output of this checkout with another commit's, byte by byte: the gate of a change that must not show.

    python -m tools.same_outputs COMMIT [--only NAME ...] [--show N]

Every capture of ``sample_traces/`` and ``benchmarks/traces/`` is analyzed twice, alone and with the log and the
configuration next to it. Compared are the files that ``analyze`` writes, the report in full as text, Markdown and
tables, ``doctor``, ``whatif`` and ``export`` (tables, changes and exports spread over the captures), and ``compare``,
``plan next``, ``rules`` and ``facts`` once. Exits with 1 where a file differs, and shows the first lines that do.
What COMMIT gives is kept among temporary files: making it takes four minutes on two cores.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEPT = Path(tempfile.gettempdir()) / "three-walls-same-outputs"
"""Outside of the tree: all worktrees share it, and what packs or searches the tree does not meet its copies."""
TRACE_FOLDERS = ("sample_traces", "benchmarks/traces")
RUNS = "sample_traces/te-host-bound-runs"
"""Runs of one job with edits, for the commands that read several reports."""
WHAT_IFS = (
    ("--scale", "host=0.5"),
    ("--scale", "communication=0.5", "--scale", "gemm=0.9"),
    ("--set", "moe_token_dispatcher_type=flex"),
    ("--set", "recompute_granularity=null"),
    ("--set", "micro_batch_size=2"),
    ("--set", "cuda_graph_impl=transformer_engine"),
    ("--set", "moe_permute_fusion=true", "--set", "moe_router_fusion=true"),
    ("--set", "overlap_moe_expert_parallel_comm=true"),
)


@dataclass(frozen=True)
class Case:
    """A capture, by a path below the root, with or without what lies next to it."""

    name: str
    trace: str
    inputs: tuple[str, ...]


def list_cases(only: list[str]) -> list[tuple[int, Case]]:
    """The captures with their numbers, in order; of ``only`` these names, where any is given."""
    cases = []
    for folder in TRACE_FOLDERS:
        for path in sorted((ROOT / folder).iterdir()):
            if not (path.is_dir() or re.search(r"\.sqlite(\.xz)?$", path.name)) or f"{folder}/{path.name}" == RUNS:
                continue
            name, trace = path.name.partition(".")[0], f"{folder}/{path.name}"
            cases.append(Case(name, trace, ()))
            beside = {"--log": "train.log", "--config": "run_config.yaml"}
            if path.is_dir():
                given = [(option, f"{trace}/{file}") for option, file in beside.items() if (path / file).exists()]
            else:
                given = [("--log", f"{folder}/{log.name}") for log in path.parent.glob(f"{name}.train.log*")]
            if given:
                cases.append(Case(f"{name}+inputs", trace, tuple(word for pair in given for word in pair)))
    return [(number, case) for number, case in enumerate(cases) if not only or case.name.partition("+")[0] in only]


def produce(out: Path, only: list[str]) -> None:
    """Writes what the ``three_walls`` that Python imports here gives into ``out``."""
    out.mkdir(parents=True)
    for name in ("sample_traces", "benchmarks", "docs", "rules"):
        (out / name).symlink_to(ROOT / name)
    os.chdir(out)
    os.environ.update(COLUMNS="140", THREE_WALLS_DEBUG="1")
    with ProcessPoolExecutor() as pool:
        results = [pool.submit(_produce_case, number, case) for number, case in list_cases(only)]
        if not only:
            results.append(pool.submit(_produce_runs))
        for result in results:
            result.result()


def _produce_case(number: int, case: Case) -> None:
    _run(f"{case.name}/analyze", "analyze", case.trace, *case.inputs, "--out", f"{case.name}/out", "--full", fresh=True)
    report = f"{case.name}/out/report.json"
    if not Path(report).exists():
        return
    _run(f"{case.name}/screen", "render", report, "--format", "text")
    _run(f"{case.name}/markdown", "render", report, "--format", "md", "--full")
    names = _run(f"{case.name}/tables", "render", report, "--format", "csv").partition("there are ")[2]
    for table in re.findall(r"\w+", names)[number % 8 :: 8]:
        _run(f"{case.name}/csv/{table}", "render", report, "--format", "csv", "--table", table)
    if case.inputs:
        change = WHAT_IFS[number // 2 % len(WHAT_IFS)]
        _run(f"{case.name}/whatif {' '.join(change)}", "whatif", case.trace, *case.inputs, *change)
    else:
        _run(f"{case.name}/doctor", "doctor", case.trace)
        if number % 4 == 0:
            _run(f"{case.name}/export", "export", case.trace, "--out", f"{case.name}/step.json")


def _produce_runs() -> None:
    base, *edits = [f"{RUNS}/{run.name}" for run in sorted((ROOT / RUNS).iterdir())]
    for form in ("text", "md", "html", "json"):
        _run(f"runs/compare.{form}", "compare", base, edits[0], "--format", form)
        _run(f"runs/compare-all.{form}", "compare", base, *edits, "--format", form)
    _run("runs/plan", "plan", "next", RUNS)
    _run("runs/history", "analyze", base, "--history", RUNS, "--format", "md", "--full", fresh=True)
    for number, words in enumerate((("list",), ("test",), ("check", "rules"))):
        _run(f"runs/rules-{number}", "rules", *words)
    _run("runs/facts", "facts")


def _run(name: str, *words: str, fresh: bool = False) -> str:
    """Runs a command in this process; writes what it prints and its exit into the file ``name``, and returns it."""
    from three_walls.cli.main import cli

    if fresh and "--no-cache" in _help_of("analyze"):
        words = (*words, "--no-cache")
    printed, status = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True), "0"
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            cli(list(words), standalone_mode=False)
        except BaseException as error:
            status = f"{type(error).__name__}: {error}"
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"{printed.buffer.getvalue().decode()}\n[{status}]\n"  # type: ignore[attr-defined]
    path.write_text(text)
    return text


def _help_of(command: str) -> str:
    from three_walls.cli.main import cli

    made = cli.get_command(None, command)  # type: ignore[arg-type]
    return " ".join(word for option in made.params for word in option.opts) if made else ""


def _produce_with(tree: Path, out: Path, only: list[str]) -> None:
    """Runs :func:`produce` in a process that imports ``three_walls`` from ``tree``."""
    environment = os.environ | {"PYTHONPATH": str(tree), "POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--produce", str(out), *only]
    subprocess.run(command, env=environment, check=True, cwd=tree)


def produce_commit(commit: str, only: list[str]) -> Path:
    """What ``commit`` gives, from an earlier call where one made it."""
    name = _git("rev-parse", "--short=12", commit)
    kept = KEPT / ("+".join([name, *only]))
    if (KEPT / name).exists():
        return KEPT / name
    if not kept.exists():
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder) / "tree"
            _git("worktree", "add", "--detach", str(tree), commit)
            try:
                _produce_with(tree, Path(folder) / "out", only)
                shutil.copytree(Path(folder) / "out", kept, symlinks=True)
            finally:
                _git("worktree", "remove", "--force", str(tree))
    return kept


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout.strip()


def list_files(folder: Path, only: list[str]) -> Iterator[str]:
    """The files below ``folder`` that a run wrote, hidden ones left out."""
    names = {case.name for _, case in list_cases(only)} | ({"runs"} if not only else set())
    for path in sorted(folder.rglob("*")):
        below = path.relative_to(folder)
        if below.parts[0] in names and path.is_file() and not any(part.startswith(".") for part in below.parts):
            yield str(below)


def show_difference(before: Path, after: Path, lines: int) -> Iterator[str]:
    """The first lines that differ, cut to a screen's width around the first letter that does."""
    texts = [path.read_text(errors="replace").splitlines() if path.exists() else [] for path in (before, after)]
    shown = 0
    for line in difflib.unified_diff(*texts, lineterm="", n=0):
        if line.startswith(("---", "+++", "@@")):
            continue
        yield f"    {line[:230]}"
        shown += 1
        if shown == lines:
            return


def main(arguments: list[str]) -> int:
    """The command; see the module's docstring."""
    if arguments[:1] == ["--produce"]:
        produce(Path(arguments[1]), arguments[2:])
        return 0
    lines = int(arguments[arguments.index("--show") + 1]) if "--show" in arguments else 6
    only = [word for word in arguments[2:] if word not in ("--only", "--show", str(lines))]
    before = produce_commit(arguments[0], only)
    with tempfile.TemporaryDirectory() as folder:
        after = Path(folder) / "out"
        _produce_with(ROOT, after, only)
        names = sorted({*list_files(before, only), *list_files(after, only)})
        differing = [n for n in names if _read(before / n) != _read(after / n)]
        for name in differing:
            sys.stdout.write("\n".join([name, *show_difference(before / name, after / name, lines), ""]))
    sys.stdout.write(f"{len(names) - len(differing)} of {len(names)} files are the same\n")
    return 1 if differing else 0


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
