"""docs/architecture.md names files and functions that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "three_walls"

QUESTIONS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "architecture.md").read_text().partition("## Where to find it")[2].splitlines()
    if line.startswith("| ") and line.count("|") == 4 and not line.startswith("| question")
]


def find_files(cell: str) -> list[Path]:
    """The Python files that a cell names; a bare file name is in the folder of the one before it, or in the package."""
    files: list[Path] = []
    for name in re.findall(r"`([\w/]+\.py)`", cell):
        files.append(files[-1].parent / name if files and "/" not in name else PACKAGE / name)
    return files


def test_the_questions_of_a_newcomer_are_answered() -> None:
    assert len(QUESTIONS) >= 15


@pytest.mark.parametrize(("question", "files", "functions"), QUESTIONS, ids=[row[0] for row in QUESTIONS])
def test_the_answer_to_a_question_is_where_the_page_says(question: str, files: str, functions: str) -> None:
    paths = find_files(files)
    assert all(path.is_file() for path in paths), question
    source = "\n".join(path.read_text() for path in paths)
    for function in re.findall(r"`(\w+)`", functions):
        assert f"def {function}(" in source, f"{question} {function}"


def test_every_package_is_described() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {name for name in packages if f"`{name}/`" not in page} == set()
