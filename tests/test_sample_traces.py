"""The real traces of sample_traces/ and benchmarks/traces/ against their labels: what is right, and what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from io import StringIO
from typing import Any, TypeVar

import pytest
import yaml
from rich.console import Console

from tests.analyzed_samples import analyze_sample
from tests.paths import MEASURED_BASES, SAMPLES
from tests.report_schema import report_validator
from three_walls import analyze
from three_walls.lib.plain_data import ConfigData
from three_walls.lib.text import format_ms, format_ms_range
from three_walls.replay.predictor import StepReplay
from three_walls.report.check_report import find_other_steps, find_wrong_sums
from three_walls.report.formats import format_gain_bounds
from three_walls.report.html_report import render_html
from three_walls.report.json_report import render_json
from three_walls.report.markdown_report import render_markdown
from three_walls.report.report import LiveReport, Report
from three_walls.report.sections.steps import find_step_base
from three_walls.report.terminal_report import print_report
from three_walls.tables.buckets import COMPUTE_CATEGORIES
from tools.generate_sample_report import OUT, SAMPLE

LABEL_FILES = {
    path.name.removesuffix(".labels.yaml"): path
    for folder in (SAMPLES, MEASURED_BASES)
    for path in folder.glob("*.labels.yaml")
}
OF_BASES = {name for name, path in LABEL_FILES.items() if path.parent == MEASURED_BASES}
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # each worker reads the labels of all captures
LABELS = {name: yaml.load(path.read_text(), YAML_LOADER) for name, path in LABEL_FILES.items()}

EXPECT_KEYS = {
    "verdict", "step", "shares", "hidden", "config", "facts", "missing_facts", "outcomes", "ranks", "warnings",
    "plan", "plan_starts_with", "plan_is_empty", "stragglers", "communication", "gain_ms", "wait_ms", "transfer_ms",
    "culprit", "culprit_ms", "facts_ms", "replayed",
}  # fmt: skip
MUST_NOT_KEYS = {"walls", "plan", "buckets", "warnings", "representative"}

# The same bytes from the same input: one rank, ranks in one export, a pipeline, a run without a plan.
ANALYZED_TWICE = {"shared-experts", "two-processes-one-report", "two-pipeline-stages", "foreign-image-classifier"}

# Of every kind of capture one: what holds for any is tried with these by `make test`, with the others by CI.
EXEMPLARS = ANALYZED_TWICE | {
    "cuda-graph-envelopes", "qwen-full-recompute", "slow-gpu", "te-cuda-graphs", "te-fp8-current-scaling",
    "tensor-parallel-pair", "wide-nvlink-alltoall", "wide-nvlink-alltoall-ranks",
}  # fmt: skip

# Captures much like exemplars: all that is tried with them is tried by CI alone.
LIKE_OTHERS = {"te-fused-attention", "te-host-bound", "te-one-by-one-experts"}

pytestmark = pytest.mark.slow
Test = TypeVar("Test", bound=Callable[..., None])


def holds_for_any(test: Test) -> Test:
    """Marks a law that needs no label."""
    ANY.add(test.__name__)
    return test


ANY: set[str] = set()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One worker analyzes a trace: the report is kept for the tests that follow."""
    is_law = metafunc.function.__name__ in ANY

    def mark(name: str) -> Iterator[pytest.MarkDecorator]:
        yield pytest.mark.xdist_group(name)
        if name in OF_BASES:
            yield pytest.mark.base
        elif name in LIKE_OTHERS or (is_law and name not in EXEMPLARS):
            yield pytest.mark.exhaustive

    metafunc.parametrize("name", [pytest.param(name, marks=[*mark(name)]) for name in sorted(LABELS)])


@cache
def report_of(name: str) -> Report:
    label = LABELS[name]
    if not {"logs", "config"} & set(label):
        return analyze_sample(label["trace"])
    folder = LABEL_FILES[name].parent
    config = folder / label["config"] if "config" in label else None
    return analyze(folder / label["trace"], logs=[folder / log for log in label.get("logs", [])], config=config)


@cache
def page_of(name: str) -> str:
    return render_html(report_of(name))


def expected(name: str, key: str) -> Any:
    return LABELS[name]["expect"].get(key, {})


def test_a_label_says_only_what_this_test_checks(name: str) -> None:
    assert set(LABELS[name]["expect"]) <= EXPECT_KEYS
    assert set(LABELS[name]["must_not"]) <= MUST_NOT_KEYS


