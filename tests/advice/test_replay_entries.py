"""The list ``gain.replay`` of a rule file: what it is read as, its errors, and the numbers that facts give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.advice.builders import sheet_of
from tests.advice.test_rulebase import RULE, complaints, rules_directory
from three_walls.advice.format.load_rules import load_rules
from three_walls.advice.plan.replays import resolve
from three_walls.facts.registry import DEFINITIONS
from three_walls.lib.expressions import Condition
from three_walls.lib.resources import RULES_DIR
from three_walls.replay.transformation import ALL, Action, FromFact, Level, Levels, Selection, Transformation

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


def with_replay(entry: str) -> str:
    return RULE.replace("  explanation: Because.\n", f"  explanation: Because.\n{entry}")


def read(tmp_path: Path, entry: str) -> tuple[Transformation, ...]:
    (rule,) = load_rules(rules_directory(tmp_path, with_replay(entry)), definitions=DEFINITIONS)
    return rule.gain.replay


def test_an_entry_is_an_action_a_selection_and_what_remains(tmp_path: Path) -> None:
    fuse, host = read(tmp_path, ENTRY)
    assert fuse == Transformation(
        Action.FUSE,
        Selection(work=("rope",), directions=("forward", "backward")),
        time=Levels(0.6, 0.4, 0.15),
        host=Levels(0.1, 0.1, 0.1),
        reason="one kernel",
        source="guide:A guide",
    )
    assert (host.action, host.only_if) == (Action.HOST, (Condition("config.bf16", "is", True),))
    assert host.from_facts == (FromFact("host", "launch_starved_fraction", one_minus=True),)


def test_no_replay_states_why_there_is_none(tmp_path: Path) -> None:
    (rule,) = load_rules(rules_directory(tmp_path, with_replay("  no_replay: nobody knows\n")), definitions=DEFINITIONS)
    assert (rule.gain.replay, rule.gain.no_replay) == ((), "nobody knows")


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ("    - {fuse: {work: [rops]}, reason: r}\n", "38:21: expected one of attention_core, barrier, "),
        ("    - {fuze: {work: [rope]}, reason: r}\n", "38:8: unknown key fuze (did you mean fuse?)"),
        (
            "    - {reason: r}\n",
            "38:7: an entry has one of scale, fuse, graph, hide, unwait, repeat, micro_batch,",
        ),
        ("    - {fuse: {}, scale: {}, reason: r}\n", "38:7: an entry has one of scale, fuse, graph, hide, unwait,"),
        ("    - {fuse: {}, share: 0.5, reason: r}\n", "38:7: fuse has no share"),
        ("    - {fuse: {}}\n", "38:7: key reason is missing"),
        ("    - {micro_batch: {}, reason: r}\n", "38:7: micro_batch has a factor: one number or fact"),
        ("    - {scale: {}, time: -1.0, reason: r}\n", "38:25: expected a number from 0 to 10000, found -1"),
        (
            "    - {scale: {}, time: {low: 0.5, likely: 0.9, high: 0.1}, reason: r}\n",
            "38:25: likely lies between low (the smallest gain) and high (the largest), found 0.5, 0.9, 0.1",
        ),
        ("    - {scale: {}, time: {fact: no_such_fact}, reason: r}\n", "38:32: unknown fact no_such_fact"),
        ("    - {fuse: {}, added_kernels: 2.0, reason: r}\n", "38:7: fuse has no added_kernels"),
        ("    - {scale: {kernels: '('}, reason: r}\n", "38:25: not a regular expression: "),
        ("    - {scale: {}, reason: r, source: 'nowhere:x'}\n", "38:38: unknown source nowhere"),
        ("    - {scale: {work: []}, reason: r}\n", "38:22: expected at least one name; leave the key out to select"),
    ],
)
def test_each_error_has_its_place(tmp_path: Path, entry: str, complaint: str) -> None:
    (found,) = complaints(tmp_path, with_replay(f"  replay:\n{entry}"))
    assert found.startswith(complaint)


def test_what_chooses_an_entry_is_compared_by_one(tmp_path: Path) -> None:
    (rule,) = load_rules(
        rules_directory(tmp_path, with_replay(f"{ENTRY}  chosen_by: [config.bf16]\n")), definitions=DEFINITIONS
    )
    assert rule.gain.chosen_by == ("config.bf16",)
    (found,) = complaints(tmp_path, with_replay(f"{ENTRY}  chosen_by: [config.fp8]\n"))
    assert found.endswith("chosen_by names settings that an only_if of replay compares, found config.fp8")


def test_replay_and_no_replay_exclude_each_other(tmp_path: Path) -> None:
    (found,) = complaints(tmp_path, with_replay(f"{ENTRY}  no_replay: nobody knows\n"))
    assert found.endswith("no_replay states why there is no replay: give one of them")


def test_facts_give_numbers_before_anything_is_predicted() -> None:
    scale = Transformation(
        Action.SCALE,
        time=Levels(1.0, 1.0, 1.0),
        from_facts=(
            FromFact("time", "expert_gemm_efficiency_fraction", Level.LIKELY, over=0.5),
            FromFact("time", "expert_gemm_efficiency_fraction", Level.HIGH, over=0.8),
        ),
    )
    heal = Transformation(Action.HEAL, from_facts=(FromFact("ranks", "culprit_rank"),))
    smaller = Transformation(
        Action.MICRO_BATCH, from_facts=(FromFact("factor", "smaller_micro_batch_size", over="config.micro_batch_size"),)
    )
    facts = sheet_of(
        {
            "expert_gemm_efficiency_fraction": 0.4,
            "culprit_rank": 3,
            "smaller_micro_batch_size": 2,
            "config.micro_batch_size": 4,
        }
    )
    found, lacking = resolve((scale, heal, smaller), facts)
    assert not lacking
    assert found[0].time == Levels(1.0, 0.8, 0.5)
    assert found[1].select.ranks == (3,)
    assert found[2].factor == 0.5
    assert all(not each.from_facts for each in found)


def test_a_part_of_a_time_is_at_most_all_of_it() -> None:
    scale = Transformation(Action.SCALE, from_facts=(FromFact("time", "expert_gemm_efficiency_fraction", over=0.5),))
    (found,), _ = resolve((scale,), sheet_of({"expert_gemm_efficiency_fraction": 0.6}))
    assert found.time == ALL


def test_a_part_may_be_more_than_all_where_the_rule_lets_an_edit_cost_time() -> None:
    slower = FromFact("time", "ep_deduplicated_transfer_fraction", over=0.5, at_most=3.0)
    scale = Transformation(Action.SCALE, from_facts=(slower,))

    def time_at(fraction: float) -> Levels:
        (found,), _ = resolve((scale,), sheet_of({"ep_deduplicated_transfer_fraction": fraction}))
        return found.time

    assert time_at(0.6) == Levels(1.2, 1.2, 1.2)
    assert time_at(0.4) == Levels(0.8, 0.8, 0.8)
    assert time_at(2.0) == Levels(3.0, 3.0, 3.0)


@pytest.mark.parametrize(("spans_nodes", "fact"), [(True, "ep_internode_unique_copies_fraction"), (False, "")])
def test_switching_to_deepep_is_predicted_inside_a_host_and_across_hosts(spans_nodes: bool, fact: str) -> None:
    (rule,) = (rule for rule in load_rules(RULES_DIR, definitions=DEFINITIONS) if rule.id == "alltoall-to-deepep")
    known = {
        "ep_spans_nodes": spans_nodes,
        "config.moe_token_dispatcher_type": "alltoall",
        "experts_per_rank_count": 2,
        "ep_deduplicated_transfer_fraction": 0.5,
    }
    found, lacking = resolve(rule.gain.replay, sheet_of(known))
    assert lacking == ((fact,) if fact else ())
    if not spans_nodes:
        exchange, prepare, permute, *_ = found
        assert exchange.time.low > 1 > exchange.time.high  # with 20 SMs the transfer may take longer
        assert (prepare.select.work, permute.select.work) == (("preprocess",), ("permute", "unpermute"))
        assert permute.time.likely < 1


@pytest.mark.parametrize("ratio", [0.5, 0.9])
def test_relaxed_recompute_waits_for_no_split_sizes_again(ratio: float) -> None:
    (rule,) = (rule for rule in load_rules(RULES_DIR, definitions=DEFINITIONS) if rule.id == "relax-full-recompute")
    found, _ = resolve(rule.gain.replay, sheet_of({"memory_peak_without_recompute_ratio": ratio}))
    assert [part.action for part in found] == [Action.SCALE, Action.UNWAIT]
    assert {part.select.directions for part in found} == {("recompute",)}


def test_a_missing_fact_leaves_nothing_to_predict_and_is_named() -> None:
    scale = Transformation(Action.SCALE, from_facts=(FromFact("time", "expert_gemm_efficiency_fraction"),))
    assert resolve((scale,), sheet_of({})) == ((), ("expert_gemm_efficiency_fraction",))


def test_an_entry_is_left_out_where_its_condition_fails() -> None:
    bf16 = Transformation(Action.HOST, only_if=(Condition("config.bf16", "==", True),))
    assert resolve((bf16,), sheet_of({"config.bf16": False})) == ((), ())
    assert resolve((bf16,), sheet_of({"config.bf16": True})) == ((replace(bf16, only_if=()),), ())


def test_a_rule_that_gains_time_states_a_replay_or_why_there_is_none() -> None:
    rules = load_rules(RULES_DIR, definitions=DEFINITIONS)
    silent = [rule.id for rule in rules if rule.gain.terms and not rule.gain.replay and not rule.gain.no_replay]
    assert silent == []


def test_of_entries_for_the_same_work_whose_conditions_are_unknown_the_first_counts() -> None:
    above = Transformation(Action.HOST, reason="a", only_if=(Condition("memory_peak_fraction", ">", 0.8),))
    below = Transformation(Action.HOST, reason="b", only_if=(Condition("memory_peak_fraction", "<=", 0.8),))
    assert [each.reason for each in resolve((above, below), sheet_of({}))[0]] == ["a"]
    assert [each.reason for each in resolve((above, below), sheet_of({"memory_peak_fraction": 0.5}))[0]] == ["b"]
