"""What the sections choose, order and sum; how any of them is laid out is tested with the renderers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.bridge.builders import edit
from tests.report.rendered import lines_of, section_of, table_of
from tests.report.sample_report import MS, load_case, without_plan, without_replay
from three_walls.advice.finding import NEEDS_ALLOW, REPLAYED, UPPER_BOUND, Gain, Outcome
from three_walls.advice.verdict_rows import Counterfactual, Culprit
from three_walls.bridge.render_overrides import spell
from three_walls.facts.fact_rows import CopyBandwidth, LogSummary, MoePart, TimerSummary
from three_walls.facts.sheet import DEFINITION_BY_NAME
from three_walls.lib.fact import Fact, FactSheet
from three_walls.lib.report_warning import SETTINGS_UNKNOWN, ReportWarning
from three_walls.log.training_log import TimerKind
from three_walls.megatron.settings.run_config import ConfigValue
from three_walls.report.report import Report
from three_walls.report.section import Hero, Items, Section, Text, nested_blocks, plain_text
from three_walls.report.sections import make_sections
from three_walls.report.sections.communication import bounds_of, group_stages, order_slowdowns
from three_walls.report.sections.gaps import sum_causes
from three_walls.report.sections.moe import list_layers, list_parts, name_layers, sum_parts
from three_walls.report.sections.plan import BY_HAND
from three_walls.report.sections.steps import describe_log, describe_progress, order_timers, spread_of
from three_walls.report.sections.verdict import describe_steps
from three_walls.report.sections.waits import ClassWait, order_stragglers, order_waits, summarize_classes
from three_walls.step.step_rows import GapCause, Wait
from three_walls.tables.buckets import SubWall, Wall

GIB = 2**30


def text_of(section: Section | None) -> str:
    """Every word of a section's notes, cards and lead."""
    assert section is not None
    words = [section.lead, section.empty]
    for block in nested_blocks(section.blocks):
        words += [plain_text(getattr(block, part, "")) for part in ("title", "content")]
    return " ".join(words)


def test_every_section_has_a_name_of_its_own_and_every_table_too(report: Report) -> None:
    sections = make_sections(report)
    tables = [
        block.name
        for section in sections
        for block in nested_blocks(section.blocks)
        if hasattr(block, "rows") and hasattr(block, "columns")
    ]
    assert len({section.name for section in sections}) == len(sections)
    assert len(set(tables)) == len(tables)


def test_the_head_counts_complete_steps_and_names_what_marks_them(report: Report) -> None:
    assert describe_steps(report) == (
        "Step 612 ms (by the log; traced: 640 ms); 48 of 64 steps complete, traced in 631-655 ms "
        "(boundaries from optimizer kernels)"
    )
    alone = replace(report.step, kept=1, dropped=report.step.dropped[:1], min_ns=640 * MS, max_ns=640 * MS)
    assert describe_steps(replace(report, step=alone)) == (
        "Step 612 ms (by the log; traced: 640 ms); 1 of 2 steps complete (boundaries from optimizer kernels)"
    )


def test_badges_and_sources_are_in_brackets_only_next_to_other_text() -> None:
    badge, source = Text("median", "badge"), Text("guide:1", "source")
    assert plain_text(("kept", badge)) == "kept [median]"
    assert plain_text((Text("claim"), source)) == "claim (guide:1)"
    assert plain_text(badge) == "median"
    assert plain_text(source) == "guide:1"
    assert plain_text((Text("claim"), Text("", "source"))) == "claim"


# Gaps without compute


def test_causes_are_summed_longest_first_and_keep_all_of_the_time(report: Report) -> None:
    for rank in report.ranks:
        rows = sum_causes(rank)
        assert sum(row.ns for row in rows) == sum(cause.ns for cause in rank.gap_causes)
        assert [row.ns for row in rows] == sorted((row.ns for row in rows), reverse=True)


def test_equal_details_are_one_and_empty_ones_are_not_listed(report: Report) -> None:
    causes = (GapCause("a", 2, "x"), GapCause("a", 1), GapCause("b", 0), GapCause("a", 3, "x"))
    (row,) = sum_causes(replace(report.ranks[0], gap_causes=causes))
    assert (row.cause, row.ns, row.details) == ("a", 6, (("x", 5),))


