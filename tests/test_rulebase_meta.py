"""What every rule of the rule base must have, whoever writes it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from three_walls.advice.rule_parts import unit_of
from three_walls.advice.rulebase import cases_file, load_cases, load_rules, rule_files
from three_walls.advice.sources import read_sources
from three_walls.knowledge.strict_yaml import Problems
from three_walls.resources import RULES_DIR
from three_walls.vocabulary.glossary import is_known_fact
from three_walls.vocabulary.rules import Condition, Rule

RULES = load_rules(RULES_DIR)
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)


def conditions_of(rule: Rule) -> Iterator[Condition]:
    yield from (*rule.applies_to, *rule.when)
    for requirement in rule.requires:
        yield from requirement.checks
    for edit in rule.edits:
        yield from edit.only_if


def test_there_is_a_rule_for_each_wall() -> None:
    assert {rule.wall.value for rule in RULES} == {"memory", "communication", "compute_host"}


def test_ids_are_the_file_names_in_order() -> None:
    assert [rule.id for rule in RULES] == sorted(path.stem for path in rule_files(RULES_DIR))


@each_rule
def test_docs_say_what_why_and_how(rule: Rule) -> None:
    for text in (rule.what_it_looks_for, rule.why_it_matters, rule.how_to_verify):
        assert text.endswith((".", "?")), text
        assert len(text) > 40
    assert not rule.title.endswith(".")


@each_rule
def test_every_fact_is_in_the_glossary(rule: Rule) -> None:
    names = [condition.fact for condition in conditions_of(rule)]
    names += [term.pool for term in rule.gain.terms]
    names += [edit.to_fact for edit in rule.edits if edit.to_fact]
    assert [name for name in names if not is_known_fact(name)] == []


@each_rule
def test_every_pointer_leads_to_a_known_source(rule: Rule) -> None:
    sources = read_sources(RULES_DIR / "sources.yaml", Problems())
    pointers = [one.source for one in rule.requires] + [one.source for one in rule.evidence]
    pointers += [edit.source for edit in rule.edits if edit.source]
    assert pointers
    for pointer in pointers:
        prefix, _, rest = pointer.partition(":")
        assert sources[prefix].complaint_about(rest) == ""


@each_rule
def test_every_requirement_and_gain_says_why(rule: Rule) -> None:
    assert all(one.because and one.source for one in rule.requires)
    assert rule.gain.explanation
    assert any(one.speaks == "for" for one in rule.evidence)


@each_rule
def test_every_rule_has_the_cases_that_show_its_limits(rule: Rule) -> None:
    path = next(path for path in rule_files(RULES_DIR) if path.stem == rule.id)
    cases = load_cases(cases_file(path)).cases
    outcomes = {case.expect["outcome"] for case in cases}
    assert outcomes >= {"recommended", "not_needed", "not_applicable", "unknown", "blocked"}
    assert any(case.expect["outcome"] == "unknown" and case.without and case.expect.get("missing") for case in cases)
    assert all(case.expect.get("blocked_by") for case in cases if case.expect["outcome"] == "blocked")


@each_rule
def test_some_case_is_silent_just_below_each_measured_threshold(rule: Rule) -> None:
    path = next(path for path in rule_files(RULES_DIR) if path.stem == rule.id)
    cases = load_cases(cases_file(path)).cases
    for condition in rule.when:
        if condition.operator != "at_least" or unit_of(condition.fact) != "fraction":
            continue
        limit = condition.operand
        assert isinstance(limit, float)
        given = [
            (value, case.expect["outcome"])
            for case in cases
            if isinstance(value := case.given.get(condition.fact), float)
        ]
        assert any(0.95 * limit <= value < limit and outcome == "not_needed" for value, outcome in given)
        assert any(value == limit and outcome == "recommended" for value, outcome in given)


@each_rule
def test_every_setting_is_a_known_config_key(rule: Rule) -> None:
    path = RULES_DIR / "config-keys.yaml"
    if not path.exists():
        pytest.skip("no table of config keys")
    known = set(yaml.safe_load(path.read_text(encoding="utf-8"))["keys"])
    keys = {edit.key for edit in rule.edits if edit.kind == "config"}
    compared = {c.fact.removeprefix("config.") for c in conditions_of(rule) if c.fact.startswith("config.")}
    assert (keys | compared) - known == set()


def test_the_index_of_rules_is_complete() -> None:
    index = (RULES_DIR / "README.md").read_text(encoding="utf-8")
    for rule in RULES:
        assert f"[{rule.id}]({rule.path})" in index
        assert rule.title in index
