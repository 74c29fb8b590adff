"""A history of runs: what was accepted, what was reverted, and what is next."""

from __future__ import annotations

from dataclasses import replace

from tests.report.sample_report import MS
from tests.runs.sample_runs import make_log_run, make_run
from tests.runs.test_settings import DEEPEP
from three_walls.report.comparison import Decision, Judgement
from three_walls.report.html_report import render_page
from three_walls.report.sections.history import make_history_sections
from three_walls.runs.compared_run import Run
from three_walls.runs.judge_history import TriedWith, judge_history

UNSET = {"moe_router_dtype": None, "cuda_graph_scope": None}
FIRST, SECOND = "exposed-ep-alltoall-deepep", "launch-starved-cuda-graphs"


def base() -> Run:
    return make_run("base", 600, settings=UNSET)


def deepep(step_ms: float) -> Run:
    return make_run("deepep", step_ms, settings={**UNSET, **DEEPEP})


def test_of_the_base_alone_the_first_entry_is_next() -> None:
    history = judge_history([TriedWith(base())])
    assert [run.decision for run in history.runs] == [Decision.BASE]
    assert history.next_trial is not None
    assert history.next_trial.rule == FIRST
    assert history.next_trial.bridge[0] == "model.moe_token_dispatcher_type=flex"


def test_an_edit_that_is_faster_is_accepted_and_the_next_run_builds_on_it() -> None:
    worse = make_run("worse", 590, settings={**UNSET, **DEEPEP, "micro_batch_size": 2})
    history = judge_history([TriedWith(base()), TriedWith(deepep(560)), TriedWith(worse)])
    assert [(run.decision, run.against) for run in history.runs] == [
        (Decision.BASE, ""),
        (Decision.ACCEPTED, "base"),
        (Decision.REVERTED, "deepep"),
    ]
    tried = history.runs[1]
    assert (tried.rules, tried.measured_ns, tried.judgement) == ((FIRST,), 40 * MS, Judgement.INSIDE)
    assert (tried.predicted_low_ns, tried.predicted_high_ns) == (0, 89 * MS)
    assert history.runs[2].settings == ("micro_batch_size: 1 -> 2",)
    assert (history.best, history.best_step_ns, history.first_step_ns) == ("deepep", 560 * MS, 600 * MS)


def test_an_entry_that_was_reverted_is_not_proposed_again() -> None:
    history = judge_history([TriedWith(base()), TriedWith(deepep(603))])
    assert history.runs[1].decision is Decision.REVERTED
    assert history.runs[1].reason == "no difference beyond the spread"
    assert history.best == "base"
    assert history.next_trial is not None
    assert (history.next_trial.rule, history.skipped) == (SECOND, (FIRST,))


def test_a_best_run_that_was_not_traced_goes_on_by_the_plan_of_the_last_that_was() -> None:
    history = judge_history([TriedWith(base()), TriedWith(make_log_run("log", 550, {**UNSET, **DEEPEP}))])
    assert (history.best, history.planned_by) == ("log", "base")
    assert history.next_trial is not None
    assert history.next_trial.rule == SECOND


def test_a_run_whose_settings_are_not_known_is_tried_as_its_label_states() -> None:
    silent = make_log_run("silent", 550, UNSET)
    history = judge_history([TriedWith(base()), TriedWith(silent, (FIRST,))])
    assert (history.runs[1].rules, history.runs[1].predicted_high_ns) == ((FIRST,), 89 * MS)
    assert history.next_trial is not None
    assert history.next_trial.rule == SECOND


def test_nothing_is_proposed_once_all_entries_were_tried_or_none_was_planned() -> None:
    done = judge_history([TriedWith(base()), TriedWith(make_log_run("log", 610, UNSET), (FIRST, SECOND))])
    assert (done.next_trial, done.no_next_reason) == (None, "every entry of the plan was tried")
    unplanned = replace(base(), report=replace(base().report, plan=()))
    assert judge_history([TriedWith(unplanned)]).no_next_reason == "the plan is empty"
    assert "trace the best run" in judge_history([TriedWith(make_log_run())]).no_next_reason
    assert "No entry: every entry of the plan was tried." in render_page(make_history_sections(done), done, "h.json")


def test_a_run_of_another_model_is_no_try() -> None:
    other = make_run("other", 300, settings={**UNSET, "num_layers": 2})
    history = judge_history([TriedWith(base()), TriedWith(other)])
    assert (history.runs[1].decision, history.best) == (Decision.NOT_COMPARABLE, "base")


def test_an_edit_of_the_base_is_judged_against_the_base_even_after_a_better_run() -> None:
    later = make_run("router", 580, settings={**UNSET, "moe_grouped_gemm": False})
    history = judge_history([TriedWith(base()), TriedWith(deepep(560)), TriedWith(later)])
    assert (history.runs[2].against, history.runs[2].decision) == ("base", Decision.ACCEPTED)
    assert history.best == "deepep"  # it stays the fastest


def test_a_run_that_states_a_setting_which_the_base_leaves_open_is_no_repetition() -> None:
    more = make_run("more", 630, settings={**UNSET, "moe_router_fusion": True})
    history = judge_history([TriedWith(base()), TriedWith(more)])
    assert history.runs[1].decision is Decision.REVERTED


def test_repetitions_of_a_run_are_no_tries_and_what_they_differ_by_counts_as_spread() -> None:
    again = make_run("again", 640, settings=UNSET)
    history = judge_history([TriedWith(base()), TriedWith(deepep(570)), TriedWith(again)])
    assert [run.decision for run in history.runs] == [Decision.BASE, Decision.REVERTED, Decision.REPEATED]
    assert history.runs[1].spread_ns == 40 * MS
    assert (history.best, history.best_step_ns) == ("base", 600 * MS)
