"""The report: everything that a renderer may show, and the contract of report.json.

The fields of these types, in their order, are the fields of report.json, and their docstrings are its documentation
(``tools/generate_report_docs.py``). Every name here is therefore public: renaming one needs a new major version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from three_walls.advice.answer_what_if import ReplayedRun
from three_walls.advice.finding import Finding, FirstTrial, Overrides, PlanStep
from three_walls.advice.verdict_rows import Verdict
from three_walls.bridge.tuned_recipes import KnownGoodRecipe
from three_walls.export.step_detail_rows import HostFrame, HostWorkRow, KernelRow, StepTimeline
from three_walls.facts.fact_rows import (
    CopyBandwidth,
    CriticalPath,
    Efficiency,
    GemmShape,
    GraphCoverage,
    HardwareUse,
    LogSummary,
    MoePart,
    OverlapSlowdown,
    PipelinePhase,
    RecomputedLayer,
    Synchronizations,
)
from three_walls.lib.fact import FactSheet
from three_walls.lib.report_warning import ReportWarning
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.memory_snapshot.snapshot import MemorySnapshot
from three_walls.report.comparison import History
from three_walls.step.step_rows import (
    Alignment,
    BudgetRow,
    RankReport,
    StepSummary,
    Straggler,
    UnclassifiedKernel,
    Wait,
)
from three_walls.step.survey.survey_rows import Survey
from three_walls.trace.input_file import InputFile, NamesFile

SCHEMA_VERSION = "3.2"
"""Version of report.json: the minor grows when fields are added, the major when one goes, or is another one."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was concluded from the facts of a run."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    plan: tuple[PlanStep, ...]
    first_trial: FirstTrial | None
    overrides: Overrides
    warnings: tuple[ReportWarning, ...]
    recipe: KnownGoodRecipe | None
    no_recipe_reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """One complete analysis. A report shows nothing that is not in it."""

    tool_version: str
    inputs: tuple[InputFile, ...]
    verdict: Verdict
    step: StepSummary
    ranks: tuple[RankReport, ...]
    """The captured GPUs, with all their steps; of a surveyed run those that were read in full."""
    budget: tuple[BudgetRow, ...]
    """The representative step, in order of precedence; empty without a kept step."""
    budget_of: str
    """Which step ``budget`` describes: rank, step index, and why that step was chosen."""
    config: RunConfig
    facts: FactSheet
    """The named numbers that rules compare."""
    findings: tuple[Finding, ...]
    """Every rule with its outcome, including those in the plan."""
    plan: tuple[PlanStep, ...]
    """Edits to make, in order."""
    overrides: Overrides
    warnings: tuple[ReportWarning, ...]
    unclassified: tuple[UnclassifiedKernel, ...]
    """Kernels that match no pattern."""
    capabilities: Mapping[str, str]
    """Capability of the trace to ``yes``, or why not (missing table or column, capture mode)."""
    stragglers: tuple[Straggler, ...] = ()
    waits: tuple[Wait, ...] = ()
    alignment: Alignment | None = None
    """Null with a single rank."""
    moe_layers: tuple[MoePart, ...] = ()
    overlap_slowdown: tuple[OverlapSlowdown, ...] = ()
    pipeline_phases: tuple[PipelinePhase, ...] = ()
    log: LogSummary | None = None
    """Null where no training log was given."""
    memory_snapshot: MemorySnapshot | None = None
    """Null where no snapshot was given."""
    recompute_layers: tuple[RecomputedLayer, ...] = ()
    graph_coverage: GraphCoverage | None = None
    """Null where no CUDA graph was launched."""
    efficiency: tuple[Efficiency, ...] = ()
    gemm_shapes: tuple[GemmShape, ...] = ()
    copies: tuple[CopyBandwidth, ...] = ()
    hardware: tuple[HardwareUse, ...] = ()
    """The step, then its buckets in order of precedence, then the modules of its layers; empty where no hardware
    counters were recorded."""
    first_trial: FirstTrial | None = None
    """Null for an empty plan."""
    known_good_recipe: KnownGoodRecipe | None = None
    no_recipe_reason: str = ""
    """Why there is no known-good recipe; empty where there is one."""
    critical_path: CriticalPath | None = None
    """Null where the step was not replayed."""
    kernels: tuple[KernelRow, ...] = ()
    """By bucket in the order of the buckets' kernel time, then by time; the rest of a bucket comes last."""
    host_work: tuple[HostWorkRow, ...] = ()
    """The longest starvation first; the rest of each thread comes last."""
    host_frames: tuple[HostFrame, ...] = ()
    """Of threads that launch work, the busiest first; empty where no ranges were recorded."""
    synchronizations: Synchronizations | None = None
    """Null where the step's launches were not recorded."""
    timeline: StepTimeline | None = None
    """Null without a kept step."""
    history: History | None = None
    """The runs before this one, with what was tried; null where they were not given."""
    survey: Survey | None = None
    """All ranks of a run of many, of which ``ranks`` holds only those that were read in full; null where all were."""
    kernel_names: NamesFile | None = None
    """Null where the user gave no names of kernels."""
    recorded_at: str | None = None
    """When the recording of the first trace began, in UTC (``2026-11-22T18:37:17Z``); null where none states it."""
    schema_version: str = SCHEMA_VERSION

    def _repr_html_(self) -> str:
        """What a notebook shows of a report: its page, in a frame of its own."""
        from three_walls.report.html_report import render_frame  # which reads reports

        return render_frame(self)

    @property
    def ranks_count(self) -> int:
        """The number of captured ranks, in full or surveyed."""
        return self.survey.ranks_count if self.survey else len(self.ranks)

    @property
    def representative_rank(self) -> RankReport | None:
        """The rank whose median step is the report's budget; None without a kept step."""
        budget = {row.bucket: row.ns for row in self.budget if row.ns}
        same = (rank for rank in self.ranks if {name: ns for name, ns in rank.budget.items() if ns} == budget)
        return next(same, None) if budget else None

    def fraction_of_step(self, value_ns: float | None) -> float | None:
        """``value_ns`` over the step of the verdict; None when either is not known."""
        step_ns = self.verdict.step_ns
        return None if value_ns is None or not step_ns else value_ns / step_ns


@dataclass(frozen=True, slots=True)
class LiveReport(Report):
    """A report in the process that made it: the step of its run can be replayed with changes."""

    replay: ReplayedRun | None = field(default=None, compare=False, repr=False)
    """Not part of report.json."""
