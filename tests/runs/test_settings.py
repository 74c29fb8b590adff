"""Settings that differ, with the gain that BEFORE's plan predicted and the gain measured."""

from __future__ import annotations

from dataclasses import replace

from tests.report.sample_report import MS
from tests.runs.sample_runs import make_run
from three_walls.megatron.settings.run_config import ConfigValue
from three_walls.report.comparison import Judgement
from three_walls.runs.changed_settings import judge_gain
from three_walls.runs.compare_runs import compare_pair
from three_walls.runs.compared_run import Run

DEEPEP = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep", "moe_router_dtype": "fp32"}


def base() -> Run:
    """The base, with every setting that the plan of the sample report edits known."""
    return make_run(settings={"moe_router_dtype": None, "cuda_graph_scope": None})


def edited(step_ms: float, **settings: object) -> Run:
    return make_run("edit", step_ms, settings={"moe_router_dtype": None, "cuda_graph_scope": None, **settings})  # type: ignore[arg-type]


def test_an_entry_made_alone_is_judged_against_its_predicted_range() -> None:
    pair = compare_pair(base(), edited(560, **DEEPEP))
    assert [(change.key, change.before, change.after) for change in pair.settings] == [
        ("moe_flex_dispatcher_backend", None, "deepep"),
        ("moe_router_dtype", None, "fp32"),
        ("moe_token_dispatcher_type", "alltoall", "flex"),
    ]
    (entry,) = pair.trial.entries
    assert (entry.rule, entry.is_whole, entry.measured_ns) == ("exposed-ep-alltoall-deepep", True, 40 * MS)
    assert entry.judgement is pair.trial.judgement is Judgement.INSIDE
    assert (pair.trial.predicted_low_ns, pair.trial.predicted_high_ns) == (0, 89 * MS)


def test_a_gain_outside_of_the_range_by_more_than_the_spread_is_called_so() -> None:
    assert judge_gain(20, 40, 30, 5) is Judgement.INSIDE
    assert judge_gain(20, 40, 16, 5) is Judgement.INSIDE
    assert judge_gain(20, 40, 14, 5) is Judgement.BELOW
    assert judge_gain(20, 40, 46, 5) is Judgement.ABOVE
    assert judge_gain(None, 40, 30, 5) is Judgement.UNKNOWN


def test_two_entries_are_judged_together_and_neither_alone() -> None:
    graphs = {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ("attn", "moe_router", "moe_preprocess")}
    after = make_run(
        "both",
        500,
        settings={"moe_router_dtype": None, **DEEPEP, **graphs},
        env={"CUDA_DEVICE_MAX_CONNECTIONS": "32"},
    )
    trial = compare_pair(base(), after).trial
    assert [entry.measured_ns for entry in trial.entries] == [None, None]
    assert (trial.predicted_low_ns, trial.predicted_high_ns) == (8 * MS, 120 * MS)
    assert (trial.measured_ns, trial.judgement, trial.other_settings) == (100 * MS, Judgement.INSIDE, ())


def test_what_the_overrides_of_an_entry_set_besides_belongs_to_it() -> None:
    before = base()
    first = before.report.plan[0]
    assert first.overrides is not None
    lines = (*first.overrides.bridge, "++model.moe_shared_expert_overlap=false")
    entry = replace(first, overrides=replace(first.overrides, bridge=lines))
    before = replace(before, report=replace(before.report, plan=(entry, *before.report.plan[1:])))
    before.report.config.values["moe_shared_expert_overlap"] = ConfigValue(True, "config file")  # type: ignore[index]
    trial = compare_pair(before, edited(560, **DEEPEP, moe_shared_expert_overlap=False)).trial
    assert (trial.other_settings, trial.judgement) == ((), Judgement.INSIDE)


def test_a_setting_that_no_entry_proposes_leaves_the_gain_undivided() -> None:
    trial = compare_pair(base(), edited(560, **DEEPEP, micro_batch_size=2)).trial
    assert trial.other_settings == ("micro_batch_size",)
    assert (trial.entries[0].measured_ns, trial.judgement) == (None, Judgement.UNKNOWN)


def test_an_entry_made_in_part_or_to_another_value_predicts_nothing() -> None:
    part = compare_pair(base(), edited(590, moe_token_dispatcher_type="flex")).trial
    assert [entry.is_whole for entry in part.entries] == [False]
    assert part.other_settings == ("moe_token_dispatcher_type",)
    other = compare_pair(base(), edited(590, moe_token_dispatcher_type="allgather")).trial
    assert other.entries == ()


def test_what_is_profiled_or_saved_is_no_difference() -> None:
    assert compare_pair(base(), edited(600, profile_step_start=12, train_iters=40)).settings == ()


def test_defaults_that_follow_an_edit_are_marked_and_do_not_count() -> None:
    before, after = base(), edited(560, **DEEPEP)
    for run, value in ((before, False), (after, True)):
        run.report.config.values["persist_layer_norm"] = ConfigValue(value, "Megatron-LM default")  # type: ignore[index]
    pair = compare_pair(before, after)
    assert [change.key for change in pair.settings if change.follows] == ["persist_layer_norm"]
    assert pair.trial.entries[0].judgement is Judgement.INSIDE


def test_a_variable_that_only_one_trace_recorded_was_unset_in_the_other() -> None:
    pair = compare_pair(base(), make_run("edit", settings={"moe_router_dtype": None}, env={"NCCL_NVLS_ENABLE": "0"}))
    assert [(change.key, change.before, change.after) for change in pair.settings] == [("NCCL_NVLS_ENABLE", None, "0")]


def test_a_variable_is_not_taken_for_unset_where_the_environment_was_not_recorded() -> None:
    """A saved config names a few variables, and a log none."""
    after = edited(590)
    environment = {"NCCL_NVLS_ENABLE": ConfigValue("0", "config file")}
    after = replace(after, report=replace(after.report, config=replace(after.report.config, environment=environment)))
    pair = compare_pair(base(), after)
    assert pair.settings == ()
    assert "not both recorded all" in pair.settings_note
