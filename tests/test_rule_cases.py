"""Every case of every rule: facts in, outcome, edits and gain out."""

from __future__ import annotations

import pytest

from three_walls.resources import RULES_DIR
from three_walls.rules.cases import Case, RuleCases, mismatches
from three_walls.rules.load import cases_file, load_cases, load_rules, rule_files
from three_walls.rules.small_gains import judge_with_size

RULES = {rule.id: rule for rule in load_rules(RULES_DIR)}
ALL = [
    (found, case) for path in rule_files(RULES_DIR) for found in [load_cases(cases_file(path))] for case in found.cases
]


@pytest.mark.parametrize(("cases", "case"), ALL, ids=[f"{cases.rule}: {case.name}" for cases, case in ALL])
def test_rule_case(cases: RuleCases, case: Case) -> None:
    finding = judge_with_size(RULES[cases.rule], cases.facts_of(case))
    assert not mismatches(case, finding), finding.reason
