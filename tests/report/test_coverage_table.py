"""The table of what the guides say, as Markdown, and its place in the README of the rules."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from three_walls.cli.main import cli
from three_walls.model.errors import UsageError
from three_walls.report.coverage_table import BEGIN, END, coverage_table, insert_coverage
from three_walls.resources import RULES_DIR
from three_walls.tables.coverage import Coverage, Document, Part, Reference, Statement, coverage

CARRIED = Statement("a | b", (Reference("rule", "ep-overlap"), Reference("fact", "step_ns")), "", "the code\ncounts")
NOT_CARRIED = Statement("decode is slow", (), "about serving", "")
SMALL = Coverage((Document("A guide", (Part("A part", (CARRIED, NOT_CARRIED)),)),), {"late-rank": "our captures"})


def test_a_row_names_what_carries_it_or_why_nothing_does() -> None:
    lines = coverage_table(SMALL).splitlines()
    assert lines[0] == "2 statements: 1 carried, 1 not, each with its reason."
    assert "| a \\| b | rule `ep-overlap`, fact `step_ns` | the code counts |" in lines
    assert "| decode is slow | *not:* about serving |  |" in lines
    assert "| `late-rank` | our captures |" in lines


def test_the_table_replaces_what_stands_between_the_markers_and_nothing_else() -> None:
    once = insert_coverage(f"before\n{BEGIN}\nold\n{END}\nafter\n", "new")
    assert once == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert insert_coverage(once, "new") == once


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}\n{BEGIN}", f"{BEGIN}\n{BEGIN}\n{END}", f"{BEGIN}\n{END}\n{END}"])
def test_a_document_without_one_pair_of_markers_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected one line"):
        insert_coverage(text, "new")


def test_the_readme_of_the_rules_is_up_to_date() -> None:
    text = (RULES_DIR / "README.md").read_text(encoding="utf-8")
    assert insert_coverage(text, coverage_table(coverage())) == text, (
        "three-walls rules coverage --into rules/README.md"
    )


def test_the_command_prints_the_table_or_writes_it_into_a_file(tmp_path: Path) -> None:
    printed = CliRunner().invoke(cli, ["rules", "coverage"], catch_exceptions=False).output
    assert printed == coverage_table(coverage()) + "\n"
    document = tmp_path / "README.md"
    document.write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    CliRunner().invoke(cli, ["rules", "coverage", "--into", str(document)], catch_exceptions=False)
    assert document.read_text(encoding="utf-8") == f"{BEGIN}\n\n{printed}\n{END}\n"
