"""What an agent may ask: each tool gives text that is small enough for a model, or raises what the command would.

Nothing is written, no other program is run, and only files below the folders that the server was given are read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from three_walls.advice.answer_what_if import answer
from three_walls.bridge.real_bridge.verify_overrides import Target
from three_walls.capture.judge_capture import examine
from three_walls.cli.compare import CompareRequest, compare_given, list_outcomes
from three_walls.cli.doctor import format_examination
from three_walls.cli.rules import describe_fact
from three_walls.cli.verify import verify_given
from three_walls.cli.whatif import describe_what_if, read_question
from three_walls.facts.sheet import DEFINITION_BY_NAME, DEFINITIONS
from three_walls.lib.errors import UsageError
from three_walls.lib.folders import Folders
from three_walls.lib.load_documents import suggest
from three_walls.lib.text import format_setting
from three_walls.pipeline import analyze_run
from three_walls.report.comparison_report import render_shown
from three_walls.report.formats import format_gain
from three_walls.report.json_report import load_report
from three_walls.report.markdown_report import write_markdown
from three_walls.report.render_report import render
from three_walls.report.report import LiveReport, Report
from three_walls.report.section import Card, Section, nested_blocks
from three_walls.report.sections import make_sections
from three_walls.runs.gate import read_gate
from three_walls.runs.read_runs import GivenRun, parse_run, read_history
from three_walls.trace.beside import add_beside
from three_walls.trace.run_request import RunRequest

PAGE_CHARACTERS = 6_000
"""Of one result, about 2,000 tokens; a longer text has further pages."""
_MOST_RUNS = 4
"""Analyzed runs that are kept: the report of a large run takes some 100 MB."""

Paths = Annotated[list[str], Field(description="Files or directories")]
RunId = Annotated[str, Field(description="As analyze named it, like r1")]
Page = Annotated[int, Field(ge=1, description="Of a long text")]
Settings = Annotated[list[str], Field(description="KEY=VALUE each, by Megatron Core name or Bridge path")]


_Stamp = tuple[Path, int, int]
"""A file as it was when it was read: path, size and time of its last change in ns."""


class Tools:
    """The tools, with the runs that they analyzed so far."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._runs: OrderedDict[str, tuple[tuple[RunRequest, frozenset[_Stamp]], Report]] = OrderedDict()
        self._runs_count = 0

    def all(self) -> tuple[Callable[..., str], ...]:
        """All tools; their docstrings and parameters are what a client is told."""
        return (
            self.analyze,
            self.plan,
            self.section,
            self.whatif,
            self.verify,
            self.compare,
            self.plan_next,
            self.doctor,
            self.facts,
        )

    def analyze(
        self,
        traces: Paths,
        logs: Paths = [],  # noqa: B006 - it becomes a default in the schema, and nothing changes it
        config: Annotated[str, Field(description="run_config.yaml of the run")] = "",
        settings: Settings = [],  # noqa: B006
        step_range: Annotated[str, Field(description="Regex of NVTX ranges that are steps")] = "",
        bridge_version: Annotated[str, Field(description="Megatron-Bridge release for the overrides, X.Y.Z")] = "",
    ) -> str:
        """Find what limits a training run: the verdict, the budget of its step and the plan, on one screen.

        traces: exports of Nsight Systems of one run (.sqlite, .xz, .zst, parquet directories), a directory of them, or
        one report.json. Takes seconds to minutes. Other tools take the id of the run that it names.
        """
        request = RunRequest(
            tuple(map(self._folders.find, traces)),
            logs=tuple(map(self._folders.find, logs)),
            config=self._folders.find(config) if config else None,
            settings=tuple(settings),
            step_range=step_range or None,
            bridge_version=bridge_version or None,
        )
        if not request.traces:
            raise UsageError("traces: expected at least one path, found none")
        run = self._keep(add_beside(request))
        report = self._runs[run][1]
        sizes = ", ".join(f"{section.name} {len(_split(_write(section)))}" for section in make_sections(report))
        screen = render(report, "text").rpartition("--full")[0].rstrip()
        return f"Run {run}.\n{screen}\n\nSections of {run}, with their pages: {sizes}"

    def plan(
        self,
        run: RunId,
        entry: Annotated[int, Field(ge=0, description="Number of an entry; 0: a line for each")] = 0,
        page: Page = 1,
    ) -> str:
        """The edits to make, in order, with gains in ms; of one entry its evidence, risks and overrides to copy."""
        report = self._find(run)
        if entry == 0:
            lines = [
                f"{step.order}. {step.finding.title} ({step.rule}): {format_gain(step.gain_ns)}"
                + "".join(f"; {edit.key}={format_setting(edit.to)}" for edit in step.edits)
                for step in report.plan
            ]
            return _page("\n".join(lines) or "The plan is empty: see section plan.", page)
        section = next(each for each in make_sections(report) if each.name == "plan")
        cards = [block for block in nested_blocks(section.blocks) if isinstance(block, Card)]
        card = next((card for card in cards if card.marker == str(entry)), None)
        if card is None:
            raise UsageError(f"entry: expected one of 1 to {len(report.plan)}, found {entry}")
        return _page(write_markdown([Section("plan", "", (card,))]), page)

    def section(self, run: RunId, name: str, page: Page = 1) -> str:
        """One section of the report, as Markdown; analyze lists their names and sizes."""
        sections = {section.name: section for section in make_sections(self._find(run))}
        if name not in sections:
            raise UsageError(f"name: expected one of {', '.join(sections)}, found {name!r}{suggest(name, sections)}")
        return _page(_write(sections[name]), page)

    def whatif(
        self,
        run: RunId,
        settings: Settings = [],  # noqa: B006
        scales: Annotated[list[str], Field(description="host=0.5, nccl=0.5, gemms=1.2, or a bucket")] = [],  # noqa: B006
        dropped: Annotated[list[str], Field(description="Regex of kernels to leave out")] = [],  # noqa: B006
        network_gbs: Annotated[float | None, Field(description="GB/s per GPU and direction")] = None,
        page: Page = 1,
    ) -> str:
        """Predict the step after changes, all taken together, and name what a release of the launcher refuses."""
        report = self._find(run)
        question = read_question(tuple(settings), tuple(scales), tuple(dropped), network_gbs)
        if not isinstance(report, LiveReport) or report.replay is None:
            raise UsageError("whatif: expected a run analyzed from its traces, found a report.json: analyze the traces")
        return _page("\n".join(describe_what_if(answer(question, report.replay))), page)

    def verify(
        self,
        what: Annotated[
            list[str], Field(description="Overrides like train.micro_batch_size=2, a command's words, or one file")
        ],
        config: Annotated[str, Field(description="run_config.yaml that the overrides are for")] = "",
        recipe: Annotated[str, Field(description="Recipe that they are for, instead")] = "",
        bridge_version: Annotated[str, Field(description="X.Y.Z")] = "",
        gpu: Annotated[str, Field(description="Like NVIDIA B200")] = "",
        world_size: Annotated[int | None, Field(description="GPUs of the run")] = None,
        page: Page = 1,
    ) -> str:
        """Check that overrides apply to a run and that it would start: names, types, values, constraints."""
        is_file = len(what) == 1 and "=" not in what[0]
        verification = verify_given(
            [str(self._folders.find(what[0]))] if is_file else what,
            Target(
                recipe=recipe or None,
                config_file=self._folders.find(config) if config else None,
                config=None,
                release=bridge_version or None,
                python=None,
                gpu_name=gpu or None,
                world_size=world_size,
            ),
        )
        outcome = "Valid." if verification.is_valid else "Not valid: an override fails (exit code 1 of the command)."
        return _page("\n".join((outcome, *verification.lines)), page)

    def compare(
        self,
        before: Annotated[str, Field(description="PATH[,log=FILE][,config=FILE]: traces, report.json or logs")],
        afters: Annotated[list[str], Field(description="The same, one or more")],
        repeats: Annotated[list[str], Field(description="Further runs of before: their drift is spread")] = [],  # noqa: B006
        fail_if: Annotated[list[str], Field(description="Conditions like 'step > +3%'")] = [],  # noqa: B006
        page: Page = 1,
    ) -> str:
        """Whether the step changed beyond its spread, by which settings, and in which buckets."""
        if not afters:
            raise UsageError("afters: expected at least one run, found none")
        gates = tuple(read_gate(expression, DEFINITION_BY_NAME) for expression in fail_if)
        find = self._find_run
        comparison = compare_given(
            CompareRequest(find(before), tuple(map(find, afters)), tuple(map(find, repeats)), gates)
        )
        failed, unknown = list_outcomes(comparison)
        decided = [*failed, *unknown]
        code = f" (exit code {1 if failed else 6} of the command)" if decided else ""
        lines = [f"{text}{code}" for text in decided]
        return _page("\n".join((*lines, render_shown(comparison, "md", is_full=False))), page)

    def plan_next(self, runs_dir: str, page: Page = 1) -> str:
        """What to try next, from a directory with a subdirectory for each run made so far."""
        return _page(render_shown(read_history(self._folders.find(runs_dir)), "md"), page)

    def doctor(self, traces: Paths, page: Page = 1) -> str:
        """What a capture can support, and how to record what is missing."""
        return _page(format_examination(examine(tuple(map(self._folders.find, traces)))), page)

    def facts(
        self,
        pattern: Annotated[str, Field(description="Part of names; settings are config.KEY and env.NAME")] = "",
        run: Annotated[str, Field(description="Gives the values of that run; else the definitions")] = "",
        page: Page = 1,
    ) -> str:
        """Named numbers: their values in a run, in ns, bytes and fractions, or their definitions."""
        none = f"No name of a fact has {pattern!r} in it."
        if not run:
            found = (entry for entry in DEFINITIONS if pattern in entry.name)
            return _page("\n".join(line for entry in found for line in describe_fact(entry)) or none, page)
        sheet = self._find(run).facts
        lines = []
        for name, fact in sheet.facts.items():
            if pattern in name:
                value = f"unknown: {fact.missing_reason}" if fact.missing_reason else format_setting(fact.value)
                unit = DEFINITION_BY_NAME[name].unit if name in DEFINITION_BY_NAME else "config"
                lines.append(f"{name} = {value} [{unit}]")
        return _page("\n".join(lines) or none, page)

    def _keep(self, request: RunRequest) -> str:
        """The id of the run, which is analyzed unless an earlier one was of the same files."""
        key = request, frozenset(_stamp((*request.traces, *request.logs, *filter(None, [request.config]))))
        for run, (known, _) in self._runs.items():
            if known == key:
                return run
        if len(request.traces) == 1 and request.traces[0].suffix == ".json":
            report = load_report(request.traces[0])
        else:
            report = analyze_run(request)
        self._runs_count += 1
        self._runs[f"r{self._runs_count}"] = key, report
        if len(self._runs) > _MOST_RUNS:
            self._runs.popitem(last=False)
        return f"r{self._runs_count}"

    def _find(self, run: str) -> Report:
        if run not in self._runs:
            known = ", ".join(self._runs) or "none yet: analyze first"
            raise UsageError(f"run: expected one that analyze named ({known}), found {run!r}")
        return self._runs[run][1]

    def _find_run(self, text: str) -> GivenRun:
        """The run that ``text`` gives, once all its paths were found in the folders."""
        given = parse_run(text)
        return replace(
            given,
            path=self._folders.find(str(given.path)),
            logs=tuple(self._folders.find(str(log)) for log in given.logs),
            config=self._folders.find(str(given.config)) if given.config else None,
            kernel_names=self._folders.find(str(given.kernel_names)) if given.kernel_names else None,
        )


def _stamp(paths: Iterable[Path]) -> Iterable[_Stamp]:
    for path in paths:
        for file in path.rglob("*") if path.is_dir() else (path,):
            state = file.stat()
            yield file, state.st_size, state.st_mtime_ns


def _write(section: Section) -> str:
    return write_markdown([section])


def _page(text: str, page: int = 1) -> str:
    """The page of ``text``, and where the others are. Raises UsageError for one that there is not."""
    pages = _split(text)
    if page > len(pages):
        raise UsageError(f"page: expected one of 1 to {len(pages)}, found {page}")
    return pages[page - 1] + (f"\n[page {page} of {len(pages)}]" if len(pages) > 1 else "")


def _split(text: str) -> Sequence[str]:
    """``text`` in pages, between lines where these are not too long themselves."""
    pages, begun = [], ""
    for line in text.rstrip().splitlines(keepends=True):
        for start in range(0, len(line), PAGE_CHARACTERS):
            part = line[start : start + PAGE_CHARACTERS]
            if len(begun) + len(part) > PAGE_CHARACTERS:
                pages.append(begun.rstrip("\n"))
                begun = ""
            begun += part
    return [*pages, begun.rstrip("\n")]
