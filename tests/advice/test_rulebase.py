"""The loader: every error of every file at once, each with file, line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from three_walls.advice.format.load_rules import load_rules
from three_walls.advice.format.rule import FactTarget, GainModel, SideEffect, TimeShare
from three_walls.advice.format.rule_fields import OneMinusFact
from three_walls.advice.testing.rule_cases import load_cases
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.errors import RuleBaseError
from three_walls.lib.expressions import Condition, Junction

SOURCES = """\
mcore: {what: Megatron Core, repository: NVIDIA/Megatron-LM, commit: abc}
guide: {what: guides, names: [A guide]}
"""

RULE = """\
id: late-host
wall: compute_host
sub_wall: host
title: Launch earlier
applicability: execution-only
docs:
  what_it_looks_for: Gaps.
  why_it_matters: Time.
  how_to_verify: Again.
applies_to:
  - gpu.sm in ('sm_90',)
when:
  - launch_starved_fraction >= 0.1 and launch_starved_fraction < 0.9
requires:
  no_offload:
    check: config.cpu_offloading is False
    reason: it blocks
    source: mcore:a/b.py:1-2
  either:
    check:
      config.bf16 is True
      or config.fp16 is True
    confirm: half precision is used
    reason: it must
    source: guide:A guide
lever: launches
edits:
  - {set: cuda_graph_scope, to: [moe_router]}
  - {env: SOME_VARIABLE, to: {fact: world_size}}
side_effects:
  - {effect: more memory, source: "guide:A guide"}
gain:
  at_most:
    - {time: launch_starved_ns, share: 0.6}
  within: [idle_ns]
  explanation: Because.
evidence:
  for:
    - {claim: it helped, source: "mcore:a/b.py:3"}