def test_a_share_of_no_step_is_unknown(report: Report) -> None:
    (row,) = sum_causes(replace(report.ranks[0], budget={}, gap_causes=(GapCause("a", 2),)))
    assert row.fraction is None


# Waiting for peers


def summarize(report: Report, *waits: Wait) -> ClassWait:
    (row,) = summarize_classes(replace(report, waits=waits))
    return row


def test_stragglers_and_slowdowns_come_dearest_first(report: Report) -> None:
    assert [straggler.rank for straggler in order_stragglers(report)] == [0, 5]
    slowdowns = [row.slowdown_ns for row in order_slowdowns(report)]
    assert slowdowns == sorted(slowdowns, reverse=True)


def test_the_late_rank_is_the_one_with_most_of_the_waiting(report: Report) -> None:
    row = summarize(
        report,
        Wait("all_gather", 0, 10, 5, 3, True, "latest arrival"),
        Wait("all_gather", 1, 4, 5, 2, True, "latest arrival"),
        Wait("all_gather", 2, 5, 5, 2, True, "latest arrival"),
        Wait("all_gather", 3, None, None, None, False, "not matched"),
    )
    assert (row.late_rank, min(row.wait_ns), max(row.wait_ns)) == (3, 4, 10)
    assert (row.rank_count, row.resolved_count, row.unknown_count) == (4, 3, 1)
    assert row.notes == ("latest arrival", "not matched")
    assert not row.is_without_wait


def test_waits_that_are_not_known_stay_unknown(report: Report) -> None:
    unknown = replace(report, waits=(Wait("all_gather", 0, None, None, None, False, ""),))
    assert lines_of(table_of(unknown, "waits"))[0][1:4] == ["unknown", "unknown", "unknown"]
    none = replace(report, waits=(Wait("all_gather", 0, 0, 5, None, True, ""),))
    assert summarize_classes(none)[0].is_without_wait
    assert lines_of(table_of(none, "waits"))[0][3] == "none"


def test_waits_are_in_order_of_class_and_rank(report: Report) -> None:
    shuffled = replace(report, waits=tuple(reversed(report.waits)))
    assert order_waits(shuffled) == order_waits(report)
    assert [row.communication_class for row in summarize_classes(report)] == [
        "ep_all_to_all",
        "all_gather",
        "all_reduce",
    ]


# MoE layers


def test_sums_over_layers_keep_time_and_bytes(report: Report) -> None:
    sums = sum_parts(report.moe_layers)
    assert sum(part.ns for part in sums) == sum(part.ns for part in report.moe_layers)
    dispatch = next(part for part in sums if (part.direction, part.part) == ("forward", "dispatch"))
    assert dispatch.bytes_moved == 3 * 28_000_000
    assert dispatch.bytes_per_s == pytest.approx(dispatch.bytes_moved / dispatch.ns * 1e9)
    assert dispatch.limit_bytes_per_s == 50e9
    assert [part.part for part in sums[:3]] == ["router", "permute", "dispatch"]


def test_one_unknown_layer_makes_the_bytes_of_the_sum_unknown() -> None:
    known = MoePart(0, "forward", "dispatch", 10, 10, 1, 100, 1e10, 5e10)
    (total,) = sum_parts((known, MoePart(1, "forward", "dispatch", 10, 10, 1)))
    assert (total.ns, total.bytes_moved, total.bytes_per_s, total.limit_bytes_per_s) == (20, None, None, None)


def test_a_row_of_all_layers_is_not_added_to_them() -> None:
    parts = (MoePart(None, "forward", "router", 30, 0, 3), MoePart(0, "forward", "router", 10, 0, 1))
    assert sum_parts(parts) == (parts[0],)
    assert list_parts(parts) == (parts[1],)


def test_layers_are_in_order_and_their_sum_is_last() -> None:
    parts = (MoePart(4, "backward", "combine", 7, 7, 1), MoePart(2, "backward", "router", 5, 0, 1))
    rows = list_layers("backward", sum_parts(parts), list_parts(parts))
    assert [layer for layer, _ in rows] == [2, 4, None]
    assert rows[0][1] == {"router": parts[1]}
    assert [part.ns for part in rows[2][1].values()] == [5, 7]


