"""What the guides say: the reader's strictness, that everything the file names exists, and the page made from it."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from tests.paths import REPOSITORY
from three_walls.cli.main import cli
from three_walls.facts.registry import DEFINITIONS
from three_walls.model.errors import RuleBaseError
from three_walls.resources import RULES_DIR
from three_walls.rules.conditions import KnownFacts
from three_walls.rules.load import load_rules
from tools.guide_coverage import KINDS, PAGE, Coverage, Statement, coverage_page, read_coverage

ROOT = REPOSITORY
COVERAGE = read_coverage()
RULES = {rule.id for rule in load_rules(RULES_DIR, definitions=DEFINITIONS)}
CODE_AGAINST_DOCUMENTATION = "Where documentation and code disagree"


def named(kind: str) -> list[str]:
    return [name for row in COVERAGE.statements() for name in row.references(kind)]


def warning_codes() -> Iterator[str]:
    """Codes of warnings that the code spells out (those of log lines are made from the kind of line)."""
    for path in sorted((ROOT / "three_walls").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ReportWarning"):
                continue
            if node.args and isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value)


def holds(value: object, key: str) -> bool:
    """Whether ``value`` holds the dotted ``key``."""
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return False
        value = value[part]
    return True


def test_every_kind_of_reference_is_in_use() -> None:
    assert {kind for kind in KINDS if not named(kind)} == set()


def test_every_rule_that_is_named_exists() -> None:
    assert set(named("rule")) - RULES == set()


def test_every_rule_is_called_for_by_a_statement_or_says_what_it_comes_from() -> None:
    assert RULES - set(named("rule")) == set(COVERAGE.beyond_the_documents)


def test_every_fact_that_is_named_exists() -> None:
    assert [name for name in named("fact") if KnownFacts.of(DEFINITIONS).unit_of(name) is None] == []


def test_every_warning_that_is_named_exists() -> None:
    assert set(named("warning")) - set(warning_codes()) == set()


def test_every_field_of_the_report_that_is_named_exists() -> None:
    schema = json.loads((REPOSITORY / "docs" / "generated" / "report.schema.json").read_text(encoding="utf-8"))
    assert set(named("report")) - set(schema["properties"]) == set()


def test_every_command_that_is_named_exists() -> None:
    assert set(named("command")) - set(cli.list_commands(click.Context(cli))) == set()


def test_every_document_that_is_named_exists() -> None:
    assert [name for name in named("doc") if not (ROOT / name).is_file()] == []


def test_every_key_of_data_that_is_named_exists() -> None:
    files = {name.partition("#")[0] for name in named("data")}
    content = {name: yaml.safe_load((ROOT / name).read_text(encoding="utf-8")) for name in files}
    places = [name.partition("#") for name in named("data")]
    assert [name for name, _, key in places if not holds(content[name], key)] == []


def test_the_guides_are_those_that_rules_cite() -> None:
    guides = yaml.safe_load((RULES_DIR / "sources.yaml").read_text(encoding="utf-8"))["guide"]["names"]
    assert list(COVERAGE.documents)[: len(guides)] == guides


def test_nothing_is_stated_twice_in_one_part() -> None:
    for parts in COVERAGE.documents.values():
        for rows in parts.values():
            statements = [row.statement for row in rows]
            assert len(set(statements)) == len(statements) > 0


def test_where_documentation_and_code_disagree_the_file_resolves_it() -> None:
    rows = list(COVERAGE.statements(CODE_AGAINST_DOCUMENTATION))
    assert len(rows) == 11
    assert all(row.resolved and row.implemented_by for row in rows)


def test_every_error_of_the_file_is_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "coverage.yaml"
    path.write_text(
        """\
documents:
  A guide:
    A part:
      - {statement: both, implemented_by: [rule:ep-overlap], not_implemented_because: none}
      - {statement: neither}
      - {statement: no kind, implemented_by: [rul:ep-overlap]}
      - {statement: no name, implemented_by: ["fact:"]}
      - {statement: no key, implemented_by: [data:hardware.yaml]}
      - {statement: nobody, implemented_by: []}
      - {not_implemented_because: states nothing}
beyond_the_documents: {}
""",
        encoding="utf-8",
    )
    with pytest.raises(RuleBaseError) as caught:
        read_coverage(path)
    complaints = [line.partition("coverage.yaml:")[2] for line in str(caught.value).splitlines()]
    assert complaints == [
        "4:9: a statement has either implemented_by or not_implemented_because",
        "5:9: a statement has either implemented_by or not_implemented_because",
        "6:47: expected a reference such as rule:ep-overlap, found rul:ep-overlap (did you mean rule?)",
        "7:47: expected the name of a fact, found none",
        "8:46: expected data:<file>#<key>, found data:hardware.yaml",
        "9:45: expected at least one reference, found none",
        "10:9: key statement is missing",
    ]


def test_a_row_of_the_page_names_what_implements_it_or_why_nothing_does() -> None:
    implemented = Statement(
        statement="a | b", implemented_by=("rule:ep-overlap", "fact:step_ns"), resolved="the code\ncounts"
    )
    missing = Statement(statement="decode is slow", not_implemented_because="about serving")
    small = Coverage(
        documents={"A guide": {"A part": (implemented, missing)}}, beyond_the_documents={"late-rank": "our captures"}
    )
    lines = coverage_page(small).splitlines()
    assert "2 statements: 1 implemented, 1 not, each with the reason." in lines
    assert "| a \\| b | rule `ep-overlap`, fact `step_ns` | the code counts |" in lines
    assert "| decode is slow | *not:* about serving |  |" in lines
    assert "| `late-rank` | our captures |" in lines


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == coverage_page(COVERAGE), "python tools/guide_coverage.py"