@holds_for_any
@pytest.mark.parametrize("setting", ["apply_rope_fusion", "moe_router_fusion"])
def test_fusions_are_predicted_where_megatron_bridge_records_no_shapes(name: str, setting: str) -> None:
    if not name.startswith("te-"):
        pytest.skip("not a run of Megatron-Bridge")
    report = report_of(name)
    assert isinstance(report, LiveReport)
    answer = report.replay.with_edits({setting: True})
    assert answer.step is not None
    if "cuda_graph_impl" in expected(name, "config"):  # attention and router are in graphs, which record no operators
        assert answer.after is None
        assert answer.because_unknown
        return
    assert answer.after is not None, answer.because_unknown
    # Each takes at most a few percent of the step.
    assert 0.95 * answer.step.likely_ns < answer.after.likely_ns < answer.step.likely_ns
    assert answer.after.low_ns < answer.after.likely_ns < answer.after.high_ns


AFTER_FUSED_ACTIVATION_RATIO = {"te-wide": (0.92, 0.98), "te-host-bound": (1.0, 1.02)}


def test_a_fused_activation_gains_where_kernels_fill_the_step_and_not_where_the_host_does(name: str) -> None:
    if name not in AFTER_FUSED_ACTIVATION_RATIO:
        pytest.skip("another run")
    report = report_of(name)
    assert isinstance(report, LiveReport)
    answer = report.replay.with_edits({"bias_activation_fusion": True})
    assert answer.step
    assert answer.after
    low, high = AFTER_FUSED_ACTIVATION_RATIO[name]
    assert low <= answer.after.likely_ns / answer.step.likely_ns <= high


def test_the_verdict_is_the_engineers(name: str) -> None:
    verdict = report_of(name).verdict
    for field, value in expected(name, "verdict").items():
        assert getattr(verdict, field) == value, verdict.reason
    assert verdict.wall not in LABELS[name]["must_not"].get("walls", []), verdict.reason


def test_a_replay_is_near_the_captured_step_or_predicts_nothing(name: str) -> None:
    facts, longest_ns = report_of(name).facts, report_of(name).step.max_ns or 0
    error = facts.number("replay_error_fraction")
    predicted, low, high = (facts.number(f"predicted_unprofiled_step{end}_ns") for end in ("", "_low", "_high"))
    if error is None or error > 0.03:
        assert predicted is None
        assert facts.get("predicted_unprofiled_step_ns").missing_reason
        return
    # The warm-up of two processes is the worst: 2.7%.
    assert error < (0.03 if name == "two-processes-one-report" else 0.01)
    assert (low or 0) <= (predicted or 0) <= (high or 0)
    assert 0 < (predicted or 0) < 1.001 * longest_ns


def test_layers_micro_batches_and_modules_are_found_in_the_step(name: str) -> None:
    wanted = expected(name, "replayed")
    if not wanted:
        pytest.skip("without labels of layers")
    report = report_of(name)
    assert isinstance(report, LiveReport)
    assert isinstance(report.replay.predictor, StepReplay)
    operations = report.replay.predictor.graph.operations
    layers, micro_batches = (operations[column].drop_nulls().n_unique() for column in ("layer", "micro_batch"))
    assert (layers, micro_batches) == (wanted["layers"], wanted["micro_batches"])
    assert set(operations["module"].drop_nulls()) == set(wanted["modules"])


def test_the_steps_are_the_logs(name: str) -> None:
    step = report_of(name).step
    wanted = expected(name, "step")
    assert step.source == wanted.get("source", step.source)
    assert step.kept == wanted.get("kept", step.kept)
    if "median_ms" in wanted:
        low, high = wanted["median_ms"]
        assert step.median_ns is not None
        assert low <= step.median_ns / 1e6 <= high


@holds_for_any
def test_no_gemm_is_faster_than_its_gpu(name: str) -> None:
    for fact in ("gemm_efficiency_fraction", "expert_gemm_efficiency_fraction"):
        reached = report_of(name).facts.number(fact)
        assert reached is None or 0 < reached <= 1, fact