def test_a_layer_of_multi_token_prediction_is_named() -> None:
    parts = (MoePart(3, "forward", "router", 7, 0, 1), MoePart(4, "forward", "router", 5, 0, 1, stack="mtp"))
    assert name_layers(parts) == {None: "all layers", 3: "3", 4: "4 (MTP)"}


def test_a_bandwidth_is_unknown_only_where_tokens_are_carried(report: Report) -> None:
    parts = (MoePart(None, "forward", "dispatch", 5, 5, 1), MoePart(None, "forward", "router", 5, 5, 1))
    router, dispatch = lines_of(table_of(replace(report, moe_layers=parts), "moe"))
    assert dispatch[5:8] == ["unknown"] * 3
    assert router[5:8] == [""] * 3


# Pipeline


def test_stages_are_in_order_and_their_phases_in_order_of_time() -> None:
    rows = group_stages(load_case("unusual").pipeline_phases)
    assert [(ranks[0].stage, ranks[0].phase, len(ranks)) for ranks in rows] == [
        (0, "warm-up", 2),
        (0, "steady", 1),
        (1, "update", 1),
    ]
    assert bounds_of("ns")(rows[0]) == (96 * MS, 98 * MS)
    assert bounds_of("bubble_ns")(rows[0]) == (33 * MS, 34 * MS)


# The log


@pytest.fixture
def log(report: Report) -> LogSummary:
    assert report.log is not None
    return report.log


def test_what_is_not_known_is_not_zero() -> None:
    bare = LogSummary(("a",), 0, {}, 3, None, None, None, None, None, None, 2, {})
    assert describe_log(bare) == (
        "Log: unprofiled step unknown (no iteration line; the last rank prints them, so give its log too); "
        "out of memory 2 times; 3 torn lines not read"
    )


def test_a_log_without_memory_lines_names_the_rank_that_prints_them(log: LogSummary) -> None:
    assert "peak memory unknown (no memory line; rank 0 prints them, so give its log too)" in describe_log(
        replace(log, peak_memory_bytes=None)
    )


def test_a_progress_file_without_a_checkpoint_has_no_throughput(log: LogSummary) -> None:
    assert describe_progress(replace(log, progress=None)) == ""
    assert log.progress is not None
    started = replace(log.progress, job_tflops_per_gpu=None, last_iteration=None, restarts=2, other_gpus=())
    assert describe_progress(replace(log, progress=started, tflops_per_gpu=None)) == (
        "Progress file: no checkpoint of these jobs, so no throughput; 2 restarts with 16 GPUs"
    )


def test_timers_of_steps_come_first_the_longest_at_the_top(log: LogSummary) -> None:
    shuffled = replace(log, timers=tuple(reversed(log.timers)))
    assert [timer.name for timer in order_timers(shuffled)] == [
        "forward-compute",
        "all-grads-sync",
        "optimizer",
        "save-checkpoint",
    ]
    assert order_timers(None) == ()
    assert spread_of(TimerSummary("a", TimerKind.OTHER, 1, 0, 5)) is None


# Sections without content


@pytest.mark.parametrize(
    ("case", "name", "changes"),
    [
        ("unusual", "pipeline", {"pipeline_phases": ()}),
        ("unusual", "critical-path", {"critical_path": None}),
        ("unusual", "memory", {"memory_snapshot": None, "facts": FactSheet.of(())}),
        ("eight-ranks", "recompute", {"recompute_layers": ()}),
        ("eight-ranks", "graphs", {"graph_coverage": None}),
        ("eight-ranks", "recipe", {"known_good_recipe": None, "no_recipe_reason": ""}),
        ("eight-ranks", "warnings", {"warnings": ()}),
        ("eight-ranks", "kernels", {"kernels": ()}),
        ("eight-ranks", "host_work", {"host_work": ()}),
        ("eight-ranks", "synchronizations", {"synchronizations": None}),
        ("eight-ranks", "timers", {"log": None}),
    ],
)
def test_a_section_without_content_is_left_out(case: str, name: str, changes: dict[str, Any]) -> None:
    report = load_case(case)
    assert section_of(report, name) is not None
    assert section_of(replace(report, **changes), name) is None


def test_without_labels_of_modules_the_critical_path_is_one_table() -> None:
    report = load_case("unusual")
    path = report.critical_path
    assert path is not None
    unlabelled = replace(path, by_module=(replace(path.by_module[0], name="unknown"),))
    section = section_of(replace(report, critical_path=unlabelled), "critical-path")
    assert section is not None
    assert len(section.blocks) == 1


