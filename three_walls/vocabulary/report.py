"""The report: everything any renderer may show. ``render/json_report.py`` gives it its stable JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from three_walls.vocabulary.categories import SubWall, Wall
from three_walls.vocabulary.config import RunConfig
from three_walls.vocabulary.facts import FactSheet
from three_walls.vocabulary.findings import Finding, Overrides, PlanStep

SCHEMA_VERSION = "1.0"
"""Version of the JSON contract: the minor grows when fields are added, the major when one changes."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """One trace that was read. ``path_name`` is the file's name alone: no directory leaves the machine."""

    path_name: str
    sha256: str
    nsys_version: str | None
    schema: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The wall that holds the run back, or an abstention that says why."""

    wall: Wall | None
    sub_wall: SubWall | None
    abstained: bool
    because: str
    step_ns: int | None
    runner_up_wall: Wall | None
    runner_up_sub_wall: SubWall | None
    margin_fraction: float | None
    """(recoverable time of the wall - of the runner-up) / step."""
    recoverable_ns: Mapping[str, int | None]
    """Per wall and sub-wall (``memory``, ``communication``, ``compute_host.compute``, ``compute_host.host``)."""


@dataclass(frozen=True, slots=True)
class DroppedStep:
    rank: int
    index: int
    because: str


@dataclass(frozen=True, slots=True)
class StepSummary:
    """Which steps were found, by what, and how long the kept ones were."""

    source: str
    kept: int
    dropped: tuple[DroppedStep, ...]
    median_ns: int | None
    min_ns: int | None
    max_ns: int | None
    note: str = ""
    """Said of the kept steps (for example that one touches the capture's edge and why it stays)."""


@dataclass(frozen=True, slots=True)
class RankStep:
    """One step of one rank; ``budget`` sums to ``end_ns - start_ns``."""

    index: int
    start_ns: int
    end_ns: int
    kept: bool
    because: str
    budget_ns: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CommunicationTime:
    """Union time of one communication class in a step; exposed + hidden = busy."""

    busy_ns: int
    exposed_ns: int
    hidden_ns: int


@dataclass(frozen=True, slots=True)
class RankReport:
    """One GPU of the run. ``budget_ns`` and ``communication`` are those of its median kept step."""

    rank: int
    host: str | None
    gpu: str | None
    device: int
    input_name: str
    steps: tuple[RankStep, ...]
    median_index: int | None
    budget_ns: Mapping[str, int]
    communication: Mapping[str, CommunicationTime]


@dataclass(frozen=True, slots=True)
class BudgetRow:
    bucket: str
    group: str
    ns: int
    fraction: float
    definition: str


@dataclass(frozen=True, slots=True)
class ReportWarning:
    """Something that limits what the report can claim; ``code`` is stable, the message is for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class UnclassifiedKernel:
    """A kernel name that no pattern knows, with its share of the representative rank's kernel time."""

    name: str
    kernel_ns: int
    count: int


@dataclass(frozen=True, slots=True)
class Report:
    """One analysis, complete. Renderers decide nothing: what is not here is not shown."""

    tool_version: str
    inputs: tuple[InputFile, ...]
    verdict: Verdict
    step: StepSummary
    ranks: tuple[RankReport, ...]
    budget: tuple[BudgetRow, ...]
    budget_of: str
    """Which step ``budget`` is, in words: rank, step index, why that one."""
    config: RunConfig
    facts: FactSheet
    findings: tuple[Finding, ...]
    plan: tuple[PlanStep, ...]
    overrides: Overrides
    warnings: tuple[ReportWarning, ...]
    unclassified: tuple[UnclassifiedKernel, ...]
    capabilities: Mapping[str, str]
    """Capability -> ``yes`` or why not (missing table or column, capture mode)."""
    schema_version: str = SCHEMA_VERSION