def test_the_shares_of_the_step_are_plausible(name: str) -> None:
    report = report_of(name)
    share = {row.bucket: row.fraction for row in report.budget}
    for bucket, (low, high) in expected(name, "shares").items():
        assert low <= share.get(bucket, 0) <= high, bucket
    rank = next(rank for rank in report.ranks if rank.median_index is not None)
    for kind, (low, high) in expected(name, "hidden").items():
        time = rank.communication[kind]
        assert low <= time.hidden_ns / time.busy_ns <= high
    for bucket in LABELS[name]["must_not"].get("buckets", []):
        assert bucket not in share


def test_the_config_and_facts_are_the_runs(name: str) -> None:
    report = report_of(name)
    for key, value in expected(name, "config").items():
        assert report.config.knows(key)
        assert report.config.get(key) == value, key
    for fact, value in expected(name, "facts").items():
        assert report.facts.get(fact).value == value, fact
    for fact in expected(name, "missing_facts"):
        assert report.facts.get(fact).is_missing, fact


def test_the_advice_is_the_engineers(name: str) -> None:
    report = report_of(name)
    outcomes = {finding.rule: finding.outcome for finding in report.findings}
    plan = [step.finding.rule for step in report.plan]
    assert expected(name, "outcomes").items() <= outcomes.items()
    assert set(expected(name, "plan")) <= set(plan)
    assert not set(LABELS[name]["must_not"].get("plan", [])) & set(plan)
    if expected(name, "plan_starts_with"):
        assert plan[0] == expected(name, "plan_starts_with")
    if expected(name, "plan_is_empty"):
        assert plan == []
    assert "error" not in outcomes.values()


def test_a_measured_gain_lies_within_the_promised_range(name: str) -> None:
    gains = {finding.rule: finding.gain_ns for finding in report_of(name).findings}
    for rule, measured_ms in expected(name, "gain_ms").items():
        gain = gains[rule]
        assert gain.low is not None
        assert gain.high is not None
        assert gain.low <= measured_ms * 1e6 <= gain.high


@holds_for_any
def test_the_settings_of_the_first_entries_give_whatif_the_step_after_them(name: str) -> None:
    report = report_of(name)
    if not report.plan or report.plan[0].order == 0:
        pytest.skip("without a plan, or the plan is of the step without a late rank")
    assert isinstance(report, LiveReport)
    settings: dict[str, ConfigData] = {}
    for step in report.plan:
        settings |= {f"env.{edit.key}" if edit.kind == "env" else edit.key: edit.to for edit in step.edits}
        forms = [settings, dict(reversed(settings.items()))]
        for asked in forms[: len(settings)]:
            answer = report.replay.with_edits(asked).after
            assert answer is not None
            assert answer.likely_ns == step.step_after_likely_ns
            ends = (step.step_after_ns.low, step.step_after_ns.high)
            assert (answer.low_ns, answer.high_ns) == pytest.approx(ends, abs=2)  # each is rounded for itself


def test_the_ranks_that_made_others_wait_are_named(name: str) -> None:
    report = report_of(name)
    if "stragglers" in LABELS[name]["expect"]:
        assert {one.rank: one.cause for one in report.stragglers} == expected(name, "stragglers")
    for kind in expected(name, "communication"):
        assert all(kind in rank.communication for rank in report.ranks)


def test_only_a_rank_that_is_late_for_a_reason_of_its_own_is_the_culprit(name: str) -> None:
    culprit = report_of(name).verdict.culprit
    wanted = expected(name, "culprit")
    assert (culprit is not None) == bool(wanted)
    for field, value in wanted.items():
        assert getattr(culprit, field) == value
    for field, (low, high) in expected(name, "culprit_ms").items():
        assert low <= getattr(culprit, field) / 1e6 <= high


def test_the_representative_is_none_that_may_not_stand_for_the_run(name: str) -> None:
    representative = report_of(name).representative_rank
    banned = LABELS[name]["must_not"].get("representative", [])
    assert representative is None or representative.rank not in banned
    for fact, (low, high) in expected(name, "facts_ms").items():
        assert low <= (report_of(name).facts.number(fact) or 0) / 1e6 <= high, fact


def test_no_warning_is_wrong(name: str) -> None:
    codes = {warning.code for warning in report_of(name).warnings}
    assert not codes & set(LABELS[name]["must_not"].get("warnings", ["shared-gpu"]))


