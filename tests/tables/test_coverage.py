"""What the guides say: the reader's strictness, and that everything the table names exists."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.paths import REPOSITORY
from three_walls.cli.main import cli
from three_walls.model.errors import RuleBaseError
from three_walls.model.glossary import GLOSSARY, is_known_fact
from three_walls.resources import RULES_DIR, TEMPLATES_DIR
from three_walls.rules.load import load_rules
from three_walls.rules.sources import load_sources
from three_walls.tables.coverage import KINDS, Statement, coverage, load_coverage

ROOT = REPOSITORY
STATEMENTS = [row for document in coverage().documents for row in document.statements()]
RULES = {rule.id for rule in load_rules(RULES_DIR, definitions=GLOSSARY)}
CODE_AGAINST_DOCUMENTATION = "Where documentation and code disagree"


def named(kind: str) -> list[str]:
    return [one.name for row in STATEMENTS for one in row.carried_by if one.kind == kind]


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
    assert RULES - set(named("rule")) == set(coverage().beyond_the_documents)


def test_every_fact_that_is_named_exists() -> None:
    assert [name for name in named("fact") if not is_known_fact(name)] == []


def test_every_warning_that_is_named_exists() -> None:
    assert set(named("warning")) - set(warning_codes()) == set()


def test_every_field_of_the_report_that_is_named_exists() -> None:
    schema = json.loads((TEMPLATES_DIR / "report.schema.json").read_text(encoding="utf-8"))
    assert set(named("report")) - set(schema["properties"]) == set()


def test_every_command_that_is_named_exists() -> None:
    assert set(named("command")) - set(cli.commands) == set()


def test_every_document_that_is_named_exists() -> None:
    assert [name for name in named("doc") if not (ROOT / name).is_file()] == []


def test_every_key_of_data_that_is_named_exists() -> None:
    files = {name.partition("#")[0] for name in named("data")}
    content = {name: yaml.safe_load((ROOT / name).read_text(encoding="utf-8")) for name in files}
    places = [name.partition("#") for name in named("data")]
    assert [name for name, _, key in places if not holds(content[name], key)] == []


def test_the_guides_are_those_that_rules_cite() -> None:
    guides = load_sources(RULES_DIR / "sources.yaml")["guide"].names
    titles = [document.title for document in coverage().documents]
    assert tuple(titles[: len(guides)]) == guides


def test_nothing_is_said_twice_in_one_part() -> None:
    for document in coverage().documents:
        for part in document.parts:
            said = [row.says for row in part.statements]
            assert len(set(said)) == len(said) > 0


def test_where_documentation_and_code_disagree_it_is_said_what_counts() -> None:
    rows: list[Statement] = []
    for document in coverage().documents:
        rows += document.statements() if document.title == CODE_AGAINST_DOCUMENTATION else []
    assert len(rows) == 11
    assert all(row.resolved and row.carried_by for row in rows)


def test_every_error_of_the_table_is_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "coverage.yaml"
    path.write_text(
        """\
documents:
  A guide:
    A part:
      - {says: both, carried_by: [rule:ep-overlap], because_not: none}
      - {says: neither}
      - {says: no kind, carried_by: [rul:ep-overlap]}
      - {says: no name, carried_by: ["fact:"]}
      - {says: no key, carried_by: [data:hardware.yaml]}
      - {says: nobody, carried_by: []}
      - {because_not: says nothing}
beyond_the_documents: {}
""",
        encoding="utf-8",
    )
    with pytest.raises(RuleBaseError) as caught:
        load_coverage(path)
    complaints = [line.partition("coverage.yaml:")[2] for line in str(caught.value).splitlines()]
    assert complaints == [
        "4:9: a statement has either carried_by or because_not",
        "5:9: a statement has either carried_by or because_not",
        "6:38: expected a reference such as rule:ep-overlap, found rul:ep-overlap (did you mean rule?)",
        "7:38: expected the name of a fact, found none",
        "8:37: expected data:<file>#<key>, found data:hardware.yaml",
        "9:36: expected at least one reference, found none",
        "10:9: key says is missing",
    ]
