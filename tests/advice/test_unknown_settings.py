"""The warning that rules wait for the settings of the run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.advice.builders import MS, rule, sheet_of
from tests.analyzed_samples import analyze_sample, reads_sample
from tests.paths import SAMPLES
from three_walls import analyze
from three_walls.advice.judge import judge_all
from three_walls.advice.unknown_settings import warn_of_unknown_settings
from three_walls.lib.expressions import Condition
from three_walls.lib.fact import FactSheet
from three_walls.lib.measurement import GIVE_CONFIG
from three_walls.lib.report_warning import SETTINGS_UNKNOWN
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig

pytestmark = pytest.mark.slow

RULES = tuple(
    rule(name, applies_to=(Condition(fact, ">=", 1),))
    for name, fact in (
        ("a", "config.num_moe_experts"),
        ("b", "config.num_moe_experts"),
        ("c", "num_microbatches"),
        ("d", "rank_count"),
        ("e", "step_ns"),
    )
)


def facts_with(**reasons: str) -> FactSheet:
    """A step is known, and why other facts are not."""
    facts = sheet_of({"step_ns": MS, **dict.fromkeys(reasons, 1)})
    missing = {name: replace(facts.get(name), value=None, missing_reason=reason) for name, reason in reasons.items()}
    return replace(facts, facts={**facts.facts, **missing})


BESIDE = ", which lies next to the traces"
FACTS = facts_with(num_microbatches=f"needs the batch size {GIVE_CONFIG}", rank_count="the trace does not tell")


def warn(config: RunConfig) -> tuple[str, ...]:
    found = warn_of_unknown_settings(config, judge_all(RULES, FACTS), FACTS)
    assert {warning.code for warning in found} <= {SETTINGS_UNKNOWN}
    return tuple(warning.message for warning in found)


def test_rules_that_wait_for_settings_are_counted_and_the_most_needed_setting_comes_first() -> None:
    from_trace = RunConfig({"transformer_impl": ConfigValue("transformer_engine", "kernels of the trace")})
    assert warn(from_trace) == warn(RunConfig())
    (message,) = warn(RunConfig())
    assert message == (
        "The settings of the run are unknown, and 3 of 5 rules wait for them: pass its saved configuration "
        "(--config run_config.yaml) or its training log (--log). Most needed: num_moe_experts, "
        f"{FACTS.get('num_microbatches').label}."
    )


def test_a_configuration_beside_the_traces_is_named() -> None:
    findings = judge_all(RULES, FACTS)
    (found,) = warn_of_unknown_settings(RunConfig(), findings, FACTS, leaves_config=True)
    assert f"(--config run_config.yaml{BESIDE})" in found.message
    assert "lies next to" not in warn(RunConfig())[0]


def test_a_log_that_was_given_is_not_asked_for() -> None:
    logged = FACTS.with_values({"log_files_count": 1})
    (warning,) = warn_of_unknown_settings(RunConfig(), judge_all(RULES, logged), logged)
    assert "(--config run_config.yaml), because the log does not state them. Most needed" in warning.message
    assert "--log" not in warning.message


@pytest.mark.parametrize("source", ["config file", "log config", "log arguments", "command line"])
def test_nothing_is_said_where_a_source_states_the_settings(source: str) -> None:
    assert warn(RunConfig({"hidden_size": ConfigValue(4096, source)})) == ()
    derived = ConfigValue(4096, "derived: elsewhere", confirmed_by=(source,))
    assert warn(RunConfig({"hidden_size": derived})) == ()


def test_nothing_is_said_where_no_rule_waits_for_a_setting() -> None:
    facts = sheet_of({"step_ns": MS, "config.num_moe_experts": 8, "num_microbatches": 8})
    assert warn_of_unknown_settings(RunConfig(), judge_all(RULES, facts), facts) == ()


@reads_sample("healthy-two-gpus.sqlite.xz")
def test_a_trace_alone_ends_in_an_empty_plan_that_says_what_it_lacks() -> None:
    report = analyze_sample("healthy-two-gpus.sqlite.xz")
    assert not report.plan
    assert [warning.code for warning in report.warnings].count(SETTINGS_UNKNOWN) == 1
    assert BESIDE not in str(report.warnings)


@reads_sample("healthy-two-gpus.sqlite.xz")
def test_a_configuration_next_to_the_traces_is_seen_but_not_read(tmp_path: Path) -> None:
    shutil.copy(SAMPLES / "healthy-two-gpus.sqlite.xz", tmp_path)
    (tmp_path / "run_config.yaml").write_text("model: {num_moe_experts: 8}\n")
    report = analyze(tmp_path)
    assert BESIDE in str(report.warnings)
    assert "num_moe_experts" not in report.config.values


QWEN, FOREIGN = "qwen-alltoall-ep8.sqlite.xz", "foreign-inference.sqlite.xz"


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(QWEN, marks=[reads_sample(QWEN), pytest.mark.exhaustive]),
        pytest.param(FOREIGN, marks=reads_sample(FOREIGN)),
    ],
)
def test_a_command_line_or_a_foreign_program_leaves_no_rule_waiting_for_settings(trace: str) -> None:
    assert SETTINGS_UNKNOWN not in {warning.code for warning in analyze_sample(trace).warnings}
