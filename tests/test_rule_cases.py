"""Every case of every rule, written and derived: facts in, outcome, edits and gain out."""

from __future__ import annotations

from pathlib import Path

import pytest

from three_walls.advice.format.load_rules import cases_file, load_rule_base, rule_files
from three_walls.advice.testing.derive_cases import check_cases
from three_walls.advice.testing.rule_cases import load_cases
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.resources import RULES_DIR

RULES = {rule.id: rule for rule in load_rule_base(DEFINITIONS).rules}


@pytest.mark.parametrize("path", rule_files(RULES_DIR), ids=lambda path: path.stem)
def test_rule_cases(path: Path) -> None:
    report = check_cases(RULES[path.stem], load_cases(cases_file(path), definitions=DEFINITIONS))
    assert report.failures == []
    assert report.written >= 2
    assert report.derived >= 1