@pytest.mark.parametrize("name", ["gaps", "communication", "waits", "moe", "overlap", "efficiency"])
def test_what_every_run_has_is_unknown_where_it_was_not_measured(abstained: Report, name: str) -> None:
    section = section_of(abstained, name)
    assert section is not None
    assert section.empty.startswith("Unknown")
    assert section.blocks == ()


def test_an_empty_plan_states_why(report: Report) -> None:
    section = section_of(without_plan(report), "plan")
    assert section is not None
    assert section.empty == "Empty: no rule recommends an edit for this run."
    assert section_of(without_plan(report), "overrides") is None


def test_without_replays_the_plan_states_why_and_the_edits_stand_with_upper_bounds(report: Report) -> None:
    unpriced = without_replay(report)
    section = section_of(unpriced, "plan")
    assert section is not None
    assert section.empty == (
        "No plan: gains are not known, because the step cannot be replayed (the capture has no CUDA API calls). "
        "3 edits may help: the findings list them with the most that each can gain."
    )
    assert [line[2] for line in lines_of(table_of(unpriced, "left_out"))][:2] == [
        "gain up to 89.0 ms (upper bound)",
        "gain up to 31.0 ms (upper bound)",
    ]
    first = head_of(unpriced).edits[0]
    assert (first.title, first.gain) == (report.plan[0].finding.title, "up to 89.0 ms")
    assert head_of(unpriced).edits_title == "There is no plan. What may help"


def test_without_replays_the_rank_to_fix_is_the_only_entry_and_the_plan_states_why(report: Report) -> None:
    fix = replace(report.plan[0], order=0, edits=(), step_after_likely_ns=None)
    section = section_of(replace(without_replay(report), plan=(fix,)), "plan")
    assert section is not None
    assert section.lead.startswith("No entry follows: gains are not known, because the step cannot be replayed")


def test_edits_that_no_replay_prices_are_named_where_no_other_gains_enough(report: Report) -> None:
    section = section_of(replace(report, plan=()), "plan")
    assert section is not None
    assert section.empty.startswith("No plan: no edit gains enough by replay. 3 edits may help: the findings list them")


def test_an_empty_plan_of_a_run_without_settings_states_what_to_give(report: Report) -> None:
    asks = ReportWarning(SETTINGS_UNKNOWN, "The settings of the run are unknown.")
    section = section_of(replace(without_plan(report), warnings=(asks,)), "plan")
    assert section is not None
    assert section.empty.endswith("by what is known of this run. The settings of the run are unknown.")


def test_an_unknown_peak_is_unknown_and_small_copies_have_no_bandwidth(report: Report) -> None:
    assert [line[5] for line in lines_of(table_of(report, "roles"))] == ["72.6%", "unknown"]
    assert [line[5] for line in lines_of(table_of(report, "copies"))] == ["unknown", "49.3 GB/s"]
    none = replace(report, efficiency=(), copies=())
    section = section_of(none, "efficiency")
    assert section is not None
    assert section.blocks == ()


def test_a_copy_without_operations_is_still_efficiency(report: Report) -> None:
    copy = CopyBandwidth("copy_h2d_pinned", 1, 1, 1, 1, 1.0, 1)
    section = section_of(replace(report, efficiency=(), copies=(copy,)), "efficiency")
    assert section is not None
    assert len(section.blocks) == 1


# What is undecided


def undecided(missing: dict[str, dict[str, str]], report: Report) -> list[list[str]]:
    """Rows of what is missing, with one undecided rule per entry: the facts it lacks, each with its reason."""
    of_rule = report.findings[0]
    findings = tuple(
        replace(of_rule, rule=rule, outcome=Outcome.UNKNOWN, missing=tuple(lacks)) for rule, lacks in missing.items()
    )
    reasons = {name: reason for lacks in missing.values() for name, reason in lacks.items()}
    facts = FactSheet.of(
        Fact(name, None, "text", reason, DEFINITION_BY_NAME.get(name)) for name, reason in reasons.items()
    )
    return lines_of(table_of(replace(report, plan=(), findings=findings, facts=facts), "missing_facts"))


