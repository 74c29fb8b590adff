"""What changes in a replay, as effects and rules with advice list it: its errors, and the numbers that facts give."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.advice.builders import sheet_of
from tests.advice.test_rulebase import RULE, complaints, rules_directory
from three_walls.advice.compare_settings import compare_settings, fill_entries
from three_walls.advice.format.load_rules import load_rule_base, load_rules
from three_walls.advice.format.replay_entries import (
    FactNumber,
    ParameterRange,
    RanksFact,
    ReplayEntry,
    SelectionEntry,
)
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.expressions import Condition
from three_walls.replay.transformation import ALL, Action, Selection, Transformation
from three_walls.tables.prediction_intervals import Levels

EFFECTS = load_rule_base(DEFINITIONS).effects
ENTRY = """\
  replay:
    - fuse: {work: rope, directions: [forward, backward]}
      time: {low: 0.6, likely: 0.4, high: 0.15}
      host: 0.1
      reason: one kernel
      source: guide:A guide
    - host: {one_minus_fact: launch_starved_fraction}
      reason: the host is faster
      only_if: config.bf16 is True
"""
EDITS = """\
lever: launches
edits:
  - {set: cuda_graph_scope, to: [moe_router]}
  - {env: SOME_VARIABLE, to: {fact: world_size}}
