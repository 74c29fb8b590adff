"""Every block that ``analyze`` prints is taken by the release that it is printed for: ``make test-bridge``.

A block is for one release, or for all of them where the run does not show its own. Megatron-Bridge gets it as
overrides.txt has it, on a recipe with the settings that the report has, and on the run's saved configuration if there
is one. ``THREE_WALLS_BRIDGE_TRACES`` names more folders, each with the traces of one run, its logs and, where it has
one, its run_config.yaml.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.bridge.overlap_cases import WITH_SECTION
from tests.bridge.recommended import EditedRun, Gpu, check_edits, is_fine
from tests.bridge.releases import BRIDGES, EVERY_RELEASE
from tests.paths import SAMPLES
from three_walls import analyze
from three_walls.advice.finding import Overrides
from three_walls.bridge.merged_config import COMM_OVERLAP
from three_walls.cli.verify import read_overrides
from three_walls.report.overrides_file import render_overrides
from three_walls.report.report import Report
from three_walls.tables.bridge_releases import bridge_schema


@dataclass(frozen=True)
class TracedRun:
    """Inputs of one analysis."""

    name: str
    trace: Path
    logs: tuple[Path, ...] = ()
    config: Path | None = None


def traced_runs() -> Iterator[TracedRun]:
    """The sample traces, then the folders of the environment, each with its logs and without."""
    for labels in sorted(SAMPLES.glob("*.labels.yaml")):
        trace = SAMPLES / yaml.safe_load(labels.read_text(encoding="utf-8"))["trace"]
        yield TracedRun(labels.name.removesuffix(".labels.yaml"), trace)
    for folder in map(Path, os.environ.get("THREE_WALLS_BRIDGE_TRACES", "").split(os.pathsep)):
        if folder != Path():
            config = folder / "run_config.yaml"
            yield TracedRun(folder.name, folder, config=config if config.is_file() else None)
            yield TracedRun(f"{folder.name}, logs", folder, tuple(sorted(folder.glob("*.log"))))


@cache
def report_of(run: TracedRun, release: str | None) -> Report:
    return analyze(run.trace, logs=run.logs, config=run.config, bridge_version=release)


@dataclass(frozen=True)
class PrintedBlock:
    """What to ask Megatron-Bridge about one printed block, and on which GPU."""

    name: str
    gpu: Gpu
    requests: tuple[dict[str, Any], ...]


def printed_blocks(run: TracedRun, release: str, printed_for: str | None, folder: Path) -> Iterator[PrintedBlock]:
    """The block of the run, on every recipe that the run may have: with a comm_overlap section, and without one."""
    report = report_of(run, printed_for)
    edits = tuple(edit for step in report.plan for edit in step.edits)
    if not edits:
        return
    settings = {f"config.{name}": found.value for name, found in report.config.values.items()}
    variables = {f"env.{name}": found.value for name, found in report.config.environment.items()}
    machine = {"gpu.family": report.facts.get("gpu.family").value}
    edited = EditedRun(run.name, edits, settings | variables | machine, report.facts.number("world_size"))
    printed = as_pasted(report, folder)
    name = f"{run.name}, printed for {printed_for or 'every release'}"
    if run.config is not None and release.startswith(report.config.bridge_version or "none"):
        alone, overridden, in_python = edited.requests_for(printed, release)
        saved = tuple({**request, "config": str(run.config)} for request in (alone, overridden, in_python))
        yield PrintedBlock(f"{name}, saved configuration", edited.gpu, saved)
    has_section = report.config.get(COMM_OVERLAP) is not None
    newer = bridge_schema(release).find("model.cuda_graph_modules") and report.config.get("cuda_graph_modules")
    # A recipe may name the captured modules in the older setting. A run that has the newer one cannot have both.
    before = ("cfg.model.cuda_graph_scope = None",) if newer else ()
    if has_section or not report.config.knows(COMM_OVERLAP):
        requests = edited.requests_for(printed, release, (*before, *WITH_SECTION))
        yield PrintedBlock(f"{name}, recipe with a comm_overlap section", edited.gpu, requests)
    if not has_section:
        requests = edited.requests_for(without_section(printed), release, before)
        yield PrintedBlock(f"{name}, recipe without a comm_overlap section", edited.gpu, requests)


def as_pasted(report: Report, folder: Path) -> Overrides:
    """The overrides and variables that a shell gets from overrides.txt."""
    path = folder / "overrides.txt"
    path.write_text(render_overrides(report), encoding="utf-8")
    written = read_overrides(path)
    return replace(report.overrides, bridge=written.overrides, env=dict(written.environment))


def without_section(printed: Overrides) -> Overrides:
    """The lines for a recipe without a comm_overlap section, as the conditional block states."""
    instead = [
        line
        for block in printed.conditional
        if block.launcher == "bridge" and "without a comm_overlap section" in block.condition
        for line in block.lines
    ]
    kept = [line for line in printed.bridge if not line.startswith(f"{COMM_OVERLAP}.")]
    return replace(printed, bridge=(*kept, *instead))


@EVERY_RELEASE
def test_a_release_takes_every_block_that_is_printed_for_it(release: str, tmp_path: Path) -> None:
    blocks = [
        block
        for run in traced_runs()
        for printed_for in (release, None)
        for block in printed_blocks(run, release, printed_for, tmp_path)
    ]
    assert blocks
    wrong = []
    for gpu in sorted({block.gpu for block in blocks}):
        of_gpu = [block for block in blocks if block.gpu == gpu]
        results = BRIDGES[release].ask([request for block in of_gpu for request in block.requests], gpu)
        for number, block in enumerate(of_gpu):
            alone, overridden, in_python = results[3 * number : 3 * number + 3]
            wrong += [f"{block.name} without the edits: {alone['message']}"] * (not is_fine(alone))
            try:
                check_edits(block.name, alone, overridden, in_python)
            except AssertionError as error:
                wrong.append(str(error))
    assert not wrong, "\n".join(wrong)