def test_settings_that_one_reason_hides_are_one_row(report: Report) -> None:
    settings = {f"config.s{place}": "not known" for place in range(7)}
    assert undecided({"b": settings, "a": {"config.s0": "not known"}}, report) == [
        [
            "s0, s1, s2, s3 and 3 more",
            "not known; the training log (--log), --config or --set provides them",
            "a, b",
        ]
    ]


def test_a_missing_measurement_is_named_in_words_and_not_sought_in_the_log(report: Report) -> None:
    assert undecided({"a": {"step_ns": "no step"}}, report) == [["the step length", "no step", "a"]]


# The head


def head_of(report: Report) -> Hero:
    section = section_of(report, "verdict")
    assert section is not None
    (hero,) = section.blocks
    assert isinstance(hero, Hero)
    return hero


def test_experts_one_by_one_are_named_where_their_gemms_are_many_kernels(report: Report) -> None:
    host = replace(report.verdict, wall=Wall.COMPUTE_HOST, sub_wall=SubWall.HOST)
    few = replace(report, verdict=host, moe_layers=(MoePart(0, "forward", "expert_gemm", 1, 0, 32),))
    assert head_of(few).title == "Host-bound: kernels are launched late"
    many = replace(few, moe_layers=(MoePart(0, "forward", "expert_gemm", 1, 0, 9_000),))
    assert head_of(many).title == "Host-bound: kernels are launched late"  # moe_grouped_gemm is set
    not_grouped = replace(many.config, values={"moe_grouped_gemm": ConfigValue(False, "command line")})
    assert head_of(replace(many, config=not_grouped)).title == "Host-bound: launches of sequential experts"


def test_a_head_without_a_plan_states_what_to_do_instead(report: Report) -> None:
    found = replace(report.findings[0], rule="late", title="Bind each process", outcome=Outcome.FOUND)
    head = head_of(replace(without_plan(report), findings=(found,)))
    assert [(line.title, line.link, line.copies) for line in head.edits] == [("Bind each process", "rule-late", ())]
    assert "No edit is recommended" in head.edits_title
    assert "After the plan" not in [metric.label for metric in head.metrics]


@pytest.mark.parametrize(
    ("dialect", "copied", "note"),
    [("bridge", [("Bridge overrides", "entry-1-bridge")], ""), ("megatron_lm", [], BY_HAND)],
)
def test_the_head_copies_for_no_other_launcher_than_the_runs(
    report: Report, dialect: str, copied: list[tuple[str, str]], note: str
) -> None:
    overrides = spell([edit("recompute_granularity", None)], report.config)
    assert (overrides.bridge != (), overrides.megatron_lm) == (True, ())  # Megatron-LM has to remove a flag
    step = replace(report.plan[0], order=1, overrides=overrides, is_below_noise=False)
    config = replace(report.config, dialect=dialect)
    first = head_of(replace(report, plan=(step,), config=config)).edits[0]
    assert (list(first.copies), first.note) == (copied, note)


@pytest.mark.parametrize(
    ("gain_ns", "reason", "is_shown"),
    [
        (10_000 * MS, NEEDS_ALLOW, True),
        (1, NEEDS_ALLOW, False),  # an entry gains more
        (10_000 * MS, "Another rule changes the same settings. {0}", False),
    ],
)
def test_what_would_gain_more_than_the_plan_if_it_were_allowed_is_in_the_head(
    report: Report, gain_ns: int, reason: str, is_shown: bool
) -> None:
    kind = "convergence-changing"
    kept_out = replace(
        report.findings[0], rule="fp8", title="Train in FP8", outcome=Outcome.ALTERNATIVE, applicability=kind,
        reason=reason.format(kind), gain_ns=Gain(gain_ns, gain_ns, gain_ns, REPLAYED),
    )  # fmt: skip
    lines = [(edit.title, edit.note) for edit in head_of(replace(report, findings=(kept_out,))).edits]
    assert (("Train in FP8", "needs --allow convergence-changing") in lines) is is_shown