"""
ADVICE = RULE.replace(EDITS, "advice: Look at it.\n")


def scaled(time: FactNumber) -> ReplayEntry:
    return ReplayEntry(scale=SelectionEntry(), time=time, reason="")


def with_replay(entry: str) -> str:
    return ADVICE.replace("  explanation: Because.\n", f"  explanation: Because.\n{entry}")


def read_entries(tmp_path: Path, entry: str) -> tuple[ReplayEntry, ...]:
    (rule,) = load_rules(rules_directory(tmp_path, with_replay(entry)), definitions=DEFINITIONS)
    return rule.gain.replay


def test_an_entry_is_an_action_a_selection_and_what_remains(tmp_path: Path) -> None:
    fuse, host = read_entries(tmp_path, ENTRY)
    assert fuse.fill(sheet_of({})) == Transformation(
        Action.FUSE,
        Selection(work=("rope",), directions=("forward", "backward")),
        time=Levels(0.6, 0.4, 0.15),
        host=Levels(0.1, 0.1, 0.1),
        reason="one kernel",
        source="guide:A guide",
    )
    assert (host.action, host.only_if) == (Action.HOST, (Condition("config.bf16", "is", True),))
    assert tuple(host.list_facts()) == ("launch_starved_fraction",)
    assert host.fill(sheet_of({"launch_starved_fraction": 0.2})).host == Levels(0.8, 0.8, 0.8)


def test_no_replay_states_why_there_is_none(tmp_path: Path) -> None:
    (rule,) = load_rules(rules_directory(tmp_path, with_replay("  no_replay: nobody knows\n")), definitions=DEFINITIONS)
    assert (rule.gain.replay, rule.gain.no_replay) == ((), "nobody knows")


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ("    - {fuse: {work: [rops]}, reason: r}\n", "35:21: expected one of router, preprocess, "),
        ("    - {fuze: {work: [rope]}, reason: r}\n", "35:8: unknown key fuze (did you mean fuse?)"),
        (
            "    - {reason: r}\n",
            "35:7: an entry has one of scale, fuse, graph, ungraph, hide, expose, unwait, repeat,",
        ),
        ("    - {fuse: {}, scale: {}, reason: r}\n", "35:7: an entry has one of scale, fuse, graph, ungraph, hide,"),
        ("    - {fuse: {}, share: 0.5, reason: r}\n", "35:7: fuse has no share"),
        ("    - {fuse: {}}\n", "35:7: key reason is missing"),
        ("    - {micro_batch: {}, reason: r}\n", "35:7: micro_batch has a factor: one number or fact"),
        ("    - {scale: {}, time: -1.0, reason: r}\n", "35:25: expected a number from 0 to 10000, found -1"),
        (
            "    - {scale: {}, time: {low: 0.5, likely: 0.9, high: 0.1}, reason: r}\n",
            "35:25: likely lies between low (the smallest gain) and high (the largest), found 0.5, 0.9, 0.1",
        ),
        ("    - {scale: {}, time: {fact: no_such_fact}, reason: r}\n", "35:32: unknown fact no_such_fact"),
        ("    - {fuse: {}, added_kernels: 2.0, reason: r}\n", "35:7: fuse has no added_kernels"),
        ("    - {graph: {}, added_host_us: 2.0, reason: r}\n", "35:7: graph has no added_host_us"),
        ("    - {scale: {kernels: '('}, reason: r}\n", "35:25: not a regular expression: "),
        ("    - {scale: {}, reason: r, source: 'nowhere:x'}\n", "35:38: unknown source nowhere"),
        ("    - {scale: {work: []}, reason: r}\n", "35:22: expected at least one name; leave the key out to select"),
    ],
)
def test_each_error_has_its_place(tmp_path: Path, entry: str, complaint: str) -> None:
    (found,) = complaints(tmp_path, with_replay(f"  replay:\n{entry}"))
    assert found.startswith(complaint)


def test_replay_and_no_replay_exclude_each_other(tmp_path: Path) -> None:
    (found,) = complaints(tmp_path, with_replay(f"{ENTRY}  no_replay: nobody knows\n"))
    assert found.endswith("no_replay states why there is no replay: give one of them")


def test_facts_give_numbers_before_anything_is_predicted() -> None:
    efficiency = "expert_gemm_efficiency_fraction"
    time = ParameterRange(1.0, FactNumber(efficiency, over=0.5), FactNumber(efficiency, over=0.8))
    scale = ReplayEntry(scale=SelectionEntry(), time=time, reason="")
    heal = ReplayEntry(heal=SelectionEntry(ranks=RanksFact("culprit_rank")), reason="")
    factor = FactNumber("smaller_micro_batch_size", over="config.micro_batch_size")
    smaller = ReplayEntry(micro_batch=SelectionEntry(), factor=factor, reason="")
    facts = sheet_of(
        {
            "expert_gemm_efficiency_fraction": 0.4,
            "culprit_rank": 3,
            "smaller_micro_batch_size": 2,
            "config.micro_batch_size": 4,
        }
    )
    found, lacking = fill_entries((scale, heal, smaller), facts)
    assert not lacking
    assert found[0].time == Levels(1.0, 0.8, 0.5)
    assert found[1].select.ranks == (3,)
    assert found[2].factor == 0.5


def test_a_part_of_a_time_is_at_most_all_of_it() -> None:
    scale = scaled(FactNumber("expert_gemm_efficiency_fraction", over=0.5))
    (found,), _ = fill_entries((scale,), sheet_of({"expert_gemm_efficiency_fraction": 0.6}))
    assert found.time == ALL


def test_a_part_may_be_more_than_all_where_the_rule_lets_an_edit_cost_time() -> None:
    scale = scaled(FactNumber("ep_deduplicated_transfer_fraction", over=0.5, at_most=3.0))

    def time_at(fraction: float) -> Levels:
        (found,), _ = fill_entries((scale,), sheet_of({"ep_deduplicated_transfer_fraction": fraction}))
        return found.time

    assert time_at(0.6) == Levels(1.2, 1.2, 1.2)
    assert time_at(0.4) == Levels(0.8, 0.8, 0.8)
    assert time_at(2.0) == Levels(3.0, 3.0, 3.0)


@pytest.mark.parametrize(("spans_nodes", "lacking"), [(True, True), (False, False)])
def test_switching_to_deepep_is_predicted_inside_a_host_and_across_hosts(spans_nodes: bool, lacking: bool) -> None:
    run = sheet_of(
        {
            "ep_spans_nodes": spans_nodes,
            "config.moe_token_dispatcher_type": "alltoall",
            "config.moe_flex_dispatcher_backend": None,
            "experts_per_rank_count": 2,
            "ep_deduplicated_transfer_fraction": 0.5,
        }
    )
    settings = {"config.moe_token_dispatcher_type": "flex", "config.moe_flex_dispatcher_backend": "deepep"}
    found = compare_settings(EFFECTS, run, settings)
    assert bool(found.unknown) is lacking  # how many copies cross the network
    if not lacking:
        exchange, prepare, permute, *_ = found.transformations
        assert exchange.time.low > 1 > exchange.time.high  # with 20 SMs the transfer may take longer
        assert (prepare.select.work, permute.select.work) == (("preprocess",), ("permute", "unpermute"))
        assert permute.time.likely < 1


@pytest.mark.parametrize(
    ("gpu", "backend", "time"),
    [
        ("H100", "deepep", Levels(1.0, 0.75, 0.25)),
        ("H100", "hybridep", Levels(1.0, 0.75, 0.25)),  # one copy per host, as with DeepEP
        ("GB200", "hybridep", Levels(1.0, 0.78, 0.55)),  # inside the rack, as published
    ],
)
def test_across_hosts_the_exchange_shrinks_by_copies_and_in_a_rack_as_published(
    gpu: str, backend: str, time: Levels
) -> None:
    run = sheet_of(
        {
            "gpu.family": gpu,
            "ep_spans_nodes": True,
            "config.moe_token_dispatcher_type": "alltoall",
            "config.moe_flex_dispatcher_backend": None,
            "ep_internode_unique_copies_fraction": 0.25,
        }
    )
    settings = {"config.moe_token_dispatcher_type": "flex", "config.moe_flex_dispatcher_backend": backend}
    (exchange,) = compare_settings(EFFECTS, run, settings).transformations
    assert (exchange.select.work, exchange.time) == (("dispatch", "combine"), time)


def test_a_missing_fact_leaves_nothing_to_predict_and_is_named() -> None:
    scale = scaled(FactNumber("expert_gemm_efficiency_fraction"))
    assert fill_entries((scale,), sheet_of({})) == ((), ("expert_gemm_efficiency_fraction",))


def test_an_entry_is_left_out_where_its_condition_fails() -> None:
    bf16 = ReplayEntry(host=0.5, only_if=(Condition("config.bf16", "==", True),), reason="")
    assert fill_entries((bf16,), sheet_of({"config.bf16": False})) == ((), ())
    assert fill_entries((bf16,), sheet_of({"config.bf16": True})) == (
        (Transformation(Action.HOST, host=Levels(0.5, 0.5, 0.5)),),
        (),
    )


def test_advice_that_a_bound_is_known_for_states_a_replay_or_why_there_is_none() -> None:
    rules = load_rule_base(DEFINITIONS).rules
    silent = [
        rule.id
        for rule in rules
        if rule.advice and rule.gain.at_most and not rule.gain.replay and not rule.gain.no_replay
    ]
    assert silent == []


def test_of_entries_for_the_same_work_whose_conditions_are_unknown_the_first_counts() -> None:
    above = ReplayEntry(host=0.5, reason="a", only_if=(Condition("memory_peak_fraction", ">", 0.8),))
    below = ReplayEntry(host=0.5, reason="b", only_if=(Condition("memory_peak_fraction", "<=", 0.8),))
    assert [each.reason for each in fill_entries((above, below), sheet_of({}))[0]] == ["a"]
    assert [each.reason for each in fill_entries((above, below), sheet_of({"memory_peak_fraction": 0.5}))[0]] == ["b"]