def test_waiting_is_told_from_transfer(name: str) -> None:
    waits = {(one.communication_class, one.rank): one for one in report_of(name).waits}
    for kind, ranges in expected(name, "wait_ms").items():
        for rank, (low, high) in ranges.items():
            assert low <= (waits[(kind, rank)].wait_ns or 0) / 1e6 <= high
    for kind, ranges in expected(name, "transfer_ms").items():
        for rank, (low, high) in ranges.items():
            assert waits[(kind, rank)].resolved
            assert low <= (waits[(kind, rank)].transfer_ns or 0) / 1e6 <= high


def test_the_causes_of_a_rank_sum_to_the_time_without_computing(name: str) -> None:
    report = report_of(name)
    for rank in report.ranks:
        computing = sum(rank.budget.get(bucket, 0) for bucket in COMPUTE_CATEGORIES)
        assert sum(cause.ns for cause in rank.gap_causes) == sum(rank.budget.values()) - computing


def test_the_warnings_and_ranks_are_there(name: str) -> None:
    report = report_of(name)
    assert set(expected(name, "warnings")) <= {warning.code for warning in report.warnings}
    if expected(name, "ranks"):
        assert [rank.rank for rank in report.ranks] == expected(name, "ranks")


def test_numbers_of_the_report_do_not_contradict_each_other(name: str) -> None:
    report = report_of(name)
    assert [*find_wrong_sums(report)] == []
    assert [*find_other_steps(report)] == []


@holds_for_any
def test_every_format_shows_the_same_steps_and_gains(name: str) -> None:
    report, base = report_of(name), find_step_base(report_of(name))
    if base is None:
        pytest.skip("without a step")
    console = Console(file=StringIO(), width=200)
    print_report(report, console, is_full=True)
    texts = {
        "page": re.sub("<[^>]*>", "", page_of(name)),
        "ticket": render_markdown(report),
        "terminal": console.file.getvalue(),  # type: ignore[attr-defined]
    }
    ends = [format_ms_range(step.step_after_ns.low, step.step_after_ns.high) for step in report.plan[-1:]]
    for number in (format_ms(base.now_ns), *ends, *(format_gain_bounds(step.gain_ns) for step in report.plan)):
        assert [form for form, text in texts.items() if number not in text] == [], number


def test_every_budget_sums_to_its_step_and_exposure_to_busy(name: str) -> None:
    report = report_of(name)
    for rank in report.ranks:
        for step in rank.steps:
            assert sum(step.budget.values()) == step.end_ns - step.start_ns
        for time in rank.communication.values():
            assert time.exposed_ns + time.hidden_ns == time.busy_ns
    assert sum(row.fraction for row in report.budget) == pytest.approx(1, abs=1e-9)
    assert sum(row.ns for row in report.budget) == report.verdict.step_ns


@holds_for_any
def test_the_report_follows_its_published_schema_and_renders(name: str) -> None:
    text = render_json(report_of(name))
    report_validator().validate(json.loads(text))
    html = page_of(name)
    assert "<html" in html
    if name in ANALYZED_TWICE:
        assert text == render_json(analyze(SAMPLES / LABELS[name]["trace"]))


def test_no_entry_promises_a_step_above_the_present_one(name: str) -> None:
    report = report_of(name)
    base = find_step_base(report)
    if not report.plan or base is None:
        pytest.skip("without a plan")
    may_cost_ns = -sum(min(0, step.gain_ns.low or 0) for step in report.plan)
    assert max(step.step_after_ns.high for step in report.plan) <= base.now_ns + may_cost_ns


def test_the_sample_report_of_the_documentation_is_current(name: str) -> None:
    if LABEL_FILES[name].parent / LABELS[name]["trace"] != SAMPLE:
        pytest.skip("not the run of the sample report")
    # Not byte for byte: the last digits of a number may differ between machines.
    shown, made = (re.findall(r'<section id="(\w+)"|<h[1-3][^>]*>(.*?)</h[1-3]>', text) for text in (
        OUT.read_text(), page_of(name)
    ))  # fmt: skip
    assert shown == made, "run: make docs"


def test_every_trace_has_a_row_in_the_readme(name: str) -> None:
    assert f"`{LABELS[name]['trace']}" in (LABEL_FILES[name].parent / "README.md").read_text()


def test_warnings_are_sentences_and_percent_signs_touch_their_number(name: str) -> None:
    report = report_of(name)
    for warning in report.warnings:
        assert not warning.message[0].islower(), warning
        assert warning.message.endswith("."), warning
    assert re.findall(r".{20}\d %", render_markdown(report)) == []
