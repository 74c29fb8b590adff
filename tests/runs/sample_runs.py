"""Runs to compare, made from the sample report: 640 ms traced, and unprofiled as long as a test wants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.report.sample_report import MS, sample_report
from three_walls.advice.finding import Overrides
from three_walls.advice.verdict_rows import Verdict
from three_walls.lib.fact import FactSheet
from three_walls.lib.plain_data import ConfigData
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.report.report import Report
from three_walls.runs.compared_run import Run
from three_walls.step.step_rows import StepSource, StepSummary

MODEL = {"num_layers": 48, "hidden_size": 2048, "seq_length": 4096, "global_batch_size": 256, "micro_batch_size": 1}


_OF_LOG = ("world_size", "unprofiled_step_lower_quartile_ns", "unprofiled_step_upper_quartile_ns")


def make_run(
    name: str = "base",
    step_ms: float | None = 600,
    half_ms: float | None = 5,
    buckets_ms: Mapping[str, int] | None = None,
    settings: Mapping[str, ConfigData] | None = None,
    env: Mapping[str, str] | None = None,
) -> Run:
    """A run whose log has steps of ``step_ms``, half of the quartiles' distance being ``half_ms``.

    ``buckets_ms`` and ``settings`` replace those of the sample; a setting of None is unset.
    """
    report = sample_report()
    facts: dict[str, int] = {"world_size": 16}
    log = None
    if step_ms is not None:
        assert report.log is not None
        log = replace(report.log, unprofiled_step_ns=round(step_ms * MS))
        if half_ms is not None:
            facts["unprofiled_step_lower_quartile_ns"] = round((step_ms - half_ms) * MS)
            facts["unprofiled_step_upper_quartile_ns"] = round((step_ms + half_ms) * MS)
    return Run(
        name,
        replace(
            _with_buckets(report, buckets_ms or {}),
            log=log,
            config=_with_settings(report.config, {**MODEL, **(settings or {})}, env or {}),
            facts=report.facts.with_values(facts),
        ),
    )


def make_log_run(name: str = "edit", step_ms: float = 550, settings: Mapping[str, ConfigData] | None = None) -> Run:
    """A run of which only the log was given."""
    run = make_run(name, step_ms, settings=settings)
    report = replace(
        run.report,
        inputs=(),
        verdict=Verdict(None, None, True, "Only training logs were given.", None, None, None, None, {}),
        step=StepSummary("none", 0, (), None, None, None),
        ranks=(),
        budget=(),
        plan=(),
        findings=(),
        facts=FactSheet.of(fact for name, fact in run.report.facts.facts.items() if name in _OF_LOG),
        overrides=Overrides("", (), (), {}),
        capabilities={},
    )
    return Run(name, report)


def _with_settings(config: RunConfig, settings: Mapping[str, ConfigData], env: Mapping[str, str]) -> RunConfig:
    values = {key: ConfigValue(value, "config file") for key, value in settings.items()}
    variables = {key: ConfigValue(value, "environment") for key, value in env.items()}
    return replace(config, values={**config.values, **values}, environment={**config.environment, **variables})


def _with_buckets(report: Report, buckets_ms: Mapping[str, int]) -> Report:
    """The representative step with other times of some buckets, in the budget and on its rank."""
    rank = report.representative_rank
    assert rank is not None
    budget = {**rank.budget, **{name: ms * MS for name, ms in buckets_ms.items()}}
    step_ns = sum(budget.values())
    changed = replace(rank, budget=budget)
    return replace(
        report,
        budget=tuple(
            replace(row, ns=budget.get(row.bucket, 0), fraction=budget.get(row.bucket, 0) / step_ns)
            for row in report.budget
        ),
        ranks=tuple(changed if other is rank else other for other in report.ranks),
        verdict=replace(report.verdict, step_ns=step_ns),
    )


def without_steps(run: Run) -> Run:
    """``run``, whose trace marks no step: the whole capture counts as one."""
    step = replace(run.report.step, source=StepSource.ONE_WINDOW)
    return replace(run, report=replace(run.report, step=step))