"""


def rules_directory(tmp_path: Path, text: str = RULE, name: str = "late-host") -> Path:
    (tmp_path / "compute-host").mkdir(exist_ok=True)
    (tmp_path / "compute-host" / f"{name}.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "sources.yaml").write_text(SOURCES, encoding="utf-8")
    return tmp_path


def effects_directory(tmp_path: Path, text: str, name: str = "fused") -> Path:
    (tmp_path / "effects").mkdir(exist_ok=True)
    (tmp_path / "effects" / f"{name}.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "sources.yaml").write_text(SOURCES, encoding="utf-8")
    return tmp_path


def complaints(tmp_path: Path, text: str, name: str = "late-host") -> list[str]:
    with pytest.raises(RuleBaseError) as caught:
        load_rules(rules_directory(tmp_path, text, name), definitions=DEFINITIONS)
    return [line.removeprefix(f"{tmp_path}/compute-host/{name}.yaml:") for line in str(caught.value).splitlines()]


def test_a_correct_rule_is_read_in_full(tmp_path: Path) -> None:
    (rule,) = load_rules(rules_directory(tmp_path), definitions=DEFINITIONS)
    assert rule.id == "late-host"
    assert rule.path == "compute-host/late-host.yaml"
    assert rule.when == (
        Condition("launch_starved_fraction", ">=", 0.1),
        Condition("launch_starved_fraction", "<", 0.9),
    )
    assert rule.requires["no_offload"].check == (Condition("config.cpu_offloading", "is", False),)
    bf16, fp16 = Condition("config.bf16", "is", True), Condition("config.fp16", "is", True)
    assert rule.requires["either"].check == (Junction("or", (bf16, fp16)),)
    assert rule.edits[0].to == ("moe_router",)
    assert (rule.edits[1].kind, rule.edits[1].to) == ("env", FactTarget("world_size"))
    most = TimeShare(time="launch_starved_ns", share=0.6)
    assert rule.gain == GainModel(at_most=(most,), within=("idle_ns",), explanation="Because.")
    assert rule.side_effects == (SideEffect("more memory", "guide:A guide"),)


def test_cases_and_tables_at_the_top_are_no_rules(tmp_path: Path) -> None:
    directory = rules_directory(tmp_path)
    (directory / "compute-host" / "late-host.cases.yaml").write_text("rule: late-host", encoding="utf-8")
    (directory / "hardware.yaml").write_text("not: a rule", encoding="utf-8")
    assert len(load_rules(directory, definitions=DEFINITIONS)) == 1


def test_all_errors_of_a_file_are_reported_at_once_with_their_places(tmp_path: Path) -> None:
    text = (
        RULE.replace("wall: compute_host", "wall: compute-host")
        .replace("title: Launch earlier", "title: no")
        .replace("launch_starved_fraction >=", "launch_straved_fraction >=")
        .replace("share: 0.6", "share: 1e-3")
        .replace("mcore:a/b.py:3", "mcor:a/b.py:3")
        .replace("lever: launches", "lever: launches\nlever: again\ncolour: red")
    )
    found = complaints(tmp_path, text)
    assert found == [
        "2:7: expected one of memory, communication, compute_host, found compute-host (did you mean compute_host?)",
        "4:8: no is ambiguous: YAML reads a boolean; quote it, or write true or false",
        "13:5: unknown fact launch_straved_fraction (did you mean launch_starved_fraction?)",
        "27:1: key lever is repeated (first on line 26)",
        "28:1: unknown key colour",
        "36:40: 1e-3 is ambiguous: YAML reads text, though it looks like a number; quote it, or write it as 1.0e-3 or "
        "0.001",
        "41:34: unknown source mcor (did you mean mcore?)",
    ]


def test_errors_of_several_files_are_reported_together(tmp_path: Path) -> None:
    directory = rules_directory(tmp_path, RULE.replace("id: late-host", "id: other"))
    (directory / "compute-host" / "broken.yaml").write_text("id: [", encoding="utf-8")
    with pytest.raises(RuleBaseError) as caught:
        load_rules(directory, definitions=DEFINITIONS)
    broken, misnamed = str(caught.value).splitlines()
    assert "broken.yaml:" in broken
    assert "not valid YAML" in broken
    assert misnamed.endswith("late-host.yaml:1:5: expected the file's name late-host as id, found other")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (">= 0.1", "=> 0.1", "13:5: expected an expression, found launch_starved_fraction => 0.1 and "),
        (">= 0.1", "+ 0.1 > 1", "expected a comparison of a fact with a value, such as "),
        (">= 0.1", ">= 10", "a fraction lies between 0 and 1, found a number, 10"),
        (">= 0.1", ">= 'many'", "launch_starved_fraction: >= takes a number, found text, 'many'"),
        (">= 0.1", ">= many", "launch_starved_fraction: expected a value, found many (did you mean 'many'?)"),
        (">= 0.1", ">= step_ns", "launch_starved_fraction: expected a value, found step_ns, another fact"),
        (">= 0.1 and launch_starved_fraction < 0.9", "", "expected a comparison of a fact with a value"),
        ("- launch_starved_fraction >= 0.1", "- {launch_starved_fraction: {at_least: 0.1}} #", "found a mapping"),
        ("- launch_starved_fraction >= 0.1", "- 3 #", "13:5: expected a condition such as "),
        ("in ('sm_90',)", "in 'sm_90'", "gpu.sm: in takes a list"),
        ("in ('sm_90',)", "in ('sm_90', 90)", "a text fact is compared with text"),
        ("in ('sm_90',)", ">= 90", ">= needs a numeric fact, this fact is text"),
        ("in ('sm_90',)", "== 90", "a text fact is compared with text"),
        ("in ('sm_90',)", "is 'sm_90'", "is takes True, False or None; write == or !="),
        ("gpu.sm in ('sm_90',)", "gpu.smm == 'sm_90'", "11:5: unknown fact gpu.smm (did you mean gpu.sm?)"),
        ("gpu.sm in ('sm_90',)", "ep_spans_nodes == 1", "a flag is compared with True or False"),
        ("gpu.sm in ('sm_90',)", "ep_spans_nodes == true", "expected a value, found true (did you mean True?)"),
        ("gpu.sm in ('sm_90',)", "config.fp8 is not null", "expected a value, found null (did you mean None?)"),
        ("gpu.sm in ('sm_90',)", "env.X == 1", "a variable is compared with text (quote it) or None"),
        ("gpu.sm in ('sm_90',)", "num_microbatches == 'two'", "is compared with a number"),
        ("- gpu.sm in ('sm_90',)", "- >\n   'two' in num_microbatches", "in needs a list or text"),
        ("- gpu.sm in ('sm_90',)", "- >\n   2 in config.modules", "in takes text"),
        ("mcore:a/b.py:1-2", "mcore:a/b.py", "expected path:line or path:line-line"),
        ("source: guide:A guide", "source: guide:A giude", "unknown name 'A giude' (did you mean A guide?)"),
        ("{set: cuda_graph_scope, to: [moe_router]}", "{to: 1}", "an edit names either set"),
        ("{set: cuda_graph_scope, to: [moe_router]}", "{env: X, to: 1}", "a variable is set to text"),
        ("{fact: world_size}", "{fact: gpus}", "unknown fact gpus"),
        ("time: launch_starved_ns", "time: launch_starved_fraction", "expected a fact in ns"),
        ("within: [idle_ns]", "within: [gpu.sm]", "expected a fact in ns"),
        ("share: 0.6", "share: 1.6", "expected a number from 0 to 1, found 1.6"),
        ("share: 0.6", "share: {one_minus_fact: step_ns}", "expected a fact in fraction"),
        ("within: [idle_ns]", "basis: measured", "unknown key basis"),
        ("within: [idle_ns]", "frees_memory: true", "give at_most or frees_memory, found both"),
        ("  explanation: Because.\n", "", "key explanation is missing"),
        (
            "  explanation: Because.\n",
            "  explanation: Because.\n  no_replay: nobody knows\n",
            "what edits change in a replay is stated in rules/effects: remove replay and no_replay",
        ),
        ("sub_wall: host\n", "", "sub_wall is for rules of wall compute_host"),
        ("wall: compute_host\nsub_wall: host", "wall: memory", "a rule of wall memory belongs in memory/"),
        ("check: config.cpu_offloading is False", "check: []", "a requirement needs check or confirm"),
        ("applicability: execution-only", "applicability: risky", "expected one of execution-only"),
        ("  why_it_matters: Time.\n", "", "key why_it_matters is missing"),
        ("edits:\n", "edits: []\nx:\n", "expected at least one edit"),
        ("is True\n      or", "is True\n      xor", "expected an expression, found config.bf16 is True xor "),
        ("check:\n      config.bf16", "any_of:\n      config.bf16", "unknown key any_of"),
    ],
)
def test_each_mistake_has_its_sentence(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in RULE
    found = complaints(tmp_path, RULE.replace(old, new))
    assert any(complaint in line for line in found), found
    assert all(line[0].isdigit() for line in found)


AT_MOST = "  at_most:\n    - {time: launch_starved_ns, share: 0.6}\n  within: [idle_ns]\n"


def test_what_frees_memory_has_no_upper_bound(tmp_path: Path) -> None:
    text = RULE.replace(AT_MOST, "  frees_memory: true\n")
    (rule,) = load_rules(rules_directory(tmp_path, text), definitions=DEFINITIONS)
    assert (rule.gain.frees_memory, rule.gain.at_most) == (True, ())


def test_what_limits_an_upper_bound_needs_one(tmp_path: Path) -> None:
    (found,) = complaints(tmp_path, RULE.replace(AT_MOST, "  within: [idle_ns]\n"))
    assert found.endswith("within limits what at_most adds up: give at_most too")
    without_any = RULE.replace(AT_MOST, "")
    (rule,) = load_rules(rules_directory(tmp_path, without_any), definitions=DEFINITIONS)
    assert rule.gain == GainModel(explanation="Because.")


def test_a_share_may_come_from_a_fact(tmp_path: Path) -> None:
    text = RULE.replace("share: 0.6", "share: {one_minus_fact: ep_internode_unique_copies_fraction}")
    (rule,) = load_rules(rules_directory(tmp_path, text), definitions=DEFINITIONS)
    assert rule.gain.at_most[0].share == OneMinusFact("ep_internode_unique_copies_fraction")
    assert rule.gain.at_most[0].facts == ("launch_starved_ns", "ep_internode_unique_copies_fraction")


def test_cases_complain_about_unknown_facts_and_expectations(tmp_path: Path) -> None:
    path = tmp_path / "late-host.cases.yaml"
    path.write_text(
        "rule: other\nworkload: {no_such_fact: 1}\ncases:\n  a: {expect: {outcome: fine, colour: red}}\n",
        encoding="utf-8",
    )
    with pytest.raises(RuleBaseError) as caught:
        load_cases(path, definitions=DEFINITIONS)
    text = str(caught.value)
    assert "2:12: unknown fact no_such_fact" in text
    assert "4:32: unknown key colour" in text or "unknown key colour" in text
    assert "expected one of not_applicable" in text
    assert "expected the file's name late-host as rule, found other" in text
