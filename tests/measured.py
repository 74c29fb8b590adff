"""A run as ``analyze`` measures it, without the findings, plan and page that it makes of that: half of the time.

For tests of what is measured. Its parts are called as in a report, and made when they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from three_walls.advice.format.load_rules import load_rule_base
from three_walls.advice.judge_warnings import judge_warnings
from three_walls.facts.input_warnings import measured_warnings
from three_walls.facts.sheet import DEFINITION_BY_NAME, DEFINITIONS, make_sheet
from three_walls.lib.declare import CATALOG, Artifacts
from three_walls.lib.fact import Fact, FactSheet
from three_walls.pipeline import MeasuredRun, measure_run
from three_walls.trace.run_request import RunRequest
from three_walls.trace.trace_files import keep_unpacked

_OTHER_NAMES = {"step": "step_summary", "ranks": "rank_reports", "waits": "shown_waits", "log": "log_summary"}
"""Part of a report -> the artifact that it is, where their names differ."""
_SINGLE = ("graph_coverage", "log_summary")
"""Artifacts that are None where there is none; of the others there are no rows then."""


class _Facts(Mapping[str, Fact]):
    """Each fact, measured when it is asked for."""

    def __init__(self, artifacts: Artifacts, settings: Mapping[str, Fact]) -> None:
        self._artifacts, self._settings = artifacts, settings

    def __getitem__(self, name: str) -> Fact:
        definition = DEFINITION_BY_NAME.get(name)
        if definition is None:
            return self._settings[name]
        found = self._artifacts.named(name)
        return Fact(name, found.value, definition.unit, found.missing_reason, definition)

    def __iter__(self) -> Iterator[str]:
        return iter((*DEFINITION_BY_NAME, *self._settings))

    def __len__(self) -> int:
        return len(DEFINITION_BY_NAME) + len(self._settings)


class Measured:
    """A run, with what is asked for."""

    def __init__(self, run: MeasuredRun) -> None:
        self._attributed, self._artifacts = run.attributed, run.artifacts
        self.config, self.survey = run.attributed.inputs.config, run.attributed.survey
        self.stragglers = run.attributed.attribution.stragglers
        self.alignment = run.attributed.matched_ranks.clock.alignment
        self.inputs = tuple(capture.input for capture in run.attributed.inputs.captures)

    def __getattr__(self, name: str) -> Any:
        artifact = _OTHER_NAMES.get(name, name)
        if artifact not in CATALOG.declared:
            raise AttributeError(name)
        value = self._artifacts.named(artifact).value
        return value if artifact in _SINGLE else value or ()

    @property
    def capabilities(self) -> Any:
        return self._artifacts.named("run").value.capabilities

    @property
    def budget_of(self) -> str:
        return str(self._artifacts.named("step").value.why)

    @cached_property
    def facts(self) -> FactSheet:
        config = self.config
        settings = make_sheet(Artifacts(dict.fromkeys(CATALOG.declared)), config).facts
        return FactSheet(_Facts(self._artifacts, settings), config.environment_is_known)

    @cached_property
    def warnings(self) -> tuple[Any, ...]:
        rules = load_rule_base(DEFINITIONS, None).warnings
        return (*judge_warnings(rules, self.facts, self.stragglers), *self._artifacts.pull(measured_warnings))


def measure(trace: Any, **options: Any) -> Measured:
    """The run of ``trace``, measured. ``options``: of ``analyze``."""
    traces, logs = ([paths] if isinstance(paths, str | Path) else paths for paths in (trace, options.pop("logs", ())))
    request = RunRequest(traces=tuple(map(Path, traces)), logs=tuple(map(Path, logs)), **options)
    with keep_unpacked():
        return Measured(measure_run(request, lambda _: None))
