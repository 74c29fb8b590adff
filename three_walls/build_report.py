"""The report of a run, from what was measured and what was concluded: the entry of this package for ``analyze``."""

from __future__ import annotations

from three_walls.advice.answer_what_if import ReplayedRun
from three_walls.export.host_work_rows import host_work, rank_reports
from three_walls.export.kernel_table import kernels
from three_walls.export.step_timeline import drawn_timeline
from three_walls.facts.cuda_graphs import graph_coverage
from three_walls.facts.gemm_efficiency import efficiency
from three_walls.facts.gemm_shapes import gemm_shapes
from three_walls.facts.host_copies import copies
from three_walls.facts.input_warnings import measured_warnings
from three_walls.facts.log_facts import log_summary
from three_walls.facts.moe_ledger import moe_layers
from three_walls.facts.overlap_slowdown import overlap_slowdown
from three_walls.facts.pipeline_schedule import pipeline_phases
from three_walls.facts.recompute_facts import recompute_layers
from three_walls.facts.summarize_step import budget, shown_waits, step_summary, unclassified
from three_walls.lib.artifacts import Artifacts
from three_walls.lib.version import VERSION
from three_walls.replay.replay_steps import critical_path
from three_walls.report.report import Diagnosis, LiveReport
from three_walls.step import step_view
from three_walls.step.attribute_steps import AttributedRun


def build_report(run: AttributedRun, made: Artifacts, diagnosis: Diagnosis, replayed: ReplayedRun) -> LiveReport:
    """The report of ``run``. What is not concluded is pulled from what is ``made``, and empty where it is missing."""
    inputs, stragglers = run.inputs, run.attribution.stragglers
    culprits = diagnosis.verdict.culprit.ranks if diagnosis.verdict.culprit else ()
    late = dict.fromkeys((*culprits, *(straggler.rank for straggler in stragglers)))
    made = made.with_given({"late_ranks": tuple(late)})
    step, work = made.find(step_view.step).value, made.find(host_work).value
    return LiveReport(
        tool_version=VERSION,
        inputs=tuple(capture.input for capture in inputs.captures),
        verdict=diagnosis.verdict,
        step=made.pull(step_summary),
        ranks=made.pull(rank_reports),
        budget=made.find(budget).value or (),
        budget_of=step.why if step else "no step could be kept",
        config=inputs.config,
        facts=replayed.facts,
        findings=diagnosis.findings,
        plan=diagnosis.plan,
        overrides=diagnosis.overrides,
        warnings=(*diagnosis.warnings, *made.pull(measured_warnings)),
        unclassified=made.find(unclassified).value or (),
        capabilities=made.pull(step_view.run).capabilities,
        stragglers=stragglers,
        waits=made.pull(shown_waits),
        alignment=run.matched_ranks.clock.alignment,
        moe_layers=made.find(moe_layers).value or (),
        overlap_slowdown=made.find(overlap_slowdown).value or (),
        pipeline_phases=made.pull(pipeline_phases),
        log=made.find(log_summary).value,
        memory_snapshot=inputs.snapshot,
        recompute_layers=made.find(recompute_layers).value or (),
        graph_coverage=made.find(graph_coverage).value,
        efficiency=made.find(efficiency).value or (),
        gemm_shapes=made.find(gemm_shapes).value or (),
        copies=made.find(copies).value or (),
        first_trial=diagnosis.first_trial,
        known_good_recipe=diagnosis.recipe,
        no_recipe_reason=diagnosis.no_recipe_reason,
        critical_path=made.find(critical_path).value,
        kernels=made.find(kernels).value or (),
        host_work=work.rows if work else (),
        timeline=made.find(drawn_timeline).value,
        survey=run.survey,
        replay=replayed,
    )