@pytest.mark.parametrize(("gain_ms", "is_shown"), [(29, True), (24, True), (23, False), (28, False)])
def test_a_finding_is_in_the_head_where_it_is_as_much_as_a_first_entry_and_not_the_gain_of_one(
    report: Report, gain_ms: int, is_shown: bool
) -> None:
    def gain(ms: int) -> Gain:
        return Gain(0, ms * MS, ms * MS, REPLAYED)

    plan = tuple(
        replace(report.plan[0], order=order, gain_ns=gain(ms)) for order, ms in enumerate((28, 27, 26, 5), start=1)
    )
    found = replace(report.findings[0], title="Bind", outcome=Outcome.FOUND, gain_ns=gain(gain_ms))
    titles = [edit.title for edit in head_of(replace(report, plan=plan, findings=(found,))).edits]
    assert ("Bind" in titles) is is_shown


def test_without_a_plan_what_likely_gains_most_is_first_and_a_gain_that_nobody_knows_says_so(report: Report) -> None:
    gains = {
        "affinity": Gain(-63 * MS, 0, 232 * MS, REPLAYED),
        "attention": Gain(0, 38 * MS, 101 * MS, REPLAYED),
        "allocator": Gain(None, None, None, UPPER_BOUND),
    }
    found = tuple(
        replace(report.findings[0], rule=rule, title=rule, outcome=Outcome.FOUND, gain_ns=gain)
        for rule, gain in gains.items()
    )
    edits = head_of(replace(without_plan(report), findings=found)).edits
    assert [(edit.title, edit.gain) for edit in edits] == [
        ("attention", "38 ms (0-101 ms)"),
        ("affinity", "0 ms (-63 to 232 ms)"),
        ("allocator", "gain unknown"),
    ]


def test_rules_that_wait_for_settings_are_one_number_in_the_head(report: Report) -> None:
    names = ("config.fp8", "config.bf16", "step_ns")
    findings = tuple(replace(report.findings[0], rule=name, outcome=Outcome.UNKNOWN, missing=(name,)) for name in names)
    asks = ReportWarning(SETTINGS_UNKNOWN, "2 of 3 rules wait for the settings.")
    head = head_of(replace(without_plan(report), findings=findings, warnings=(asks,)))
    assert [edit.note for edit in head.edits] == ["decides up to 2 rules"]
    assert plain_text(head.limits[-1]) == "3 rules undecided for lack of facts, 2 of them of settings"
    stated = head_of(replace(without_plan(report), findings=findings, warnings=()))
    assert stated.edits == ()
    assert plain_text(stated.limits[-1]) == "3 rules undecided for lack of facts"


def test_the_wall_behind_a_slow_rank_is_named_with_its_base_and_with_what_the_plan_says_of_it(report: Report) -> None:
    culprit = Culprit(2, "slow_compute", 100 * MS, 512 * MS)
    without = tuple(
        Counterfactual((name,), step_ns, saved_ns)
        for name, step_ns, saved_ns in (("straggler", 512 * MS, 100 * MS), ("communication", 384 * MS, 128 * MS))
    )
    verdict = replace(report.verdict, culprit=culprit, counterfactuals=without, plan_remark="Together the edits gain.")
    head = head_of(replace(report, verdict=verdict))
    assert head.remark == (
        "Without its delay the run is communication-bound: exposed expert all-to-all. Together the edits gain."
    )
    (wall,) = [metric for metric in head.metrics if metric.label == "Without this wall"]
    assert (wall.value, wall.note) == ("384 ms", "saves 25.0% of the step without the delay of rank 2, by replay")


@pytest.mark.parametrize(
    ("dialect", "left_out"), [("megatron_lm", "Megatron-Bridge: y"), ("bridge", "Megatron-LM: remove x"), ("", None)]
)
def test_notes_on_the_other_launcher_are_left_out(report: Report, dialect: str, left_out: str | None) -> None:
    notes = ("Megatron-LM: remove x", "Megatron-Bridge: y", "it pins")
    overrides, config = replace(report.overrides, notes=notes), replace(report.config, dialect=dialect)
    section = section_of(replace(report, overrides=overrides, config=config), "overrides")
    assert section is not None
    shown = [item for block in section.blocks if isinstance(block, Items) for item in block.items]
    assert shown == [f"note: {note}" for note in notes if note != left_out]


def test_a_warning_that_is_given_twice_is_named_once(report: Report) -> None:
    twice = ReportWarning("outlier-step", "Step 3 is long.")
    head = head_of(replace(report, warnings=(twice, ReportWarning("one-step", "One step."), twice)))
    assert plain_text(head.limits[0]) == "3 warnings (2 times outlier step, one step)"
